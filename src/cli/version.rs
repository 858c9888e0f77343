//! `coracle version`: this program's version, the agent's if it answers, and with `-o json` what this program was built
//! from.

use std::process::ExitCode;

use serde_json::json;

use super::args::OutputArgs;
use super::client::{Client, SOON};
use super::error::Result;
use super::put;
use crate::api::build;
use crate::layout::STATE_FORMAT;

pub(super) fn run(client: &Client, args: &OutputArgs) -> Result<ExitCode> {
    let own = env!("CARGO_PKG_VERSION");
    // Without an agent, still print the client's version.
    let agent = client.get_within("/version", SOON).ok();
    let agent = agent
        .as_ref()
        .and_then(|(v, _)| v["coracleVersion"].as_str());
    let text = match args.output {
        Some(_) => format!(
            "{}\n",
            json!({ "client": own, "agent": agent, "stateFormat": STATE_FORMAT, "build": build::facts() })
        ),
        None => {
            let built = match (build::COMMIT.get(..12), build::date()) {
                (Some(commit), date) if !date.is_empty() => format!(" ({commit}, {date})"),
                _ => String::new(),
            };
            let agent = agent.unwrap_or("not reachable");
            format!("client: {own}{built}\nagent: {agent}\n")
        }
    };
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
