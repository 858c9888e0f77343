//! `coracle system df`: what takes the disk, and what of it can be given back.

use std::process::ExitCode;

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::args::SystemCommand;
use super::client::Client;
use super::error::Result;
use super::image::ask_to_prune;
use super::put;
use super::table::{Table, size};
use crate::api::VolumeRow;

pub(super) fn run(client: &Client, command: &SystemCommand) -> Result<ExitCode> {
    let SystemCommand::Df { verbose, output } = command;
    let used = Used::ask(client)?;
    let text = match output {
        Some(_) => format!("{:#}\n", used.json()),
        None => {
            used.table()
                + &if *verbose {
                    used.details()
                } else {
                    String::new()
                }
        }
    };
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// One thing that takes space.
#[derive(Debug, Default, PartialEq, Eq)]
struct Item {
    name: String,
    bytes: u64,
    /// Something uses it.
    active: bool,
    /// `coracle image prune --all` or `volume rm` removes it.
    reclaimable: bool,
}

/// A kind of things.
#[derive(Debug, Default)]
struct Kind {
    title: &'static str,
    items: Vec<Item>,
}

#[derive(Debug, Default)]
struct Used(Vec<Kind>);

impl Used {
    fn ask(client: &Client) -> Result<Self> {
        let summary = client.get("/stats/summary")?;
        let volumes = client.json("GET", "/coracle/v1/volumes", None)?;
        let images = client.get("/coracle/v1/images")?;
        let pruned = ask_to_prune(client, true, true)?;
        Ok(Self::of(&summary, &volumes, &images, &pruned))
    }

    fn of(summary: &Value, volumes: &Value, images: &Value, pruned: &Value) -> Self {
        let prunable = |image: &Value| list(&pruned["deleted"]).any(|id| *id == image["id"]);
        let images = list(&images["items"]).map(|image| Item {
            name: text(image["names"].get(0).unwrap_or(&image["id"])),
            bytes: bytes(&image["size_bytes"]),
            active: image["in_use"] == true,
            reclaimable: prunable(image),
        });
        let claims = Vec::<VolumeRow>::deserialize(&volumes["items"]).unwrap_or_default();
        let claims = claims.into_iter().map(|row| Item {
            name: format!("{}/{}", row.namespace, row.claim),
            bytes: row.used_bytes,
            active: !row.pods.is_empty(),
            reclaimable: row.pods.is_empty(),
        });
        let (mut layers, mut logs, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
        let item = |name: String, figures: &Value| Item {
            name,
            bytes: bytes(&figures["usedBytes"]),
            active: true,
            reclaimable: false,
        };
        for pod in list(&summary["pods"]) {
            let name = format!(
                "{}/{}",
                text(&pod["podRef"]["namespace"]),
                text(&pod["podRef"]["name"])
            );
            for container in list(&pod["containers"]) {
                let name = format!("{name}/{}", text(&container["name"]));
                layers.push(item(name.clone(), &container["rootfs"]));
                logs.push(item(name, &container["logs"]));
            }
            for volume in list(&pod["volume"]) {
                scratch.push(item(format!("{name}/{}", text(&volume["name"])), volume));
            }
        }
        let kind = |title, items| Kind { title, items };
        Self(vec![
            kind("Images", images.collect()),
            kind("Containers", layers),
            kind("Local Volumes", scratch),
            kind("Claims", claims.collect()),
            kind("Logs", logs),
        ])
    }

    /// podman's and docker's table.
    fn table(&self) -> String {
        let rows = self.0.iter().map(|kind| {
            let (all, free) = (kind.bytes(|_| true), kind.bytes(|item| item.reclaimable));
            let percent = free.saturating_mul(100).checked_div(all).unwrap_or(0);
            let active = kind.items.iter().filter(|item| item.active);
            vec![
                kind.title.to_owned(),
                kind.items.len().to_string(),
                active.count().to_string(),
                size(all),
                format!("{} ({percent}%)", size(free)),
            ]
        });
        let header = ["TYPE", "TOTAL", "ACTIVE", "SIZE", "RECLAIMABLE"];
        Table::default().render(&header, &rows.collect::<Vec<_>>())
    }

    /// Each kind's items, the largest first.
    fn details(&self) -> String {
        let mut text = String::new();
        for kind in self.0.iter().filter(|kind| !kind.items.is_empty()) {
            let mut items: Vec<&Item> = kind.items.iter().collect();
            items.sort_unstable_by(|one, two| (two.bytes, &one.name).cmp(&(one.bytes, &two.name)));
            let rows = items.iter().map(|item| {
                let word = |yes| if yes { "yes" } else { "no" }.to_owned();
                let [active, free] = [item.active, item.reclaimable].map(word);
                vec![item.name.clone(), size(item.bytes), active, free]
            });
            let header = ["NAME", "SIZE", "ACTIVE", "RECLAIMABLE"];
            let table = Table::default().render(&header, &rows.collect::<Vec<_>>());
            text += &format!("\n{}:\n\n{table}", kind.title);
        }
        text
    }

    fn json(&self) -> Value {
        let kinds = self.0.iter().map(|kind| {
            let items = kind.items.iter().map(|item| {
                json!({ "name": item.name, "sizeBytes": item.bytes, "active": item.active,
                        "reclaimable": item.reclaimable })
            });
            let active = kind.items.iter().filter(|item| item.active);
            json!({
                "type": kind.title,
                "total": kind.items.len(),
                "active": active.count(),
                "sizeBytes": kind.bytes(|_| true),
                "reclaimableBytes": kind.bytes(|item| item.reclaimable),
                "items": items.collect::<Vec<_>>(),
            })
        });
        kinds.collect()
    }
}

impl Kind {
    fn bytes(&self, of: impl Fn(&Item) -> bool) -> u64 {
        let some = self.items.iter().filter(|item| of(item));
        some.fold(0, |sum, item| sum.saturating_add(item.bytes))
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_needs_can_be_given_back() {
        let summary = json!({ "pods": [{
            "podRef": { "namespace": "default", "name": "web" },
            "containers": [{ "name": "main", "rootfs": { "usedBytes": 4096 }, "logs": { "usedBytes": 2048 } }],
            "volume": [{ "name": "tmp", "usedBytes": 1024 }],
        }] });
        let volumes = json!({ "items": [
            { "namespace": "default", "claim": "data", "volume": "v", "path": "/v", "requested": null,
              "usedBytes": 3_000_000, "pods": [] },
        ] });
        let images = json!({ "items": [
            { "id": "sha256:a", "names": ["docker.io/library/web:1"], "size_bytes": 3_000_000, "in_use": true },
            { "id": "sha256:b", "names": [], "size_bytes": 1_000_000, "in_use": false },
        ] });
        let pruned = json!({ "deleted": ["sha256:b"], "freed_bytes": 1_000_000 });
        let used = Used::of(&summary, &volumes, &images, &pruned);
        let shown = used.table();
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[1].starts_with("Images          2       1"), "{shown}");
        assert!(lines[1].ends_with("(25%)"), "{shown}");
        assert!(lines[4].ends_with("(100%)"), "{shown}");
        assert!(
            used.details().contains("default/web/main"),
            "{}",
            used.details()
        );
        let json = used.json();
        assert_eq!(json[0]["reclaimableBytes"], 1_000_000);
        assert_eq!(json[4]["sizeBytes"], 2048);
    }
}
