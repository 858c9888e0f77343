//! Every path that coracle uses. All are below three directories, so that several agents (and tests) can run side by
//! side. No I/O here.

use std::path::{Path, PathBuf};

use crate::spec::PodUid;

/// The three directories of one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// State that outlives a reboot (default `/var/lib/coracle`).
    pub root: PathBuf,
    /// State that dies with the boot, on tmpfs (default `/run/coracle`).
    pub run_dir: PathBuf,
    /// Pod logs in CRI format (default `/var/log/pods`).
    pub log_dir: PathBuf,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            root: "/var/lib/coracle".into(),
            run_dir: "/run/coracle".into(),
            log_dir: "/var/log/pods".into(),
        }
    }
}

impl Layout {
    /// The API socket: `<run-dir>/coracle.sock`.
    pub fn api_socket(&self) -> PathBuf {
        self.run_dir.join("coracle.sock")
    }

    /// The lock that keeps a second agent off the same directories.
    pub fn lock_file(&self) -> PathBuf {
        self.run_dir.join("agent.lock")
    }

    /// If it exists, the agent stops its pods before it ends, whatever its settings.
    pub fn stop_pods(&self) -> PathBuf {
        self.run_dir.join("stop-pods")
    }

    /// The manifest file of each running pod.
    pub fn sources(&self) -> PathBuf {
        self.run_dir.join("sources.json")
    }

    /// What each manifest file says of Deployments, Jobs and other documents that stand for pods, and when it was
    /// written.
    pub fn workloads(&self) -> PathBuf {
        self.run_dir.join("workloads.json")
    }

    /// The services in force, by manifest file.
    pub fn services(&self) -> PathBuf {
        self.run_dir.join("services.json")
    }

    /// What is made of configuration documents: a tmpfs of its own, kept out of swap where the kernel can.
    pub fn configuration_dir(&self) -> PathBuf {
        self.run_dir.join("configuration")
    }

    /// Where the agent mounts something, for as long as there are pods.
    pub fn mount_points(&self) -> [PathBuf; 3] {
        [
            self.pods_run_dir(),
            self.netns_dir(),
            self.configuration_dir(),
        ]
    }

    /// The configuration documents in force, by manifest file.
    pub fn configuration(&self) -> PathBuf {
        self.configuration_dir().join("documents.json")
    }

    /// Values that Secrets had before in this boot.
    pub fn former_secrets(&self) -> PathBuf {
        self.configuration_dir().join("former-secrets.json")
    }

    /// The volumes of files from configuration documents, by pod.
    pub fn all_projected_volumes(&self) -> PathBuf {
        self.configuration_dir().join("volumes")
    }

    /// Those of one pod.
    pub fn projected_volumes(&self, uid: &PodUid) -> PathBuf {
        self.all_projected_volumes().join(uid.as_str())
    }

    /// One of them.
    pub fn projected_volume(&self, uid: &PodUid, volume: &str) -> PathBuf {
        self.projected_volumes(uid).join(volume)
    }

    /// The bundles of containers, by pod: their variables have values from Secrets.
    pub fn all_bundles(&self) -> PathBuf {
        self.configuration_dir().join("bundles")
    }

    /// Those of one pod: for each container `config.json` and the mount point of its root filesystem.
    pub fn bundles(&self, uid: &PodUid) -> PathBuf {
        self.all_bundles().join(uid.as_str())
    }

    /// The events, which are still shown after an agent restart.
    pub fn events(&self) -> PathBuf {
        self.run_dir.join("events.log")
    }

    /// The last transition time of each condition of the node.
    pub fn conditions(&self) -> PathBuf {
        self.run_dir.join("conditions.json")
    }

    /// The held pods, each with the time since when.
    pub fn holds(&self) -> PathBuf {
        self.run_dir.join("holds.json")
    }

    /// How far rollouts are.
    pub fn rollouts(&self) -> PathBuf {
        self.run_dir.join("rollouts.json")
    }

    /// The boot that the runtime directory belongs to.
    pub fn run_boot(&self) -> PathBuf {
        self.run_dir.join("boot-id")
    }

    /// The progress of the node's shutdown, which continues after an agent restart.
    pub fn shutdown(&self) -> PathBuf {
        self.run_dir.join("shutdown.json")
    }

    /// When the newest graceful shutdown began and ended, as the kubelet writes it.
    pub fn shutdown_state(&self) -> PathBuf {
        self.root.join("graceful_node_shutdown_state")
    }

    /// What was stopped by command, and since when. Absent if nothing is.
    pub fn stops(&self) -> PathBuf {
        self.root.join("stopped.json")
    }

    /// The cordon: since when, and which pods may run all the same. Absent if the node is not cordoned.
    pub fn cordon(&self) -> PathBuf {
        self.root.join("cordon.json")
    }

    /// What Jobs have achieved, over agent restarts and reboots.
    pub fn jobs(&self) -> PathBuf {
        self.root.join("jobs.json")
    }

    /// The revisions of documents: `<root>/revisions.json`.
    pub fn revisions(&self) -> PathBuf {
        self.root.join("revisions.json")
    }

    /// What removed pods leave to the next ones of their names: UIDs, evictions.
    pub fn incarnations(&self) -> PathBuf {
        self.root.join("incarnations.json")
    }

    /// The folder of pinned network namespaces of pods: `<run-dir>/netns/<uid>`.
    pub fn netns_dir(&self) -> PathBuf {
        self.run_dir.join("netns")
    }

    /// One pod's pinned network namespace.
    pub fn netns(&self, uid: &PodUid) -> PathBuf {
        self.netns_dir().join(uid.as_str())
    }

    /// The address ranges chosen for this boot.
    pub fn network(&self) -> PathBuf {
        self.run_dir.join("network.json")
    }

    /// The routes of services in force.
    pub fn routes(&self) -> PathBuf {
        self.run_dir.join("routes.json")
    }

    /// A folder for trials of the file system, which remove it.
    pub fn trial(&self) -> PathBuf {
        self.root.join("trial")
    }

    /// The content-addressed image store: `<root>/images`.
    pub fn image_store(&self) -> PathBuf {
        self.root.join("images")
    }

    /// The bundles in force, and what came before them: `<root>/bundles`.
    pub fn manifest_bundles(&self) -> PathBuf {
        self.root.join("bundles")
    }

    /// What polling knows of the source of bundles: `<root>/bundle-poll.json`.
    pub fn bundle_poll(&self) -> PathBuf {
        self.root.join("bundle-poll.json")
    }

    /// The last good manifests of `staticPodURL`: `<root>/static-pod-url`.
    pub fn manifest_url(&self) -> PathBuf {
        self.root.join("static-pod-url")
    }

    /// The boot in which an agent ran last, and whether it was asked to end.
    pub fn boot(&self) -> PathBuf {
        self.root.join(BOOT_FILE)
    }

    /// What went wrong in this boot and earlier ones: `<root>/black-box`.
    pub fn black_box(&self) -> PathBuf {
        self.root.join("black-box")
    }

    /// The boots that were not healthy: `<root>/unhealthy-boots.json`.
    pub fn unhealthy_boots(&self) -> PathBuf {
        self.root.join(UNHEALTHY_BOOTS_FILE)
    }

    /// What claims are bound to, and the directories of those that have one: `<root>/claims`.
    pub fn claims_dir(&self) -> PathBuf {
        self.root.join("claims")
    }

    /// One claim's folder: its record, and its directory `data`.
    pub fn claim(&self, namespace: &str, name: &str) -> PathBuf {
        // Neither part of a name has an underscore.
        self.claims_dir().join(format!("{namespace}_{name}"))
    }

    /// All pods' runtime folders: `<run-dir>/pods`.
    pub fn pods_run_dir(&self) -> PathBuf {
        self.run_dir.join("pods")
    }

    /// One pod's runtime folder.
    pub fn pod_run(&self, uid: &PodUid) -> PodRunDir {
        PodRunDir {
            dir: self.pods_run_dir().join(uid.as_str()),
        }
    }

    /// All pods' persistent folders: `<root>/pods`.
    pub fn pods_state_dir(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// One pod's persistent folder: volumes, etc-hosts, checkpoint.
    pub fn pod_state(&self, uid: &PodUid) -> PodStateDir {
        PodStateDir {
            dir: self.pods_state_dir().join(uid.as_str()),
        }
    }

    /// One pod's log folder: `<log-dir>/<ns>_<name>_<uid>`.
    pub fn pod_logs(&self, namespace: &str, name: &str, uid: &PodUid) -> PathBuf {
        self.log_dir.join(format!("{namespace}_{name}_{uid}"))
    }

    /// One container's log folder.
    pub fn container_logs(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
        container: &str,
    ) -> PathBuf {
        self.pod_logs(namespace, name, uid).join(container)
    }
}

/// `<run-dir>/pods/<uid>`: everything about a pod that dies with the boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRunDir {
    /// The folder itself.
    pub dir: PathBuf,
}

impl PodRunDir {
    /// The defaulted manifest this pod was admitted with, as JSON.
    pub fn manifest(&self) -> PathBuf {
        self.dir.join("pod.json")
    }

    /// The shim's configuration (`shim::protocol::ShimConfig`).
    pub fn shim_config(&self) -> PathBuf {
        self.dir.join("shim.json")
    }

    /// The shim's socket.
    pub fn shim_socket(&self) -> PathBuf {
        self.dir.join("shim.sock")
    }

    /// The shim's log.
    pub fn shim_log(&self) -> PathBuf {
        self.dir.join("shim.log")
    }

    /// The memory that an agent restart needs (`plan::memory::PodMemory`).
    pub fn checkpoint(&self) -> PathBuf {
        self.dir.join("checkpoint.json")
    }

    /// Exists once the sandbox was removed because the pod had finished.
    pub fn finished(&self) -> PathBuf {
        self.dir.join("finished")
    }

    /// The pod's address on the bridge.
    pub fn network(&self) -> PathBuf {
        self.dir.join("network.json")
    }

    /// The folder of container records (`shim::protocol::ContainerRecord`, one JSON file for each container).
    pub fn records(&self) -> PathBuf {
        self.dir.join("records")
    }

    /// The bundles of a pod whose shim was started by version 0.1: it does not see the folder of all bundles, which
    /// was mounted later.
    pub fn former_bundles(&self) -> PathBuf {
        self.dir.join("bundles")
    }

    /// libcontainer's state folder.
    pub fn libcontainer(&self) -> PathBuf {
        self.dir.join("libcontainer")
    }

    /// The mount points of sub-paths of volumes, in the shim's mount namespace only.
    pub fn subpaths(&self) -> PathBuf {
        self.dir.join("subpaths")
    }

    /// The shared memory of the pod's containers, a tmpfs in the shim's mount namespace.
    pub fn shm(&self) -> PathBuf {
        self.dir.join("shm")
    }

    /// The mount points of memory-backed volumes.
    pub fn memory_volume(&self, volume: &str) -> PathBuf {
        self.dir.join("volumes").join(volume)
    }
}

/// `<root>/pods/<uid>`: what is too large for memory, and what a pod keeps across a reboot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodStateDir {
    /// The folder itself.
    pub dir: PathBuf,
}

impl PodStateDir {
    /// The pod's `/etc/hosts`.
    pub fn etc_hosts(&self) -> PathBuf {
        self.dir.join("etc-hosts")
    }

    /// The pod's `/etc/resolv.conf`.
    pub fn resolv_conf(&self) -> PathBuf {
        self.dir.join("resolv.conf")
    }

    /// The pod's `/etc/hostname`.
    pub fn etc_hostname(&self) -> PathBuf {
        self.dir.join("hostname")
    }

    /// All files of `/etc` that its containers share.
    pub fn etc_files(&self) -> [PathBuf; 3] {
        [self.etc_hosts(), self.resolv_conf(), self.etc_hostname()]
    }

    /// The id range of its user namespace, if it has one.
    pub fn user_namespace(&self) -> PathBuf {
        self.dir.join("user-namespace.json")
    }

    /// The exits of its containers, for the next boot.
    pub fn exits(&self) -> PathBuf {
        self.dir.join("exits.json")
    }

    /// A disk-backed emptyDir.
    pub fn empty_dir(&self, volume: &str) -> PathBuf {
        self.dir
            .join("volumes")
            .join("kubernetes.io~empty-dir")
            .join(volume)
    }

    /// The contents of volumes that a container's image declares: a folder for each image.
    pub fn image_volumes(&self, container: &str) -> PathBuf {
        self.dir
            .join("volumes")
            .join("coracle~image")
            .join(container)
    }

    /// A container's folder: termination messages and the writable layer.
    pub fn container(&self, container: &str) -> PathBuf {
        self.dir.join("containers").join(container)
    }

    /// The termination message file of one attempt.
    pub fn termination_message(&self, container: &str, attempt: u32) -> PathBuf {
        self.container(container)
            .join(format!("termination-{attempt}"))
    }

    /// The overlay's writable layer of one attempt (`upper` and `work` inside).
    pub fn writable_layer(&self, container: &str, attempt: u32) -> PathBuf {
        self.container(container).join(format!("layer-{attempt}"))
    }
}

/// The version of the format of all state on disk. An agent refuses state of a newer one; see `node/state_format.rs`.
pub const STATE_FORMAT: u32 = 1;

/// The file that names the format of the state beside it, in the root and in the runtime directory.
pub const FORMAT_FILE: &str = "format.json";

/// Name of the record of the last boot, in the root.
pub const BOOT_FILE: &str = "boot.json";

/// Name of the record of boots that were not healthy, in the root.
pub const UNHEALTHY_BOOTS_FILE: &str = "unhealthy-boots.json";

/// The last valid settings, below the root directory: the agent looks there before it knows any settings.
pub fn last_settings(root: &Path) -> PathBuf {
    root.join("settings.json")
}

/// The current log file of one attempt inside a container's log folder: `<attempt>.log`.
pub fn log_file(container_logs: &Path, attempt: u32) -> PathBuf {
    container_logs.join(format!("{attempt}.log"))
}
