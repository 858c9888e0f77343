//! Images out of the store, as one OCI archive. A worker process reads the store and writes the archive
//! ([`worker`]); the agent passes it on ([`Saving`]). Layers are not kept as they came, so that they are made again
//! of their unpacked files: by their recipes ([`super::recipe`]), or else as a new tar ([`layer`], [`tar_writer`]),
//! which has a different digest and so gives the image a different id.

mod client;
mod layer;
pub(crate) mod tar_writer;
pub(super) mod worker;

pub use client::{Saving, save};
