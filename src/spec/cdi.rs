//! Files of the Container Device Interface (CDI): what a vendor's device adds to a container. JSON or YAML, and as
//! hostile as a manifest. What cannot be honoured is refused by name, for the devices that need it only.

use std::path::{Component, Path};

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use super::device::{DeviceAccess, is_cdi_device, is_cdi_kind, is_taken, may_be_device};
use super::parse;
use super::value::Value;

/// Limit of a file in bytes.
pub const MAX_BYTES: u64 = 1 << 20;

/// Most device nodes, mounts, variables or groups of one device.
const MAX_EDITS: usize = 128;

/// Options of mounts that are honoured. Mounts are always recursive and private.
const OPTIONS: [&str; 10] = [
    "bind", "nodev", "noexec", "nosuid", "private", "rbind", "ro", "rprivate", "rw", "rslave",
];

/// A file: devices of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct CdiFile {
    /// `vendor/class`.
    pub kind: String,
    /// What every device adds.
    common: Json,
    /// The devices by name, and what each adds.
    devices: Vec<(String, Json)>,
}

/// What a device adds to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CdiEdits {
    /// Environment variables, which replace others of their names.
    pub env: Vec<(String, String)>,
    /// Device nodes.
    pub nodes: Vec<CdiNode>,
    /// Files and folders of the node.
    pub mounts: Vec<CdiMount>,
    /// Groups of the container's processes.
    pub groups: Vec<u32>,
}

/// A device node of a CDI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CdiNode {
    /// The path in the container, below `/dev`.
    pub path: String,
    /// The path on the node, below `/dev`.
    pub host_path: String,
    /// Whether it must be a block device (`true`) or a character device.
    pub block: Option<bool>,
    /// What its numbers must be.
    pub major: Option<u32>,
    /// What its numbers must be.
    pub minor: Option<u32>,
    /// Permissions instead of those on the node.
    pub mode: Option<u32>,
    /// Owner instead of that on the node.
    pub uid: Option<u32>,
    /// Group instead of that on the node.
    pub gid: Option<u32>,
    /// What the container may do.
    pub access: DeviceAccess,
}

/// A mount of a CDI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CdiMount {
    /// The path on the node.
    pub host_path: String,
    /// The path in the container.
    pub path: String,
    /// Whether it is read-only.
    pub read_only: bool,
    /// `nodev`, `noexec`, `nosuid`.
    pub flags: Vec<String>,
}

/// Reads a file. The error is a sentence.
pub fn file(bytes: &[u8]) -> Result<CdiFile, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct File {
        #[serde(rename = "cdiVersion")]
        _version: String,
        kind: String,
        #[serde(default, rename = "annotations")]
        _annotations: Json,
        #[serde(default)]
        devices: Vec<Device>,
        #[serde(default)]
        container_edits: Json,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct Device {
        name: String,
        #[serde(default, rename = "annotations")]
        _annotations: Json,
        #[serde(default)]
        container_edits: Json,
    }
    let text = parse::text(bytes).map_err(|problem| problem.message)?;
    let mut documents = parse::parse(text).map_err(|problem| problem.message)?;
    documents.retain(|document| *document != Value::Null);
    let [document] = &documents[..] else {
        return Err("must have one document".to_owned());
    };
    let read: File = serde_json::from_value(json(document)?).map_err(|error| error.to_string())?;
    if !is_cdi_kind(&read.kind) {
        return Err(format!("kind `{}` must be `vendor/class`", read.kind));
    }
    let mut devices: Vec<(String, Json)> = Vec::new();
    for device in read.devices {
        if !is_cdi_device(&device.name) || devices.iter().any(|(name, _)| *name == device.name) {
            return Err(format!(
                "device `{}` is no name, or is there twice",
                device.name
            ));
        }
        devices.push((device.name, device.container_edits));
    }
    Ok(CdiFile {
        kind: read.kind,
        common: read.container_edits,
        devices,
    })
}

/// The tree without its notation. Keys must be unique.
fn json(value: &Value) -> Result<Json, String> {
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(yes) => Json::Bool(*yes),
        Value::Int(number) => match i64::try_from(*number) {
            Ok(number) => number.into(),
            Err(_) => return Err(format!("number {number} is too large")),
        },
        Value::Float(number) => (*number).into(),
        Value::String(text) => Json::String(text.clone()),
        Value::List(items) => Json::Array(items.iter().map(json).collect::<Result<_, _>>()?),
        Value::Map(entries) => {
            let mut fields = Map::new();
            for (key, value) in entries {
                if fields.insert(key.clone(), json(value)?).is_some() {
                    return Err(format!("key `{key}` is there twice"));
                }
            }
            Json::Object(fields)
        }
    })
}

impl CdiFile {
    /// What the device of this name adds, with what all devices of the file add; `None` if it is not there. The error
    /// is a sentence.
    pub fn edits(&self, name: &str) -> Option<Result<CdiEdits, String>> {
        let (_, own) = self.devices.iter().find(|(device, _)| device == name)?;
        let mut found = CdiEdits::default();
        let all = [&self.common, own].into_iter();
        let mut written = all.filter(|edits| !edits.is_null());
        let read = written.try_for_each(|edits| found.add(edits));
        Some(read.map(|()| found))
    }
}

/// `containerEdits`, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[derive(Default)]
struct Written {
    env: Vec<String>,
    device_nodes: Vec<WrittenNode>,
    mounts: Vec<WrittenMount>,
    #[serde(rename = "additionalGids")]
    additional_gids: Vec<u32>,
    hooks: Vec<Json>,
    intel_rdt: Json,
    net_devices: Vec<Json>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WrittenNode {
    path: String,
    host_path: Option<String>,
    r#type: Option<String>,
    major: Option<u32>,
    minor: Option<u32>,
    file_mode: Option<u32>,
    permissions: Option<String>,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WrittenMount {
    host_path: String,
    container_path: String,
    r#type: Option<String>,
    #[serde(default)]
    options: Vec<String>,
}

impl CdiEdits {
    fn add(&mut self, edits: &Json) -> Result<(), String> {
        let written = Written::deserialize(edits).map_err(|error| error.to_string())?;
        for (there, name) in [
            (!written.hooks.is_empty(), "hooks"),
            (!written.intel_rdt.is_null(), "intelRdt"),
            (!written.net_devices.is_empty(), "netDevices"),
        ] {
            if there {
                return Err(format!("it has `{name}`, which coracle does not carry out"));
            }
        }
        for pair in written.env {
            match pair.split_once('=') {
                Some((name, value)) if !name.is_empty() && !pair.contains('\0') => {
                    self.env.push((name.to_owned(), value.to_owned()));
                }
                _ => {
                    return Err(format!(
                        "env `{}` must be `NAME=value`",
                        pair.escape_debug()
                    ));
                }
            }
        }
        for node in written.device_nodes {
            self.nodes.push(CdiNode::of(node)?);
        }
        for mount in written.mounts {
            self.mounts.push(CdiMount::of(mount)?);
        }
        self.groups.extend(written.additional_gids);
        let most = [
            self.env.len(),
            self.nodes.len(),
            self.mounts.len(),
            self.groups.len(),
        ];
        match most.into_iter().any(|number| number > MAX_EDITS) {
            true => Err(format!("it has more than {MAX_EDITS} items of a kind")),
            false => Ok(()),
        }
    }
}

/// The part of a plain path below a folder: without `.`, `..` and odd letters.
fn below<'p>(path: &'p str, folder: &str) -> Option<&'p str> {
    let below = path.strip_prefix(folder)?;
    let parts = Path::new(path).components();
    let plain = parts
        .skip(1)
        .all(|part| matches!(part, Component::Normal(_)));
    let odd = path.chars().any(char::is_control) || path.len() > 4096;
    (plain && !odd && !below.is_empty()).then_some(below)
}

impl CdiNode {
    fn of(written: WrittenNode) -> Result<Self, String> {
        let path = written.path;
        if below(&path, "/dev/").is_none() || is_taken(&path) {
            return Err(format!(
                "device node `{}` must have a path of its own below `/dev`",
                path.escape_debug()
            ));
        }
        let host_path = written.host_path.filter(|path| !path.is_empty());
        let host_path = host_path.unwrap_or_else(|| path.clone());
        if !below(&host_path, "/dev/").is_some_and(may_be_device) {
            return Err(format!(
                "device node `{}` is not below the node's `/dev`",
                host_path.escape_debug()
            ));
        }
        let block = match written.r#type.as_deref() {
            None | Some("") => None,
            Some("b") => Some(true),
            Some("c" | "u") => Some(false),
            Some(other) => {
                return Err(format!(
                    "device node `{path}` has type `{other}`, not `b` or `c`"
                ));
            }
        };
        let access = match written.permissions.as_deref() {
            None | Some("") => DeviceAccess::ALL,
            Some(text) => DeviceAccess::parse(text)
                .ok_or_else(|| format!("device node `{path}` has permissions `{text}`"))?,
        };
        Ok(Self {
            host_path,
            block,
            // Zero stands for the node's own numbers.
            major: written.major.filter(|number| *number != 0),
            minor: written
                .minor
                .filter(|_| written.major.is_some_and(|major| major != 0)),
            mode: written.file_mode.map(|mode| mode & 0o777),
            uid: written.uid,
            gid: written.gid,
            access,
            path,
        })
    }
}

impl CdiMount {
    fn of(written: WrittenMount) -> Result<Self, String> {
        let (host_path, path) = (written.host_path, written.container_path);
        if below(&host_path, "/").is_none() {
            return Err(format!(
                "mount of `{}` needs a plain absolute path",
                host_path.escape_debug()
            ));
        }
        let first = below(&path, "/").and_then(|path| path.split('/').next());
        if first.is_none_or(|first| ["dev", "proc", "sys"].contains(&first)) {
            return Err(format!(
                "mount at `{}` must be at a plain absolute path outside of `/dev`, `/proc` and `/sys`",
                path.escape_debug()
            ));
        }
        let kind = written.r#type.as_deref().unwrap_or_default();
        if !["", "bind", "none"].contains(&kind) {
            return Err(format!("mount at `{path}` has type `{kind}`, not `bind`"));
        }
        let mut options = written.options.iter();
        if let Some(other) = options.find(|option| !OPTIONS.contains(&option.as_str())) {
            return Err(format!("mount at `{path}` has option `{other}`"));
        }
        let flag = |option: &&String| option.starts_with("no");
        let has = |name: &str| written.options.iter().any(|option| option == name);
        Ok(Self {
            read_only: has("ro"),
            flags: written.options.iter().filter(flag).cloned().collect(),
            host_path,
            path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
cdiVersion: 0.6.0
kind: acme.com/camera
annotations: {made: by hand}
containerEdits: {env: [ACME=1], additionalGids: [44]}
devices:
- name: front
  containerEdits:
    env: [CAMERA=front=left]
    deviceNodes:
    - {path: /dev/camera, hostPath: /dev/video0, type: c, permissions: rw, uid: 7}
    - {path: /dev/camera1, major: 81, minor: 1, fileMode: 0o640}
    mounts:
    - {hostPath: /opt/acme/lib, containerPath: /usr/lib/acme, options: [ro, nosuid, nodev, bind]}
- {name: hooked, containerEdits: {hooks: [{hookName: createContainer, path: /bin/sh}]}}
- {name: bare}
";

    #[test]
    fn a_file_says_what_each_device_adds() {
        let read = file(FILE.as_bytes()).expect("valid");
        assert_eq!(read.kind, "acme.com/camera");
        let front = read.edits("front").expect("there").expect("valid");
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        assert_eq!(
            front.env,
            [("ACME", "1"), ("CAMERA", "front=left")].map(pair)
        );
        assert_eq!(front.groups, [44]);
        let nodes = front.nodes.iter().map(|node| {
            let node = (
                &*node.path,
                &*node.host_path,
                node.block,
                node.major,
                node.mode,
            );
            format!("{node:?}")
        });
        assert_eq!(
            nodes.collect::<Vec<_>>(),
            [
                r#"("/dev/camera", "/dev/video0", Some(false), None, None)"#,
                r#"("/dev/camera1", "/dev/camera1", None, Some(81), Some(416))"#,
            ]
        );
        assert!(!front.nodes[0].access.mknod && front.nodes[1].access.mknod);
        let [mount] = &front.mounts[..] else {
            panic!("one mount: {:?}", front.mounts);
        };
        assert!(mount.read_only);
        assert_eq!(mount.flags, ["nosuid", "nodev"]);
        assert_eq!(
            read.edits("bare").expect("there").expect("valid").groups,
            [44]
        );
        assert_eq!(read.edits("other"), None);
        let hooked = read.edits("hooked").expect("there").expect_err("refused");
        assert_eq!(hooked, "it has `hooks`, which coracle does not carry out");
        let as_json = serde_json::json!({
            "cdiVersion": "0.5.0", "kind": "acme.com/camera", "devices": [{ "name": "x", "containerEdits": {} }],
        });
        assert!(file(as_json.to_string().as_bytes()).is_ok());
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (edits, problem) in [
            (
                "{intelRdt: {closID: x}}",
                "it has `intelRdt`, which coracle does not carry out",
            ),
            (
                "{netDevices: [{hostInterfaceName: eth0}]}",
                "it has `netDevices`, which coracle does not carry out",
            ),
            ("{env: [=x]}", "env `=x` must be `NAME=value`"),
            (
                "{deviceNodes: [{path: /etc/x}]}",
                "device node `/etc/x` must have a path of its own below `/dev`",
            ),
            (
                "{deviceNodes: [{path: /dev/null, hostPath: /dev/x}]}",
                "device node `/dev/null` must have a path of its own below `/dev`",
            ),
            (
                "{deviceNodes: [{path: /dev/x, hostPath: /dev/../etc/x}]}",
                "device node `/dev/../etc/x` is not below the node's `/dev`",
            ),
            (
                "{deviceNodes: [{path: /dev/x, hostPath: /dev/shm/x}]}",
                "device node `/dev/shm/x` is not below the node's `/dev`",
            ),
            (
                "{deviceNodes: [{path: /dev/x, type: p}]}",
                "device node `/dev/x` has type `p`, not `b` or `c`",
            ),
            (
                "{deviceNodes: [{path: /dev/x, permissions: rx}]}",
                "device node `/dev/x` has permissions `rx`",
            ),
            (
                "{mounts: [{hostPath: /a/../b, containerPath: /c}]}",
                "mount of `/a/../b` needs a plain absolute path",
            ),
            (
                "{mounts: [{hostPath: /a, containerPath: /proc/x}]}",
                "mount at `/proc/x` must be at a plain absolute path outside of `/dev`, `/proc` and `/sys`",
            ),
            (
                "{mounts: [{hostPath: tmpfs, containerPath: /c, type: tmpfs}]}",
                "mount of `tmpfs` needs a plain absolute path",
            ),
            (
                "{mounts: [{hostPath: /a, containerPath: /c, type: tmpfs}]}",
                "mount at `/c` has type `tmpfs`, not `bind`",
            ),
            (
                "{mounts: [{hostPath: /a, containerPath: /c, options: [suid]}]}",
                "mount at `/c` has option `suid`",
            ),
        ] {
            let text = format!(
                "cdiVersion: 1\nkind: a/b\ndevices: [{{name: d, containerEdits: {edits}}}]"
            );
            let text = text.replace("cdiVersion: 1", "cdiVersion: '1'");
            let read = file(text.as_bytes()).expect("a file");
            assert_eq!(read.edits("d"), Some(Err(problem.to_owned())), "{edits}");
        }
        let unknown =
            "{cdiVersion: '1', kind: a/b, devices: [{name: d, containerEdits: {rootfs: x}}]}";
        let unknown = file(unknown.as_bytes()).expect("a file").edits("d");
        let problem = unknown.expect("there").expect_err("refused");
        assert!(problem.starts_with("unknown field `rootfs`"), "{problem}");
        for bad in [
            "",
            "[]",
            "kind: a/b",
            "{cdiVersion: '1', kind: a}",
            "a: [",
            "{cdiVersion: '1', kind: a/b, more: 1}",
            "{cdiVersion: '1', kind: a/b, devices: [{name: a}, {name: a}]}",
            "{cdiVersion: '1', kind: a/b, kind: c/d}",
        ] {
            assert!(file(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
