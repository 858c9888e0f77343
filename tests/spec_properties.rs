//! Properties of every manifest, on the whole way from bytes to `PodSpec`.

#[path = "spec_properties/edges.rs"]
mod edges;
#[path = "spec_properties/explained.rs"]
mod explained;
#[path = "spec_properties/fields.rs"]
mod fields;
#[path = "spec_properties/uid.rs"]
mod uid;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use coracle::spec::convert::{self, ConvertContext};
use coracle::spec::{EnvValue, FieldError, Manifest, PodSpec};
use coracle::types::quantity::Quantity;

const CONTEXT: ConvertContext<'_> = ConvertContext::of("n");

fn read(text: &str) -> Result<Vec<PodSpec>, Vec<FieldError>> {
    convert::documents(text.as_bytes(), "f.yaml", &CONTEXT).map(|found| found.pods)
}

fn one(text: &str) -> PodSpec {
    let mut pods = read(text).unwrap_or_else(|errors| panic!("{text}\n{errors:#?}"));
    assert_eq!(pods.len(), 1, "{text}");
    pods.remove(0)
}

fn fixtures() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/spec");
    let paths = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
  - name: c
    image: c:1
    resources: {limits: {cpu: 500m, memory: 1Gi}}
";

#[test]
fn files_that_cannot_be_text_are_refused_with_their_place() {
    let too_large = vec![b' '; convert::MAX_BYTES + 1];
    for (bytes, expected) in [
        (
            too_large.as_slice(),
            "f:1:1: file has 10485761 bytes, more than the limit of 10 MiB",
        ),
        (
            b"a: b\nc: \xff".as_slice(),
            "f:2:4: file is not UTF-8; save it as UTF-8",
        ),
        (
            b"\xff\xfea\0:\0 \0b\0",
            "f:1:1: file is UTF-16, not UTF-8; save it as UTF-8",
        ),
        (
            b"\0a\0:\0 \0b",
            "f:1:1: file is UTF-16, not UTF-8; save it as UTF-8",
        ),
        (
            b"a\0\0\0:\0\0\0",
            "f:1:1: file is UTF-32, not UTF-8; save it as UTF-8",
        ),
        (
            b"a: b\nc: \x07",
            "f:2:4: not valid YAML: the control character U+0007 may not stand in a file",
        ),
    ] {
        let errors = convert::documents(bytes, "f", &CONTEXT).unwrap_err();
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].to_string(), expected);
    }
}

#[test]
fn a_file_may_be_as_large_as_the_limit() {
    let mut text = POD.to_owned();
    text.push_str(&"#".repeat(convert::MAX_BYTES - text.len()));
    assert_eq!(one(&text).key.name, "a".into());
}

#[test]
fn a_file_may_have_several_json_documents() {
    let json = |name: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}"}},
            "spec":{{"containers":[{{"name":"c","image":"c"}}]}}}}"#
        )
    };
    let pods = read(&format!("\u{feff}{}\n{}\n", json("a"), json("b"))).unwrap();
    assert_eq!(pods.len(), 2);
    assert_eq!(pods[1].key.to_string(), "default/b");
}

#[test]
fn the_advice_to_quote_a_scalar_keeps_its_spelling() {
    let text = POD.replace("{name: a}", "{name: a, labels: {version: 1.10}}");
    let errors = read(&text).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "f.yaml:4:30: metadata.labels.version: must be a string, not a number; quote it: \"1.10\""
    );
}

#[test]
fn a_misspelt_field_does_not_hide_errors_of_the_right_one() {
    let text = POD.replace("image: c:1", "image: C\n    imag: c");
    let errors: Vec<String> = read(&text)
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        errors,
        [
            "f.yaml:8:5: spec.containers[0].image: Invalid value: \"C\": repository name `C` must be lowercase",
            "f.yaml:9:5: spec.containers[0].imag: unknown field; did you mean `image`?",
        ]
    );
}

#[test]
fn hostile_files_are_refused_within_seconds() {
    let million = 1 << 20;
    let flat = "x,".repeat(1000);
    let aliases = "*a,".repeat(100_000);
    let empty_map = "{".to_owned() + &"a: {},\n".repeat(100_000) + "}";
    for (sentence, text) in [
        ("deep lists", "[".repeat(million)),
        ("deep mappings", "{a: ".repeat(million / 4)),
        ("deep JSON", "{\"a\":".repeat(million / 4)),
        ("deep block lists", "- ".repeat(million / 2)),
        ("deep keys", "? ".repeat(10_000)),
        (
            "a wide list used often",
            format!("a: &a [{flat}]\nb: [{aliases}]\n"),
        ),
        ("one key a hundred thousand times", empty_map),
        ("control characters", "\u{1}".repeat(million)),
        ("one long line", "a".repeat(million)),
        ("unclosed quotes", "\"".repeat(million)),
        ("anchors only", "&a ".repeat(10_000)),
        ("many documents", "---\na\n".repeat(100_000)),
    ] {
        let begin = Instant::now();
        let errors = read(&text).expect_err(sentence);
        assert!(!errors.is_empty() && errors.len() <= 200, "{sentence}");
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(20), "{sentence} took {took:?}");
    }
}

#[test]
fn a_file_nested_too_deeply_for_the_parser_is_an_error() {
    let text = format!("{}x{}", "[".repeat(200), "]".repeat(200));
    let errors = read(&text).unwrap_err();
    assert!(errors[0].message.contains("recursion limit"), "{errors:?}");
}

/// A fixture with a few changes: most results are nearly manifests, which random text never is.
fn mangled() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "",
        "\t",
        "- ",
        "  ",
        ": ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "&a ",
        "*a",
        "<<: *a",
        "!!int ",
        "!x ",
        "|",
        ">",
        "---\n",
        "...\n",
        "# ",
        "null",
        "~",
        "-1",
        "1e999",
        "0x10",
        "true",
        "\u{0}",
        "\u{feff}",
        "ü",
        "? ",
        "%YAML 1.1\n",
        "99999999999999999999999999",
        ".inf",
        ".nan",
        "$(",
        "..",
        "/",
        "@",
        "0777",
    ]);
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, pieces), 1..6);
    (prop::sample::select(fixtures()), edits).prop_map(|(text, edits)| {
        let mut chars: Vec<char> = text.chars().collect();
        for (index, cut, piece) in edits {
            if chars.is_empty() {
                break;
            }
            let at = index.index(chars.len());
            let end = (at + cut).min(chars.len());
            chars.splice(at..end, piece.chars());
        }
        chars.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_give_pods_or_errors(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Err(errors) = convert::documents(&bytes, "f", &CONTEXT) {
            prop_assert!(!errors.is_empty());
        }
    }

    #[test]
    fn any_text_gives_pods_or_errors(text in "[-a-z:{}\\[\\]&*!|>'\"#?,\\n ]{0,80}") {
        if let Err(errors) = read(&text) {
            prop_assert!(!errors.is_empty());
        }
    }

    #[test]
    fn mangled_manifests_give_pods_that_read_back_the_same_or_errors_inside_the_file(text in mangled()) {
        match read(&text) {
            Ok(pods) => for pod in pods {
                let manifest = Manifest::from(pod.manifest.pod());
                prop_assert_eq!(&manifest, &*pod.manifest);
                let json = pod.manifest.json().into_bytes();
                prop_assert_eq!(convert::admitted(&json).unwrap(), pod);
            },
            Err(errors) => for error in errors {
                prop_assert!(error.line >= 1 && error.column >= 1, "{}", error);
                prop_assert!(error.line <= text.lines().count() + 1, "{}", error);
            },
        }
    }
}

/// A pod with these lines in its only container.
fn with(lines: &str) -> String {
    format!("{POD}    {lines}\n")
}

/// A service with these ports.
fn service(ports: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: s}}\nspec: {{selector: {{a: b}}, ports: [{ports}]}}\n"
    )
}

#[test]
fn the_last_allowed_value_is_accepted_and_the_first_forbidden_one_refused() {
    let image = |length: usize| POD.replace("c:1", &format!("r.io/{}", "a".repeat(length - 5)));
    let user = |id: &str| with(&format!("securityContext: {{runAsUser: {id}}}"));
    let with_requests = |requests: &str| {
        let limits = "{limits: {cpu: 500m, memory: 1Gi}}";
        POD.replace(limits, &format!("{{requests: {{{requests}}}}}"))
    };
    let sleep = |s: &str| {
        with(&format!(
            "lifecycle: {{preStop: {{sleep: {{seconds: {s}}}}}}}"
        ))
    };
    let path = |length| with(&format!("terminationMessagePath: /{}", "a".repeat(length)));
    let name = |length| POD.replace("name: c\n", &format!("name: {}\n", "c".repeat(length)));
    let two = |one: &str, two: &str| service(&format!("{{name: a, {one}}}, {{name: b, {two}}}"));
    let dns = |list: &str| {
        POD.replacen(
            "spec:",
            &format!("spec:\n  dnsConfig: {{searches: [{list}]}}"),
            1,
        )
    };
    let at = |registry: &str| POD.replace("c:1", &format!("'{registry}/x:1'"));
    let table: &[(String, Option<&str>)] = &[
        (with("ports: [{containerPort: 65535}]"), None),
        (
            with("ports: [{containerPort: 65536}]"),
            Some("must be between 1 and 65535, inclusive"),
        ),
        (dns("., a.example., _tcp.b"), None),
        (dns("_sip._tcp.x.y, a._tcp.x, a_b.x"), None),
        (dns("a..b"), Some("RFC 1123")),
        (dns("-foo.bar"), Some("RFC 1123")),
        (dns("__a.b"), Some("RFC 1123")),
        (at("r.io:5000"), None),
        (at("a-b.io"), None),
        (at("r_.io"), Some("registry")),
        (at("r.io:5x"), Some("registry")),
        (user("2147483647"), None),
        (
            user("2147483648"),
            Some("must be between 0 and 2147483647, inclusive"),
        ),
        (
            user("-1"),
            Some("must be between 0 and 2147483647, inclusive"),
        ),
        (
            user("'07777777777777777777777'"),
            Some("must be a whole number, not a string"),
        ),
        (with_requests("cpu: 0, memory: '0'"), None),
        (
            with_requests("cpu: -1n"),
            Some("must be greater than or equal to 0"),
        ),
        (image(255), None),
        (image(256), Some("must not be more than 255 characters")),
        (sleep("1"), None),
        (sleep("-1"), Some("must be non-negative")),
        (path(64), None),
        (name(63), None),
        (name(64), Some("must be no more than 63 characters")),
        (two("port: 53", "port: 53, protocol: UDP"), None),
        (two("port: 53", "port: 54"), None),
        (two("port: 53", "port: 53"), Some("53/TCP")),
        (two("port: 65535", "port: 1"), None),
        (
            two("port: 65536", "port: 1"),
            Some("must be between 1 and 65535, inclusive"),
        ),
        (
            two("port: 0", "port: 1"),
            Some("must be between 1 and 65535, inclusive"),
        ),
    ];
    for (text, refused) in table {
        let found = convert::documents(text.as_bytes(), "f.yaml", &CONTEXT);
        let errors: Vec<String> = found
            .err()
            .into_iter()
            .flatten()
            .map(|e| e.message)
            .collect();
        match refused {
            None => assert!(errors.is_empty(), "{text}\n{errors:#?}"),
            Some(words) => assert!(
                errors.iter().any(|e| e.contains(words)),
                "{text}\n{words}: {errors:#?}"
            ),
        }
    }
}

#[test]
fn annotations_limit_back_off_and_swap() {
    let annotated = |key: &str, value: &str| {
        let meta = format!("{{name: a, annotations: {{coracle.dev/{key}: '{value}'}}}}");
        read(&POD.replacen("{name: a}", &meta, 1)).map(|mut pods| pods.remove(0))
    };
    for (text, well) in [
        ("initial=1m,max=1m", true),
        ("initial=61s,max=1m", false),
        ("initial=100ms", true),
        ("initial=99ms", false),
        ("max=1h", true),
    ] {
        assert_eq!(annotated("restart-backoff", text).is_ok(), well, "{text}");
    }
    let swap = |text| annotated("memory-swap-max", text).map(|pod| pod.swap_max_bytes);
    assert_eq!(swap("64Mi").unwrap(), Some(64 << 20));
    let errors = swap("-1").unwrap_err();
    assert!(
        errors[0].message.contains("a quantity of bytes"),
        "{errors:?}"
    );
    assert_eq!(one(POD).swap_max_bytes, None);
}

#[test]
fn a_foreign_condition_of_the_manifest_is_kept_and_coracles_own_are_not() {
    let with = |conditions: &str| {
        let status = format!("status: {{phase: Failed, conditions: [{conditions}]}}\nspec:");
        read(&POD.replacen("spec:", &status, 1)).map(|mut pods| pods.remove(0))
    };
    let pod = with("{type: Ready, status: 'False'}, {type: b.example/x, status: 'True'}").unwrap();
    let status = pod.manifest.status.as_ref().unwrap();
    let kept: Vec<_> = status
        .conditions
        .iter()
        .flatten()
        .map(|c| c.type_.as_str())
        .collect();
    assert_eq!((kept, &status.phase), (vec!["b.example/x"], &None));
    let twice = with("{type: x, status: 'True'}, {type: x, status: 'False'}").unwrap_err();
    assert!(twice[0].message.contains("Duplicate value"), "{twice:?}");
    let word = with("{type: x, status: Maybe}").unwrap_err();
    assert!(word[0].message.contains("Unsupported value"), "{word:?}");
}

#[test]
fn an_empty_value_counts_as_absent_and_numbers_may_be_octal() {
    for lines in [
        "resources:",
        "securityContext: null",
        "env: ~",
        "tty: ",
        "lifecycle: null",
    ] {
        let text = POD.replacen(
            "    resources: {limits: {cpu: 500m, memory: 1Gi}}",
            &format!("    {lines}"),
            1,
        );
        assert_ne!(text, POD);
        read(&text).unwrap_or_else(|errors| panic!("{lines}: {errors:?}"));
    }
    let tty = |word: &str| {
        read(&with(&format!("tty: '{word}'")))
            .unwrap_err()
            .remove(0)
            .to_string()
    };
    for (word, meant) in [
        ("False", "false"),
        ("true", "true"),
        ("perhaps", "true or false"),
    ] {
        assert!(
            tty(word).contains(&format!("write {meant} without quotes")),
            "{}",
            tty(word)
        );
    }
    let user = |text: &str| {
        let pod = one(&with(&format!("securityContext: {{runAsUser: {text}}}")));
        pod.containers[0].security.run_as_user
    };
    for text in ["0644", "0o644", "420"] {
        assert_eq!(user(text), Some(0o644), "{text}");
    }
}

#[test]
fn brackets_nest_512_deep_and_the_error_names_the_first_one_beyond() {
    let deep = |count: usize| format!("a: 1\nb: {}{}", "[".repeat(count), "]".repeat(count));
    let allowed = read(&deep(512)).unwrap_err();
    assert!(!allowed[0].message.contains("brackets deep"), "{allowed:?}");
    let refused = read(&deep(513)).unwrap_err();
    assert!(
        refused[0]
            .message
            .contains("nested more than 512 brackets deep"),
        "{refused:?}"
    );
    let place = refused[0].to_string();
    assert!(place.contains("f.yaml:2:516"), "{place}");
}

#[test]
fn a_reference_to_a_request_that_is_not_set_is_zero() {
    let env = "env: [{name: R, valueFrom: {resourceFieldRef: {resource: requests.memory}}}]";
    let pod = one(&POD.replacen("resources: {limits: {cpu: 500m, memory: 1Gi}}", env, 1));
    let EnvValue::Resource(value) = &pod.containers[0].env[0].value else {
        panic!("{:?}", pod.containers[0].env);
    };
    assert_eq!(value, "0");
}

#[test]
fn a_limit_of_zero_is_no_limit() {
    for (limit, expected) in [("0", None), ("1n", Some("1")), ("1500m", Some("2"))] {
        let env = format!(
            "env: [{{name: R, valueFrom: {{resourceFieldRef: {{resource: limits.cpu}}}}}}]
    resources: {{limits: {{cpu: {limit}}}}}"
        );
        let pod = one(&POD.replacen("resources: {limits: {cpu: 500m, memory: 1Gi}}", &env, 1));
        let found = match &pod.containers[0].env[0].value {
            EnvValue::Resource(value) => Some(value.as_str()),
            EnvValue::NodeCpu { divisor_milli } => {
                assert_eq!(*divisor_milli, 1000);
                None
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(found, expected, "{limit}");
    }
}

#[test]
fn a_limit_of_storage_that_is_not_set_is_the_nodes_and_a_request_zero() {
    for (resource, expected) in [
        (
            "limits.ephemeral-storage",
            EnvValue::NodeStorage {
                divisor_bytes: 1 << 20,
            },
        ),
        (
            "requests.ephemeral-storage",
            EnvValue::Resource("0".to_owned()),
        ),
    ] {
        let env = format!(
            "env: [{{name: R, valueFrom: {{resourceFieldRef: {{resource: {resource}, divisor: 1Mi}}}}}}]
    resources: {{limits: {{cpu: 500m"
        );
        let pod = one(&POD.replacen("resources: {limits: {cpu: 500m", &env, 1));
        assert_eq!(pod.containers[0].env[0].value, expected, "{resource}");
    }
}

#[test]
fn quantities_are_exact_and_those_that_do_not_fit_a_number_are_refused() {
    let nano = |text: &str| Quantity::parse(text).ok().map(Quantity::nano);
    for (text, expected) in [
        ("1e-9999", Some(1)),
        ("1e-99999999999", Some(1)),
        ("1e99999999999", None),
        (
            "3.0000000000000001Ei",
            Some(3_458_764_513_820_541_043_292_150_461),
        ),
        ("1e9999", None),
        ("0.0000000000000001Ei", Some(115_292_150_461)),
        ("7Ei", Some((7 << 60) * 1_000_000_000)),
        ("8Ei", None),
    ] {
        assert_eq!(nano(text), expected, "{text}");
    }
}

#[test]
fn the_built_in_priority_classes_have_a_description() {
    assert_eq!(coracle::spec::priority::built_in().count(), 2);
    for class in coracle::spec::priority::built_in() {
        let name = class.metadata.name.unwrap();
        assert!(name.starts_with("system-"), "{name}");
        assert!(class.value >= Some(2_000_000_000), "{name}");
        assert!(class.description.is_some_and(|d| !d.is_empty()), "{name}");
        let preempts = class.preemption_policy.as_deref();
        assert_eq!(preempts, Some("PreemptLowerPriority"), "{name}");
    }
}
