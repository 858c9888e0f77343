//! The API: pods, node, events, logs, exec, images and metrics over HTTP on a unix socket, with Kubernetes' paths and
//! JSON, so that existing clients work.
//!
//! The node writes to the [`Store`]; handlers read it. A handler that must change something sends a [`Command`] to the
//! node: nothing here changes state.

mod attach;
pub mod build;
mod bundles;
mod command;
pub mod configuration_columns;
mod cordon;
mod delete;
mod discovery;
mod door;
mod ephemeral;
mod error;
pub mod event_columns;
mod events;
mod eviction;
mod exec;
pub mod exec_frame;
mod files;
mod images;
mod list_options;
mod listen;
mod log_files;
mod log_line;
pub mod log_reader;
mod logs;
mod metrics;
mod node;
pub mod node_columns;
mod object;
mod patch;
pub mod pod_columns;
pub mod port_forward;
mod protobuf;
mod pull;
mod query;
mod read;
mod request_body;
mod resource;
mod routes;
mod selector;
mod server;
pub mod service_columns;
mod shutdown;
mod status_patch;
mod stop;
mod store;
mod table;
mod volumes;
mod watch;
pub mod workload_columns;

#[cfg(test)]
mod door_test;
#[cfg(test)]
mod dry_run_test;
#[cfg(test)]
mod log_reader_test;
#[cfg(test)]
mod pod_columns_test;
#[cfg(test)]
mod server_test;
#[cfg(test)]
mod store_test;
#[cfg(test)]
mod watch_test;

pub use bundles::BundleRequest;
pub use command::{
    Command, CommandError, CommandErrorKind, DrainOptions, ImageArchive, ImageRow, ImageUser,
    PlannedFile, RemovedImages, Rollout, RolloutRequest, SavedArchive, VolumeRow,
};
pub use error::ServeError;
pub(crate) use error::{COMMAND_NOT_EXECUTABLE, COMMAND_NOT_FOUND};
pub use events::{EventRecord, ObjectKind};
pub use files::{DocumentCounts, FileState, FileStatus};
pub use listen::listen;
pub use metrics::{Metric, MetricKind, Spread};
pub use node::{architecture, version};
pub use pull::{Login, PullRequest};
pub(crate) use query::encode;
pub(crate) use server::MAX_BODY;
pub use server::{Context, serve};
pub use store::Store;
