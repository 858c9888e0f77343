//! The section of `coracle describe pod` with the cgroup values in force, as the kernel reports them.

use std::fmt::Write as _;

use serde_json::Value;

use super::client::Client;
use super::error::Result;
use crate::api::encode;

/// Asks the agent; null for a pod without cgroups.
pub(super) fn ask(client: &Client, namespace: &str, pod: &str) -> Result<Value> {
    let (namespace, pod) = (encode(namespace), encode(pod));
    let path = format!("/coracle/v1/namespaces/{namespace}/pods/{pod}/cgroups");
    client.get(&path)
}

/// Formats the section; marks values that differ from what the agent wrote.
pub(super) fn section(answer: &Value) -> String {
    let mut text = String::new();
    let items = answer["items"].as_array().into_iter().flatten();
    for item in items {
        if text.is_empty() {
            text.push_str("Cgroups:\n");
        }
        let whose = match item["container"].as_str() {
            Some(name) => format!("Container {name}"),
            None => "Pod".to_owned(),
        };
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let _ = writeln!(text, "  {whose}: {}", word(&item["path"]));
        for value in item["values"].as_array().into_iter().flatten() {
            let (file, found) = (word(&value["file"]) + ":", value["found"].as_str());
            let found = found.unwrap_or("<no such file>");
            let note = match value["holds"] {
                Value::Bool(false) => format!("  (is to be {})", word(&value["wanted"])),
                _ => String::new(),
            };
            let _ = writeln!(text, "    {file:<29} {found}{note}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_listed_and_those_that_do_not_hold_are_marked() {
        let answer = json!({ "items": [
            { "container": null, "path": "/coracle/pods/pod1", "values": [
                { "file": "cpu.weight", "wanted": "4", "found": "4", "holds": true },
                { "file": "memory.max", "wanted": "4096", "found": "max", "holds": false }] },
            { "container": "main", "path": "/coracle/pods/pod1/c-main", "values": [
                { "file": "cpu.max", "wanted": "1000 100000", "holds": false }] }] });
        let expected = "\
Cgroups:
  Pod: /coracle/pods/pod1
    cpu.weight:                   4
    memory.max:                   max  (is to be 4096)
  Container main: /coracle/pods/pod1/c-main
    cpu.max:                      <no such file>  (is to be 1000 100000)
";
        assert_eq!(section(&answer), expected);
        assert_eq!(section(&json!({ "items": [] })), "");
    }
}
