//! `coracle report`: one file with what support asks for, and no secret in it.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use super::*;

/// Values that must not be in a report, each from another place.
const IN_SECRET: &str = "value-of-a-secret-7f3a";
const IN_ENV: &str = "value-of-a-variable-7f3a";
const IN_ARGS: &str = "value-of-an-argument-7f3a";
const IN_HEADER: &str = "value-of-a-header-7f3a";
const IN_SETTING: &str = "value-of-a-setting-7f3a";
const IN_ANNOTATION: &str = "value-of-an-annotation-7f3a";
const IN_QUERY: &str = "value-of-a-query-7f3a";
const IN_AUTH: &str = "value-of-a-login-7f3a";

/// The parts of a report, by name.
fn unpack(path: &std::path::Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let file = fs::File::open(path).expect("a report");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut parts = std::collections::BTreeMap::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a path").to_string_lossy().into_owned();
        let mut text = Vec::new();
        entry.read_to_end(&mut text).expect("whole");
        parts.insert(name, text);
    }
    parts
}

fn has(text: &[u8], what: &str) -> bool {
    text.windows(what.len()).any(|at| at == what.as_bytes())
}

#[test]
fn a_report_has_what_support_asks_for_and_no_secret_with_or_without_an_agent() {
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    let auth = agent.root.join("auth.json");
    let login = format!(
        "{{\"auths\": {{\"r.example\": {{\"username\": \"u\", \"password\": \"{IN_AUTH}\"}}}}}}"
    );
    fs::write(&auth, login).expect("written");
    let settings = format!(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n\
         staticPodURL: http://127.0.0.1:1/pods?token={IN_SETTING}\nstaticPodURLHeader: {{Authorization: [{IN_HEADER}]}}\n\
         coracle: {{registryAuthFile: {}}}\n",
        auth.display()
    );
    fs::write(agent.root.join("config.d/10-url.conf"), settings).expect("written");
    agent.launch();
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    agent.write(
        "secret.yaml",
        &format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{password: {IN_SECRET}}}\n"),
    );
    // Its program prints the Secret, and so do its last words.
    let env = format!(
        "    env:\n    - {{name: PASSWORD, valueFrom: {{secretKeyRef: {{name: s, key: password}}}}}}\n    \
         - {{name: PLAIN, value: {IN_ENV}}}\n    args: [--token={IN_ARGS}]\n    \
         livenessProbe: {{httpGet: {{port: 1, path: /?token={IN_QUERY}, httpHeaders: [{{name: A, value: {IN_HEADER}}}]}}, initialDelaySeconds: 900}}\n    \
         readinessProbe: {{httpGet: {{port: 1, path: /?token={IN_QUERY}}}, periodSeconds: 1}}\n"
    );
    let script = "echo out $PASSWORD; echo useful words $PASSWORD >&2; echo $PASSWORD > /dev/termination-log; exit 4";
    let named = format!("name: web\n  annotations: {{example.org/x: {IN_ANNOTATION}}}");
    let manifest = shell_pod("web", script, "", &env).replacen("name: web", &named, 1);
    agent.write("web.yaml", &manifest);
    agent.wait_pod("web", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    let path = agent.root.join("report.tar.gz");
    let report = || {
        agent.ok(&["report", "-o", path.to_str().expect("utf-8")]);
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        unpack(&path)
    };
    let parts = report();
    for (name, words) in [
        ("version.json", "client"),
        ("doctor.txt", "kernel"),
        ("settings.yaml", "staticPodURL"),
        ("pods.json", "CrashLoopBackOff"),
        ("node.txt", "test-node"),
        ("events.txt", "BackOff"),
        ("files.txt", "web.yaml"),
        ("system.txt", "MemTotal"),
        ("black-box.txt", "\n"),
        ("unhealthy-boots.txt", "no boot"),
    ] {
        let text = parts.get(&format!("coracle-report/{name}"));
        let text = text.unwrap_or_else(|| panic!("no {name} in {:?}", parts.keys()));
        assert!(
            has(text, words),
            "{name}: {}",
            String::from_utf8_lossy(text)
        );
    }
    let logged = parts.iter().any(|(name, text)| {
        name.contains("logs/default_web_") && has(text, "useful words <secret>")
    });
    assert!(logged, "{:?}", parts.keys());
    let clean = |parts: &std::collections::BTreeMap<String, Vec<u8>>| {
        for (name, text) in parts {
            for secret in [
                IN_SECRET,
                IN_ENV,
                IN_ARGS,
                IN_HEADER,
                IN_SETTING,
                IN_ANNOTATION,
                IN_QUERY,
                IN_AUTH,
            ] {
                assert!(
                    !has(text, secret),
                    "{secret} in {name}: {}",
                    String::from_utf8_lossy(text)
                );
            }
        }
    };
    clean(&parts);
    // An agent that hangs, and none at all.
    agent.kill();
    let parts = report();
    assert!(parts.contains_key("coracle-report/doctor.txt"));
    clean(&parts);
    // Before an agent has come up in a boot, it is not known what is secret in a log.
    fs::remove_file(agent.root.join("run/configuration/documents.json")).expect("there");
    let parts = report();
    assert!(has(&parts["coracle-report/logs.txt"], "left out"));
    assert!(!parts.keys().any(|name| name.contains("/logs/")));
    clean(&parts);
    assert!(!agent.root.join("report.tar.gz.part").exists());
    let nowhere = agent.cli(&["report", "-o", "/nonexistent/report.tar.gz"]);
    assert_eq!(nowhere.status.code(), Some(1));
}

/// A value that JSON and tables write in other ways, and one that is longer than what is left of it.
const ODD: &str = "odd\"quoted\\slashed\ttabbed\u{1b}escaped-7f3b";
const LONG: &str = "the-beginning-of-a-long-value-7f3c-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-its-end";

#[test]
fn no_part_of_a_secret_is_in_a_report_that_coracle_has_escaped_or_cut() {
    let agent = Agent::start();
    let values = serde_json::json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s" },
        "stringData": { "odd": ODD, "long": LONG },
    });
    agent.write("secret.yaml", &values.to_string());
    let env = "    env:\n    - {name: ODD, valueFrom: {secretKeyRef: {name: s, key: odd}}}\n    \
               - {name: LONG, valueFrom: {secretKeyRef: {name: s, key: long}}}\n    \
               terminationMessagePolicy: FallbackToLogsOnError\n";
    let never = "  restartPolicy: Never\n";
    // Messages of exits are the last 2048 bytes of a log, the report has its last 16 KiB, records are as long.
    let bytes = |count: usize| format!("head -c {count} /dev/zero | tr '\\0' y");
    for (name, script) in [
        (
            "message",
            format!("printf '%s' \"$LONG\"; {}; echo; exit 3", bytes(1970)),
        ),
        (
            "log",
            format!(
                "{}; printf '%s' \"$LONG\"; {}; echo; echo useful; exit 3",
                bytes(16_330),
                bytes(16_100)
            ),
        ),
        (
            "form",
            "printf '%s' \"$ODD\" > /dev/termination-log; echo \"$ODD\"; exit 3".to_owned(),
        ),
    ] {
        agent.write(
            &format!("{name}.yaml"),
            &shell_pod(name, &script, never, env),
        );
    }
    let probe = "    readinessProbe: {exec: {command: [sh, -c, 'printf \"%s\" \"$ODD\"; exit 1']}, periodSeconds: 1}\n";
    agent.write(
        "probed.yaml",
        &shell_pod("probed", "exec sleep 1000000", "", &format!("{env}{probe}")),
    );
    for name in ["message", "log", "form"] {
        agent.wait_pod(name, |pod| pod["status"]["phase"] == "Failed");
    }
    super::events::wait_event(&agent, |event| event["reason"] == "Unhealthy");
    let path = agent.root.join("report.tar.gz");
    agent.ok(&["report", "-o", path.to_str().expect("utf-8")]);
    let parts = unpack(&path);
    let said = |name: &str| {
        String::from_utf8_lossy(&parts[&format!("coracle-report/{name}")]).into_owned()
    };
    assert!(
        said("events.txt").contains("probe failed: <secret>"),
        "{}",
        said("events.txt")
    );
    let pods: Value = serde_json::from_str(&said("pods.json")).expect("JSON");
    let messages: Vec<&str> = pods["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|pod| main_status(pod)["state"]["terminated"]["message"].as_str())
        .collect();
    assert!(messages.contains(&"<secret>"), "{messages:?}");
    assert!(
        messages.iter().any(|text| text.starts_with("<secret>yyy")),
        "{messages:?}"
    );
    let useful = |(name, text): (&String, &Vec<u8>)| {
        name.contains("logs/default_log_") && has(text, "useful")
    };
    assert!(parts.iter().any(useful));
    for (name, text) in &parts {
        for part in [
            "quoted",
            "tabbed",
            "escaped-7f3b",
            "long-value",
            "7f3c",
            "xxxxxxxx",
            "its-end",
        ] {
            let text = String::from_utf8_lossy(text);
            assert!(!text.contains(part), "{part} in {name}: {text}");
        }
    }
}
