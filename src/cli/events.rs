//! `coracle events`: events of one object or all, with how often they occurred.

use std::process::ExitCode;

use super::args::{EventsArgs, GetArgs, Resource};
use super::client::Client;
use super::error::{CliError, Result};
use super::{get, target};

/// Whether there are events about objects of this kind.
pub(super) fn is_for(kind: Resource) -> bool {
    let other = [Resource::Pods, Resource::Nodes, Resource::Services];
    other.contains(&kind) || kind.workload().is_some()
}

pub(super) fn run(client: &Client, args: EventsArgs) -> Result<ExitCode> {
    let mut fields = Vec::new();
    if let Some(about) = &args.about {
        let kind_and_name = about.split_once('/');
        let owner = target::owner(about).map(|(kind, name)| (kind.as_str(), name));
        let (kind, name) = match (kind_and_name, owner) {
            (Some(("pod" | "pods" | "po", name)), _) => ("Pod", name),
            (Some(("node" | "nodes" | "no", name)), _) => ("Node", name),
            (Some(("service" | "services" | "svc", name)), _) => ("Service", name),
            (_, Some(owner)) => owner,
            _ => {
                return Err(
                    CliError::usage(format!("`{about}` names no object that has events"))
                        .hint("--for pod/NAME, node/NAME, service/NAME, deployment/NAME …"),
                );
            }
        };
        fields.push(format!(
            "involvedObject.kind={kind},involvedObject.name={name}"
        ));
    }
    let is = |wanted: &str| args.types.iter().any(|t| t.eq_ignore_ascii_case(wanted));
    if let Some(other) = args.types.iter().find(|t| {
        !["Normal", "Warning"]
            .iter()
            .any(|known| t.eq_ignore_ascii_case(known))
    }) {
        return Err(
            CliError::usage(format!("there is no type `{other}`")).hint("Normal or Warning")
        );
    }
    match (is("Normal"), is("Warning")) {
        (true, false) => fields.push("type=Normal".to_owned()),
        (false, true) => fields.push("type=Warning".to_owned()),
        (true, true) | (false, false) => {}
    }
    let args = GetArgs {
        what: vec!["events".to_owned()],
        list: args.list,
        show_labels: false,
        label_columns: Vec::new(),
        selector: None,
        sort_by: None,
        ignore_not_found: false,
        field_selector: (!fields.is_empty()).then(|| fields.join(",")),
        interval: true,
    };
    get::run(client, &args)
}
