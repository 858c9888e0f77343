//! The kinds of objects that can be read, and their paths: a table with one line each.

use super::store::Kind;
use crate::spec::WorkloadKind;

/// A kind of object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resource {
    pub(crate) kind: Kind,
    /// `kind` of an object.
    pub(crate) object: &'static str,
    /// `apiVersion` of an object.
    pub(crate) group: &'static str,
    /// Name in paths and messages.
    pub(crate) plural: &'static str,
    /// Abbreviation that kubectl takes; empty: none.
    pub(crate) short: &'static str,
    pub(crate) namespaced: bool,
    /// What clients may do, as discovery lists it.
    pub(crate) verbs: &'static [&'static str],
    /// Subresources that are read as the object itself.
    same: &'static [&'static str],
}

/// The table.
pub(crate) const RESOURCES: [Resource; 20] = [
    core(Kind::Endpoints, "Endpoints", "endpoints", "ep"),
    core(Kind::Events, "Event", "events", "ev"),
    Resource {
        namespaced: false,
        verbs: &["get", "list", "patch", "watch"],
        ..core(Kind::Nodes, "Node", "nodes", "no")
    },
    Resource {
        verbs: &["delete", "get", "list", "watch"],
        same: &["status", "ephemeralcontainers"],
        ..core(Kind::Pods, "Pod", "pods", "po")
    },
    Resource {
        namespaced: false,
        group: "scheduling.k8s.io/v1",
        ..core(
            Kind::PriorityClasses,
            "PriorityClass",
            "priorityclasses",
            "pc",
        )
    },
    core(Kind::Services, "Service", "services", "svc"),
    core(Kind::ConfigMaps, "ConfigMap", "configmaps", "cm"),
    core(Kind::Secrets, "Secret", "secrets", ""),
    core(
        Kind::ServiceAccounts,
        "ServiceAccount",
        "serviceaccounts",
        "sa",
    ),
    Resource {
        namespaced: false,
        ..core(Kind::Namespaces, "Namespace", "namespaces", "ns")
    },
    core(
        Kind::Claims,
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        "pvc",
    ),
    Resource {
        namespaced: false,
        ..core(Kind::Volumes, "PersistentVolume", "persistentvolumes", "pv")
    },
    // Without a resource in its group, clients count discovery as failed.
    Resource {
        group: "policy/v1",
        ..core(
            Kind::Budgets,
            "PodDisruptionBudget",
            "poddisruptionbudgets",
            "pdb",
        )
    },
    apps(WorkloadKind::Deployment, "deployments", "deploy"),
    apps(WorkloadKind::ReplicaSet, "replicasets", "rs"),
    Resource {
        group: "v1",
        ..apps(
            WorkloadKind::ReplicationController,
            "replicationcontrollers",
            "rc",
        )
    },
    apps(WorkloadKind::StatefulSet, "statefulsets", "sts"),
    apps(WorkloadKind::DaemonSet, "daemonsets", "ds"),
    Resource {
        group: "batch/v1",
        ..apps(WorkloadKind::Job, "jobs", "")
    },
    Resource {
        group: "batch/v1",
        ..apps(WorkloadKind::CronJob, "cronjobs", "cj")
    },
];

const fn apps(kind: WorkloadKind, plural: &'static str, short: &'static str) -> Resource {
    Resource {
        group: "apps/v1",
        same: &["status"],
        ..core(Kind::Workloads(kind), kind.as_str(), plural, short)
    }
}

const fn core(
    kind: Kind,
    object: &'static str,
    plural: &'static str,
    short: &'static str,
) -> Resource {
    Resource {
        kind,
        object,
        group: "v1",
        plural,
        short,
        namespaced: true,
        verbs: &["get", "list", "watch"],
        same: &[],
    }
}

/// The object or objects of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place<'s> {
    /// All objects, of one namespace or of all.
    All(Option<&'s str>),
    /// The object of this namespace (empty for those without) and name.
    One(&'s str, &'s str),
}

/// Returns the line of a kind.
pub(crate) fn of(kind: Kind) -> Resource {
    let mut all = RESOURCES.into_iter();
    all.find(|resource| resource.kind == kind)
        .expect("each kind has its line")
}

/// Returns the resource of a path.
pub(crate) fn find<'s>(segments: &[&'s str]) -> Option<(Resource, Place<'s>)> {
    let (group, rest) = match segments {
        ["api", "v1", rest @ ..] => ("v1".to_owned(), rest),
        ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
        _ => return None,
    };
    let mut of_group = RESOURCES.into_iter().filter(|r| r.group == group);
    of_group.find_map(|resource| Some((resource, resource.place(rest)?)))
}

impl Resource {
    /// The groups of resources that it is part of: `kubectl get all` reads those of `all`.
    pub(crate) fn categories(&self) -> &'static [&'static str] {
        match self.kind {
            Kind::Pods | Kind::Services | Kind::Workloads(_) => &["all"],
            _ => &[],
        }
    }

    fn place<'s>(&self, path: &[&'s str]) -> Option<Place<'s>> {
        let (namespace, path) = match *path {
            ["namespaces", namespace, ref path @ ..] if self.namespaced => (Some(namespace), path),
            _ => (None, path),
        };
        let (plural, path) = path.split_first()?;
        match (path, namespace) {
            _ if *plural != self.plural => None,
            ([], _) => Some(Place::All(namespace)),
            ([name], None) if !self.namespaced => Some(Place::One("", name)),
            ([name], Some(namespace)) => Some(Place::One(namespace, name)),
            ([name, same], Some(namespace)) if self.same.contains(same) => {
                Some(Place::One(namespace, name))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_line() {
        for kind in Kind::ALL {
            assert_eq!(of(kind).kind, kind);
        }
    }

    #[test]
    fn paths_are_those_of_the_table() {
        let place = |path: &str| {
            let segments: Vec<&str> = path.split('/').collect();
            let (resource, place) = find(&segments)?;
            let place = match place {
                Place::All(namespace) => format!("all {}", namespace.unwrap_or("*")),
                Place::One(namespace, name) => format!("{namespace}/{name}"),
            };
            Some(format!("{} {place}", resource.plural))
        };
        for (path, expected) in [
            ("api/v1/pods", Some("pods all *")),
            ("api/v1/namespaces/a/pods", Some("pods all a")),
            ("api/v1/namespaces/a/pods/b", Some("pods a/b")),
            ("api/v1/namespaces/a/pods/b/status", Some("pods a/b")),
            ("api/v1/namespaces/a/services/b/status", None),
            ("api/v1/pods/b", None),
            ("api/v1/nodes/n", Some("nodes /n")),
            ("api/v1/namespaces/a/nodes", None),
            ("api/v1/priorityclasses", None),
            (
                "apis/scheduling.k8s.io/v1/priorityclasses/c",
                Some("priorityclasses /c"),
            ),
            ("apis/scheduling.k8s.io/v1/pods", None),
            ("api/v1", None),
        ] {
            assert_eq!(place(path).as_deref(), expected, "{path}");
        }
    }
}
