//! The effective values in a pod's cgroups. Written values are read back and compared: a kernel may lack a file or
//! round a value, or another program may have changed it (Kubernetes docs: Resource Management).

use std::borrow::Cow;

use serde::Serialize;

use super::huge_pages::HugePageLimit;
use super::{Cgroups, Limits, Mode};
use crate::spec::{ContainerResources, HugePages, PodResources, PodSpec};
use crate::sys::process;

/// The kernel keeps amounts of memory in whole pages, of this size at most.
pub(super) const LARGEST_PAGE: u64 = 64 << 10;

/// The files to show, in this order, including those that were not written.
fn shown(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::V2 => &[
            "cpu.weight",
            "cpu.max",
            "memory.min",
            "memory.low",
            "memory.high",
            "memory.max",
            "memory.swap.max",
            "memory.oom.group",
            "pids.max",
        ],
        Mode::V1 => &[
            "cpu.shares",
            "cpu.cfs_period_us",
            "cpu.cfs_quota_us",
            "memory.limit_in_bytes",
            "memory.memsw.limit_in_bytes",
            "pids.max",
        ],
    }
}

/// The values of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Values {
    /// The container's name; `None` for the pod.
    pub container: Option<String>,
    /// Below the mount of each hierarchy: `/coracle/pods/pod<uid>/c-main`.
    pub path: String,
    /// The values by file.
    pub values: Vec<Value>,
}

/// One file of a cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Value {
    /// `memory.max`.
    pub file: Cow<'static, str>,
    /// The value written; `None` if none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// The current value; `None` if this kernel has no such file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

impl Value {
    /// Whether the written value is in effect.
    pub fn holds(&self) -> bool {
        match (&self.wanted, &self.found) {
            (None, _) => true,
            // A missing file is no limit.
            (Some(wanted), None) => bound(wanted).is_none(),
            (Some(wanted), Some(found)) => same(&self.file, wanted, found),
        }
    }
}

/// Whether the kernel has kept the value written to a file.
pub(super) fn same(file: &str, wanted: &str, found: &str) -> bool {
    let amount = file.starts_with("memory.") && file != "memory.oom.group";
    match (amount, bound(wanted), bound(found)) {
        (true, Some(wanted), Some(found)) => found <= wanted && wanted - found < LARGEST_PAGE,
        (true, wanted, found) => wanted == found,
        (false, _, _) => wanted == found.trim(),
    }
}

/// The first number of a limit's file; `None` for no limit, which v1 shows as the largest number of whole pages.
pub(super) fn bound(text: &str) -> Option<u64> {
    let number = text.split_whitespace().next()?.parse::<u64>().ok()?;
    (number < 1 << 62).then_some(number)
}

impl Values {
    /// A sentence for each value that is not in effect.
    pub fn mismatches(&self) -> impl Iterator<Item = String> {
        let whose = match &self.container {
            Some(name) => format!("container {name}"),
            None => "the pod".to_owned(),
        };
        self.values.iter().filter(|v| !v.holds()).map(move |value| {
            let (file, wanted) = (&value.file, value.wanted.as_deref().unwrap_or_default());
            match &value.found {
                Some(found) => {
                    format!(
                        "`{wanted}` was written to {file} of {whose}, but its value is `{found}`"
                    )
                }
                None => {
                    let option = match &**file {
                        "pids.max" => " (CONFIG_CGROUP_PIDS)",
                        _ => "",
                    };
                    format!(
                        "{file} of {whose} should be `{wanted}`, but this kernel has no such file{option}"
                    )
                }
            }
        })
    }
}

impl Cgroups {
    /// Blocking. The values of a pod that was given these resources.
    pub fn pod_values(&self, spec: &PodSpec, given: PodResources) -> Values {
        let path = self.pod_path(spec.qos, &spec.uid);
        let limits = Limits::pod(spec, given, self.settings);
        self.values(None, path, &limits)
    }

    /// Blocking. The values of a container that was given these resources; `None` if its first process has ended:
    /// its cgroup is removed then, one file and one hierarchy after the other, possibly during the read.
    pub fn container_values(
        &self,
        spec: &PodSpec,
        (name, first_process): (&str, u32),
        (given, of_pod): (ContainerResources, PodResources),
    ) -> Option<Values> {
        let path = self.container_path(&self.pod_path(spec.qos, &spec.uid), name);
        let limits = Limits::container(spec, name, given, of_pod, self.settings);
        let values = self.values(Some(name.to_owned()), path, &limits);
        process::runs(first_process).then_some(values)
    }

    fn values(&self, container: Option<String>, path: String, limits: &Limits) -> Values {
        let mode = self.mode();
        let wanted = limits.files(mode);
        // Of a file that is written twice the last value counts.
        let wanted = |file: &str| {
            let last = wanted.iter().rev().find(|(name, _)| *name == file);
            last.map(|(_, value)| value.clone())
        };
        let value = |file: &&'static str| Value {
            file: Cow::Borrowed(file),
            wanted: wanted(file).filter(|_| self.matters(file)),
            found: self.found(&path, file),
        };
        let values = shown(mode).iter().map(value);
        let values = values.filter(|v| v.wanted.is_some() || v.found.is_some());
        Values {
            container,
            values: values.chain(self.huge_pages_of(&path, limits)).collect(),
            path,
        }
    }

    fn found(&self, path: &str, file: &str) -> Option<String> {
        let text = self.hierarchies.read(path, file).ok()?;
        Some(text.trim().to_owned())
    }

    /// The limits of huge pages; without a request, only those that are not in effect.
    fn huge_pages_of(&self, path: &str, limits: &Limits) -> impl Iterator<Item = Value> {
        let pages = match &limits.huge_pages {
            Some(HugePageLimit::Only(pages)) => pages.clone(),
            Some(HugePageLimit::Unlimited) | None => HugePages::new(),
        };
        let asks = pages.values().any(|bytes| *bytes > 0);
        let there = self.huge_page_values(limits).into_iter();
        let there = there.map(|(file, wanted)| (file.to_owned(), wanted));
        let missing = self.huge_pages.missing(self.mode(), &pages);
        let all = there.chain(missing).map(|(file, wanted)| Value {
            found: self.found(path, &file),
            file: Cow::Owned(file),
            wanted: Some(wanted),
        });
        all.filter(move |value| asks || !value.holds())
    }

    /// Whether it matters that this value is not in effect: without swap its limits have no effect, and old kernels
    /// kill one process instead of all.
    fn matters(&self, file: &str) -> bool {
        match file {
            "memory.swap.max" | "memory.memsw.limit_in_bytes" => self.settings.swap.swap_bytes > 0,
            "memory.oom.group" => false,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_hold_if_the_kernel_has_kept_them_but_for_less_than_a_page() {
        for (file, wanted, found, holds) in [
            ("cpu.weight", Some("10"), Some("10"), true),
            ("cpu.weight", Some("10"), Some("11"), false),
            ("cpu.weight", None, Some("100"), true),
            ("cpu.max", Some("max 100000"), Some("max 100000"), true),
            ("cpu.max", Some("50000 100000"), Some("max 100000"), false),
            ("cpu.max", Some("50000 100000"), None, false),
            ("cpu.max", Some("max 100000"), None, true),
            ("memory.max", Some("10000"), Some("8192"), true),
            ("memory.max", Some("10000"), Some("12288"), false),
            ("memory.max", Some("100000"), Some("4096"), false),
            ("memory.max", Some("max"), Some("max"), true),
            ("memory.max", Some("max"), Some("4096"), false),
            (
                "memory.limit_in_bytes",
                Some("-1"),
                Some("9223372036854771712"),
                true,
            ),
            (
                "memory.limit_in_bytes",
                Some("4096"),
                Some("9223372036854771712"),
                false,
            ),
            ("pids.max", Some("max"), Some("100"), false),
            ("hugetlb.2MB.max", Some("0"), Some("0"), true),
            ("hugetlb.2MB.max", Some("0"), Some("max"), false),
            ("hugetlb.2MB.max", Some("4194304"), None, false),
        ] {
            let text = |text: Option<&str>| text.map(str::to_owned);
            let value = Value {
                file: file.into(),
                wanted: text(wanted),
                found: text(found),
            };
            assert_eq!(value.holds(), holds, "{value:?}");
        }
    }

    #[test]
    fn a_value_not_in_effect_is_reported_with_file_and_both_values() {
        let value = |found: Option<&str>| Value {
            file: "memory.max".into(),
            wanted: Some("8192".into()),
            found: found.map(str::to_owned),
        };
        let of = |container: Option<&str>, values: Vec<Value>| {
            let values = Values {
                container: container.map(str::to_owned),
                path: "/p".into(),
                values,
            };
            values.mismatches().collect::<Vec<_>>()
        };
        assert_eq!(
            of(Some("main"), vec![value(Some("max")), value(Some("8192"))]),
            ["`8192` was written to memory.max of container main, but its value is `max`"]
        );
        assert_eq!(
            of(None, vec![value(None)]),
            ["memory.max of the pod should be `8192`, but this kernel has no such file"]
        );
    }
}
