//! Completion against a live agent, through bash, and manifests that `create` saves.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::*;

/// What the program offers for the last word.
fn offered(agent: &Agent, words: &[&str]) -> Vec<String> {
    let all: Vec<&str> = ["complete", "--"].iter().chain(words).copied().collect();
    let shown = agent.ok(&all);
    let values = shown.lines().filter_map(|line| line.split('\t').next());
    values.map(str::to_owned).collect()
}

#[test]
fn names_of_pods_containers_images_and_others_are_offered() {
    let agent = Agent::start();
    agent.write("web.yaml", &shell_pod("web", SLEEP, "", ""));
    agent.write(
        "cm.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}",
    );
    let pod = agent.wait_running("web");
    let container = pod["spec"]["containers"][0]["name"].as_str().unwrap();
    let image = pod["spec"]["containers"][0]["image"].as_str().unwrap();
    assert_eq!(offered(&agent, &["logs", ""]), ["web"]);
    assert_eq!(offered(&agent, &["exec", "-it", "w"]), ["web"]);
    assert_eq!(offered(&agent, &["logs", "web", "-c", ""]), [container]);
    assert_eq!(offered(&agent, &["get", "cm", "se"]), ["settings"]);
    assert_eq!(offered(&agent, &["get", "pod/"]), ["pod/web"]);
    assert_eq!(
        offered(&agent, &["get", "pods", "-n", "elsewhere", ""]),
        [""; 0]
    );
    assert_eq!(
        offered(&agent, &["-n", "elsewhere", "get", "pods", ""]),
        [""; 0]
    );
    assert_eq!(
        offered(&agent, &["-n", "default", "get", "pods", ""]),
        ["web"]
    );
    assert!(
        offered(&agent, &["image", "rm", ""])
            .iter()
            .any(|name| name.contains(image.split(':').next().unwrap()))
    );
    // Names of kinds that a command refuses are not offered.
    for (line, wanted) in [
        ("rollout history pod/", &["pod/web"][..]),
        ("rollout undo pod ", &["web"]),
        ("rollout status pod/", &[]),
        ("rollout restart pod ", &[]),
        ("wait pod/", &["pod/web"]),
        ("wait images/", &[]),
        ("wait files ", &[]),
        ("describe pods/", &["pods/web"]),
        ("describe images/", &[]),
        ("events --for po/", &["po/web"]),
        ("events --for cm/", &[]),
        ("delete pod/", &["pod/web"]),
        ("delete cm/", &[]),
        ("restart pod/", &["pod/web"]),
        ("restart cm/", &[]),
        ("exec cm/", &[]),
        ("condition set pod/", &["pod/web"]),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(offered(&agent, &words), wanted, "{line}");
    }
    assert!(offered(&agent, &["logs", "-n", "def"]).contains(&"default".to_owned()));
    // The shell itself.
    let script = agent.ok(&["completion", "bash"]);
    let program = env!("CARGO_BIN_EXE_coracle");
    let asked = format!(
        "{script}\nCOMP_LINE='{program} logs w' COMP_POINT=999; _coracle coracle w logs; printf '%s' \"${{COMPREPLY[*]}}\""
    );
    let out = Command::new("bash")
        .args(["-c", &asked])
        .env("CORACLE_SOCKET", agent.socket())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        "web",
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    agent.remove("web.yaml");
    agent.remove("cm.yaml");
    agent.wait_gone("web");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_saved_manifest_takes_effect_and_is_not_overwritten() {
    let agent = Agent::start();
    let said = agent.ok(&[
        "create",
        "secret",
        "generic",
        "db",
        "--from-literal",
        "password=x",
        "--save",
    ]);
    let path = said.trim().strip_prefix("saved as ").unwrap();
    assert!(path.ends_with("/db-secret.yaml"), "{path}");
    let mode = std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let out = agent.cli(&[
        "create",
        "secret",
        "generic",
        "db",
        "--from-literal",
        "password=y",
        "--save",
    ]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("there is such a file already"));
    agent.ok(&["wait", "secret/db", "--for=create"]);
    agent.remove("db-secret.yaml");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
