//! Encrypted Secrets without a key: what is found, what is accepted, and how a file is written again.

use super::*;
use crate::spec::configuration::{Object, ObjectKind};
use crate::spec::convert::{self, ConvertContext};

const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: db, namespace: shop}\nencryptedData: |-\n  QUJD\n  REVG\n";

/// The Secret's keys and values, or the errors, with this outcome for every content.
fn read(text: &str, outcome: &Outcome) -> Result<Vec<(String, String)>, Vec<String>> {
    let sealed = found(text.as_bytes()).into_iter();
    let opened: Opened = sealed.map(|sealed| (sealed, outcome.clone())).collect();
    let context = ConvertContext {
        opened: &opened,
        ..ConvertContext::of("n")
    };
    let found = convert::documents(text.as_bytes(), "f", &context)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    let secret = found.configuration.get(ObjectKind::Secret, "shop", "db");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let data = secret.map(|secret| Object::data(secret)).expect("a secret");
    let data = data.into_iter();
    Ok(data
        .map(|(key, value)| (key.to_owned(), text(value)))
        .collect())
}

fn plain(json: &str) -> Outcome {
    Outcome::Plain(Plain(json.as_bytes().to_vec()))
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[test]
fn decrypted_content_is_that_of_the_secret() {
    let content =
        plain(r#"{"namespace":"shop","name":"db","data":{"a":"eA=="},"stringData":{"b":"y"}}"#);
    let expected = vec![pair("a", "x"), pair("b", "y")];
    assert_eq!(read(SECRET, &content), Ok(expected.clone()));
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n- {}",
        SECRET.replace('\n', "\n  ")
    );
    assert_eq!(read(&list, &content), Ok(expected));
    assert_eq!(read(SECRET, &Outcome::Unread), Ok(Vec::new()));
    let found = found(SECRET.as_bytes());
    assert_eq!(found[0].cipher, "QUJDREVG");
    assert_eq!(found[0].credential(), "shop.db");
}

#[test]
fn what_cannot_be_decrypted_or_is_not_for_this_secret_is_refused_at_its_line() {
    let key = r#"{"namespace":"shop","name":"db","data":{"hunter2/":"eA=="}}"#;
    for (text, outcome, expected) in [
        (
            SECRET.to_owned(),
            Outcome::Refused("no key".to_owned()),
            "f:4:1: encryptedData: could not be decrypted: no key",
        ),
        (
            SECRET.to_owned(),
            plain(r#"{"namespace":"shop","name":"other"}"#),
            "f:4:1: encryptedData: was encrypted for a Secret of another name or namespace",
        ),
        (
            SECRET.to_owned(),
            plain("hunter2"),
            "f:4:1: encryptedData: was decrypted, but is not what `coracle secret encrypt` writes",
        ),
        (
            SECRET.to_owned(),
            plain(key),
            "a valid config key must consist of",
        ),
        (
            SECRET.replace("  QUJD", "  QU!D"),
            Outcome::Unread,
            "f:4:1: encryptedData: is not base64; write it with `coracle secret encrypt`",
        ),
        (
            SECRET.replace("|-\n  QUJD\n  REVG\n", "''\n"),
            Outcome::Unread,
            "f:4:1: encryptedData: is empty; write it with",
        ),
        (
            SECRET.replace("|-\n  QUJD\n  REVG\n", "7\n"),
            Outcome::Unread,
            "f:4:1: encryptedData: must be a string, not a number",
        ),
        (
            format!("{SECRET}stringData: {{a: b}}\n"),
            Outcome::Unread,
            "f:7:1: stringData: Forbidden: may not be set when `encryptedData` is; encrypt all of it",
        ),
        (
            format!("{SECRET}type: kubernetes.io/tls\n"),
            plain(r#"{"namespace":"shop","name":"db"}"#),
            "tls.crt]: Required value",
        ),
    ] {
        let errors = read(&text, &outcome).expect_err(expected);
        assert!(errors[0].contains(expected), "{errors:?} for {expected}");
    }
    // A document that comes another way than from a file of the node.
    let refused = convert::documents(SECRET.as_bytes(), "f", &ConvertContext::of("n"));
    let refused = refused.expect_err("not decrypted");
    assert!(refused[0].to_string().contains("is not decrypted here"));
}

#[test]
fn no_two_secrets_share_the_name_of_a_credential() {
    assert_eq!(credential("a", "b.c"), "a.b.c");
    let long = "n".repeat(250);
    let (one, other) = (credential("shop12", &long), credential("shop13", &long));
    assert!(
        one.len() <= 255 && one.starts_with("sha256-") && one != other,
        "{one}"
    );
    assert!(!one.contains('.'));
}

const MIXED: &str = "# how to make it: keep\n---\n# the database\nkind: Secret\napiVersion: v1\nmetadata:\n  name: db # the name\n  annotations:\n    kubectl.kubernetes.io/last-applied-configuration: '{\"data\":\"hunter2\"}'\ntype: Opaque\nstringData: {password: hunter2, \"yes\": \"1.10\"}\ndata: {token: aHVudGVyMg==}\n--- # next\nkind:   ConfigMap # odd spaces stay\napiVersion: v1\nmetadata: {name: c}\ndata:\n  text: |\n    kind: Secret\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: old}\nencryptedData: QUJD\n...\n";

#[test]
fn only_plain_secrets_are_written_again() {
    let manifest = Manifest::read(MIXED.as_bytes(), "f").expect("valid");
    let parts = manifest.parts();
    assert_eq!(parts.len(), 1);
    assert_eq!((&*parts[0].namespace, &*parts[0].name), ("default", "db"));
    let content = String::from_utf8_lossy(&parts[0].plain.0).into_owned();
    assert_eq!(
        content,
        r#"{"namespace":"default","name":"db","data":{"token":"aHVudGVyMg=="},"stringData":{"password":"hunter2","yes":"1.10"}}"#
    );
    let cipher = format!("{}\n{}\n", "A".repeat(79), "B".repeat(10));
    let text = manifest.with(vec![cipher]);
    let (before, after) = (MIXED.find("# the database"), MIXED.find("--- # next"));
    let expected = format!(
        "{}kind: Secret\napiVersion: v1\nmetadata:\n  name: db\ntype: Opaque\nencryptedData: |-\n  {}\n  {}{}\n{}",
        &MIXED[..before.expect("a comment")],
        "A".repeat(76),
        "AAA",
        "B".repeat(10),
        &MIXED[after.expect("a mark")..]
    );
    assert_eq!(text, expected);
    // What was written is read as what it was.
    let sealed = found(text.as_bytes());
    assert_eq!(sealed.len(), 2);
    let first = &sealed[0];
    assert_eq!((&*first.namespace, &*first.name), ("default", "db"));
    // Again: nothing is left to encrypt, and nothing changes.
    let again = Manifest::read(text.as_bytes(), "f").expect("valid");
    assert!(again.parts().is_empty());
    assert_eq!(again.with(Vec::new()), text);
}

#[test]
fn lists_and_json_are_encrypted_too() {
    let secret = r#"{"metadata":{"name":"a"},"stringData":{"k":"v"}}"#;
    let list = format!(r#"{{"kind":"SecretList","apiVersion":"v1","items":[{secret}]}}"#);
    let one = secret.replacen('{', r#"{"kind":"Secret","apiVersion":"v1","#, 1);
    for (text, number) in [
        (list, 1),
        (format!("{one}\n{}", one.replace("\"a\"", "\"b\"")), 2),
        (format!("--- {one}\n"), 1),
    ] {
        let manifest = Manifest::read(text.as_bytes(), "f").expect(&text);
        let ciphers = vec!["QUJD".to_owned(); number];
        assert_eq!(manifest.parts().len(), number, "{text}");
        let new = manifest.with(ciphers);
        assert!(!new.contains("stringData"), "{new}");
        assert_eq!(found(new.as_bytes()).len(), number, "{new}");
    }
}

#[test]
fn errors_of_secrets_name_their_line_and_no_value() {
    for (text, expected) in [
        (
            "kind: Pod\n---\napiVersion: v1\nkind: Secret\ndata: {a: hunter2}\n",
            "f:5:",
        ),
        (
            "kind: Pod\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {a: {b: hunter2}}\n",
            "f:6:",
        ),
        ("a: b\n---\na: [\n", "f:"),
        (
            "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nencryptedData: QUJD\ndata: {}\n",
            "may not be set when `encryptedData` is",
        ),
    ] {
        let errors = Manifest::read(text.as_bytes(), "f").expect_err(text);
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|line| line.contains(expected)), "{said:?}");
        assert!(!said.concat().contains("hunter2"), "{said:?}");
    }
}
