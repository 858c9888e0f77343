//! Network errors, one variant for each cause that a person can act on.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use super::firewall::FirewallError;
use super::ranges::RangeError;
use crate::spec::PodKey;

/// Why a pod has no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Another pod has the node port.
    #[error("host port {port} is already used by pod {by}")]
    PortOfPod {
        /// `8080/TCP`, with the address if one is given.
        port: String,
        /// The owner.
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
    /// A service has the node port.
    #[error("host port {port} is already used by service {by}")]
    PortOfService {
        /// `8080/TCP`, with the address if one is given.
        port: String,
        /// `default/web:http`.
        by: String,
    },
    /// A service cannot have its node port yet.
    #[error("service {service} waits for its node port")]
    NodePort {
        /// `default/web:http`.
        service: String,
        /// The current owner.
        source: Box<NetworkError>,
    },
    /// No addresses are left.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// A requested service address is not available.
    #[error("service {service} cannot have address {address}: it belongs to {owner}")]
    ServiceAddress {
        /// Namespace and name.
        service: PodKey,
        /// As written.
        address: IpAddr,
        /// `service default/other`, `the pod CIDR 10.77.0.0/20`.
        owner: String,
    },
    /// A service has the address that it asks for, which an API server would refuse.
    #[error(
        "service {service} has address {address}, which is not in the valid range of services, {ranges}: a host with that address cannot be reached from here; leave `clusterIP` out, or set `coracle.serviceCIDR`"
    )]
    ServiceRange {
        /// Namespace and name.
        service: PodKey,
        /// As written.
        address: IpAddr,
        /// `10.77.16.1-10.77.31.254`, for each family.
        ranges: String,
    },
    /// A service asks for a family that pods do not have.
    #[error(
        "service {service} asks for {family}, which is not configured on this node; correct `ipFamilies` or `ipFamilyPolicy`, or set `podCIDR` and `coracle.serviceCIDR`"
    )]
    ServiceFamily {
        /// Namespace and name.
        service: PodKey,
        /// `IPv6`.
        family: &'static str,
    },
    /// The kernel was built without a required feature.
    #[error("the kernel lacks {missing}; only pods with `hostNetwork: true` run on it")]
    Kernel {
        /// `bridge interfaces (CONFIG_BRIDGE)`.
        missing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another interface has the name of the bridge.
    #[error(
        "interface `{name}` is no bridge but of kind `{kind}`; choose another name with `--bridge`"
    )]
    NotABridge {
        /// The name.
        name: String,
        /// `dummy`; `hardware`.
        kind: String,
    },
    /// A step of making or repairing an interface failed.
    #[error("could not {step} `{name}`")]
    Link {
        /// `make the bridge`.
        step: &'static str,
        /// The interface or the pod.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel could not list its state.
    #[error("could not read {what} from the kernel")]
    Read {
        /// `the routes`.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A sysctl has the wrong value and cannot be set.
    #[error("could not set `{path}` to `{value}`")]
    Sysctl {
        /// Below `/proc/sys`.
        path: String,
        /// The required value.
        value: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A state file of coracle failed.
    #[error("could not {action} `{path}`")]
    File {
        /// `write`.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A pod runs, but the pin of its network namespace is gone, so its network cannot be repaired.
    #[error(
        "the network namespace of pod {pod} is not pinned at `{path}` any more; delete the pod to get it a new one"
    )]
    PinGone {
        /// The pod.
        pod: PodKey,
        /// The path of the pin.
        path: PathBuf,
    },
    /// The name server for pods could not listen on any port.
    #[error("could not listen for pods' DNS queries on {addresses:?}")]
    Names {
        /// The addresses of the bridge.
        addresses: Vec<IpAddr>,
        /// The system's error.
        source: io::Error,
    },
    /// The packet filter.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
}

impl NetworkError {
    /// Whether a service may have what it asks for once something else gives it back: a reason to try again.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::NodePort { .. } | Self::ServiceAddress { .. })
    }

    /// Whether a service does not have what it asks for, which its event says.
    pub fn is_of_a_service(&self) -> bool {
        self.may_pass() || matches!(self, Self::ServiceRange { .. } | Self::ServiceFamily { .. })
    }
}
