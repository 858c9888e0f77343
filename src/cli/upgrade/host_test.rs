use serde_json::json;

use super::*;

const MINUTE_US: i64 = 60_000_000;

fn pod(uid: &str, ready: bool, restarts: u32, state: &Value) -> Value {
    let ready = if ready { "True" } else { "False" };
    json!({
        "metadata": { "uid": uid, "namespace": "default", "name": uid },
        "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": ready }],
            "containerStatuses": [{ "name": "main", "restartCount": restarts, "state": state }],
        },
    })
}

#[test]
fn ready_pods_that_are_steady_are_expected_as_they_are() {
    let since = |at: &str| json!({ "running": { "startedAt": at } });
    let (early, late) = (since("2026-01-01T00:00:00Z"), since("2026-01-01T00:59:00Z"));
    let mut leaves = pod("leaves", true, 0, &early);
    leaves["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut of_job = pod("of-job", true, 0, &early);
    of_job["metadata"]["ownerReferences"] = json!([{ "kind": "Job", "name": "nightly" }]);
    let list = json!({ "items": [
        of_job,
        pod("steady", true, 0, &late),
        pod("long-ago", true, 3, &early),
        pod("restless", true, 1, &late),
        pod("not-ready", false, 0, &early),
        leaves,
    ]});
    let now = "2026-01-01T01:00:00Z".parse::<jiff::Timestamp>().unwrap();
    let found = expected(&list, 10 * MINUTE_US, now.as_microsecond());
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["long-ago", "steady"]);
    assert_eq!(found["steady"].name, "default/steady");
    assert_eq!(found["steady"].runs["main"], "0@2026-01-01T00:59:00Z");
    // And seen again, they are the same; a container that ended is not.
    let seen_again = seen(&list);
    assert_eq!(
        seen_again["steady"].runs["main"].as_ref(),
        found["steady"].runs.get("main")
    );
    let ended = |code: i32| {
        let state = json!({ "terminated": { "exitCode": code } });
        seen(&json!({ "items": [pod("p", false, 0, &state)] }))["p"].runs["main"].clone()
    };
    assert_eq!(ended(0), None);
    assert_eq!(ended(137), Some("0@ ended".to_owned()));
}

#[test]
fn the_program_of_a_unit_is_read_from_what_systemctl_shows() {
    let shown = "ExecStart={ path=/usr/bin/coracle.former ; argv[]=/usr/bin/coracle.former upgrade --watch ; ignore_errors=no }";
    assert_eq!(starts(shown), Some("/usr/bin/coracle.former"));
    assert_eq!(starts("ExecStart=\n"), None);
}

#[test]
fn a_unit_that_asks_for_a_record_elsewhere_is_noticed() {
    let unit = |folder: &str| {
        format!(
            "[Unit]\nConditionPathExists={folder}/trial.json\nConditionPathExists=/bin/coracle.former\n"
        )
    };
    let (usual, other) = ("/var/lib/coracle/upgrade", "/data/coracle/upgrade");
    let ours = include_str!("../../../systemd/coracle-upgrade.service");
    for (unit, state, found) in [
        (unit(usual), usual, None),
        (
            unit(usual),
            other,
            Some("/var/lib/coracle/upgrade/trial.json"),
        ),
        (ours.to_owned(), other, None),
    ] {
        assert_eq!(asks_for_other(&unit, Path::new(state)), found, "{unit}");
    }
}
