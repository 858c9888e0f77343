//! Huge pages: Kubernetes' rules for the resources `hugepages-<size>`. They cannot be overcommitted, so limits are
//! requests (Kubernetes docs: Resource Management;
//! <https://kubernetes.io/docs/tasks/manage-hugepages/scheduling-hugepages/>).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

use super::error::{Path, Report};
use super::resources::most_at_once;
use crate::types::Gather;
use crate::types::quantity::Quantity;

/// Prefix of these resources.
const PREFIX: &str = "hugepages-";

/// Size of a huge page in bytes; never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize(u64);

/// Bytes by page size.
pub type HugePages = BTreeMap<PageSize, u64>;

impl PageSize {
    /// 2 MiB, for examples.
    pub(super) const EXAMPLE: Self = Self(2 << 20);

    /// Creates a size from KiB; `None` for 0.
    pub fn from_kib(kib: u64) -> Option<Self> {
        Some(Self(kib.checked_mul(1024)?)).filter(|size| size.0 > 0)
    }

    /// Parses a resource: `hugepages-2Mi`.
    pub fn of_resource(name: &str) -> Option<Self> {
        Self::parse(name.strip_prefix(PREFIX)?)
    }

    /// Parses `2Mi`, which must be a whole number of bytes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let size = Quantity::parse(text).ok()?;
        let bytes = u64::try_from(size.ceil()).ok()?;
        let whole = size.nano() == Quantity::bytes(bytes).nano();
        Some(Self(bytes)).filter(|size| whole && size.0 > 0)
    }

    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the resource: `hugepages-2Mi`.
    pub fn resource(self) -> String {
        format!("{PREFIX}{self}")
    }
}

/// `2Mi`.
impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Quantity::bytes(self.0).fmt(f)
    }
}

/// Whether this is the name of such a resource, of any size.
pub(crate) fn is_resource(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Checks the rules of Kubernetes (`ValidateResourceRequirements`); `limits` and `requests` have all resources.
pub(super) fn check(
    limits: &BTreeMap<&str, Quantity>,
    requests: &BTreeMap<&str, Quantity>,
    path: &Path<'_>,
    report: &Report,
) {
    let (below_limits, below_requests) = (path.field("limits"), path.field("requests"));
    let of = |name: &&str| is_resource(name);
    // With other errors in `path`, do not report what seems to be missing.
    let complete = !report.is_wrong_below(path);
    for (name, limit) in limits.iter().filter(|(name, _)| of(name)) {
        whole_pages(name, *limit, &below_limits.field(name), report);
    }
    for (name, request) in requests.iter().filter(|(name, _)| of(name)) {
        let at = below_requests.field(name);
        match limits.get(name) {
            None if !complete => {}
            None => {
                let detail = "Required value: Limit must be set for non overcommitable resources";
                report.error(&below_limits, detail);
                whole_pages(name, *request, &at, report);
            }
            Some(limit) if limit.nano() != request.nano() => {
                let detail = format_args!("must be equal to {name} limit of {limit}");
                report.invalid(&at, request.to_string(), detail);
                whole_pages(name, *request, &at, report);
            }
            // The error in the limit was reported already.
            Some(_) => {}
        }
    }
    let all = || limits.keys().chain(requests.keys());
    if complete && all().any(of) && !all().any(|name| matches!(*name, "cpu" | "memory")) {
        report.forbidden(path, "HugePages require cpu or memory");
    }
}

fn whole_pages(name: &str, amount: Quantity, path: &Path<'_>, report: &Report) {
    let size = PageSize::of_resource(name);
    let whole = |size: PageSize| amount.ceil() % i128::from(size.0) == 0;
    if !size.is_some_and(whole) {
        let detail = format_args!("{amount} is not positive integer multiple of {name}");
        report.invalid(path, amount.to_string(), detail);
    }
}

/// Returns the huge pages in resources that [`check`] accepted.
pub(super) fn of(resources: Option<&ResourceRequirements>) -> HugePages {
    let limits = resources.and_then(|r| r.limits.as_ref());
    let amount = |(name, written): (&String, &Written)| {
        let amount = Quantity::parse(&written.0).ok()?;
        let bytes = u64::try_from(amount.ceil()).ok()?;
        Some((PageSize::of_resource(name)?, bytes))
    };
    limits.into_iter().flatten().filter_map(amount).gather()
}

/// Returns a container's huge pages: its own limits, else the pod's, which containers share.
pub(super) fn of_container(spec: &PodSpec, container: &Container) -> HugePages {
    let mut pages = of(spec.resources.as_ref());
    pages.extend(of(container.resources.as_ref()));
    pages
}

/// Returns the most huge pages that a pod's containers use at one time.
pub(super) fn of_containers(spec: &PodSpec) -> HugePages {
    let own = |container: &Container| of(container.resources.as_ref());
    let all = spec.init_containers.iter().flatten();
    let all = all.chain(&spec.containers);
    let sizes: BTreeSet<PageSize> = all.flat_map(|c| own(c).into_keys()).gather();
    let most = |size| {
        let of_size = |container: &Container| own(container).get(&size).copied();
        (size, most_at_once(spec, of_size))
    };
    sizes.into_iter().map(most).gather()
}

/// Returns a pod's huge pages. Its own limit of a size replaces the sum of its containers.
pub(super) fn of_pod(spec: &PodSpec) -> HugePages {
    let mut pages = of_containers(spec);
    pages.extend(of(spec.resources.as_ref()));
    pages
}

/// Returns the page size of an emptyDir with this medium (`HugePages`, `HugePages-2Mi`) in this pod; the kubelet
/// determines it when it mounts the volume (`getPageSizeMountOption`).
pub(super) fn of_medium(medium: &str, pod: &PodSpec) -> Result<PageSize, String> {
    let none = || {
        format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )
    };
    let mut sizes = of_pod(pod).into_keys();
    match medium.strip_prefix("HugePages-") {
        Some(size) => {
            let size =
                PageSize::parse(size).ok_or("must be `HugePages-` and the size of a page")?;
            sizes.find(|other| *other == size).ok_or_else(none)
        }
        None => match (sizes.next(), sizes.next()) {
            (Some(size), None) => Ok(size),
            (None, _) => Err(none()),
            (Some(_), Some(_)) => Err(format!(
                "medium: {medium} can't be used if container requests multiple huge page sizes"
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: u64 = 1 << 20;

    fn size(text: &str) -> PageSize {
        PageSize::parse(text).expect(text)
    }

    fn pod(spec: serde_json::Value) -> PodSpec {
        serde_json::from_value(spec).expect("a pod")
    }

    fn resources(limits: &[(&str, &str)]) -> serde_json::Value {
        let limits: BTreeMap<_, _> = limits.iter().copied().collect();
        serde_json::json!({ "limits": limits })
    }

    fn container(limits: &[(&str, &str)]) -> serde_json::Value {
        serde_json::json!({ "name": "c", "resources": resources(limits) })
    }

    #[test]
    fn a_size_is_read_in_any_spelling_and_has_one_name() {
        for (name, expected) in [
            ("hugepages-2Mi", Some((2 * MI, "hugepages-2Mi"))),
            ("hugepages-2048Ki", Some((2 * MI, "hugepages-2Mi"))),
            ("hugepages-64Ki", Some((65_536, "hugepages-64Ki"))),
            ("hugepages-1Gi", Some((1024 * MI, "hugepages-1Gi"))),
            ("hugepages-", None),
            ("hugepages-0", None),
            ("hugepages-1m", None),
            ("hugepages--2Mi", None),
            ("hugepages-large", None),
            ("memory", None),
        ] {
            let found = PageSize::of_resource(name);
            let found = found.map(|size| (size.bytes(), size.resource()));
            let expected = expected.map(|(bytes, name)| (bytes, name.to_owned()));
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(PageSize::from_kib(2048), Some(size("2Mi")));
        assert_eq!(PageSize::from_kib(0), None);
    }

    #[test]
    fn what_kubernetes_refuses_is_refused_in_its_words() {
        let multiple = "is not positive integer multiple of";
        for (limits, requests, expected) in [
            (&[("memory", "1Mi"), ("hugepages-2Mi", "4Mi")][..], &[("hugepages-2Mi", "4Mi")][..], vec![]),
            // cpu and memory may be in either list, and the number of pages may be 0.
            (&[("hugepages-2Mi", "0")], &[("cpu", "1"), ("hugepages-2Mi", "0")], vec![]),
            (
                &[("hugepages-2Mi", "4Mi")],
                &[("hugepages-2Mi", "4Mi")],
                vec!["r: Forbidden: HugePages require cpu or memory".to_owned()],
            ),
            (
                &[("cpu", "1"), ("hugepages-2Mi", "4Mi")],
                &[("hugepages-2Mi", "2Mi")],
                vec!["r.requests.hugepages-2Mi: Invalid value: \"2Mi\": must be equal to hugepages-2Mi limit of 4Mi".to_owned()],
            ),
            (
                &[("cpu", "1")],
                &[("hugepages-2Mi", "2Mi")],
                vec!["r.limits: Required value: Limit must be set for non overcommitable resources".to_owned()],
            ),
            (
                &[("cpu", "1"), ("hugepages-2Mi", "3Mi")],
                &[("hugepages-2Mi", "3Mi")],
                vec![format!("r.limits.hugepages-2Mi: Invalid value: \"3Mi\": 3Mi {multiple} hugepages-2Mi")],
            ),
            (
                &[("cpu", "1"), ("hugepages-big", "2Mi")],
                &[],
                vec![format!("r.limits.hugepages-big: Invalid value: \"2Mi\": 2Mi {multiple} hugepages-big")],
            ),
        ] {
            let parsed = |list: &[(&'static str, &str)]| -> BTreeMap<&'static str, Quantity> {
                let parse = |text: &str| Quantity::parse(text).expect("a quantity");
                list.iter().map(|(name, text)| (*name, parse(text))).collect()
            };
            let report = Report::new(0);
            check(&parsed(limits), &parsed(requests), &Path::Root.field("r"), &report);
            let found = report.into_problems().into_iter();
            let found: Vec<_> = found.map(|p| format!("{}: {}", p.path, p.message)).collect();
            assert_eq!(found, expected, "{limits:?} {requests:?}");
        }
    }

    #[test]
    fn a_pod_has_the_pages_of_its_containers_at_one_time_or_its_own_limit() {
        let mut sidecar = container(&[("hugepages-2Mi", "2Mi")]);
        sidecar["restartPolicy"] = "Always".into();
        let mut spec = serde_json::json!({
            "initContainers": [
                container(&[("hugepages-2Mi", "8Mi")]),
                sidecar,
                container(&[("hugepages-2Mi", "4Mi"), ("hugepages-1Gi", "1Gi")]),
            ],
            "containers": [
                container(&[("hugepages-2Mi", "2Mi"), ("cpu", "1")]),
                container(&[("hugepages-2048Ki", "6Mi")]),
            ],
        });
        let expected = [(size("2Mi"), 10 * MI), (size("1Gi"), 1024 * MI)];
        assert_eq!(of_pod(&pod(spec.clone())), expected.into());
        spec["resources"] = resources(&[("hugepages-2Mi", "32Mi")]);
        let expected = [(size("2Mi"), 32 * MI), (size("1Gi"), 1024 * MI)];
        let spec = pod(spec);
        assert_eq!(of_pod(&spec), expected.into());
        let first = of_container(&spec, &spec.containers[0]);
        assert_eq!(first, [(size("2Mi"), 2 * MI)].into());
        let none = of_container(&spec, &Container::default());
        assert_eq!(none, [(size("2Mi"), 32 * MI)].into());
    }

    #[test]
    fn a_volume_is_made_of_pages_that_the_pod_asks_for() {
        let with = |limits: &[(&str, &str)]| {
            let spec = serde_json::json!({ "containers": [container(limits)] });
            pod(spec)
        };
        let (none, small) = (with(&[]), with(&[("hugepages-2Mi", "2Mi")]));
        let both = with(&[("hugepages-2Mi", "2Mi"), ("hugepages-1Gi", "1Gi")]);
        let without =
            "hugePages storage requested, but there is no resource request for huge pages";
        for (medium, pod, expected) in [
            ("HugePages", &small, Ok(size("2Mi"))),
            ("HugePages-2Mi", &small, Ok(size("2Mi"))),
            ("HugePages-1Gi", &both, Ok(size("1Gi"))),
            ("HugePages", &none, Err(format!("medium HugePages: {without}"))),
            ("HugePages-1Gi", &small, Err(format!("medium HugePages-1Gi: {without}"))),
            (
                "HugePages",
                &both,
                Err("medium: HugePages can't be used if container requests multiple huge page sizes".to_owned()),
            ),
            (
                "HugePages-big",
                &both,
                Err("must be `HugePages-` and the size of a page".to_owned()),
            ),
        ] {
            assert_eq!(of_medium(medium, pod), expected, "{medium}");
        }
    }
}
