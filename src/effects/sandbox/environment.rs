//! The program of a container: arguments, environment and working directory, from image and manifest (Kubernetes
//! docs: Define Dependent Environment Variables).

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::user::User;
use super::{ConfigError, ContainerOrder, references};
use crate::spec::EnvValue;
use crate::spec::expand::expand;

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) args: Vec<String>,
    pub(super) env: Vec<String>,
    pub(super) cwd: String,
    /// The manifest's variables and those of services, for `subPathExpr`.
    pub(super) declared: BTreeMap<String, String>,
}

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Builds the program. `links` are the variables of services.
pub(super) fn process(
    order: &ContainerOrder<'_>,
    user: &User,
    hostname: &str,
    links: BTreeMap<String, String>,
) -> Result<Process, ConfigError> {
    let (container, image) = (order.container, &order.image.config);
    let declared = declared(order, links)?;
    let expanded = |list: &[String]| -> Vec<String> {
        list.iter()
            .map(|text| expand(text, |name| declared.get(name).map(Cow::from)))
            .collect()
    };
    let entrypoint = image.entrypoint.clone().unwrap_or_default();
    let cmd = image.cmd.clone().unwrap_or_default();
    let args: Vec<String> = match (&container.command, &container.args) {
        (Some(command), args) => [
            expanded(command),
            expanded(args.as_deref().unwrap_or_default()),
        ]
        .concat(),
        (None, Some(args)) => [entrypoint, expanded(args)].concat(),
        (None, None) => [entrypoint, cmd].concat(),
    };
    if args.is_empty() {
        return Err(ConfigError::NoCommand);
    }
    let mut env: BTreeMap<String, String> = [
        ("PATH".to_owned(), DEFAULT_PATH.to_owned()),
        ("HOSTNAME".to_owned(), hostname.to_owned()),
    ]
    .into();
    if container.tty {
        env.insert("TERM".to_owned(), "xterm".to_owned());
    }
    env.insert("HOME".to_owned(), user.home.clone());
    env.extend(
        image
            .env
            .iter()
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned())),
    );
    env.extend(declared.clone());
    let cwd = match (
        &container.working_dir,
        image.working_dir.as_deref().unwrap_or_default(),
    ) {
        (Some(dir), _) if !dir.is_empty() => dir.clone(),
        (_, "") => "/".to_owned(),
        (_, dir) => dir.to_owned(),
    };
    let env = env
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    Ok(Process {
        args,
        env,
        cwd,
        declared,
    })
}

/// The manifest's variables over those of services; each may refer to these and to those before it.
fn declared(
    order: &ContainerOrder<'_>,
    links: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, ConfigError> {
    let (pod, container) = (order.pod, order.container);
    let mut known = links;
    for source in &container.env_from {
        references::all_keys(order, source, &mut known)?;
    }
    for variable in &container.env {
        let value = match &variable.value {
            EnvValue::Literal(text) => Some(expand(text, |name| known.get(name).map(Cow::from))),
            EnvValue::Key(key) => references::key(order, key)?,
            EnvValue::FileKey(key) => references::file_key(order, key)?,
            other => order.node.value(other, pod, order.ips),
        };
        if let Some(value) = value {
            known.insert(variable.name.clone(), value);
        }
    }
    Ok(known)
}
