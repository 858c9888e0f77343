//! Devices of the node: what there is of those that containers ask for, and what a container gets. Nothing is opened.

mod cdi;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::spec::device::{is_pattern, is_taken, may_be_device};
use crate::spec::{DeviceAccess, DeviceRequest, DeviceSource};
use crate::sys::device_node::{self, Folder, Found, Node, Seen};
use crate::types::{DeviceNode, DeviceSight, Gather, InOrder};

/// Where device nodes are.
const DEV: &str = "/dev";

/// Most devices of one request.
const MAX_MATCHES: usize = 64;

/// Most paths that a pattern is compared with.
const MAX_PATHS: usize = 4096;

/// A node counts as there when it has not changed for this long: udev sets its owner and mode after the kernel has
/// made it.
const SETTLES: Duration = Duration::from_millis(250);

/// What was found of some requests.
#[derive(Debug)]
pub struct Look {
    /// What was found, by the requests' names.
    pub sights: BTreeMap<String, DeviceSight>,
    /// The folders whose changes may change that.
    pub seen: Seen,
    /// When to look again because a node is very new.
    pub settles_in: Option<Duration>,
}

/// A device of the node for a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// The path in the container.
    pub place: String,
    /// The path on the node, as asked for.
    pub path: String,
    /// The node's file, with the permissions that it has in the container.
    pub node: Node,
    /// What the container may do.
    pub access: DeviceAccess,
}

/// What one request gives a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grant {
    /// Its devices.
    pub devices: Vec<Granted>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// Files and folders of the node.
    pub mounts: Vec<crate::spec::cdi::CdiMount>,
    /// Groups of the container's processes.
    pub groups: Vec<u32>,
}

/// Why a request is not granted, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Something is not there.
    Missing(String),
    /// It never will be.
    Refused(String),
}

/// Blocking. Looks for what these requests name. `cdi` are the folders of CDI files.
pub fn look<'r>(requests: impl Iterator<Item = &'r DeviceRequest>, cdi: &[PathBuf]) -> Look {
    let mut finder = match Finder::open(cdi) {
        Ok(finder) => finder,
        Err(error) => {
            let refused = |request: &DeviceRequest| {
                let why = format!("`{DEV}` cannot be read: {error}");
                (request.name.clone(), DeviceSight::Refused(why))
            };
            return Look {
                sights: requests.map(refused).gather(),
                seen: Seen::new(),
                settles_in: None,
            };
        }
    };
    let (mut sights, mut settles_in) = (BTreeMap::new(), None::<Duration>);
    for request in requests {
        let sight = match finder.find(request) {
            Ok(grant) => {
                let ages = grant.devices.iter().filter_map(|device| device.node.age);
                let young = ages.filter_map(|age| SETTLES.checked_sub(age));
                settles_in = young.chain(settles_in).max();
                DeviceSight::There(grant.nodes())
            }
            Err(Trouble::Missing(why)) => DeviceSight::Missing(why),
            Err(Trouble::Refused(why)) => DeviceSight::Refused(why),
        };
        sights.insert(request.name.clone(), sight);
    }
    Look {
        sights,
        seen: finder.seen(),
        settles_in,
    }
}

impl Grant {
    /// The devices, as the planner compares them.
    pub fn nodes(&self) -> Vec<DeviceNode> {
        let node = |device: &Granted| DeviceNode {
            path: device.path.clone(),
            block: device.node.block,
            major: device.node.major,
            minor: device.node.minor,
            inode: device.node.inode,
        };
        let mut nodes: Vec<DeviceNode> = self.devices.iter().map(node).collect();
        nodes.order();
        nodes.dedup();
        nodes
    }
}

/// Finds what requests name.
#[derive(Debug)]
pub struct Finder<'a> {
    dev: Folder,
    cdi: cdi::Files<'a>,
}

impl<'a> Finder<'a> {
    /// `cdi` are the folders of CDI files, the most important last.
    pub fn open(cdi: &'a [PathBuf]) -> io::Result<Self> {
        Ok(Self {
            dev: Folder::open(Path::new(DEV))?,
            cdi: cdi::Files::new(cdi),
        })
    }

    fn seen(self) -> Seen {
        let mut seen = self.dev.seen();
        device_node::merge(&mut seen, self.cdi.seen());
        seen
    }

    /// What this request gives a container.
    pub fn find(&mut self, request: &DeviceRequest) -> Result<Grant, Trouble> {
        match &request.source {
            DeviceSource::Cdi => self.cdi_device(&request.name),
            DeviceSource::Node { place, access } => {
                let place = place.as_deref();
                let devices = match is_pattern(&request.name) {
                    true => self.matching(&request.name, place, *access)?,
                    false => vec![self.one(&request.name, place, *access)?],
                };
                Ok(Grant {
                    devices,
                    ..Grant::default()
                })
            }
        }
    }

    /// The node at a path that is written in full.
    fn one(
        &mut self,
        path: &str,
        place: Option<&str>,
        access: DeviceAccess,
    ) -> Result<Granted, Trouble> {
        let (real, node) = match self.at(path)? {
            Found::Node(real, node) => (real, node),
            Found::Nothing => return Err(Trouble::Missing(format!("`{path}` is not there"))),
            Found::Other(what) => {
                return Err(Trouble::Refused(format!(
                    "`{path}` is {what}, not a device"
                )));
            }
        };
        if !may_be_device(&real.to_string_lossy()) {
            let real = real.display();
            let why = format!("`{path}` leads to `{DEV}/{real}`, where no devices are");
            return Err(Trouble::Refused(why));
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        let place = match place {
            Some(folder) if folder.ends_with('/') => format!("{folder}{name}"),
            Some(place) => place.to_owned(),
            None => path.to_owned(),
        };
        Ok(Granted {
            place,
            path: path.to_owned(),
            node,
            access,
        })
    }

    fn at(&mut self, path: &str) -> Result<Found, Trouble> {
        let below = Path::new(path).strip_prefix(DEV);
        let below = below.map_err(|_| Trouble::Refused(format!("`{path}` is not in `{DEV}`")))?;
        let unreadable = |error| Trouble::Refused(format!("`{path}` cannot be read: {error}"));
        self.dev.find(below).map_err(unreadable)
    }

    /// The devices that match a pattern. What is no device, or what every container has, is left out.
    fn matching(
        &mut self,
        pattern: &str,
        place: Option<&str>,
        access: DeviceAccess,
    ) -> Result<Vec<Granted>, Trouble> {
        let below = Path::new(pattern)
            .strip_prefix(DEV)
            .unwrap_or(Path::new(""));
        let unreadable = |error| Trouble::Refused(format!("`{pattern}` cannot be read: {error}"));
        let paths = self.dev.matches(below, MAX_PATHS).map_err(unreadable)?;
        let mut found = Vec::new();
        for path in paths {
            // A name that is no text cannot be written in the container's configuration.
            let Some(path) = Path::new(DEV).join(path).to_str().map(str::to_owned) else {
                continue;
            };
            if let Ok(device) = self.one(&path, place, access)
                && !is_taken(&device.place)
            {
                found.push(device);
            }
        }
        match found.len() {
            0 => Err(Trouble::Missing(format!("no device matches `{pattern}`"))),
            1..=MAX_MATCHES => Ok(found),
            number => Err(Trouble::Refused(format!(
                "`{pattern}` matches {number} devices, more than {MAX_MATCHES}"
            ))),
        }
    }

    fn cdi_device(&mut self, name: &str) -> Result<Grant, Trouble> {
        let edits = self.cdi.find(name)?;
        let mut grant = Grant {
            env: edits.env,
            groups: edits.groups,
            ..Grant::default()
        };
        let about = |trouble| match trouble {
            Trouble::Missing(why) => Trouble::Missing(format!("CDI device `{name}`: {why}")),
            Trouble::Refused(why) => Trouble::Refused(format!("CDI device `{name}`: {why}")),
        };
        for wanted in edits.nodes {
            let found = self.one(&wanted.host_path, Some(&wanted.path), wanted.access);
            let mut device = found.map_err(about)?;
            let node = &mut device.node;
            let differs = wanted.block.is_some_and(|block| block != node.block)
                || wanted.major.is_some_and(|major| major != node.major)
                || wanted.minor.is_some_and(|minor| minor != node.minor);
            if differs {
                let why = format!("`{}` is not the device that it means", wanted.host_path);
                return Err(about(Trouble::Refused(why)));
            }
            node.mode = wanted.mode.unwrap_or(node.mode);
            node.uid = wanted.uid.unwrap_or(node.uid);
            node.gid = wanted.gid.unwrap_or(node.gid);
            grant.devices.push(device);
        }
        for mount in edits.mounts {
            self.cdi.check_mount(&mount).map_err(about)?;
            grant.mounts.push(mount);
        }
        Ok(grant)
    }
}
