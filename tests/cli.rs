//! The real binary, as a person types it, without an agent.

use std::process::{Command, Output};

fn coracle(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_coracle"))
        .args(args)
        .env_remove("CORACLE_SOCKET")
        .output()
        .expect("the binary was built for this test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let out = coracle(&["--help"]);
    let help = text(&out.stdout);
    assert!(out.status.success());
    for word in [
        "run",
        "get",
        "describe",
        "logs",
        "exec",
        "delete",
        "image",
        "config",
        "validate",
        "doctor",
        "version",
        "completion",
        "Exit codes",
    ] {
        assert!(help.contains(word), "{word} is missing in:\n{help}");
    }
}

#[test]
fn without_an_agent_the_error_says_how_to_start_it() {
    let out = coracle(&["--socket", "/nonexistent/coracle.sock", "get", "pods"]);
    assert_eq!(out.status.code(), Some(1));
    let error = text(&out.stderr);
    assert!(
        error.starts_with("error: could not reach the agent at `/nonexistent/coracle.sock`"),
        "{error}"
    );
    assert!(
        error.contains("\n  caused by: ") && error.contains("\n  hint: start the agent"),
        "{error}"
    );
}

#[test]
fn a_wrong_command_line_ends_with_two() {
    assert_eq!(coracle(&["get", "cheese"]).status.code(), Some(2));
    assert_eq!(
        coracle(&["get", "pods", "-o", "cheese"]).status.code(),
        Some(2)
    );
}

#[test]
fn the_version_needs_no_agent() {
    let out = coracle(&["--socket", "/nonexistent/s", "version", "-o", "json"]);
    assert!(out.status.success());
    let expected = format!(
        "{{\"agent\":null,\"client\":\"{}\"}}\n",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(text(&out.stdout), expected);
}

#[test]
fn the_doctor_says_how_to_mend_what_fails() {
    let out = coracle(&["doctor", "-o", "json"]);
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&out.stdout).expect("JSON");
    let failed = findings.iter().filter(|f| f["level"] == "fail");
    assert!(
        failed.clone().all(|f| f["hint"].is_string()),
        "{findings:?}"
    );
    assert_eq!(out.status.code(), Some(i32::from(failed.count() > 0)));
}

#[test]
fn validate_ends_with_one_on_errors() {
    let dir = std::env::temp_dir().join(format!("coracle-validate-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary folder");
    let good = dir.join("good.yaml");
    let bad = dir.join("bad.yaml");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";
    std::fs::write(&good, pod).expect("written");
    std::fs::write(&bad, "apiVersion: v1\nkind: [").expect("written");
    let fine = coracle(&["validate", &good.display().to_string()]);
    let wrong = coracle(&["validate", &dir.display().to_string()]);
    std::fs::remove_dir_all(&dir).expect("removed");
    assert!(fine.status.success(), "{}", text(&fine.stdout));
    assert!(text(&fine.stdout).contains("ok: default/web"));
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stdout).starts_with("error: "));
}
