//! Tests of signatures and their manifests.

use super::*;

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn payload() -> Payload {
    Payload {
        reference: "registry.example.com/shop/web".to_owned(),
        digest: DIGEST.to_owned(),
    }
}

#[test]
fn what_cosign_signs_is_understood() {
    let written = format!(
        r#"{{"critical":{{"identity":{{"docker-reference":"registry.example.com/shop/web"}},"image":{{"docker-manifest-digest":"{DIGEST}"}},"type":"cosign container image signature"}},"optional":{{"creator":"me","timestamp":1}}}}"#
    );
    assert_eq!(Payload::parse(written.as_bytes()).unwrap(), payload());
    assert_eq!(Payload::parse(&payload().to_json()).unwrap(), payload());
}

#[test]
fn documents_that_could_mean_something_else_are_refused() {
    let good = String::from_utf8(payload().to_json()).unwrap();
    for (from, to, expected) in [
        (DIGEST, "sha256:12", "no sha256 digest"),
        (
            "cosign container",
            "atomic container",
            "its type is `atomic",
        ),
        ("\"optional\"", "\"more\"", "unknown field `more`"),
        ("\"identity\"", "\"identities\"", "unknown field"),
        ("\"type\"", "\"until\":1,\"type\"", "unknown field `until`"),
        (
            "\"type\"",
            "\"image\":{\"docker-manifest-digest\":\"sha256:0\"},\"type\"",
            "duplicate field `image`",
        ),
        ("{\"critical\"", "[\"critical\"", "not valid"),
    ] {
        let changed = good.replacen(from, to, 1);
        assert_ne!(changed, good);
        let why = Payload::parse(changed.as_bytes()).unwrap_err().to_string();
        assert!(why.contains(expected), "{changed}: {why}");
    }
    let long = vec![b' '; 70_000];
    assert!(
        Payload::parse(&long)
            .unwrap_err()
            .to_string()
            .contains("longer than")
    );
}

#[test]
fn a_signature_is_that_of_one_key_and_one_document() {
    let key = PrivateKey::generate();
    let signed = Signature::make(&key, &payload()).unwrap();
    let keys = [PrivateKey::generate().public(), key.public()];
    let (said, by) = signed.verify(&keys).unwrap();
    assert_eq!((said, by), (payload(), &keys[1]));
    assert!(matches!(
        signed.verify(&keys[..1]),
        Err(SignatureError::Key)
    ));
    assert!(matches!(signed.verify(&[]), Err(SignatureError::Key)));
    let mut changed = signed.clone();
    changed.payload.push(b'\n');
    assert!(matches!(changed.verify(&keys), Err(SignatureError::Key)));
}

#[test]
fn manifests_carry_signatures_the_newest_first() {
    let first = Signature::make(&PrivateKey::generate(), &payload()).unwrap();
    let mut other = payload();
    other.reference.push_str(":2");
    let second = Signature::make(&PrivateKey::generate(), &other).unwrap();
    let (manifest, config) = signature_manifest(&[first.clone(), second.clone()]);
    let layers = signature_layers(&manifest).unwrap();
    let expected = [second, first].map(|signature| SignatureLayer {
        digest: digest::of(&signature.payload),
        size: signature.payload.len() as u64,
        signature: signature.signature,
    });
    assert_eq!(layers, expected);
    let text = String::from_utf8(manifest).unwrap();
    assert!(text.contains(&digest::of(&config)), "{text}");
    for (from, to) in [
        (SIMPLE_SIGNING, "application/octet-stream"),
        (SIGNATURE, "other"),
        ("sha256:", "sha512:"),
    ] {
        let none = signature_layers(text.replace(from, to).as_bytes()).unwrap();
        assert_eq!(none, [], "{from}");
    }
}

#[test]
fn endless_lists_of_signatures_are_cut() {
    let signature = Signature {
        payload: b"x".to_vec(),
        signature: vec![1; 70],
    };
    let (manifest, _) = signature_manifest(&vec![signature; 100]);
    assert_eq!(signature_layers(&manifest).unwrap().len(), MAX_SIGNATURES);
    let long = Signature {
        payload: b"x".to_vec(),
        signature: vec![1; 2000],
    };
    let (manifest, _) = signature_manifest(&[long]);
    assert_eq!(signature_layers(&manifest).unwrap(), []);
    assert!(
        signature_layers(b"[1]")
            .unwrap_err()
            .to_string()
            .contains("not valid")
    );
}

#[test]
fn the_tag_is_cosigns() {
    assert_eq!(
        signature_tag(DIGEST),
        "sha256-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.sig"
    );
}

#[test]
fn lists_are_those_of_cosign_download_signature() {
    let key = PrivateKey::generate();
    let first = Signature::make(&key, &payload()).unwrap();
    let second = Signature::make(&key, &payload()).unwrap();
    let line = |s: &Signature| {
        json!({ "Base64Signature": encode_base64(&s.signature), "Payload": encode_base64(&s.payload),
                "Cert": null, "Chain": null, "Bundle": null, "RFC3161Timestamp": null })
        .to_string()
    };
    let list = format!("{}\n{}\n", line(&first), line(&second));
    let found = signatures_of(list.as_bytes()).unwrap();
    assert_eq!(found, [second, first]);
    assert_eq!(signatures_of(&signature_list(&found)).unwrap(), found);
    assert_eq!(signatures_of(b"\n").unwrap(), []);
    for wrong in [
        "x",
        "{}",
        "{\"Payload\":\"!\",\"Base64Signature\":\"AA==\"}",
        "[1]",
    ] {
        assert!(signatures_of(wrong.as_bytes()).is_err(), "{wrong}");
    }
    let many = format!("{}\n", line(&found[0])).repeat(100);
    assert_eq!(
        signatures_of(many.as_bytes()).unwrap().len(),
        MAX_SIGNATURES
    );
}
