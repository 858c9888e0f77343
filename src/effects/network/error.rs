//! Why has a pod no network? One variant for each thing somebody can do something about.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use super::firewall::FirewallError;
use super::ranges::RangeError;
use crate::spec::PodKey;

/// Why a pod has no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A port of the node is another pod's.
    #[error("host port {port} is already used by pod {by}")]
    PortOfPod {
        /// `8080/TCP`, with the address if one is given.
        port: String,
        /// Whose it is.
        by: PodKey,
    },
    /// A program of the node listens on that port.
    #[error("host port {port} is already used by {by}")]
    PortOfProcess {
        /// `8080/TCP`, with the address if one is given.
        port: String,
        /// ``process `nginx` (pid 12)``.
        by: String,
    },
    /// A port of the node is a service's.
    #[error("host port {port} is already used by service {by}")]
    PortOfService {
        /// `8080/TCP`, with the address if one is given.
        port: String,
        /// `default/web:http`.
        by: String,
    },
    /// A service cannot have its node port now.
    #[error("service {service} waits for its node port")]
    NodePort {
        /// `default/web:http`.
        service: String,
        /// Who has it.
        source: Box<NetworkError>,
    },
    /// No addresses.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// An address a service asks for is not to be had.
    #[error("service {service} cannot have address {address}: it belongs to {owner}")]
    ServiceAddress {
        /// Namespace and name.
        service: PodKey,
        /// As written.
        address: IpAddr,
        /// `service default/other`, `the pod CIDR 10.77.0.0/20`.
        owner: String,
    },
    /// The kernel is built without something.
    #[error("the kernel lacks {missing}; only pods with `hostNetwork: true` run on it")]
    Kernel {
        /// `bridge interfaces (CONFIG_BRIDGE)`.
        missing: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The name of the bridge is another interface's.
    #[error(
        "interface `{name}` is no bridge but of kind `{kind}`; choose another name with `--bridge`"
    )]
    NotABridge {
        /// The name.
        name: String,
        /// `dummy`; `hardware`.
        kind: String,
    },
    /// A step of making or mending an interface failed.
    #[error("could not {step} `{name}`")]
    Link {
        /// `make the bridge`.
        step: &'static str,
        /// Of the interface or the pod.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel could not say what there is.
    #[error("could not read {what} from the kernel")]
    Read {
        /// `the routes`.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A switch of the kernel is not as it must be and cannot be changed.
    #[error("could not set `{path}` to `{value}`")]
    Sysctl {
        /// Below `/proc/sys`.
        path: String,
        /// What it should be.
        value: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A file of ours.
    #[error("could not {action} `{path}`")]
    File {
        /// `write`.
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A pod runs, but the pin of its network namespace is gone, so it cannot be mended.
    #[error(
        "the network namespace of pod {pod} is not pinned at `{path}` any more; delete the pod to get it a new one"
    )]
    PinGone {
        /// Whose.
        pod: PodKey,
        /// Where it should be.
        path: PathBuf,
    },
    /// The name server for pods found no place to listen.
    #[error("could not listen for pods' questions for names on {addresses:?}")]
    Names {
        /// The bridge's.
        addresses: Vec<IpAddr>,
        /// Why.
        source: io::Error,
    },
    /// The packet filter.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
}
