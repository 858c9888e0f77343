//! The limit files of huge pages: one or two for each page size of this kernel (`hugetlb.2MB.max`; with reserved
//! pages also `hugetlb.2MB.rsvd.max`, since Linux 5.7), in every cgroup except the root
//! (<https://docs.kernel.org/admin-guide/cgroup-v1/hugetlb.html>). There are none if the kernel has no such
//! controller, or, on v1, if it is not mounted.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::Mode;
use crate::spec::{HugePages, PageSize};
use crate::types::InOrder;

/// The controller.
pub(super) const CONTROLLER: &str = "hugetlb";

/// The huge pages that a cgroup may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HugePageLimit {
    /// No limit.
    Unlimited,
    /// These amounts by size, and none of other sizes.
    Only(HugePages),
}

/// The files that this kernel has, with the size of the pages they count, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HugePageFiles(Arc<[(PageSize, String)]>);

impl HugePageFiles {
    /// Blocking. The files of this cgroup; all others have the same.
    pub(super) fn look(mode: Mode, folder: &Path) -> Self {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let file = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            Some((size_of(mode, &name)?, name))
        };
        let mut files: Vec<_> = entries.filter_map(file).collect();
        files.order();
        Self(files.into())
    }

    /// File names, with the value for each.
    pub(super) fn values(&self, mode: Mode, limit: &HugePageLimit) -> Vec<(&str, String)> {
        let files = self.0.iter().map(|(size, file)| {
            let value = match limit {
                HugePageLimit::Unlimited => none(mode).to_owned(),
                HugePageLimit::Only(pages) => pages.get(size).unwrap_or(&0).to_string(),
            };
            (file.as_str(), value)
        });
        files.collect()
    }

    /// As [`HugePageFiles::values`], of requested sizes that have no file here.
    pub(super) fn missing(&self, mode: Mode, pages: &HugePages) -> Vec<(String, String)> {
        let here = |size: &PageSize| self.0.iter().any(|(other, _)| other == size);
        let missing = pages
            .iter()
            .filter(|(size, bytes)| **bytes > 0 && !here(size));
        let missing = missing.map(|(size, bytes)| (main_file(mode, *size), bytes.to_string()));
        missing.collect()
    }
}

/// The value of a file without limit.
fn none(mode: Mode) -> &'static str {
    match mode {
        Mode::V1 => "-1",
        Mode::V2 => "max",
    }
}

/// The suffix of the file names.
fn suffix(mode: Mode) -> &'static str {
    match mode {
        Mode::V1 => "limit_in_bytes",
        Mode::V2 => "max",
    }
}

/// `hugetlb.2MB.max`.
fn main_file(mode: Mode, size: PageSize) -> String {
    let bytes = size.bytes();
    let size = match bytes {
        _ if bytes >= 1 << 30 => format!("{}GB", bytes >> 30),
        _ if bytes >= 1 << 20 => format!("{}MB", bytes >> 20),
        _ => format!("{}KB", bytes >> 10),
    };
    format!("{CONTROLLER}.{size}.{}", suffix(mode))
}

/// The size of the pages that this file limits, if it does.
fn size_of(mode: Mode, file: &str) -> Option<PageSize> {
    let size = file.strip_prefix(CONTROLLER)?.strip_prefix('.')?;
    let size = size.strip_suffix(suffix(mode))?.strip_suffix('.')?;
    let size = size.strip_suffix(".rsvd").unwrap_or(size);
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let kib = match &size[digits.len()..] {
        "KB" => 1,
        "MB" => 1 << 10,
        "GB" => 1 << 20,
        _ => return None,
    };
    PageSize::from_kib(digits.parse::<u64>().ok()?.checked_mul(kib)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(name: &str) -> PageSize {
        PageSize::of_resource(&format!("hugepages-{name}")).expect(name)
    }

    fn files(mode: Mode, names: &[&str]) -> HugePageFiles {
        let folder = format!("coracle-huge-{mode:?}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).expect("temp dir");
        for name in names {
            fs::write(folder.join(name), "").expect("file");
        }
        let found = HugePageFiles::look(mode, &folder);
        fs::remove_dir_all(&folder).expect("removed");
        found
    }

    #[test]
    fn every_size_of_the_kernel_is_bounded_and_what_it_lacks_is_known() {
        let pages: HugePages = [
            (size("2Mi"), 4 << 20),
            (size("64Ki"), 1 << 20),
            (size("1Gi"), 0),
        ]
        .into();
        let only = HugePageLimit::Only(pages.clone());
        let v1 = [
            "hugetlb.1GB.limit_in_bytes",
            "hugetlb.2MB.limit_in_bytes",
            "hugetlb.2MB.usage_in_bytes",
            "hugetlb.2MB.rsvd.limit_in_bytes",
            "cpu.shares",
        ];
        let v2 = [
            "hugetlb.1GB.max",
            "hugetlb.2MB.max",
            "hugetlb.2MB.rsvd.max",
            "hugetlb.2MB.current",
            "hugetlb.2MB.events.local",
            "memory.max",
        ];
        for (mode, names, end, none) in [
            (Mode::V1, &v1[..], "limit_in_bytes", "-1"),
            (Mode::V2, &v2[..], "max", "max"),
        ] {
            let files = files(mode, names);
            let of = |limit: &HugePageLimit| -> Vec<_> {
                let values = files.values(mode, limit).into_iter();
                values
                    .map(|(file, value)| format!("{file} {value}"))
                    .collect()
            };
            let expected = |small: &str, large: &str| {
                [
                    format!("hugetlb.2MB.{end} {small}"),
                    format!("hugetlb.2MB.rsvd.{end} {small}"),
                    format!("hugetlb.1GB.{end} {large}"),
                ]
            };
            assert_eq!(of(&only), expected("4194304", "0"));
            assert_eq!(of(&HugePageLimit::Unlimited), expected(none, none));
            let missing = vec![(format!("hugetlb.64KB.{end}"), (1 << 20).to_string())];
            assert_eq!(files.missing(mode, &pages), missing);
        }
    }

    #[test]
    fn without_the_controller_nothing_is_written() {
        let none = files(Mode::V2, &["memory.max", "cgroup.procs"]);
        assert_eq!(none.values(Mode::V2, &HugePageLimit::Unlimited), []);
        let pages = [(size("1Gi"), 1 << 30)].into();
        let missing = vec![("hugetlb.1GB.max".to_owned(), (1u64 << 30).to_string())];
        assert_eq!(none.missing(Mode::V2, &pages), missing);
    }
}
