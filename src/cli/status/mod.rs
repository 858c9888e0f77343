//! `coracle status`: the whole node on one screen, and for everything that is not well the command that helps.

mod pods;

use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::OutputArgs;
use super::client::Client;
use super::error::Result;
use super::health::Problem;
use super::table::{Table, size};
use super::{doctor, put};
use crate::api::pod_columns::age_of;
use crate::sys::clock;

/// A disk that is used to this percentage is reported: the garbage collection of images begins there.
const FULL_PERCENT: u64 = 85;

/// The most lines for people; JSON has all.
const MAX_LINES: usize = 20;

pub(super) fn run(client: &Client, args: &OutputArgs) -> Result<ExitCode> {
    let seen = Seen {
        version: client.get("/version")?,
        files: client.get("/coracle/v1/files")?,
        nodes: client.get("/api/v1/nodes")?,
        pods: client.get("/api/v1/pods")?,
        jobs: client.get("/apis/batch/v1/jobs")?,
        services: client.get("/api/v1/services")?,
        summary: client.get("/stats/summary")?,
        settings: client.get("/configz")?,
        warnings: client.get("/api/v1/events?fieldSelector=type%3DWarning")?,
    };
    let mut troubles = seen.troubles();
    let well = troubles.is_empty();
    troubles.extend(seen.pending_settings());
    // Said, but no fault of a box without a network: pods do not depend on it.
    if let Some((detail, hint)) = doctor::time_problem() {
        troubles.push(Trouble::new("time", "", detail, hint));
    }
    let text = match args.output {
        Some(_) => format!("{:#}\n", seen.json(&troubles, well)),
        None => seen.page(&troubles, well),
    };
    put(text.as_bytes())?;
    Ok(ExitCode::from(u8::from(!well)))
}

/// What the agent shows.
#[derive(Debug, Default)]
struct Seen {
    version: Value,
    files: Value,
    nodes: Value,
    pods: Value,
    jobs: Value,
    services: Value,
    summary: Value,
    settings: Value,
    /// Events.
    warnings: Value,
}

/// Something that is not well.
#[derive(Debug, PartialEq, Eq)]
struct Trouble {
    /// `pod/web`, `node`, `file web.yaml`.
    about: String,
    /// Since when, RFC 3339; empty: unknown.
    since: String,
    message: String,
    /// What to type, or to do.
    remedy: String,
}

impl Trouble {
    fn new(about: &str, since: &str, message: impl AsRef<str>, remedy: impl Into<String>) -> Self {
        let clean = Problem::new(about, message);
        Self {
            about: clean.about,
            since: since.to_owned(),
            message: clean.message,
            remedy: remedy.into(),
        }
    }

    fn json(&self) -> Value {
        json!({ "about": self.about, "since": self.since, "message": self.message, "remedy": self.remedy })
    }
}

impl Seen {
    fn node(&self) -> &Value {
        &self.nodes["items"][0]
    }

    fn pods(&self) -> impl Iterator<Item = &Value> {
        list(&self.pods["items"])
    }

    fn troubles(&self) -> Vec<Trouble> {
        let mut found = self.of_node();
        if let Some(problem) = self.settings["coracle"]["problem"].as_str() {
            let message = format!("the files are invalid and not in force: {problem}");
            found.push(Trouble::new(
                "settings",
                "",
                message,
                "coracle config print",
            ));
        }
        // Beside a refused file is listed what it said before and stays in force: `Superseded`.
        let well = |file: &&Value| matches!(word(&file["state"]), "Loaded" | "Superseded");
        for file in list(&self.files["items"]).filter(|file| !well(file)) {
            let path = word(&file["path"]);
            let name = path.rsplit('/').next().unwrap_or(path);
            let (error, remedy) = match file["state"] == "RolledBack" {
                true => (&file["warnings"][0], "edit the file".to_owned()),
                false => (&file["errors"][0], format!("coracle validate {path}")),
            };
            let error = error.as_str().unwrap_or("refused");
            found.push(Trouble::new(&format!("file {name}"), "", error, remedy));
        }
        let why = |pod| pods::trouble(pod, &self.warnings);
        found.extend(self.pods().filter_map(why));
        found.extend(list(&self.jobs["items"]).filter_map(of_job));
        found.extend(list(&self.services["items"]).filter_map(of_service));
        found
    }

    /// Settings that wait for the next start of the agent. They are said, but are no fault.
    fn pending_settings(&self) -> Option<Trouble> {
        let pending = self.settings["coracle"]["pending"].as_object()?;
        let pending: Vec<String> = pending
            .iter()
            .map(|(path, then)| format!("{path}: {}", word(then)))
            .collect();
        let message = format!("from the next start on: {}", pending.join(", "));
        let remedy = "systemctl restart coracle";
        (!pending.is_empty()).then(|| Trouble::new("settings", "", message, remedy))
    }

    /// Conditions, the cordon, full disks.
    fn of_node(&self) -> Vec<Trouble> {
        let node = self.node();
        let mut found = Vec::new();
        for condition in list(&node["status"]["conditions"]) {
            let ready = condition["type"] == "Ready";
            if (condition["status"] == "True") != ready {
                let message = word(&condition["message"]);
                let remedy = match ready {
                    true => "coracle describe node",
                    false => "coracle top pods -A",
                };
                let remedy = match word(&condition["type"]) {
                    "DiskPressure" => "coracle system df",
                    _ => remedy,
                };
                let since = word(&condition["lastTransitionTime"]);
                found.push(Trouble::new("node", since, message, remedy));
            }
        }
        if node["spec"]["unschedulable"] == true {
            let message = "cordoned: new pods wait";
            found.push(Trouble::new("node", "", message, "coracle uncordon"));
        }
        for (name, figures) in self.disks() {
            if let Some(percent) = used_percent(figures)
                && percent >= FULL_PERCENT
            {
                let message = format!(
                    "{percent}% of its {} used",
                    size(number(&figures["capacityBytes"]))
                );
                found.push(Trouble::new(name, "", message, "coracle system df"));
            }
        }
        found
    }

    fn disks(&self) -> Vec<(&'static str, &Value)> {
        let node = &self.summary["node"];
        let (state, images) = (&node["fs"], &node["runtime"]["imageFs"]);
        let mut disks = vec![("disk", state)];
        if images["capacityBytes"] != state["capacityBytes"] {
            disks.push(("disk of images", images));
        }
        disks
    }

    /// `5 ready, 1 stopped, 2 not well`
    fn counts(&self) -> [(&'static str, usize); 4] {
        let mut counts = [
            ("ready", 0),
            ("completed", 0),
            ("stopped", 0),
            ("not well", 0),
        ];
        for pod in self.pods() {
            let at = match &pod["status"] {
                status if status["reason"] == "Stopped" => 2,
                status if status["phase"] == "Succeeded" => 1,
                _ if pods::is_well(pod) => 0,
                _ => 3,
            };
            counts[at].1 += 1;
        }
        counts
    }

    fn page(&self, troubles: &[Trouble], well: bool) -> String {
        let node = self.node();
        let info = &node["status"]["nodeInfo"];
        let well = if well {
            "all is well"
        } else {
            "not all is well"
        };
        let now = clock::timestamp();
        let up = self.summary["node"]["startTime"]
            .as_str()
            .and_then(|at| at.parse().ok());
        let mut text = format!(
            "{}: {well} (coracle {}, {}, Linux {}, up {})\n",
            word(&node["metadata"]["name"]),
            word(&self.version["coracleVersion"]),
            word(&info["osImage"]),
            word(&info["kernelVersion"]),
            age_of(up, now)
        );
        let counts = self.counts();
        let counts = counts.iter().filter(|(_, count)| *count > 0);
        let counts: Vec<String> = counts
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let counts = if counts.is_empty() {
            "none".to_owned()
        } else {
            counts.join(", ")
        };
        text += &format!("pods: {counts}\n");
        let figures: Vec<String> = self.figures().iter().map(shown).collect();
        text += &format!("used: {}\n", figures.join(", "));
        if troubles.is_empty() {
            return text;
        }
        let rows = troubles.iter().take(MAX_LINES).map(|trouble| {
            let since = trouble.since.parse().ok();
            let age = since.map_or_else(String::new, |at| age_of(Some(at), now));
            vec![
                trouble.about.clone(),
                age,
                trouble.message.clone(),
                trouble.remedy.clone(),
            ]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let header = ["ABOUT", "FOR", "WHY", "WHAT TO DO"];
        text += &format!("\n{}", Table::default().render(&header, &rows));
        match troubles.len().saturating_sub(MAX_LINES) {
            0 => text,
            more => text + &format!("and {more} more: coracle status -o json\n"),
        }
    }

    /// What is used of memory, disks and processes: name, percentage, whole.
    fn figures(&self) -> Vec<(&'static str, u64, String)> {
        let node = &self.summary["node"];
        let mut found = Vec::new();
        let memory = number(&node["memory"]["workingSetBytes"]);
        let whole = memory.saturating_add(number(&node["memory"]["availableBytes"]));
        let percent = |part: u64, whole: u64| part.saturating_mul(100).checked_div(whole);
        if let Some(percent) = percent(memory, whole) {
            found.push(("memory", percent, size(whole)));
        }
        for (name, figures) in self.disks() {
            if let Some(percent) = used_percent(figures) {
                found.push((name, percent, size(number(&figures["capacityBytes"]))));
            }
        }
        let most = number(&node["rlimit"]["maxpid"]);
        if let Some(percent) = percent(number(&node["rlimit"]["curproc"]), most) {
            found.push(("processes", percent, most.to_string()));
        }
        found
    }

    fn json(&self, troubles: &[Trouble], well: bool) -> Value {
        let node = self.node();
        let counts = self
            .counts()
            .map(|(name, count)| json!({ "is": name, "pods": count }));
        let figures = self.figures().into_iter();
        let figures = figures.map(
            |(name, percent, whole)| json!({ "name": name, "usedPercent": percent, "of": whole }),
        );
        json!({
            "well": well,
            "node": node["metadata"]["name"],
            "version": self.version["coracleVersion"],
            "nodeInfo": node["status"]["nodeInfo"],
            "pods": counts,
            "used": figures.collect::<Vec<_>>(),
            "problems": troubles.iter().map(Trouble::json).collect::<Vec<_>>(),
        })
    }
}

fn shown((name, percent, whole): &(&'static str, u64, String)) -> String {
    format!("{name} {percent}% of {whole}")
}

/// Why a Job has failed, if so. It stays failed until its file changes, also when its pods are gone.
fn of_job(job: &Value) -> Option<Trouble> {
    let failed =
        |condition: &&Value| condition["type"] == "Failed" && condition["status"] == "True";
    let failed = list(&job["status"]["conditions"]).find(failed)?;
    let (option, name, shown) = place(&job["metadata"]);
    let since = word(&failed["lastTransitionTime"]);
    let why = format!("{}: {}", word(&failed["reason"]), word(&failed["message"]));
    let remedy = format!("coracle describe job{option} {name}");
    Some(Trouble::new(&format!("job {shown}"), since, why, remedy))
}

/// What a service asks for and does not have.
fn of_service(service: &Value) -> Option<Trouble> {
    let lacks =
        |condition: &&Value| condition["type"] == "Allocated" && condition["status"] == "False";
    let lacks = list(&service["status"]["conditions"]).find(lacks)?;
    let (option, name, shown) = place(&service["metadata"]);
    let since = word(&lacks["lastTransitionTime"]);
    let remedy = format!("coracle describe service{option} {name}");
    let about = format!("service {shown}");
    Some(Trouble::new(&about, since, word(&lacks["message"]), remedy))
}

/// The flag for an object's namespace, its name, and both as they are shown.
fn place(meta: &Value) -> (String, &str, String) {
    let name = word(&meta["name"]);
    match word(&meta["namespace"]) {
        "default" => (String::new(), name, name.to_owned()),
        other => (format!(" -n {other}"), name, format!("{other}/{name}")),
    }
}

fn used_percent(disk: &Value) -> Option<u64> {
    let whole = number(&disk["capacityBytes"]);
    let used = whole.saturating_sub(number(&disk["availableBytes"]));
    used.saturating_mul(100).checked_div(whole)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, status: Value) -> Value {
        json!({ "metadata": { "namespace": "default", "name": name }, "status": status })
    }

    #[test]
    fn a_job_that_has_failed_is_named_when_its_pods_are_gone() {
        let job = |type_: &str| {
            json!({ "metadata": { "namespace": "a", "name": "backup" }, "status": { "conditions": [
                { "type": type_, "status": "True", "reason": "BackoffLimitExceeded", "message": "too often" } ] } })
        };
        assert_eq!(of_job(&job("Complete")), None);
        let found = of_job(&job("Failed")).expect("it failed");
        assert_eq!(found.about, "job a/backup");
        assert_eq!(found.message, "BackoffLimitExceeded: too often");
        assert_eq!(found.remedy, "coracle describe job -n a backup");
    }

    #[test]
    fn a_service_that_lacks_something_is_named() {
        let service = |status: Value| json!({ "metadata": { "namespace": "default", "name": "web" }, "status": status });
        assert_eq!(of_service(&service(json!({ "loadBalancer": {} }))), None);
        let lacks =
            json!({ "type": "Allocated", "status": "False", "message": "10.96.0.9 is taken" });
        let found = of_service(&service(json!({ "conditions": [lacks] })));
        let found = found.expect("it lacks its address");
        assert_eq!(found.about, "service web");
        assert_eq!(found.message, "10.96.0.9 is taken");
        assert_eq!(found.remedy, "coracle describe service web");
    }

    #[test]
    fn a_refused_file_is_named_once() {
        let file = |state: &str, errors: Value| json!({ "path": "/m/a.yaml", "state": state, "errors": errors });
        let seen = Seen {
            files: json!({ "items": [
                file("Rejected", json!(["1:1: no YAML"])), file("Superseded", json!([])) ] }),
            ..Seen::default()
        };
        let found: Vec<String> = seen.troubles().into_iter().map(|t| t.message).collect();
        assert_eq!(found, ["1:1: no YAML"]);
    }

    #[test]
    fn settings_that_are_refused_are_a_fault_and_those_that_wait_are_none() {
        let seen = |coracle: Value| Seen {
            settings: json!({ "coracle": coracle }),
            ..Seen::default()
        };
        let fine = seen(json!({ "pending": {}, "problem": null }));
        assert_eq!((fine.troubles(), fine.pending_settings()), (vec![], None));
        let broken = seen(json!({ "pending": {}, "problem": "config.yaml:2:1: unknown field" }));
        let found = broken.troubles();
        assert_eq!(found[0].about, "settings");
        assert!(found[0].message.ends_with("config.yaml:2:1: unknown field"));
        assert_eq!(found[0].remedy, "coracle config print");
        let waiting = seen(json!({ "pending": { "podPidsLimit": "78" }, "problem": null }));
        assert_eq!(waiting.troubles(), []);
        let said = waiting.pending_settings().expect("it waits");
        assert_eq!(said.message, "from the next start on: podPidsLimit: 78");
    }

    #[test]
    fn a_node_that_is_well_takes_three_lines() {
        let disk = |available: u64| json!({ "capacityBytes": 1000, "availableBytes": available });
        let condition =
            |kind: &str, status: &str| json!({ "type": kind, "status": status, "message": kind });
        let seen = |ready: &str, available| Seen {
            files: json!({ "items": [{ "path": "/m/a.yaml", "state": "Loaded" }] }),
            nodes: json!({ "items": [{ "metadata": { "name": "box" }, "status": { "conditions": [
                condition("Ready", ready), condition("DiskPressure", "False") ] } }] }),
            pods: json!({ "items": [pod("web", json!({ "phase": "Succeeded" }))] }),
            summary: json!({ "node": { "fs": disk(available), "runtime": { "imageFs": disk(available) } } }),
            ..Seen::default()
        };
        let well = seen("True", 500);
        assert_eq!(well.troubles(), []);
        let page = well.page(&[], true);
        assert_eq!(page.lines().count(), 3, "{page}");
        assert!(
            page.contains("pods: 1 completed\nused: disk 50% of"),
            "{page}"
        );
        let ill = seen("False", 100).troubles();
        let remedies: Vec<&str> = ill.iter().map(|trouble| trouble.remedy.as_str()).collect();
        assert_eq!(remedies, ["coracle describe node", "coracle system df"]);
    }
}
