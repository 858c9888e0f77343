//! `coracle plan`: the agent compares manifests with what runs and says what they would change.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::PlanArgs;
use super::client::Client;
use super::error::{CliError, Result};
use super::table::one_line;
use super::{put, validate};

/// Exit codes as those of `diff`: no change, a change, an error.
const SAME: u8 = 0;
const CHANGES: u8 = 1;
pub(super) const TROUBLE: u8 = 2;

/// Name shown for standard input.
const STDIN: &str = "stdin";

pub(super) fn run(client: &Client, args: &PlanArgs) -> Result<ExitCode> {
    plan(client, args).map_err(|error| error.code(TROUBLE))
}

fn plan(client: &Client, args: &PlanArgs) -> Result<ExitCode> {
    let mut files = Vec::new();
    for path in args.manifests.all_paths() {
        for file in validate::files(path)? {
            files.push(read(&file, args.manifests.strict)?);
        }
    }
    let body = json!({ "items": files });
    let planned = client.json("POST", "/coracle/v1/plan", Some(&body))?;
    print(&planned, args.output.output.is_some())
}

/// Prints what the agent says that would change; the exit code says whether anything would.
pub(super) fn print(planned: &Value, as_json: bool) -> Result<ExitCode> {
    let text = match as_json {
        true => {
            let json = serde_json::to_string_pretty(planned);
            json.map_err(|e| CliError::new("could not print").because(e))? + "\n"
        }
        false => list(&planned["items"]).map(show).collect(),
    };
    put(text.as_bytes())?;
    Ok(ExitCode::from(code(planned)))
}

fn read(file: &Path, strict: bool) -> Result<Value> {
    let stdin = file.as_os_str() == "-";
    let name = match stdin {
        true => STDIN.to_owned(),
        false => file.display().to_string(),
    };
    let failed = || CliError::new(format!("could not read `{name}`"));
    let bytes = validate::read(file).map_err(|e| failed().because(e))?;
    if bytes.len() as u64 > validate::MAX_FILE {
        return Err(failed().because("larger than 10 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| failed().because("it is not UTF-8"))?;
    let save_as = file.file_name().filter(|_| !stdin);
    let save_as = save_as.map(|name| name.to_string_lossy());
    let mut planned = json!({ "name": name, "save_as": save_as, "text": text });
    if strict {
        // An older agent does not know it.
        planned["strict"] = true.into();
    }
    Ok(planned)
}

fn code(planned: &Value) -> u8 {
    let changes = |file: &Value| list(&file["changes"]).any(|c| c["change"] != "None");
    let bad = |file: &Value| list(&file["errors"]).next().is_some();
    if list(&planned["items"]).any(bad) {
        TROUBLE
    } else if list(&planned["items"]).any(changes) {
        CHANGES
    } else {
        SAME
    }
}

/// Formats the changes by one file. Its name and its keys may have control characters, which are escaped.
fn show(file: &Value) -> String {
    let mut text = String::new();
    for (what, lines) in [("warning", "warnings"), ("error", "errors")] {
        for line in list(&file[lines]) {
            text += &format!("{what}: {}\n", one_line(word(line)));
        }
    }
    let name = word(&file["file"]);
    if let Some(other) = list(&file["errors"])
        .map(word)
        .find_map(defined_by)
        .filter(|_| name != STDIN)
    {
        let hint = format!("as the next version of `{other}`: coracle plan - < {name}");
        text += &format!("  hint: {}\n", one_line(&hint));
    }
    for change in list(&file["changes"]) {
        let kind = word(&change["kind"]).to_lowercase();
        let name = match word(&change["namespace"]) {
            "" => word(&change["name"]).to_owned(),
            namespace => format!("{namespace}/{}", word(&change["name"])),
        };
        text += &format!("{kind} {}: {}\n", one_line(&name), sentence(change));
        for detail in details(change) {
            text += &format!("    {}\n", one_line(&detail));
        }
    }
    text
}

/// Returns the file that already defines the object this error is about.
pub(super) fn defined_by(error: &str) -> Option<&str> {
    let (_, other) = error.split_once(" is already defined by `")?;
    other.strip_suffix('`')
}

fn sentence(change: &Value) -> &'static str {
    let pod = change["kind"] == "Pod";
    match word(&change["change"]) {
        "Create" => "created",
        "CreateAfter" => "created after the pod of that name has stopped",
        "Edit" if pod => "changed while it runs",
        "Edit" => "changed",
        "Replace" => "replaced by a new pod, for these fields cannot change while it runs",
        "Remove" if pod => "stopped and removed",
        "Remove" => "removed",
        _ => "unchanged",
    }
}

fn details(change: &Value) -> Vec<String> {
    let paths = list(&change["because"]).chain(list(&change["live"]));
    let mut lines: Vec<String> = paths.map(|path| word(path).to_owned()).collect();
    let amount = |value: &Value| value.as_str().unwrap_or("none").to_owned();
    lines.extend(list(&change["pods"]).map(|pod| {
        let how = match word(&pod["effect"]) {
            "Replace" => "replaced by a new pod",
            "Files" => "its files follow while it runs",
            _ => "used when a container starts",
        };
        format!(
            "pod {}/{}: {how}",
            word(&pod["namespace"]),
            word(&pod["name"])
        )
    }));
    lines.extend(list(&change["resizes"]).map(|resize| {
        let how = match resize["restarts"] == true {
            true => "restarts it",
            false => "without a restart",
        };
        let (from, to) = (amount(&resize["from"]), amount(&resize["to"]));
        let (container, field) = (word(&resize["container"]), word(&resize["field"]));
        format!("container {container}: {field} {from} -> {to}, {how}")
    }));
    lines.extend(list(&change["images"]).map(|image| {
        let (from, to) = (word(&image["from"]), word(&image["to"]));
        let container = word(&image["container"]);
        let how = match image["restarts"] == true {
            true => "restarts it",
            false => "when it runs next",
        };
        format!("container {container}: image {from} -> {to}, {how}")
    }));
    if let Some(runs) = change["runs"].as_array() {
        let times: Vec<&str> = runs.iter().map(word).collect();
        lines.push(match times.is_empty() {
            true => "it runs at no time".to_owned(),
            false => format!("next runs: {}", times.join(", ")),
        });
    }
    let held = &change["held"];
    if let Some(reason) = held["reason"].as_str() {
        let message = word(&held["message"]);
        lines.push(format!("waits for admission ({reason}): {message}"));
        lines.extend(list(&held["preempts"]).map(|pod| {
            let (namespace, name) = (word(&pod["namespace"]), word(&pod["name"]));
            format!("pod {namespace}/{name} is ended to make room for it")
        }));
    }
    let pending = &change["resizePending"];
    if let Some(reason) = pending["reason"].as_str() {
        let message = word(&pending["message"]);
        lines.push(format!(
            "cpu and memory stay as they are for now ({reason}): {message}"
        ));
    }
    lines
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_cannot_control_the_terminal() {
        let file = json!({ "file": "a\u{1b}\nb", "errors": ["x\u{1b}\ny"], "changes": [
            { "kind": "Pod", "namespace": "default", "name": "web", "change": "Edit", "live": ["k\u{1b}\nl"] }] });
        let expected =
            "error: x\\u{1b}\\ny\npod default/web: changed while it runs\n    k\\u{1b}\\nl\n";
        assert_eq!(show(&file), expected);
    }
}
