//! As whom does a container run? The manifest's ids, else the image's USER, looked up in the image's own
//! `/etc/passwd` and `/etc/group`, read without ever leaving the image.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::ConfigError;
use crate::spec::{ContainerSpec, PodSpec};
use crate::sys::openat::{self, Found};

/// Longest passwd or group file that is read.
const MAX_FILE: u64 = 1 << 20;

/// Who a container is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    pub(super) home: String,
}

/// Resolves the user. `layers` are the image's, topmost first; `image_user` is its USER.
pub(super) fn resolve(
    pod: &PodSpec,
    container: &ContainerSpec,
    image_user: &str,
    layers: &[PathBuf],
) -> Result<User, ConfigError> {
    let security = &container.security;
    let passwd = read_in_image(layers, "etc/passwd");
    let group_file = read_in_image(layers, "etc/group");
    let (user_part, group_part) = image_user.split_once(':').unwrap_or((image_user, ""));
    check_non_root(pod, container, user_part)?;
    let wanted = security
        .run_as_user
        .map_or_else(|| user_part.to_owned(), |uid| uid.to_string());
    let entry = find_passwd(&passwd, &wanted);
    let uid = match (wanted.as_str(), &entry) {
        ("", _) => 0,
        (_, Some(entry)) => entry.uid,
        (text, None) => text.parse().map_err(|_| ConfigError::NoSuchUser {
            user: text.to_owned(),
        })?,
    };
    let image_group = if security.run_as_user.is_some() {
        ""
    } else {
        group_part
    };
    let gid = match (security.run_as_group, image_group) {
        (Some(gid), _) => gid,
        (None, "") => entry.as_ref().map_or(0, |entry| entry.gid),
        (None, name) => find_group(&group_file, name).ok_or_else(|| ConfigError::NoSuchUser {
            user: name.to_owned(),
        })?,
    };
    let mut groups = pod.supplemental_groups.clone();
    groups.extend(pod.fs_group);
    if let Some(entry) = &entry {
        groups.extend(groups_of(&group_file, &entry.name));
    }
    groups.push(gid);
    groups.sort_unstable();
    groups.dedup();
    let home = entry
        .map(|entry| entry.home)
        .filter(|home| !home.is_empty())
        .unwrap_or_else(|| "/".to_owned());
    Ok(User {
        uid,
        gid,
        groups,
        home,
    })
}

/// The kubelet's three refusals (kubelet-behaviour §11.7).
fn check_non_root(
    pod: &PodSpec,
    container: &ContainerSpec,
    image_user: &str,
) -> Result<(), ConfigError> {
    if !container.security.run_as_non_root {
        return Ok(());
    }
    let who = format!(
        "(pod: \"{}\", container: {})",
        pod.kubelet_name(),
        container.name
    );
    let refuse = |text: String| Err(ConfigError::Refused(format!("{text} {who}")));
    match (container.security.run_as_user, image_user) {
        (Some(0), _) => refuse("container's runAsUser breaks non-root policy".into()),
        (Some(_), _) => Ok(()),
        (None, "" | "0") => refuse("container has runAsNonRoot and image will run as root".into()),
        (None, user) if user.parse::<u32>().is_ok() => Ok(()),
        (None, user) => refuse(format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
        )),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PasswdEntry {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
}

fn find_passwd(text: &str, wanted: &str) -> Option<PasswdEntry> {
    let entries = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields[..] else {
            return None;
        };
        Some(PasswdEntry {
            name: name.into(),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            home: home.into(),
        })
    });
    let wanted = if wanted.is_empty() { "0" } else { wanted };
    let number = wanted.parse::<u32>().ok();
    entries
        .into_iter()
        .find(|entry| entry.name == wanted || Some(entry.uid) == number)
}

fn find_group(text: &str, wanted: &str) -> Option<u32> {
    let named = text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.first() == Some(&wanted)).then(|| fields.get(2)?.parse().ok())?
    });
    named.or_else(|| wanted.parse().ok())
}

fn groups_of(text: &str, user: &str) -> Vec<u32> {
    text.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let member = fields.get(3)?.split(',').any(|name| name == user);
            member.then(|| fields[2].parse().ok())?
        })
        .collect()
}

/// The file as the topmost layer that has it (or hides it) shows it; empty if there is none.
fn read_in_image(layers: &[PathBuf], path: &str) -> String {
    layers
        .iter()
        .find_map(|layer| read_in_layer(layer, path))
        .unwrap_or_default()
}

fn read_in_layer(layer: &Path, path: &str) -> Option<String> {
    let root = File::open(layer).ok()?;
    let file = match openat::read_regular_in_root(&root, Path::new(path)).ok()? {
        Found::Regular(file) => file,
        Found::Whiteout => return Some(String::new()),
        Found::Other => return None,
    };
    let mut text = String::new();
    file.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102:Web:/var/www:/bin/false\n";
    const GROUP: &str = "root:x:0:\nweb:x:102:\nlogs:x:110:web,other\n";

    #[test]
    fn users_and_groups_are_found_by_name_and_number() {
        assert_eq!(find_passwd(PASSWD, "web").expect("web is there").uid, 101);
        assert_eq!(
            find_passwd(PASSWD, "101").expect("101 is there").home,
            "/var/www"
        );
        assert_eq!(
            find_passwd(PASSWD, "").expect("root is the default").home,
            "/root"
        );
        assert_eq!(find_passwd(PASSWD, "nobody"), None);
        assert_eq!(find_group(GROUP, "logs"), Some(110));
        assert_eq!(find_group(GROUP, "7"), Some(7));
        assert_eq!(find_group(GROUP, "nope"), None);
        assert_eq!(groups_of(GROUP, "web"), [110]);
    }
}
