//! The preparation of a container: its bundle, its cgroup and the request to the shim that starts it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::device::Devices;
use super::environment::Process;
use super::oci::{Bind, Bundle};
use super::user::User;
use super::{ConfigError, Sandboxes, capabilities, device, environment, user};
use crate::effects::cgroup::CgroupError;
use crate::effects::facts::NodeFacts;
use crate::effects::{seccomp, user_namespace};
use crate::images::{self, Image};
use crate::layout::{Layout, PodStateDir};
use crate::shim::protocol::{
    FILTER_FILE, ImageVolumes, StartRequest, SubPath, TARGET_LINK, USERS_LINK, VolumeImage,
};
use crate::spec::expand::{expand, missing};
use crate::spec::priority::NODE_CRITICAL;
use crate::spec::service_links;
use crate::spec::{
    Configuration, ContainerSpec, IdRange, MountPropagation, PodSpec, QosClass, StopSignalName,
    VolumeSource,
};
use crate::sys::file::{self, Durability};
use crate::sys::tree;
use crate::types::{Effective, Gather, InOrder, LinuxUser};

/// What no file of an image volume does in a container (Kubernetes API reference: `spec.volumes[].image`).
const IMAGE_FLAGS: [&str; 3] = ["nodev", "noexec", "nosuid"];

/// The inputs of a container start.
#[derive(Debug, Clone)]
pub struct ContainerOrder<'a> {
    /// The pod.
    pub pod: &'a PodSpec,
    /// The container.
    pub container: &'a ContainerSpec,
    /// The attempt number.
    pub attempt: u32,
    /// Its image.
    pub image: &'a Image,
    /// The images of the image volumes that it mounts, by volume.
    pub volume_images: &'a BTreeMap<String, Image>,
    /// The node's facts.
    pub node: &'a NodeFacts,
    /// The pod's addresses.
    pub ips: &'a [IpAddr],
    /// The configuration documents in force.
    pub configuration: &'a Configuration,
    /// The root of each of the pod's other volumes.
    pub volumes: &'a BTreeMap<String, PathBuf>,
}

/// Why the container could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Manifest, image and node do not fit together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The container's cgroup could not be made.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

/// Blocking. Writes the bundle and makes the cgroup.
pub fn start_request(
    sandboxes: &Sandboxes,
    order: &ContainerOrder<'_>,
) -> Result<StartRequest, PrepareError> {
    let ContainerOrder {
        pod,
        container,
        attempt,
        image,
        ..
    } = *order;
    let layout = sandboxes.layout();
    let state = layout.pod_state(&pod.uid);
    let hostname = sandboxes.write_etc(pod, order.ips)?;
    let asked = image.config.user.as_deref().unwrap_or_default();
    let mut user = user::resolve(pod, container, asked, &image.layers)?;
    let devices = device::of(sandboxes, pod, container)?;
    if let Some(devices) = &devices {
        user.groups.extend(&devices.groups);
        user.groups.order();
        user.groups.dedup();
    }
    let users = match pod.own_users {
        true => user_namespace::of_pod(layout, &pod.uid),
        false => Ok(None),
    };
    let users = users.map_err(|error| ConfigError::Refused(crate::chain(&error)))?;
    check_ids(&user, users)?;
    let linux_user = LinuxUser {
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
    };
    let links = link_variables(sandboxes, pod);
    let mut process = environment::process(order, &user, &hostname, links)?;
    if let Some(devices) = &devices {
        devices.set_env(&mut process);
    }
    let by_request = devices.as_ref().map(|devices| devices.by_request.clone());
    let termination_message = state.termination_message(&container.name, attempt);
    make_message_file(&state.container(&container.name), &termination_message)?;
    let (mut binds, sub_paths) = volume_binds(sandboxes, order, &process.declared)?;
    binds.extend(file_binds(container, &state, &termination_message));
    let bundle = bundle(sandboxes, order, (process, user), binds, devices)?;
    let folder = bundle_folder(layout, pod, container);
    let settings = sandboxes.settings.now();
    if let Some(users) = users {
        user_namespace::open_way(layout, users.first, &[&folder])
            .map_err(|error| ConfigError::Refused(crate::chain(&error)))?;
    }
    let own_filter = write_bundle(&folder, &bundle)?;
    let stop_signal = stop_signal(container, image);
    Ok(StartRequest {
        container: container.name.clone(),
        attempt,
        image_id: image.id.clone(),
        volume_images: volume_images(order, &folder),
        bundle: folder,
        fixed_mounts: Some(bundle.fixed_mounts().len()),
        layers: image.layers.clone(),
        writable_layer: state.writable_layer(&container.name, attempt),
        sub_paths,
        image_volumes: image_volumes(&state, container, image)?,
        log_dir: layout.container_logs(
            &pod.key.namespace,
            &pod.key.name,
            &pod.uid,
            &container.name,
        ),
        log_max_bytes: settings.container_log_max_bytes,
        log_max_files: settings.container_log_max_files,
        termination_message,
        termination_message_from_logs: container.termination_message_from_logs,
        stop_signal: stop_signal.as_ref().map_or(libc::SIGTERM, |s| s.number),
        effective: Effective {
            user: Some(linux_user),
            stop_signal: stop_signal.map(|signal| signal.name),
            devices: by_request.unwrap_or_default(),
            images: image_ids(order),
        },
        oom_score_adj: oom_score_adj(pod, container, order.node.capacity_bytes),
        stdin: container.stdin,
        tty: container.tty,
        stdin_once: container.stdin_once,
        device_files: bundle.device_files(),
        // All processes of the node are visible then anyway.
        target: container.target.clone().filter(|_| !pod.host_pid),
        own_filter,
    })
}

/// Refuses users and groups that a pod with a user namespace does not have.
fn check_ids(user: &User, users: Option<IdRange>) -> Result<(), ConfigError> {
    let Some(users) = users else { return Ok(()) };
    let named = [("user", user.uid), ("group", user.gid)];
    let groups = user.groups.iter().map(|group| ("group", *group));
    let mut absent = named
        .into_iter()
        .chain(groups)
        .filter(|(_, id)| users.on_node(*id).is_none());
    match absent.next() {
        None => Ok(()),
        Some((kind, id)) => Err(ConfigError::Refused(format!(
            "{kind} {id} does not exist in the pod: with `hostUsers: false` it has the ids 0 to {} \
             (`userNamespaces.idsPerPod`)",
            users.count - 1
        ))),
    }
}

/// The variables of the services that the pod can reach, unless it does not want them.
fn link_variables(sandboxes: &Sandboxes, pod: &PodSpec) -> BTreeMap<String, String> {
    let links = match pod.service_links {
        true => sandboxes.network.service_links(&pod.key.namespace),
        false => Vec::new(),
    };
    service_links::variables(links.iter().map(|(spec, address)| (&**spec, *address)))
}

/// The files that every container has, as binds. A mount of the manifest takes the place of a file.
fn file_binds(container: &ContainerSpec, state: &PodStateDir, message: &Path) -> Vec<Bind> {
    let taken = |target: &str| container.mounts.iter().any(|mount| mount.path == target);
    let message_path = container.termination_message_path.as_str();
    // With a read-only root these files are read-only too, but the message must be writable.
    let read_only = container.security.read_only_root;
    let files = [
        (state.etc_hosts(), "/etc/hosts", read_only),
        (state.etc_hostname(), "/etc/hostname", read_only),
        (state.resolv_conf(), "/etc/resolv.conf", read_only),
        (message.to_owned(), message_path, false),
    ];
    let binds = files
        .into_iter()
        .filter(|(_, target, _)| !taken(target))
        .map(|(source, target, read_only)| Bind {
            source,
            target: target.to_owned(),
            read_only,
            read_only_below: false,
            propagation: MountPropagation::None,
            flags: Vec::new(),
        });
    binds.collect()
}

/// Makes the container's cgroup and describes its bundle.
fn bundle<'a>(
    sandboxes: &Sandboxes,
    order: &ContainerOrder<'a>,
    (process, user): (Process, User),
    mut binds: Vec<Bind>,
    devices: Option<Devices>,
) -> Result<Bundle<'a>, CgroupError> {
    let (pod, container) = (order.pod, order.container);
    let (layout, cgroups) = (sandboxes.layout(), &sandboxes.cgroups);
    let run = layout.pod_run(&pod.uid);
    let pod_cgroup = cgroups.pod_path(pod.qos, &pod.uid);
    let rules = devices.as_ref().map(Devices::rules);
    let cgroup = cgroups.ensure_container(&pod_cgroup, (pod, container), rules.as_deref())?;
    let devices = devices.unwrap_or_default();
    binds.extend(devices.binds);
    let device_rules = cgroups.devices_open().is_none();
    Ok(Bundle {
        pod,
        container,
        process,
        user,
        capabilities: capabilities::effective(&container.security, device_rules),
        binds,
        devices: devices.granted,
        shm: shared_memory(pod.host_ipc, run.shm()),
        v1_cgroups: cgroups.v1_folders(&cgroup),
        cgroup,
        cgroup_mode: cgroups.mode(),
        seccomp_profiles: layout.root.join("seccomp"),
        users_link: bundle_folder(layout, pod, container).join(USERS_LINK),
        target_link: bundle_folder(layout, pod, container).join(TARGET_LINK),
    })
}

/// The folder that is the container's `/dev/shm`. With the node's IPC it is the node's; where that has none, the shim
/// made one for the pod.
fn shared_memory(host_ipc: bool, own: PathBuf) -> PathBuf {
    if host_ipc && !own.is_dir() {
        PathBuf::from("/dev/shm")
    } else {
        own
    }
}

/// Where the container's bundle goes: where the pod's shim sees it.
fn bundle_folder(layout: &Layout, pod: &PodSpec, container: &ContainerSpec) -> PathBuf {
    let former = layout.pod_run(&pod.uid).former_bundles();
    let all = if former.exists() {
        former
    } else {
        layout.bundles(&pod.uid)
    };
    all.join(&container.name)
}

/// The image's volumes that no mount of the manifest covers. Data in volumes of an earlier image is removed.
fn image_volumes(
    state: &PodStateDir,
    container: &ContainerSpec,
    image: &Image,
) -> Result<Option<ImageVolumes>, ConfigError> {
    let access = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ConfigError::Access {
            action,
            path,
            source,
        }
    };
    let mut paths = image.config.usable_volumes();
    paths.retain(|path| {
        !container
            .mounts
            .iter()
            .any(|mount| Path::new(&mount.path) == path)
    });
    let all = state.image_volumes(&container.name);
    let own = image
        .id
        .trim_start_matches("sha256:")
        .chars()
        .take(12)
        .collect::<String>();
    for entry in std::fs::read_dir(&all).into_iter().flatten().flatten() {
        if paths.is_empty() || entry.file_name() != *own {
            let path = entry.path();
            tree::remove(&path).map_err(access("remove", &path))?;
        }
    }
    if paths.is_empty() {
        return Ok(None);
    }
    let folder = all.join(own);
    file::make_dirs(&folder, 0o700).map_err(access("make", &folder))?;
    Ok(Some(ImageVolumes { folder, paths }))
}

/// The manifest's, or else the image's; without either it is SIGTERM.
fn stop_signal(container: &ContainerSpec, image: &Image) -> Option<StopSignalName> {
    let written = container.lifecycle.stop_signal.clone();
    written.or_else(|| images::stop_signal(image.config.stop_signal.as_deref()?))
}

/// Returns whether the bundle has a filter.
fn write_bundle(folder: &Path, bundle: &Bundle<'_>) -> Result<bool, ConfigError> {
    let access = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ConfigError::Access {
            action,
            path,
            source,
        }
    };
    let config = serde_json::to_vec(&bundle.config()?).expect("plain data");
    let rootfs = folder.join("rootfs");
    file::make_dirs(&rootfs, 0o700).map_err(access("make", &rootfs))?;
    // It contains the environment, so only root may read it.
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        file::replace(&path, bytes, 0o600, Durability::Process).map_err(access("write", &path))
    };
    let filter = bundle.default_profile().as_ref().map(seccomp::filter);
    if let Some(filter) = &filter {
        write(FILTER_FILE, filter)?;
    }
    write("config.json", &config)?;
    Ok(filter.is_some())
}

fn make_message_file(folder: &Path, path: &Path) -> Result<(), ConfigError> {
    use std::os::unix::fs::PermissionsExt;
    file::make_dirs(folder, 0o750)
        .and_then(|()| std::fs::write(path, b""))
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)))
        .map_err(|source| ConfigError::Access {
            action: "make",
            path: path.to_owned(),
            source,
        })
}

/// What the shim mounts for the image volumes.
fn volume_images(order: &ContainerOrder<'_>, bundle: &Path) -> Vec<VolumeImage> {
    let images = order.volume_images.iter();
    let mounts = images.map(|(volume, image)| VolumeImage {
        target: volume_image(bundle, volume),
        layers: image.layers.clone(),
    });
    mounts.collect()
}

/// Where an image volume is mounted for a container.
fn volume_image(bundle: &Path, volume: &str) -> PathBuf {
    bundle.join("volume-images").join(volume)
}

/// The ids of the images of its image volumes, by volume.
fn image_ids(order: &ContainerOrder<'_>) -> BTreeMap<String, String> {
    let images = order.volume_images.iter();
    let ids = images.map(|(volume, image)| (volume.clone(), image.id.clone()));
    ids.gather()
}

/// Volumes as binds. The shim first binds each sub-path to a place of its own.
fn volume_binds(
    sandboxes: &Sandboxes,
    order: &ContainerOrder<'_>,
    variables: &BTreeMap<String, String>,
) -> Result<(Vec<Bind>, Vec<SubPath>), ConfigError> {
    let (pod, container) = (order.pod, order.container);
    let run = sandboxes.layout().pod_run(&pod.uid);
    let place = run.subpaths().join(&container.name);
    let bundle = bundle_folder(sandboxes.layout(), pod, container);
    let (mut binds, mut sub_paths) = (Vec::new(), Vec::new());
    // What the node writes, containers only read.
    let is_read_only = |name: &str| {
        let volume = pod.volumes.iter().find(|volume| volume.name == name);
        volume.is_some_and(|volume| match volume.source {
            VolumeSource::Projected(_) | VolumeSource::Image(_) => true,
            VolumeSource::Claim { read_only, .. } => read_only,
            VolumeSource::EmptyDir { .. }
            | VolumeSource::MemoryDir { .. }
            | VolumeSource::HugePageDir { .. }
            | VolumeSource::HostPath { .. } => false,
        })
    };
    for (index, mount) in container.mounts.iter().enumerate() {
        let is_image = order.volume_images.contains_key(&mount.volume);
        let root = match is_image {
            true => volume_image(&bundle, &mount.volume),
            false => order
                .volumes
                .get(&mount.volume)
                .expect("validation: every mounted volume exists")
                .clone(),
        };
        let source = match sub_path(
            mount.sub_path.as_deref(),
            mount.sub_path_expr.as_deref(),
            variables,
        )? {
            None => root,
            Some(path) => {
                let target = place.join(index.to_string());
                sub_paths.push(SubPath {
                    volume: root,
                    path: path.into(),
                    target: target.clone(),
                    mount: mount.volume.clone(),
                });
                target
            }
        };
        binds.push(Bind {
            source,
            target: mount.path.clone(),
            read_only: mount.read_only || is_read_only(&mount.volume),
            read_only_below: mount.recursive_read_only,
            propagation: mount.propagation,
            flags: match is_image {
                true => IMAGE_FLAGS.map(str::to_owned).to_vec(),
                false => Vec::new(),
            },
        });
    }
    Ok((binds, sub_paths))
}

/// The sub-path with its variables expanded; it must still be relative and stay inside.
fn sub_path(
    plain: Option<&str>,
    expression: Option<&str>,
    variables: &BTreeMap<String, String>,
) -> Result<Option<String>, ConfigError> {
    let path = match (plain, expression) {
        (Some(path), _) => path.to_owned(),
        (None, Some(expression)) => {
            let missing = missing(expression, |name| variables.contains_key(name));
            if !missing.is_empty() {
                return Err(ConfigError::SubPath(format!(
                    "missing value for {}",
                    missing.join(", ")
                )));
            }
            expand(expression, |name| variables.get(name).map(Cow::from))
        }
        (None, None) => return Ok(None),
    };
    if path.starts_with('/') {
        return Err(ConfigError::SubPath(format!(
            "error SubPath `{path}` must not be an absolute path"
        )));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(ConfigError::SubPath(format!(
            "unable to provision SubPath `{path}`: must not contain '..'"
        )));
    }
    Ok((!path.is_empty()).then_some(path))
}

/// The kubelet's values (Kubernetes docs: Node-pressure Eviction; critical by priority alone, `coracle help
/// differences`).
fn oom_score_adj(pod: &PodSpec, container: &ContainerSpec, node_memory: u64) -> i32 {
    match pod.qos {
        _ if pod.priority >= NODE_CRITICAL => -997,
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let own = |c: &ContainerSpec| c.resources.memory_request_bytes.unwrap_or(0);
            // What only the pod asks for is shared.
            let shared = pod.shared_memory_request();
            let request = |c: &ContainerSpec| own(c).saturating_add(shared);
            // A sidecar must not be killed before the containers that it serves.
            let served = match pod.init_containers.iter().any(|c| c.name == container.name) {
                true if container.is_sidecar() => pod.containers.iter().map(request).min(),
                true | false => None,
            };
            let share = request(container)
                .max(served.unwrap_or(0))
                .saturating_mul(1000)
                .checked_div(node_memory)
                .unwrap_or(0)
                .min(1000);
            (1000 - i32::try_from(share).unwrap_or(1000)).clamp(3, 999)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of each container of the pod, on a node of 10 000 bytes.
    fn scores(text: &str) -> Vec<i32> {
        let context = crate::spec::convert::ConvertContext::of("n");
        let found = crate::spec::convert::documents(text.as_bytes(), "f", &context);
        let pod = &found.expect("valid").pods[0];
        let all = pod.all_containers();
        all.map(|c| oom_score_adj(pod, c, 10_000)).collect()
    }

    #[test]
    fn a_sidecar_is_killed_no_sooner_than_the_smallest_container_it_serves() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  initContainers:\n  \
                    - {name: early, image: i, resources: {requests: {memory: 1000}}}\n  \
                    - {name: side, image: i, restartPolicy: Always, resources: {requests: {memory: 1000}}}\n  \
                    - {name: large, image: i, restartPolicy: Always, resources: {requests: {memory: 9000}}}\n  \
                    containers:\n  \
                    - {name: a, image: i, resources: {requests: {memory: 5000}}}\n  \
                    - {name: b, image: i, resources: {requests: {memory: 4000}}}\n";
        assert_eq!(scores(text), [900, 600, 100, 500, 600]);
    }

    #[test]
    fn what_only_the_pod_asks_for_is_shared_by_its_containers() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  \
                    resources: {requests: {memory: 6000}}\n  containers:\n  \
                    - {name: a, image: i, resources: {requests: {memory: 2000}}}\n  \
                    - {name: b, image: i}\n";
        assert_eq!(scores(text), [600, 800]);
    }

    #[test]
    fn sub_paths_stay_inside_and_name_missing_variables() {
        let variables = BTreeMap::from([
            ("POD".to_owned(), "web".to_owned()),
            ("UP".to_owned(), "..".to_owned()),
        ]);
        let of = |expression: &str| sub_path(None, Some(expression), &variables);
        assert_eq!(
            of("logs/$(POD)").expect("fine"),
            Some("logs/web".to_owned())
        );
        assert!(
            of("$(NOPE)/x")
                .expect_err("missing")
                .to_string()
                .contains("missing value for NOPE")
        );
        assert!(of("$(UP)/x").is_err());
        assert!(sub_path(Some("/etc"), None, &variables).is_err());
        assert_eq!(sub_path(None, None, &variables).expect("fine"), None);
    }
}
