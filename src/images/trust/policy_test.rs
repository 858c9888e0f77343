//! Tests of policies.

use serde_json::json;

use super::super::key::PrivateKey;
use super::*;

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A policy in which each rule that demands a signature is told by its identity.
fn policy(transports: serde_json::Value) -> Policy {
    let text = json!({ "default": [{ "type": "reject" }], "transports": transports });
    Policy::parse(text.to_string().as_bytes()).unwrap_or_else(|why| panic!("{why}"))
}

fn accept() -> serde_json::Value {
    json!([{ "type": "insecureAcceptAnything" }])
}

/// A rule, told from others by a fixed repository.
fn signed(as_repository: &str) -> serde_json::Value {
    let pem = format!(
        "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
        String::from(PrivateKey::generate().public())
    );
    json!([{
        "type": "sigstoreSigned",
        "keyData": super::super::encode_base64(pem.as_bytes()),
        "signedIdentity": { "type": "exactRepository", "dockerRepository": as_repository },
    }])
}

fn decided(policy: &Policy, name: &str, origin: Option<&Origin>) -> String {
    let name = Some(name).filter(|name| !name.is_empty());
    let name = name.map(|name| ImageName::parse(name).unwrap());
    match policy.demand(name.as_ref(), origin) {
        Ok(None) => "accept".to_owned(),
        Ok(Some(demand)) => format!("signed {}", demand.scope),
        Err(why) => why.to_string(),
    }
}

#[test]
fn the_most_specific_scope_decides() {
    let policy = policy(json!({
        "docker": {
            "docker.io/library/nginx:1": accept(),
            "docker.io/library/nginx": signed("a.lan/a"),
            "docker.io/library": accept(),
            "docker.io": [{ "type": "reject" }],
            "r.lan:5000": signed("a.lan/b"),
            "r.lan": accept(),
            "*.example.com": signed("a.lan/c"),
            "*.b.example.com": accept(),
            "c.example.com/x": accept(),
            (format!("r.lan:5000/pinned@{DIGEST}")): accept(),
        },
        "docker-daemon": { "": [{ "type": "anything" }] },
    }));
    let pinned = format!("r.lan:5000/pinned@{DIGEST}");
    let both = format!("r.lan:5000/pinned:3@{DIGEST}");
    for (name, expected) in [
        ("nginx:1", "accept"),
        ("nginx:2", "signed `docker.io/library/nginx`"),
        ("nginxes:2", "accept"),
        ("shop/nginx:1", "`docker.io` of the policy rejects it"),
        ("r.lan:5000/a/b/c:1", "signed `r.lan:5000`"),
        ("r.lan/a/b/c:1", "accept"),
        ("a.example.com:5000/x:1", "signed `*.example.com`"),
        ("a.b.example.com/x:1", "accept"),
        ("b.example.com/x:1", "signed `*.example.com`"),
        ("c.example.com/x:1", "accept"),
        ("c.example.com/y:1", "signed `*.example.com`"),
        ("example.com/y:1", "`default` of the policy rejects it"),
        ("other.lan/y:1", "`default` of the policy rejects it"),
        (&pinned, "accept"),
        (&both, "accept"),
        ("r.lan:5000/pinned:3", "signed `r.lan:5000`"),
    ] {
        assert_eq!(decided(&policy, name, None), expected, "{name}");
    }
}

#[test]
fn archives_follow_the_rules_of_their_path_or_else_of_their_names() {
    let policy = policy(json!({
        "docker": { "r.lan/shop": signed("a.lan/a"), "r.lan": accept() },
        "oci-archive": { "/etc/coracle/images": accept(), "/media/stick": [{ "type": "reject" }] },
        "docker-archive": { "": signed("a.lan/b") },
    }));
    let at = |transport: &str, path: &str| Origin {
        transport: transport.to_owned(),
        path: Some(path)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from),
    };
    for (origin, name, expected) in [
        (
            at("oci-archive", "/etc/coracle/images/a.tar"),
            "nginx:1",
            "accept",
        ),
        (
            at("oci-archive", "/etc/coracle/imagesets/a.tar"),
            "r.lan/shop/web:1",
            "signed `r.lan/shop`",
        ),
        (
            at("oci-archive", "/etc/coracle/images/../../../tmp/a.tar"),
            "r.lan/shop/web:1",
            "signed `r.lan/shop`",
        ),
        (
            at("oci-archive", "/media/stick/deep/a.tar"),
            "r.lan/x:1",
            "`/media/stick` of the policy rejects it",
        ),
        (at("oci-archive", "/root/a.tar"), "r.lan/x:1", "accept"),
        (at("oci-archive", ""), "r.lan/x:1", "accept"),
        (
            at("oci-archive", ""),
            "nginx:1",
            "`default` of the policy rejects it",
        ),
        (
            at("oci-archive", ""),
            "",
            "`default` of the policy rejects it",
        ),
        (
            at("docker-archive", "/root/a.tar"),
            "r.lan/x:1",
            "signed `docker-archive`",
        ),
        (at("docker-archive", ""), "", "signed `docker-archive`"),
        (at("oci", "/etc/coracle/images/a"), "r.lan/x:1", "accept"),
    ] {
        let found = decided(&policy, name, Some(&origin));
        assert_eq!(found, expected, "{name} of {origin:?}");
    }
}

#[test]
fn without_a_policy_every_image_may_run() {
    let missing = Policy::read(Path::new("/nonexistent/policy.json")).unwrap();
    assert!(!missing.is_there());
    assert_eq!(decided(&missing, "nginx:1", None), "accept");
    let folder = Policy::read(Path::new("/proc")).unwrap_err();
    assert!(
        crate::chain(&folder).contains("not a regular file"),
        "{folder}"
    );
}

#[test]
fn all_requirements_count_and_reject_wins() {
    let both = policy(json!({ "docker": { "r.lan": [
        { "type": "insecureAcceptAnything" }, { "type": "reject" }
    ] } }));
    assert!(decided(&both, "r.lan/x:1", None).contains("rejects"));
    let mut twice = signed("a.lan/a");
    twice
        .as_array_mut()
        .unwrap()
        .push(signed("a.lan/b")[0].clone());
    let two = policy(json!({ "docker": { "r.lan": twice } }));
    let name = ImageName::parse("r.lan/x:1").unwrap();
    assert_eq!(
        two.demand(Some(&name), None).unwrap().unwrap().signed.len(),
        2
    );
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let with = |requirement: &str| format!(r#"{{"default":[{requirement}]}}"#);
    let scope = |transport: &str, scope: &str| {
        let accept = r#"[{"type":"insecureAcceptAnything"}]"#;
        format!(r#"{{"default":{accept},"transports":{{"{transport}":{{"{scope}":{accept}}}}}}}"#)
    };
    let signed = |more: &str| with(&format!(r#"{{"type":"sigstoreSigned",{more}}}"#));
    for (text, expected) in [
        ("{}".to_owned(), "missing field `default`"),
        ("[]".to_owned(), "invalid length"),
        ("{".to_owned(), "line 1"),
        (r#"{"default":[]}"#.to_owned(), "there is no requirement"),
        (with(r#"{"type":"reject"}],"more":[1"#), "unknown field `more`"),
        (with(r#"{"type":"reject"}],"default":[{"type":"reject"}"#), "duplicate field"),
        (with(r#"{"type":"rejekt"}"#), "the type `rejekt` is not known"),
        (with(r#"{"type":"signedBy","keyPath":"/k"}"#), "sign with cosign or openssl"),
        (with(r#"{"type":"reject","keyPath":"/k"}"#), "has no keys"),
        (with(r#"{"type":"reject","other":1}"#), "unknown field `other`"),
        (with(r#"{}"#), "missing field `type`"),
        (signed(r#""fulcio":{}"#), "`fulcio` is not supported"),
        (signed(r#""rekorPublicKeyPath":"/k","keyPath":"/k""#), "`rekorPublicKeyPath`"),
        (signed(r#""pki":{},"keyPath":"/k""#), "`pki`"),
        (signed(r#""signedIdentity":{"type":"matchExact"}"#), "exactly one of"),
        (signed(r#""keyPath":"/k","keyData":"AA""#), "exactly one of"),
        (signed(r#""keyPaths":[]"#), "at least one is needed"),
        (signed(r#""keyPath":"k.pub""#), "absolute path"),
        (signed(r#""keyPath":"/nonexistent/k.pub""#), "could not read the key `/nonexistent/k.pub`"),
        (signed(r#""keyData":"AAAA""#), "keyData: it is not in PEM"),
        (signed(r#""keyData":"!""#), "no base64"),
        (signed(r#""keyPath":"/k","signedIdentity":{"type":"any"}"#), "unknown variant `any`"),
        (
            signed(r#""keyPath":"/k","signedIdentity":{"type":"exactRepository","dockerRepository":"a:1"}"#),
            "signedIdentity: dockerRepository",
        ),
        (scope("dokcer", ""), "the transport `dokcer` is not known"),
        (scope("docker", "nginx"), "write the whole name"),
        (scope("docker", "https://r.lan"), "without `https://`"),
        (scope("docker", "r.lan/"), "never fits"),
        (scope("docker", "r.lan/UPPER"), "never fits"),
        (scope("docker", "*.a.*.b"), "never fits"),
        (scope("docker", "*.a.lan/x"), "never fits"),
        (scope("oci-archive", "/"), "all archives are the scope"),
        (scope("oci-archive", "relative"), "absolute path"),
        (scope("oci-archive", "/a/../b"), "absolute path"),
        (scope("dir", "/a:tag"), "without a tag"),
        (
            r#"{"default":[{"type":"reject"}],"transports":{"docker":{"a.lan":[{"type":"reject"}],"a.lan":[{"type":"insecureAcceptAnything"}]}}}"#.to_owned(),
            "`a.lan` occurs twice",
        ),
        (
            r#"{"default":[{"type":"reject"}],"transports":{"docker":{},"docker":{}}}"#.to_owned(),
            "`docker` occurs twice",
        ),
    ] {
        let why = Policy::parse(text.as_bytes()).unwrap_err();
        assert!(why.contains(expected), "{text}: {why}");
    }
}

#[test]
fn a_demand_comes_through_json_as_it_was() {
    let policy = policy(json!({ "docker": { "": signed("a.lan/a") } }));
    let name = ImageName::parse("r.lan/x:1").unwrap();
    let demand = policy.demand(Some(&name), None).unwrap().unwrap();
    let text = serde_json::to_string(&demand).unwrap();
    assert_eq!(serde_json::from_str::<Demand>(&text).unwrap(), demand);
}
