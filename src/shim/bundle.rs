//! A bundle's `config.json`: the parts that the shim needs or changes as values, the rest as text. Most of it is
//! the seccomp profile, which as a tree of values would take more memory than everything else in a shim.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::ShimError;
use super::tighten::{BundleDevice, BundleResources};
use crate::sys::file::{self, Durability};
use crate::types::Gather;

/// The fields of an object, by name.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// The whole document.
pub(super) struct Bundle<'a> {
    path: PathBuf,
    whole: Fields<'a>,
    process: Fields<'a>,
    /// In place of what was written, if the runtime leaves seccomp to the shim.
    unfiltered: Option<Unfiltered>,
    /// Supplementary groups are left out of what is written.
    pub(super) groups_are_inherited: bool,
    pub(super) mounts: Vec<Value>,
    pub(super) user: User,
    pub(super) cwd: PathBuf,
    pub(super) linux: Linux,
}

struct Unfiltered {
    linux: Box<RawValue>,
    capabilities: Box<RawValue>,
}

/// User and group of the container's processes.
#[derive(Deserialize, Clone, Copy)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// The kernel's part, as far as the shim needs it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Linux {
    pub(super) cgroups_path: String,
    pub(super) rootfs_propagation: Option<String>,
    #[serde(default)]
    pub(super) resources: BundleResources,
    #[serde(default)]
    pub(super) devices: Vec<BundleDevice>,
}

/// The text of a bundle's document.
pub(super) fn read(folder: &Path) -> Result<Vec<u8>, ShimError> {
    let path = path(folder);
    file::read_record(&path).map_err(ShimError::path("read", &path))
}

impl<'a> Bundle<'a> {
    /// Reads the document of the bundle in `folder`.
    pub(super) fn parse(folder: &Path, text: &'a [u8]) -> Result<Self, ShimError> {
        Self::of(path(folder), text).map_err(|source| ShimError::Json {
            path: path(folder),
            source,
        })
    }

    fn of(path: PathBuf, text: &'a [u8]) -> serde_json::Result<Self> {
        let mut whole: Fields<'a> = serde_json::from_slice(text)?;
        let process: Fields<'a> = field(&whole, "process")?;
        Ok(Self {
            path,
            user: field(&process, "user")?,
            cwd: field(&process, "cwd")?,
            linux: field(&whole, "linux")?,
            mounts: match whole.remove("mounts") {
                Some(mounts) => serde_json::from_str(mounts.get())?,
                None => Vec::new(),
            },
            whole,
            process,
            unfiltered: None,
            groups_are_inherited: false,
        })
    }

    /// The supplementary groups.
    pub(super) fn groups(&self) -> Result<Vec<u32>, ShimError> {
        #[derive(Deserialize)]
        struct Groups {
            #[serde(default, rename = "additionalGids")]
            groups: Vec<u32>,
        }
        let user: serde_json::Result<Groups> = field(&self.process, "user");
        user.map(|user| user.groups)
            .map_err(|source| ShimError::Json {
                path: self.path.clone(),
                source,
            })
    }

    /// Takes the seccomp profile out. The process gets those of `needed` that it lacks for the time until the shim has
    /// loaded the filter; returns them. A process with `noNewPrivileges` needs none.
    pub(super) fn take_seccomp(
        &mut self,
        needed: &[&'static str],
    ) -> Result<Vec<&'static str>, ShimError> {
        let change = || {
            let mut linux: Fields<'_> = field(&self.whole, "linux")?;
            linux.remove("seccomp");
            let mut sets: BTreeMap<String, Vec<String>> = field(&self.process, "capabilities")?;
            let own = sets.get("bounding").cloned().unwrap_or_default();
            let is_fixed = self.process.get("noNewPrivileges");
            let mut lent = needed.to_vec();
            lent.retain(|name| !own.iter().any(|own| own == name));
            if is_fixed.is_some_and(|value| value.get() == "true") || !lent.contains(&needed[0]) {
                lent.clear();
            }
            for set in ["bounding", "effective", "permitted"] {
                let set = sets.entry(set.to_owned()).or_default();
                set.extend(lent.iter().map(|name| (*name).to_owned()));
            }
            let unfiltered = Unfiltered {
                linux: to_raw_value(&linux)?,
                capabilities: to_raw_value(&sets)?,
            };
            Ok((unfiltered, lent))
        };
        let (unfiltered, lent) = change().map_err(|source| ShimError::Json {
            path: self.path.clone(),
            source,
        })?;
        self.unfiltered = Some(unfiltered);
        Ok(lent)
    }

    /// Writes the document again, with its current mounts and this working directory.
    pub(super) fn write(&self, cwd: &Path) -> Result<(), ShimError> {
        let text = self.text(cwd).map_err(|source| ShimError::Json {
            path: self.path.clone(),
            source,
        })?;
        file::replace(&self.path, &text, 0o600, Durability::Process)
            .map_err(ShimError::path("write", &self.path))
    }

    fn text(&self, cwd: &Path) -> serde_json::Result<Vec<u8>> {
        let cwd = to_raw_value(cwd)?;
        let unfiltered = self.unfiltered.as_ref();
        let capabilities = unfiltered.map(|other| ("capabilities", &*other.capabilities));
        let user = match self.groups_are_inherited {
            true => {
                let mut user: Fields<'_> = field(&self.process, "user")?;
                user.remove("additionalGids");
                Some(to_raw_value(&user)?)
            }
            false => None,
        };
        let user = user.as_ref().map(|user| ("user", &**user));
        let process = [("cwd", &*cwd)].into_iter().chain(capabilities).chain(user);
        let process = to_raw_value(&with(&self.process, process))?;
        let mounts = to_raw_value(&self.mounts)?;
        let changed = [("process", &*process), ("mounts", &*mounts)];
        let linux = unfiltered.map(|other| ("linux", &*other.linux));
        serde_json::to_vec(&with(&self.whole, changed.into_iter().chain(linux)))
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("config.json")
}

fn field<'a, T: Deserialize<'a>>(fields: &Fields<'a>, name: &'static str) -> serde_json::Result<T> {
    let missing = || serde::de::Error::missing_field(name);
    serde_json::from_str(fields.get(name).ok_or_else(missing)?.get())
}

/// The fields with some of them replaced.
fn with<'a>(
    fields: &'a Fields<'_>,
    others: impl Iterator<Item = (&'a str, &'a RawValue)>,
) -> BTreeMap<&'a str, &'a RawValue> {
    let fields = fields.iter().map(|(name, value)| (name.as_str(), *value));
    fields.chain(others).gather()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_shim_does_not_know_stays_as_it_was_written() {
        let document = json!({
            "ociVersion": "1.0.2",
            "process": { "user": { "uid": 1, "gid": 2, "umask": 18, "additionalGids": [3, 4] }, "cwd": "/a", "args": ["a\n\"b\""] },
            "mounts": [{ "destination": "/proc", "type": "proc" }],
            "linux": { "cgroupsPath": "/g", "seccomp": { "syscalls": [{ "names": ["read"] }] },
                       "resources": { "devices": [{ "allow": false }], "pids": { "limit": 7 } } },
        });
        let text = document.to_string();
        let mut bundle = Bundle::of("config.json".into(), text.as_bytes()).expect("valid");
        assert_eq!((bundle.user.uid, bundle.user.gid), (1, 2));
        assert_eq!(bundle.cwd, Path::new("/a"));
        assert_eq!(bundle.linux.cgroups_path, "/g");
        assert_eq!(bundle.linux.rootfs_propagation, None);
        bundle.mounts.push(json!({ "destination": "/b" }));
        let written = bundle.text(Path::new("/c")).expect("JSON");
        let written: Value = serde_json::from_slice(&written).expect("JSON");
        let mut expected = document;
        expected["process"]["cwd"] = json!("/c");
        expected["mounts"] = json!([expected["mounts"][0], { "destination": "/b" }]);
        assert_eq!(written, expected);

        let mut inherited = Bundle::of("config.json".into(), text.as_bytes()).expect("valid");
        assert_eq!(inherited.groups().expect("valid"), [3, 4]);
        inherited.groups_are_inherited = true;
        let written = inherited.text(Path::new("/c")).expect("JSON");
        let written: Value = serde_json::from_slice(&written).expect("JSON");
        let user = json!({ "uid": 1, "gid": 2, "umask": 18 });
        assert_eq!(written["process"]["user"], user);

        let mut bundle = Bundle::of("config.json".into(), text.as_bytes()).expect("valid");
        assert!(bundle.take_seccomp(&["A", "B"]).is_err(), "no capabilities");

        for (text, missing) in [("{}", "process"), (r#"{"process":{}}"#, "user")] {
            let error = Bundle::of(PathBuf::new(), text.as_bytes()).err();
            let error = error.expect("refused").to_string();
            assert!(error.contains(missing), "{error}");
        }
    }

    #[test]
    fn without_its_profile_a_process_is_lent_what_the_shim_needs_to_load_the_filter() {
        let cases: [(&[&str], bool, &[&str]); 5] = [
            (&[], false, &["CAP_SYS_ADMIN", "CAP_SETPCAP"]),
            (&["CAP_SETPCAP"], false, &["CAP_SYS_ADMIN"]),
            (&["CAP_SYS_ADMIN"], false, &[]),
            (&["CAP_SYS_ADMIN", "CAP_SETPCAP"], false, &[]),
            (&[], true, &[]),
        ];
        for (own, is_fixed, expected) in cases {
            let mut document = json!({
                "process": { "user": { "uid": 1, "gid": 2 }, "cwd": "/", "noNewPrivileges": is_fixed,
                             "capabilities": { "bounding": own, "effective": own, "permitted": own, "ambient": [] } },
                "mounts": [],
                "linux": { "cgroupsPath": "/g", "seccomp": { "syscalls": [] } },
            });
            let text = document.to_string();
            let mut bundle = Bundle::of("config.json".into(), text.as_bytes()).expect("valid");
            let lent = bundle.take_seccomp(&["CAP_SYS_ADMIN", "CAP_SETPCAP"]);
            assert_eq!(lent.expect("valid"), expected);
            document["linux"]
                .as_object_mut()
                .expect("fields")
                .remove("seccomp");
            for set in ["bounding", "effective", "permitted"] {
                document["process"]["capabilities"][set] = json!([own, expected].concat());
            }
            let written = bundle.text(Path::new("/")).expect("JSON");
            let written: Value = serde_json::from_slice(&written).expect("JSON");
            assert_eq!(written, document);
        }
    }
}
