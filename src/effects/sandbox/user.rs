//! The user of a container: the manifest's ids, or else the image's USER, looked up in the image's own
//! `/etc/passwd` and `/etc/group`, read without ever leaving the image.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::ConfigError;
use crate::spec::{ContainerSpec, PodSpec};
use crate::sys::file;
use crate::sys::openat::{self, Found};
use crate::types::InOrder;

/// Longest passwd or group file that is read.
const MAX_FILE: u64 = 1 << 20;

/// User, groups and home of a container.
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
        (text, None) => id(text).ok_or_else(|| ConfigError::NoSuchUser {
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
    if let Some(entry) = entry.as_ref().filter(|_| !pod.strict_groups) {
        groups.extend(groups_of(&group_file, &entry.name));
    }
    groups.push(gid);
    groups.order();
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

/// The kubelet's three refusals (Kubernetes docs: Configure a Security Context).
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
    let image_id = if image_user.is_empty() {
        Some(0)
    } else {
        id(image_user)
    };
    match (container.security.run_as_user, image_id) {
        (Some(0), _) => refuse("container's runAsUser breaks non-root policy".into()),
        (Some(_), _) => Ok(()),
        (None, Some(0)) => refuse("container has runAsNonRoot and image will run as root".into()),
        (None, Some(_)) => Ok(()),
        (None, None) => refuse(format!(
            "container has runAsNonRoot and image has non-numeric user ({image_user}), cannot verify user is non-root"
        )),
    }
}

/// The number of a text: digits only, so that `+0` is a name, as in other programs. Numbers beyond Kubernetes'
/// maximum are invalid: the largest would make the kernel keep the current id, which is root's.
fn id(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse::<i32>().ok())??;
    u32::try_from(number).ok()
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PasswdEntry {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
}

/// A number is never a name: an image could give root's line the name `1000`.
fn find_passwd(text: &str, wanted: &str) -> Option<PasswdEntry> {
    let entries = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields[..] else {
            return None;
        };
        Some(PasswdEntry {
            name: name.into(),
            uid: id(uid)?,
            gid: id(gid)?,
            home: home.into(),
        })
    });
    let wanted = if wanted.is_empty() { "0" } else { wanted };
    let number = id(wanted);
    entries
        .into_iter()
        .find(|entry| number.map_or(entry.name == wanted, |uid| entry.uid == uid))
}

fn find_group(text: &str, wanted: &str) -> Option<u32> {
    if let Some(gid) = id(wanted) {
        return Some(gid);
    }
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.first() == Some(&wanted)).then(|| id(fields.get(2)?))?
    })
}

fn groups_of(text: &str, user: &str) -> Vec<u32> {
    text.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let member = fields.get(3)?.split(',').any(|name| name == user);
            member.then(|| id(fields[2]))?
        })
        .collect()
}

/// The file as shown by the topmost layer that has it (or hides it); empty if there is none.
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
    file::read_start(file, MAX_FILE).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::spec::convert::{self, ConvertContext};
    use crate::sys::tree;

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

    #[test]
    fn a_byte_that_is_no_utf8_hides_no_other_line() {
        let layer = Layer::new("latin1");
        fs::write(layer.etc("passwd"), b"web:x:101:102:J\xfcrgen:/var/www:\n").unwrap();
        let text = read_in_image(std::slice::from_ref(&layer.0), "etc/passwd");
        assert_eq!(find_passwd(&text, "web").expect("it is there").uid, 101);
    }

    fn non_root_pod(more: &str) -> PodSpec {
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - name: c\n    image: x:1\n    \
             securityContext: {{runAsNonRoot: true{more}}}\n"
        );
        let context = ConvertContext::of("n");
        let found = convert::documents(manifest.as_bytes(), "p.yaml", &context).unwrap();
        let mut pods = found.pods;
        pods.remove(0)
    }

    /// A layer with these files in `/etc`.
    struct Layer(PathBuf);

    impl Layer {
        fn new(name: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("coracle-user-{name}-{}", std::process::id()));
            tree::remove(&dir).unwrap();
            fs::create_dir_all(dir.join("etc")).unwrap();
            Self(dir)
        }

        fn etc(&self, file: &str) -> PathBuf {
            self.0.join("etc").join(file)
        }
    }

    impl Drop for Layer {
        fn drop(&mut self) {
            let _ = tree::remove(&self.0);
        }
    }

    #[test]
    fn run_as_non_root_compares_numbers_and_only_digits_are_one() {
        let layer = Layer::new("numbers");
        let passwd = "root:x:0:0::/root:\n1000:x:0:0::/root:\n+0:x:0:0::/:\nweb:x:101:102::/:\nall:x:4294967295:0::/:\n";
        fs::write(layer.etc("passwd"), passwd).unwrap();
        let layers = [layer.0.clone()];
        let (root, name) = ("image will run as root", "non-numeric user");
        let pod = non_root_pod("");
        for (user, expected) in [
            ("", Err(root)),
            ("0", Err(root)),
            ("00", Err(root)),
            ("0:1000", Err(root)),
            ("000000000000000", Err(root)),
            ("+0", Err(name)),
            ("-0", Err(name)),
            ("0x0", Err(name)),
            (" 0", Err(name)),
            ("\u{660}", Err(name)),
            ("+1000", Err(name)),
            ("web", Err(name)),
            ("2147483648", Err(name)),
            ("4294967295", Err(name)),
            ("4294967296", Err(name)),
            ("1000", Ok(1000)),
            ("01000", Ok(1000)),
            ("101", Ok(101)),
        ] {
            let found = resolve(&pod, &pod.containers[0], user, &layers).map(|user| user.uid);
            match (found, expected) {
                (Ok(uid), Ok(wanted)) => assert_eq!(uid, wanted, "{user}"),
                (Err(error), Err(text)) => {
                    assert!(error.to_string().contains(text), "{user}: {error}");
                }
                (found, expected) => panic!("{user}: {found:?}, not {expected:?}"),
            }
        }
        let pod = non_root_pod(", runAsUser: 1000");
        let user = resolve(&pod, &pod.containers[0], "0", &layers).unwrap();
        assert_eq!(user.uid, 1000);
    }

    #[test]
    fn with_the_strict_policy_the_image_gives_the_user_no_groups() {
        let layer = Layer::new("strict");
        fs::write(layer.etc("passwd"), "web:x:101:102::/:\n").unwrap();
        fs::write(layer.etc("group"), "adm:x:4:web\nlogs:x:110:web\n").unwrap();
        let layers = [layer.0.clone()];
        let groups = |strict| {
            let mut pod = non_root_pod(", runAsUser: 101");
            pod.supplemental_groups = vec![4000];
            pod.fs_group = Some(2000);
            pod.strict_groups = strict;
            let user = resolve(&pod, &pod.containers[0], "", &layers).unwrap();
            (user.gid, user.groups)
        };
        assert_eq!(groups(false), (102, vec![4, 102, 110, 2000, 4000]));
        assert_eq!(groups(true), (102, vec![102, 2000, 4000]));
    }

    #[test]
    fn a_number_is_no_name_and_a_name_no_number() {
        let passwd = "0:x:5:5::/five:\nroot:x:0:0::/root:\nx:x:+7:0::/:\nall:x:4294967295:0::/:\n";
        assert_eq!(find_passwd(passwd, "0").expect("root").home, "/root");
        assert_eq!(find_passwd(passwd, "00").expect("root").home, "/root");
        assert_eq!(find_passwd(passwd, "5").expect("by uid").home, "/five");
        for unknown in ["+0", "-0", "0x0", "7", "x", "all", "4294967295"] {
            assert_eq!(find_passwd(passwd, unknown), None, "{unknown}");
        }
        assert_eq!(find_group("7:x:0:\n", "7"), Some(7));
        assert_eq!(find_group("a:x:+5:\n", "a"), None);
        assert_eq!(find_group("", "+7"), None);
        assert_eq!(find_group("", "4294967295"), None);
    }

    #[test]
    fn a_pipe_or_socket_for_passwd_neither_blocks_nor_counts() {
        use std::os::unix::fs::symlink;
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o644);
        let (pipe, whiteout, below) =
            (Layer::new("pipe"), Layer::new("white"), Layer::new("below"));
        nix::unistd::mkfifo(&pipe.etc("passwd"), mode).unwrap();
        symlink("passwd", pipe.etc("group")).unwrap();
        fs::write(below.etc("passwd"), PASSWD).unwrap();
        let kind = nix::sys::stat::SFlag::S_IFCHR;
        nix::sys::stat::mknod(&whiteout.etc("passwd"), kind, mode, 0).unwrap();
        let read = |layers: &[&Layer], path: &str| {
            let layers: Vec<PathBuf> = layers.iter().map(|layer| layer.0.clone()).collect();
            read_in_image(&layers, path)
        };
        assert_eq!(read(&[&pipe], "etc/passwd"), "");
        assert_eq!(read(&[&pipe], "etc/group"), "");
        assert_eq!(read(&[&below], "etc/passwd"), PASSWD);
        assert_eq!(read(&[&whiteout, &below], "etc/passwd"), "");
    }
}
