//! The devices that a container gets in its bundle.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::environment::Process;
use super::oci::Bind;
use super::{ConfigError, Sandboxes};
use crate::effects::device::{Finder, Granted, Trouble};
use crate::shim::protocol::DeviceFile;
use crate::spec::{ContainerSpec, MountPropagation, PodSpec};
use crate::sys::bpf::Device;
use crate::types::{DeviceNode, Gather, InOrder};

/// Most devices of one container.
const MAX_DEVICES: usize = 128;

/// What a container's requests give it.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// The devices, each at a path of its own.
    pub(super) granted: Vec<Granted>,
    pub(super) binds: Vec<Bind>,
    pub(super) groups: Vec<u32>,
    /// The devices by request, as the planner compares them.
    pub(super) by_request: BTreeMap<String, Vec<DeviceNode>>,
    env: Vec<(String, String)>,
}

/// Finds the devices of a container; `None` if it asks for none.
pub(super) fn of(
    sandboxes: &Sandboxes,
    pod: &PodSpec,
    container: &ContainerSpec,
) -> Result<Option<Devices>, ConfigError> {
    let requests = pod.devices.iter();
    let requests: Vec<_> = requests
        .flat_map(|devices| devices.of(&container.name))
        .collect();
    if requests.is_empty() {
        return Ok(None);
    }
    // An ephemeral container is there to find out what is wrong.
    let mut added = pod.ephemeral_containers.iter();
    let lenient = added.any(|other| other.name == container.name);
    let refused = |why: String| ConfigError::Refused(why);
    let mut finder = Finder::open(&sandboxes.config.cdi_dirs)
        .map_err(|error| refused(format!("`/dev` cannot be read: {error}")))?;
    let mut found = Devices::default();
    for request in requests {
        let grant = match finder.find(request) {
            Ok(grant) => grant,
            Err(Trouble::Missing(_)) if request.optional => continue,
            Err(_) if lenient => continue,
            Err(Trouble::Missing(why) | Trouble::Refused(why)) => return Err(refused(why)),
        };
        found.by_request.insert(request.name.clone(), grant.nodes());
        found.env.extend(grant.env);
        found.groups.extend(grant.groups);
        found
            .binds
            .extend(grant.mounts.into_iter().map(|mount| Bind {
                source: mount.host_path.into(),
                target: mount.path,
                read_only: mount.read_only,
                read_only_below: false,
                propagation: MountPropagation::None,
                flags: mount.flags,
            }));
        found.granted.extend(grant.devices);
    }
    found.settle().map(|()| Some(found)).map_err(refused)
}

impl Devices {
    /// Checks that each path is that of one device.
    fn settle(&mut self) -> Result<(), String> {
        if self.granted.len() > MAX_DEVICES {
            let number = self.granted.len();
            return Err(format!("{number} devices are more than {MAX_DEVICES}"));
        }
        self.granted.order_by(|a, b| a.place.cmp(&b.place));
        for pair in self.granted.windows(2) {
            let [one, other] = pair else { continue };
            let (place, below) = (&one.place, format!("{}/", one.place));
            if *place == other.place || other.place.starts_with(&below) {
                return Err(format!(
                    "`{}` and `{}` would both be at `{place}` in the container",
                    one.path, other.path
                ));
            }
        }
        self.groups.order();
        self.groups.dedup();
        Ok(())
    }

    /// Sets the variables, in place of others of their names.
    pub(super) fn set_env(&self, process: &mut Process) {
        let names: BTreeSet<&str> = self.env.iter().map(|(name, _)| name.as_str()).gather();
        let is_set = |pair: &String| {
            let name = pair.split_once('=').map(|(name, _)| name);
            name.is_some_and(|name| names.contains(name))
        };
        process.env.retain(|pair| !is_set(pair));
        let last: BTreeMap<&String, &String> = self.env.iter().map(|(n, v)| (n, v)).gather();
        let pairs = last
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"));
        process.env.extend(pairs);
    }

    /// The rules of the container's cgroup on v2.
    pub(super) fn rules(&self) -> Vec<Device> {
        let rule = |granted: &Granted| Device {
            block: granted.node.block,
            major: granted.node.major,
            minor: Some(granted.node.minor),
            read: granted.access.read,
            write: granted.access.write,
        };
        self.granted.iter().map(rule).collect()
    }
}

/// An entry of `linux.devices`.
pub(super) fn node(granted: &Granted) -> Value {
    let node = &granted.node;
    json!({
        "path": granted.place, "type": kind(granted), "major": node.major, "minor": node.minor,
        "fileMode": node.mode, "uid": node.uid, "gid": node.gid,
    })
}

/// The same for the shim.
pub(super) fn file(granted: &Granted) -> DeviceFile {
    let node = &granted.node;
    DeviceFile {
        path: granted.place.clone().into(),
        block: node.block,
        major: node.major,
        minor: node.minor,
        mode: node.mode,
        uid: node.uid,
        gid: node.gid,
    }
}

/// An entry of `linux.resources.devices`, for the devices controller.
pub(super) fn rule(granted: &Granted) -> Value {
    let (node, may) = (&granted.node, granted.access);
    let access = [(may.read, 'r'), (may.write, 'w'), (may.mknod, 'm')];
    let access = access.into_iter().filter(|(yes, _)| *yes);
    let access: String = access.map(|(_, letter)| letter).collect();
    json!({
        "allow": true, "type": kind(granted), "major": node.major, "minor": node.minor, "access": access,
    })
}

fn kind(granted: &Granted) -> &'static str {
    if granted.node.block { "b" } else { "c" }
}
