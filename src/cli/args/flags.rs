//! The settings given by the flags of `coracle run`.

use std::path::PathBuf;

use super::RunArgs;
use crate::cli::error::{CliError, Result};
use crate::config::{Flag, FlagValue};

/// Turns flags into settings; paths become absolute.
pub(in crate::cli) fn given(args: RunArgs) -> Result<Vec<Flag>> {
    check_ranges(&args)?;
    let path = |path: PathBuf| FlagValue::Text(absolute(path));
    let preload = args.preload.into_iter().map(absolute).collect::<Vec<_>>();
    let dns = args.cluster_dns.iter().map(ToString::to_string).collect();
    let all = [
        ("staticPodPath", "--manifests", args.manifests.map(path)),
        ("coracle.rootDir", "--root", args.root.map(path)),
        ("coracle.runDir", "--run-dir", args.run_dir.map(path)),
        ("podLogsDir", "--log-dir", args.log_dir.map(path)),
        (
            "coracle.preload",
            "--preload",
            (!preload.is_empty()).then_some(FlagValue::Texts(preload)),
        ),
        (
            "coracle.cgroupParent",
            "--cgroup-parent",
            args.cgroup_parent.map(FlagValue::Text),
        ),
        (
            "coracle.nodeName",
            "--node-name",
            args.node_name.map(FlagValue::Text),
        ),
        (
            "coracle.nodeLabels",
            "--node-labels",
            some_pairs(args.node_labels)?,
        ),
        (
            "coracle.bridge",
            "--bridge",
            args.bridge.map(FlagValue::Text),
        ),
        ("podCIDR", "--pod-cidr", args.pod_cidr.map(FlagValue::Text)),
        (
            "coracle.serviceCIDR",
            "--service-cidr",
            args.service_cidr.map(FlagValue::Text),
        ),
        (
            "clusterDNS",
            "--cluster-dns",
            (!args.cluster_dns.is_empty()).then_some(FlagValue::Texts(dns)),
        ),
        (
            "coracle.maximumDeadContainersPerContainer",
            "--maximum-dead-containers-per-container",
            args.maximum_dead_containers_per_container
                .map(|number| FlagValue::Number(number.into())),
        ),
        (
            "coracle.stopPodsOnExit",
            "--stop-pods-on-exit",
            args.stop_pods_on_exit.then_some(FlagValue::On),
        ),
    ];
    let given = all.into_iter().filter_map(|(field, flag, value)| {
        Some(Flag {
            field,
            flag,
            value: value?,
        })
    });
    Ok(given.collect())
}

fn check_ranges(args: &RunArgs) -> Result<()> {
    for (flag, list) in [
        ("--pod-cidr", &args.pod_cidr),
        ("--service-cidr", &args.service_cidr),
    ] {
        let checked = crate::config::cidrs(list.as_deref().unwrap_or_default());
        checked.map_err(|problem| CliError::new(format!("{flag}: {problem}")))?;
    }
    Ok(())
}

fn absolute(path: PathBuf) -> String {
    let absolute = std::path::absolute(&path).unwrap_or(path);
    absolute.to_string_lossy().into_owned()
}

/// Parses `--node-labels`; `None` if there are none.
fn some_pairs(pairs: Vec<String>) -> Result<Option<FlagValue>> {
    let split = |pair: &String| {
        let (key, value) = pair.split_once('=')?;
        Some((key.to_owned(), value.to_owned()))
    };
    let read = pairs.iter().map(|pair| {
        split(pair).ok_or_else(|| {
            CliError::new(format!(
                "--node-labels: `{pair}` is not a pair like key=value"
            ))
        })
    });
    let pairs = read.collect::<Result<Vec<_>>>()?;
    Ok((!pairs.is_empty()).then_some(FlagValue::Pairs(pairs)))
}
