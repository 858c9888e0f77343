//! `coracle version`: this program's version, and the agent's if it answers.

use std::process::ExitCode;

use serde_json::json;

use super::args::OutputArgs;
use super::client::Client;
use super::error::Result;
use super::put;
use crate::layout::STATE_FORMAT;

pub(super) fn run(client: &Client, args: &OutputArgs) -> Result<ExitCode> {
    let own = env!("CARGO_PKG_VERSION");
    // Without an agent, still print the client's version.
    let agent = client.get("/version").ok();
    let agent = agent.as_ref().and_then(|v| v["coracleVersion"].as_str());
    let text = match args.output {
        Some(_) => format!(
            "{}\n",
            json!({ "client": own, "agent": agent, "stateFormat": STATE_FORMAT })
        ),
        None => format!(
            "client: {own}\nagent: {}\n",
            agent.unwrap_or("not reachable")
        ),
    };
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
