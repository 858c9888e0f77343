//! How do images get into the store, and out of it? Archives are unpacked by a worker process ([`worker`]) that the
//! agent starts ([`import()`]); the agent itself only reads the store ([`ImageStore`]) and never a byte of an archive.
//!
//! The way of an archive: [`archive`](self) finds the parts, `contents` the images, `import` verifies and unpacks the
//! layers (`tar_reader`, `unpack`) into a staging directory and moves everything into the store at the end.

mod archive;
mod client;
mod compress;
mod contents;
mod digest;
mod error;
mod gc;
mod import;
mod name;
mod oci;
mod pax;
pub mod preload;
mod progress;
mod space;
mod store;
mod tar_reader;
mod unpack;
pub mod worker;

pub use client::{ImportOptions, import};
pub use error::ImageError;
pub use gc::{Pruned, Removed};
pub use oci::ImageConfig;
pub use progress::{Imported, Progress};
pub use store::{Image, ImageStore};
