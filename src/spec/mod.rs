//! Manifests: bytes become [`PodSpec`]s and [`ServiceSpec`]s that cannot be invalid, or a list of all errors.
//!
//! Pure: no I/O, no clock, no async. The entry points are [`convert::documents`] for files that people write and
//! [`convert::admitted`] for what an agent stored.
//!
//! The stages of a manifest: bytes → `parse` → `value` (a tree) → `decode` (Kubernetes' types; reports every
//! misspelling) → `default` → `assemble` (checks every rule and builds the [`PodSpec`]) or → `position` (errors get
//! line and column). Services go through `service_rules` instead of the last two.

pub mod after;
pub mod aliases;
pub mod backoff;
pub mod binding;
pub mod cdi;
pub mod cluster;
pub mod condition;
pub mod configuration;
pub mod conflicts;
pub mod convert;
pub mod encrypted;
pub mod ephemeral;
pub mod expand;
pub mod host_ports;
pub mod huge_pages;
pub mod image_name;
pub mod lifecycle;
pub mod node_ports;
pub mod pinned;
pub mod placement;
pub mod pod;
pub mod pod_security;
pub mod priority;
pub mod probe;
pub mod pull_secrets;
pub mod reason;
pub mod service;
pub mod service_links;
pub mod sysctl;
pub mod uid;
pub mod workload;

mod annotations;
mod app_armor;
mod assemble;
mod belongs;
mod cluster_token;
mod confinement;
mod container;
pub(crate) mod decode;
mod default;
pub mod device;
mod document;
mod env;
mod env_from;
pub(crate) mod error;
mod escape;
pub(crate) mod fixed;
mod host_device;
mod kinds;
mod lifecycle_rules;
mod manifest;
pub(crate) mod names;
mod network;
mod owned;
pub(crate) mod parse;
mod pod_level;
mod pod_volume;
pub(crate) mod position;
mod probe_rules;
mod projected;
mod references;
mod resize;
mod resources;
mod restart;
pub mod rollback;
mod scheduling;
mod security;
mod service_ports;
mod service_rules;
pub(crate) mod suggest;
mod support;
mod swap;
mod syntax;
mod user_namespace;
pub(crate) mod value;
mod volume;

pub use decode::object as read_object;
pub use error::FieldError;

pub use annotations::REQUIRED;
pub use backoff::RestartBackoff;
pub use condition::{Condition, ConditionStatus};
pub use configuration::{Configuration, Object, ObjectKey, ObjectKind};
pub use device::{DeviceAccess, DeviceRequest, DeviceSource, Devices};
pub use huge_pages::{HugePages, PageSize};
pub use kinds::{READ as READ_KINDS, refused as refused_kinds};
pub use lifecycle::{Hook, HookKind, Lifecycle, StopSignalName};
pub use manifest::Manifest;
pub use names::{is_manifest_file, node_name, node_name_of_host};
pub use pinned::Pins;
pub use placement::Placement;
pub use pod::*;
pub use pod_security::PodSecurity;
pub use probe::{HttpGet, Probe, ProbeHandler, ProbeKind, Probes};
pub use reason::{Reason, Resource, Severity};
pub use resize::ResizeRestarts;
pub use restart::{ExitCodes, RestartAction, RestartPolicy, RestartRule};
pub use security::{AppArmor, Seccomp, Security};
pub use service::{
    Families, ServiceAddress, ServiceDocument, ServicePort, ServiceSpec, TargetPort,
};
pub use user_namespace::IdRange;
pub use volume::IN_PROC;
pub use workload::{Workload, WorkloadKey, WorkloadKind};
