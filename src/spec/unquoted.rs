//! Text without quotes that is a boolean or a number to Kubernetes, which reads manifests by the rules of YAML 1.1:
//! `yes`, `022`, `1_0`. The tree of a file has it as text, like text in quotes; where it stands is noted beside the
//! tree, whose values stay small.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::error::{Path, Report, join};
use super::value::Value;

/// Limit of places noted in one file. Texts beyond it have no warning.
pub(crate) const MAX: usize = 200;

/// Where such text stands in a document.
#[derive(Debug)]
pub(crate) struct Unquoted {
    values: BTreeSet<String>,
    keys: BTreeSet<String>,
    /// How many more can be noted.
    room: usize,
    /// There is more of it than could be noted.
    is_full: bool,
}

impl Unquoted {
    /// Nothing yet, with room for so many places.
    pub(crate) fn with_room(room: usize) -> Self {
        Self {
            values: BTreeSet::new(),
            keys: BTreeSet::new(),
            room,
            is_full: false,
        }
    }

    /// How many more can be noted.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Whether the text at this path may have no quotes.
    pub(crate) fn may_have(&self, path: &Path<'_>) -> bool {
        self.is_full || self.has(path)
    }

    fn has(&self, path: &Path<'_>) -> bool {
        !self.values.is_empty() && self.values.contains(&path.to_string())
    }

    fn has_key(&self, path: &Path<'_>) -> bool {
        !self.keys.is_empty() && self.keys.contains(&path.to_string())
    }
}

/// Where the reader is in a text, and what it has noted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Notes<'b> {
    /// The text that is read.
    pub(crate) text: &'b str,
    /// The path of the value, or of the mapping whose key is read.
    pub(crate) path: &'b Path<'b>,
    /// A key is read.
    pub(crate) is_key: bool,
    /// What was noted in this document.
    pub(crate) found: &'b RefCell<Unquoted>,
}

impl Notes<'_> {
    /// Notes a scalar, which is a part of the text, if it is of this kind.
    pub(crate) fn see(self, scalar: &str) {
        if read(scalar).is_none() {
            return;
        }
        let mut found = self.found.borrow_mut();
        if found.room == 0 {
            found.is_full = true;
            return;
        }
        if !is_plain(self.text, scalar) {
            return;
        }
        let path = merged(self.path);
        let is_new = match self.is_key {
            true => found.keys.insert(join(&path, scalar)),
            false => found.values.insert(path),
        };
        found.room -= usize::from(is_new);
    }
}

/// The path that a value has once YAML's `<<` keys are merged.
fn merged(path: &Path<'_>) -> String {
    match path {
        Path::Root => String::new(),
        Path::Field(parent, "<<") | Path::Index(Path::Field(parent, "<<"), _) => merged(parent),
        Path::Field(parent, name) => join(&merged(parent), name),
        Path::Index(parent, index) => format!("{}[{index}]", merged(parent)),
    }
}

/// How far before a scalar a tag is looked for, in bytes.
const MAX_TAG: usize = 256;

/// Whether a scalar, which is a part of the text, has neither quotes nor a tag such as `!!str`, which make it text.
fn is_plain(text: &str, scalar: &str) -> bool {
    let offset = (scalar.as_ptr() as usize).checked_sub(text.as_ptr() as usize);
    let Some(before) = offset.and_then(|offset| text.as_bytes().get(..offset)) else {
        return false;
    };
    let near = &before[before.len().saturating_sub(MAX_TAG)..];
    let line = near.rsplit(|b| *b == b'\n').next().unwrap_or_default();
    let words = line.rsplit(|b| b" \t[{,".contains(b));
    let mut properties = words
        .filter(|word| !word.is_empty())
        .take_while(|word| word.starts_with(b"!") || word.starts_with(b"&"));
    !near.ends_with(b"'") && !near.ends_with(b"\"") && !properties.any(|w| w.starts_with(b"!"))
}

/// Returns what a text without quotes is by YAML 1.1, as Kubernetes' parser (go.yaml.in/yaml/v2, resolve.go) has it;
/// `None` if it is text there, too. What is no text by YAML 1.2 either does not come here.
pub(crate) fn read(text: &str) -> Option<Value> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Some(Value::Bool(true)),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Some(Value::Bool(false)),
        _ if !text.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-') => {
            return None;
        }
        _ => {}
    }
    let plain = text.replace('_', "");
    let whole = integer(&plain).map(Value::Int);
    whole.or_else(|| float(&plain).map(Value::Float))
}

fn integer(text: &str) -> Option<i128> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (&*lower, 10),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let size = i128::from_str_radix(digits, radix).ok()?;
    let number = if text.starts_with('-') { -size } else { size };
    (i64::MIN.into()..=u64::MAX.into())
        .contains(&number)
        .then_some(number)
}

fn float(text: &str) -> Option<f64> {
    // Not `inf` and `nan`, which are spelled otherwise in YAML.
    let is_number = |b: u8| b.is_ascii_digit() || b".eE+-".contains(&b);
    let number = text
        .bytes()
        .all(is_number)
        .then(|| text.parse::<f64>().ok());
    number.flatten().filter(|number| number.is_finite())
}

/// Warns about the text of a field that has no quotes.
pub(crate) fn warn(text: &str, path: &Path<'_>, report: &Report) {
    if let Some(meant) = meant(text).filter(|_| is_noted(path, report)) {
        let message = format_args!(
            "Kubernetes reads `{text}` without quotes as {meant}; quote it: \"{text}\""
        );
        report.without_quotes(path, message);
    }
}

/// Like [`warn`], without the text, which may be secret.
pub(crate) fn warn_of_secret(text: &str, path: &Path<'_>, report: &Report) {
    if let Some(value) = read(text).filter(|_| is_noted(path, report)) {
        let kind = value.kind();
        report.without_quotes(
            path,
            format_args!("Kubernetes reads it without quotes as {kind}; quote it"),
        );
    }
}

/// Warns about a key that has no quotes; `path` is that of its mapping.
pub(crate) fn warn_of_key(key: &str, path: &Path<'_>, report: &Report) {
    let Some(other) = read(key).and_then(|value| value.scalar_text()) else {
        return;
    };
    let at = path.field(key);
    if report.noted().is_some_and(|noted| noted.has_key(&at)) {
        let message = format_args!(
            "Kubernetes reads the key `{key}` without quotes as `{other}`; quote it: \"{key}\""
        );
        report.without_quotes(&at, message);
    }
}

fn is_noted(path: &Path<'_>, report: &Report) -> bool {
    report.noted().is_some_and(|noted| noted.has(path))
}

fn meant(text: &str) -> Option<String> {
    let value = read(text)?;
    let kind = match value {
        Value::Bool(_) => "the boolean",
        _ => "the number",
    };
    Some(format!("{kind} {}", value.scalar_text()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::convert::{ConvertContext, documents};

    #[test]
    fn texts_are_what_kubernetes_parser_takes_them_for() {
        for (text, value) in [
            ("yes", Value::Bool(true)),
            ("Off", Value::Bool(false)),
            ("y", Value::Bool(true)),
            ("N", Value::Bool(false)),
            ("022", Value::Int(18)),
            ("-022", Value::Int(-18)),
            ("+0_7", Value::Int(7)),
            ("08", Value::Float(8.0)),
            ("1_0", Value::Int(10)),
            ("1__", Value::Int(1)),
            ("0x1_F", Value::Int(31)),
            ("-0b1_1", Value::Int(-3)),
            ("0_0.5", Value::Float(0.5)),
            ("1_0e1", Value::Float(100.0)),
            (
                "0777777777777777777777777",
                Value::Float(7.777_777_777_777_777e23),
            ),
        ] {
            assert_eq!(read(text), Some(value), "{text}");
        }
        for text in [
            "",
            "yEs",
            "oN",
            "nope",
            "_1",
            "-",
            "+",
            "--",
            "-v",
            "1.2.3",
            "10:30",
            "2024-01-01",
            "0x",
            "0xg",
            "1e999",
            "5m",
            "+-5",
            "0x-1",
            ".5_0",
            "1_000Mi",
            "infinity",
            "+inf",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    \
                       image: i\n";

    fn warnings(text: &str) -> Vec<String> {
        let found = documents(text.as_bytes(), "f", &ConvertContext::of("n"));
        found
            .unwrap_or_else(|e| panic!("{text}: {e:?}"))
            .all_warnings()
    }

    fn of_pod(path: &str, text: &str, meant: &str) -> String {
        format!(
            "pod default/p: {path}: Kubernetes reads `{text}` without quotes as {meant}; quote it: \"{text}\""
        )
    }

    #[test]
    fn text_without_quotes_that_is_something_else_to_kubernetes_has_a_warning() {
        for (lines, path, text, meant) in [
            (
                "    env: [{name: A, value: yes}]",
                "spec.containers[0].env[0].value",
                "yes",
                "the boolean true",
            ),
            (
                "    env:\n    - name: A # Ä€\n      value: 022",
                "spec.containers[0].env[0].value",
                "022",
                "the number 18",
            ),
            (
                "    args: [\"y\", 'n', &a N]",
                "spec.containers[0].args[2]",
                "N",
                "the boolean false",
            ),
            (
                "    command:\n    - yes\r\n    - x",
                "spec.containers[0].command[0]",
                "yes",
                "the boolean true",
            ),
            (
                "    workingDir: '/\u{e4}'\n    args:\n    - 1_0",
                "spec.containers[0].args[0]",
                "1_0",
                "the number 10",
            ),
            (
                "    args:\n    - wow !\n    - 08",
                "spec.containers[0].args[1]",
                "08",
                "the number 8",
            ),
            (
                "    args: [\"it\\'s\", 08]",
                "spec.containers[0].args[1]",
                "08",
                "the number 8",
            ),
        ] {
            assert_eq!(
                warnings(&format!("{POD}{lines}\n")),
                [of_pod(path, text, meant)],
                "{lines}"
            );
        }
        let of_metadata =
            |fields: &str| warnings(&POD.replace("{name: p}", &format!("{{name: p, {fields}}}")));
        let key = "pod default/p: metadata.labels.on: Kubernetes reads the key `on` without quotes as `true`; \
                   quote it: \"on\"";
        assert_eq!(of_metadata("labels: {on: x, \"off\": x}"), [key]);
        let annotation = of_pod("metadata.annotations.a", "No", "the boolean false");
        assert_eq!(of_metadata("annotations: {a: No}"), [annotation]);
    }

    #[test]
    fn text_in_quotes_and_text_of_both_versions_has_no_warning() {
        for args in [
            "['yes', \"no\", '022', \"1_0\"]",
            "\n    - |-\n      yes\n    - >-\n      022\n    - !!str on\n    - &a 'off'\n    - *a",
            "[2024-01-01, 10:30, yEs, 1.2.3, -v, _1]",
            "[!!str &b no, *b]",
        ] {
            let found = warnings(&format!("{POD}    args: {args}\n"));
            assert_eq!(found, [""; 0], "{args}");
        }
        // The types of other fields are the same to both.
        let lines =
            "    tty: yes\n  volumes: [{name: v, secret: {secretName: s, defaultMode: 0440}}]\n";
        assert_eq!(warnings(&format!("{POD}{lines}")), [""; 0]);
        let json = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"on": "yes"}},
                       "spec": {"containers": [{"name": "c", "image": "i", "args": ["022"]}]}}"#;
        assert_eq!(warnings(json), [""; 0]);
    }

    #[test]
    fn warnings_name_the_object_that_the_text_is_of() {
        let said = |of: &str| {
            format!(
                "{of}: Kubernetes reads `yes` without quotes as the boolean true; quote it: \"yes\""
            )
        };
        let template = "template: {metadata: {labels: {a: b}}, spec: {restartPolicy: Never, containers: [{name: c, \
                        image: i, args: [yes]}]}}";
        for (text, of) in [
            (
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: yes}".to_owned(),
                "f: configmap default/m: data.a",
            ),
            (
                "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {selector: {a: yes}, ports: \
                 [{port: 1}]}"
                    .to_owned(),
                "service default/s: spec.selector.a",
            ),
            (
                "apiVersion: v1\nkind: List\nitems:\n- apiVersion: scheduling.k8s.io/v1\n  kind: PriorityClass\n  \
                 metadata: {name: x}\n  value: 1\n  globalDefault: yes\n  description: yes"
                    .to_owned(),
                "f: priorityclass x: description",
            ),
            (
                format!("apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec: {{suspend: no, {template}}}"),
                "job default/j: spec.template.spec.containers[0].args[0]",
            ),
            (
                format!(
                    "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: j}}\nspec: {{schedule: '@daily', \
                     jobTemplate: {{metadata: {{labels: {{a: yes}}}}, spec: {{{}}}}}}}",
                    template.replace("yes", "'yes'")
                ),
                "f: cronjob default/j: spec.jobTemplate.metadata.labels.a",
            ),
        ] {
            assert_eq!(warnings(&text), [said(of)], "{text}");
        }
        let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: 0777, b: '0777', off: x}";
        let of = "f: secret default/s: stringData";
        assert_eq!(
            warnings(secret),
            [
                format!("{of}.a: Kubernetes reads it without quotes as a number; quote it"),
                format!(
                    "{of}.off: Kubernetes reads the key `off` without quotes as `false`; quote it: \"off\""
                ),
            ]
        );
    }

    #[test]
    fn merged_texts_and_aliases_count_where_they_are_used() {
        let text = POD.replace("metadata:", "metadata: &m")
            + "    env:\n    - &e {name: A, value: off}\n    - {<<: *e, name: B}\n    - {<<: [*e], name: C}\n";
        let at = |index| {
            of_pod(
                &format!("spec.containers[0].env[{index}].value"),
                "off",
                "the boolean false",
            )
        };
        assert_eq!(warnings(&text), [at(0), at(1), at(2)]);
    }

    #[test]
    fn a_strict_check_refuses_it_at_its_place() {
        let text = format!("{POD}    args: [x, y]\n");
        let strict = ConvertContext {
            strict: true,
            ..ConvertContext::of("n")
        };
        let errors = documents(text.as_bytes(), "f", &strict).expect_err("strict");
        let said = "f:8:15: spec.containers[0].args[1]: Kubernetes reads `y` without quotes as the boolean true; \
                    quote it: \"y\"";
        assert_eq!(errors[0].to_string(), said);
    }

    #[test]
    fn booleans_in_quotes_are_text() {
        let read = |line: &str| {
            documents(
                format!("{POD}{line}\n").as_bytes(),
                "f",
                &ConvertContext::of("n"),
            )
        };
        for word in ["yes", "No", "ON", "off", "y", "N"] {
            assert!(read(&format!("    tty: {word}")).is_ok(), "{word}");
            let errors = read(&format!("    tty: \"{word}\"")).expect_err(word);
            assert_eq!(
                errors[0].message, "must be true or false, not a string",
                "{word}"
            );
        }
        let errors = read("  automountServiceAccountToken: 'no'").expect_err("text");
        assert_eq!(
            errors[0].hint.as_deref(),
            Some("write false without quotes")
        );
    }

    #[test]
    fn a_document_that_was_saved_reads_back_the_same() {
        let text = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: j, labels: {a: off}}\nspec: {schedule: \
                    '@daily', suspend: yes, jobTemplate: {spec: {template: {spec: {hostPID: on, restartPolicy: Never, \
                    containers: [{name: c, image: i}]}}}}}";
        let read = |text: &str| documents(text.as_bytes(), "f", &ConvertContext::of("n"));
        let first = read(text).expect("valid");
        assert_eq!(first.all_warnings().len(), 1);
        let again = read(&first.workloads[0].manifest.text()).expect("valid");
        assert_eq!(again.workloads, first.workloads);
        assert_eq!(again.all_warnings(), [""; 0]);
    }

    #[test]
    fn the_notes_are_bounded_and_booleans_beyond_them_are_read() {
        let text = format!(
            "{POD}    args: [{}]\n    tty: yes\n",
            "y, ".repeat(MAX + 50)
        );
        assert_eq!(warnings(&text).len(), MAX);
    }
}
