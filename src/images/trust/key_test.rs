//! Tests of keys and signatures that `openssl` makes.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::*;

/// Runs `openssl`, of the package of that name, in a folder of its own.
struct OpenSsl(PathBuf);

impl OpenSsl {
    fn new(name: &str) -> Self {
        let name = format!("coracle-keys-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn run(&self, args: &str, input: &[u8]) -> Vec<u8> {
        let mut child = Command::new("openssl")
            .args(args.split(' '))
            .current_dir(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("openssl, of Debian's package of that name");
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {args}: {said}");
        output.stdout
    }

    fn file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap()
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn keys_and_signatures_of_openssl_are_understood() {
    for (kind, make, sign) in [
        (
            "pkcs8",
            "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key",
            "dgst -sha256 -sign key -out signature message",
        ),
        (
            "ecparam",
            "ecparam -name prime256v1 -genkey -out key",
            "dgst -sha256 -sign key -out signature message",
        ),
        (
            "ed25519",
            "genpkey -algorithm ED25519 -out key",
            "pkeyutl -sign -inkey key -rawin -in message -out signature",
        ),
    ] {
        let openssl = OpenSsl::new(kind);
        std::fs::write(openssl.0.join("message"), "hello").unwrap();
        openssl.run(make, b"");
        openssl.run("pkey -in key -pubout -out pub", b"");
        openssl.run(sign, b"");
        let public = PublicKey::parse(&openssl.file("pub")).unwrap();
        let signature = openssl.file("signature");
        assert!(public.verifies(b"hello", &signature), "{kind}");
        assert!(!public.verifies(b"hallo", &signature), "{kind}");
        assert!(!public.verifies(b"hello", &signature[1..]), "{kind}");
        // And the other way round.
        let private = PrivateKey::read(&openssl.0.join("key")).unwrap();
        assert_eq!(private.public(), public, "{kind}");
        std::fs::write(openssl.0.join("own"), private.sign(b"hello").unwrap()).unwrap();
        openssl.run(
            match kind {
                "ed25519" => "pkeyutl -verify -pubin -inkey pub -rawin -in message -sigfile own",
                _ => "dgst -sha256 -verify pub -signature own message",
            },
            b"",
        );
        let info = openssl.run("pkey -pubin -in pub -outform DER", b"");
        assert_eq!(public.fingerprint(), digest::of(&info), "{kind}");
    }
}

#[test]
fn other_keys_are_refused_by_name() {
    let openssl = OpenSsl::new("others");
    openssl.run(
        "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out rsa",
        b"",
    );
    openssl.run(
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out p384",
        b"",
    );
    openssl.run("genpkey -algorithm ED448 -out ed448", b"");
    openssl.run("ecparam -name prime256v1 -genkey -out p256", b"");
    openssl.run("pkcs8 -topk8 -in p256 -passout pass:1 -out encrypted", b"");
    openssl.run("ec -in p256 -aes128 -passout pass:1 -out old", b"");
    for (file, expected) in [
        ("rsa", "an RSA key"),
        ("p384", "another curve"),
        ("ed448", "another kind of key"),
        ("encrypted", "`ENCRYPTED PRIVATE KEY`"),
        ("old", "`ENCRYPTED PRIVATE KEY`"),
    ] {
        let why = PrivateKey::parse(&openssl.file(file)).unwrap_err();
        assert!(why.to_string().contains(expected), "{file}: {why}");
        assert!(
            why.hint().is_some_and(|hint| hint.contains("openssl")),
            "{file}"
        );
    }
    for (file, expected) in [("rsa", "an RSA key"), ("p384", "another curve")] {
        let public = openssl.run(&format!("pkey -in {file} -pubout"), b"");
        let why = PublicKey::parse(&public).unwrap_err();
        assert!(why.to_string().contains(expected), "{file}: {why}");
    }
    let why = PublicKey::parse(&openssl.file("p256")).unwrap_err();
    assert!(why.to_string().contains("not a public key"), "{why}");
    let compressed = openssl.run("pkey -in p256 -pubout -ec_conv_form compressed", b"");
    assert!(matches!(
        PublicKey::parse(&compressed),
        Err(KeyError::Damaged)
    ));
}

#[test]
fn the_keys_of_cosign_are_refused_with_a_way_out() {
    let pem = b"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\neyJrZGYiOnt9fQ==\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n";
    let why = PrivateKey::parse(pem).unwrap_err();
    assert!(
        why.to_string().contains("ENCRYPTED SIGSTORE PRIVATE KEY"),
        "{why}"
    );
    assert!(why.hint().unwrap().contains("cosign import-key-pair"));
}

#[test]
fn what_is_no_key_is_refused() {
    for text in [
        "",
        "hello",
        "-----BEGIN PUBLIC KEY-----",
        "-----BEGIN PUBLIC KEY-----\nAAAA\n",
        "-----BEGIN \n-----",
        "\u{0}",
    ] {
        let why = PublicKey::parse(text.as_bytes()).unwrap_err();
        assert!(matches!(why, KeyError::NotPem), "{text}: {why}");
    }
    for body in ["!", "AAAA", ""] {
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n");
        assert!(PublicKey::parse(pem.as_bytes()).is_err(), "{body}");
        let pem = pem.replace("PUBLIC", "PRIVATE");
        assert!(PrivateKey::parse(pem.as_bytes()).is_err(), "{body}");
    }
    assert!(PublicKey::parse(b"\xff").is_err());
}

#[test]
fn every_byte_of_a_key_counts() {
    let openssl = OpenSsl::new("bytes");
    openssl.run(
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key",
        b"",
    );
    let pem = openssl.file("key");
    let private = PrivateKey::parse(&pem).unwrap();
    let shown = format!("{private:?}");
    assert_eq!(shown, "PrivateKey(…)");
    let (_, der) = block(&pem).unwrap();
    for at in 0..der.len() {
        let mut changed = der.clone();
        changed[at] ^= 1;
        // Whatever comes out, nothing panics, and the same key does not.
        if let Ok(other) = pkcs8(&changed) {
            assert_ne!(other.public(), private.public(), "byte {at}");
        }
    }
}
