//! `coracle volume ls|rm`.

use std::process::ExitCode;

use serde::Deserialize as _;
use serde_json::Value;

use super::args::VolumeCommand;
use super::client::Client;
use super::error::Result;
use super::table::{Table, one_line, size};
use super::{confirm, put};
use crate::api::{VolumeRow, encode};

const PATH: &str = "/coracle/v1/volumes";

pub(super) fn run(client: &Client, command: VolumeCommand) -> Result<ExitCode> {
    match command {
        VolumeCommand::Ls { output } => list(client, output.is_some()),
        VolumeCommand::Rm {
            claims,
            namespace,
            force,
        } => remove(client, &claims, &namespace.namespace, force),
    }
}

fn list(client: &Client, json: bool) -> Result<ExitCode> {
    // Their files are counted first.
    let answer = client.json("GET", PATH, None)?;
    if json {
        put(format!("{answer}\n").as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = Vec::<VolumeRow>::deserialize(&answer["items"]).unwrap_or_default();
    if rows.is_empty() {
        eprintln!("No volumes found.");
        return Ok(ExitCode::SUCCESS);
    }
    let header = [
        "NAMESPACE",
        "CLAIM",
        "VOLUME",
        "SIZE",
        "USED",
        "STATUS",
        "PODS",
        "PATH",
    ];
    let cells = rows.iter().map(|row| {
        let pods = match row.pods.is_empty() {
            true => "<none>".to_owned(),
            false => row.pods.join(","),
        };
        vec![
            row.namespace.clone(),
            row.claim.clone(),
            row.volume.clone(),
            row.requested.clone().unwrap_or_else(|| "<none>".to_owned()),
            size(row.used_bytes),
            row.status.clone(),
            pods,
            one_line(&row.path.to_string_lossy()),
        ]
    });
    let cells: Vec<_> = cells.collect();
    put(Table::default().render(&header, &cells).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn remove(client: &Client, claims: &[String], namespace: &str, force: bool) -> Result<ExitCode> {
    if !force {
        confirm(&format!("the data of {}", claims.join(", ")))?;
    }
    let mut first_error = None;
    for claim in claims {
        let (namespace, name) = claim.split_once('/').unwrap_or((namespace, claim));
        let path = format!(
            "{PATH}?namespace={}&name={}",
            encode(namespace),
            encode(name)
        );
        match client.json("DELETE", &path, None) {
            Ok(removed) => report(&removed)?,
            Err(error) => {
                eprintln!("{error}");
                first_error.get_or_insert(error.exit_code());
            }
        }
    }
    Ok(first_error.map_or(ExitCode::SUCCESS, ExitCode::from))
}

fn report(removed: &Value) -> Result<()> {
    let row = VolumeRow::deserialize(removed).unwrap_or_default();
    let path = one_line(&row.path.to_string_lossy());
    let text = match row.volume.starts_with("pvc-") {
        true => format!("removed {path}\n"),
        false => format!("released volume {}, {path} stays\n", row.volume),
    };
    put(text.as_bytes())
}
