//! What do the flags of `coracle run` say of the settings?

use std::path::PathBuf;

use super::StartError;
use crate::cli::args::RunArgs;
use crate::config::{Flag, FlagValue};

/// The settings that they give.
pub(super) fn given(args: RunArgs) -> Result<Vec<Flag>, StartError> {
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let path = |path: PathBuf| FlagValue::Text(absolute(path).to_string_lossy().into_owned());
    let paths = |paths: Vec<PathBuf>| {
        let texts = paths
            .into_iter()
            .map(|path| absolute(path).to_string_lossy().into_owned());
        FlagValue::Texts(texts.collect())
    };
    for (flag, list) in [
        ("--pod-cidr", &args.pod_cidr),
        ("--service-cidr", &args.service_cidr),
    ] {
        let checked = crate::config::cidrs(list.as_deref().unwrap_or_default());
        checked.map_err(|problem| StartError::Flag { flag, problem })?;
    }
    let some = |list: &Vec<_>| !list.is_empty();
    let dns = args.cluster_dns.iter().map(ToString::to_string).collect();
    let all = [
        ("staticPodPath", "--manifests", args.manifests.map(path)),
        ("coracle.rootDir", "--root", args.root.map(path)),
        ("coracle.runDir", "--run-dir", args.run_dir.map(path)),
        ("podLogsDir", "--log-dir", args.log_dir.map(path)),
        (
            "coracle.preload",
            "--preload",
            some(&args.preload).then(|| paths(args.preload)),
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

/// The value of `--node-labels`.
fn some_pairs(pairs: Vec<String>) -> Result<Option<FlagValue>, StartError> {
    let split = |pair: &String| {
        let (key, value) = pair.split_once('=')?;
        Some((key.to_owned(), value.to_owned()))
    };
    let read = pairs.iter().map(|pair| {
        split(pair).ok_or_else(|| StartError::Flag {
            flag: "--node-labels",
            problem: format!("`{pair}` is not a pair like key=value"),
        })
    });
    let pairs = read.collect::<Result<Vec<_>, _>>()?;
    Ok((!pairs.is_empty()).then_some(FlagValue::Pairs(pairs)))
}
