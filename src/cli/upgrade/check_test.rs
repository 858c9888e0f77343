use std::fs;

use super::*;
use crate::images::trust::{PrivateKey, encode_base64};

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("coracle-check-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("keys")).unwrap();
    dir
}

/// A key as `openssl pkey -pubout` writes it.
fn pem(key: &PrivateKey) -> String {
    let line: String = key.public().into();
    format!("-----BEGIN PUBLIC KEY-----\n{line}\n-----END PUBLIC KEY-----\n")
}

#[test]
fn keys_cannot_be_got_around() {
    let dir = folder("signed");
    let (file, keys, none) = (dir.join("new"), dir.join("keys"), dir.join("none"));
    let (owner, stranger) = (PrivateKey::generate(), PrivateKey::generate());
    let bytes = b"a program";
    let sign = |key: &PrivateKey| key.sign(bytes).unwrap();
    let refused = |keys: &Path, unsigned: bool| {
        signed(&file, bytes, keys, unsigned).map_err(|e| e.to_string())
    };
    assert!(
        refused(&none, false)
            .unwrap_err()
            .contains("there is no key")
    );
    assert!(refused(&none, true).is_ok());
    assert!(refused(&keys, true).is_ok(), "a folder without keys");
    fs::write(keys.join("owner.pub"), pem(&owner)).unwrap();
    assert!(
        refused(&keys, true)
            .unwrap_err()
            .contains("--unsigned is not accepted")
    );
    assert!(refused(&keys, false).unwrap_err().contains("no signature"));
    let sig = dir.join("new.sig");
    for (what, content, wanted) in [
        ("bytes", sign(&owner), true),
        ("base64", encode_base64(&sign(&owner)).into_bytes(), true),
        ("a stranger's", sign(&stranger), false),
        ("of another file", owner.sign(b"other").unwrap(), false),
        ("nothing", Vec::new(), false),
    ] {
        fs::write(&sig, content).unwrap();
        assert_eq!(refused(&keys, false).is_ok(), wanted, "{what}");
    }
    fs::write(&sig, sign(&owner)).unwrap();
    // A damaged key is not the absence of a key.
    fs::write(keys.join("owner.pub"), "broken").unwrap();
    assert!(refused(&keys, false).is_err() && refused(&keys, true).is_err());
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn only_whole_static_programs_of_this_machine_run_here() {
    let own = fs::read("/proc/self/exe").unwrap();
    assert_eq!(runs_here(&own, &own), Ok(()));
    for cut in [0, 3, 40, 64, 4096, own.len() / 2, own.len() - 1] {
        assert!(runs_here(&own[..cut], &own).is_err(), "{cut} bytes");
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = own.clone();
        bytes[at] = byte;
        bytes
    };
    // Where the header has the place of the segments, and what the other machine is called.
    let (at, length) = match cfg!(target_pointer_width = "64") {
        true => (32, 8),
        false => (28, 4),
    };
    let (machine, other) = match (cfg!(target_arch = "riscv64"), length) {
        (true, _) => (183, "it is for aarch64"),
        (false, 8) => (243, "it is for riscv64"),
        (false, _) => (243, "it is for machine 243 with 32 bits"),
    };
    for (what, bytes, wanted) in [
        ("another machine", with(18, machine), other),
        ("big endian", with(5, 2), "no program of Linux"),
        ("a library or object", with(16, 1), "no program of Linux"),
        ("text", b"#!/bin/sh\n".to_vec(), "no program of Linux"),
    ] {
        let said = runs_here(&bytes, &own).unwrap_err();
        assert!(said.contains(wanted), "{what}: {said}");
    }
    // A segment that names an interpreter.
    let mut linked = own.clone();
    let at = usize::try_from(number(&own, at, length).unwrap()).unwrap();
    linked[at..at + 4].copy_from_slice(&3_u32.to_le_bytes());
    assert_eq!(runs_here(&linked, &own), Err("it is not static".to_owned()));
    // Whatever the header says, nothing panics.
    let mut bytes = own.clone();
    for at in 0..64 {
        for byte in [0, 1, 0x7f, 0xff] {
            bytes[at] = byte;
            let _ = runs_here(&bytes, &own);
        }
        bytes[at] = own[at];
    }
}
