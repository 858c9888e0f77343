//! The image store and imports into it. Archives are unpacked by a worker process ([`worker`]) that the agent
//! starts ([`import()`]); the agent itself only reads the store ([`ImageStore`]) and never a byte of an archive.
//!
//! The path of an archive: `archive` finds its parts and `contents` its images; `signatures` lets them in by the policy
//! ([`trust`]); `import` has the layers unpacked (`layers`, `compress`, `tar_reader`, `unpack`, `entry`) into a `staging`
//! directory and verifies them; `commit` adds what layers only imply (`implied`) and makes everything visible at the end.
//! `save` goes the other way.

mod access;
mod archive;
mod bundle;
mod check;
mod client;
mod commit;
mod compare;
mod compress;
mod confine;
mod contents;
mod details;
mod digest;
mod entry;
mod error;
mod gc;
mod implied;
mod import;
mod layers;
mod mark;
mod name;
mod oci;
mod pax;
pub mod preload;
mod progress;
mod recipe;
pub mod registry;
#[cfg(test)]
#[path = "sample_test.rs"]
pub(crate) mod sample;
mod save;
mod signatures;
mod space;
mod staging;
mod stop_signal;
mod store;
mod tar_reader;
pub mod trust;
mod unpack;
pub mod worker;

pub use bundle::{
    Bundle, BundleFile, NewBundle, NewImage, check_file_name, check_name, import_bundle,
    read_bundle, write_bundle,
};
pub use check::{Check, Damage, DamageKind, Left, Lost};
pub use client::{ImportOptions, Origin, Pieces, import, import_unless};
pub use compare::Contents;
pub use details::{Details, Layer};
pub(crate) use digest::of as digest_of;
pub(crate) use entry::timespec;
pub use error::ImageError;
pub use gc::{Pruned, Removed};
pub use import::import_here;
pub use oci::ImageConfig;
pub use progress::{Cause, Imported, Progress};
pub(crate) use save::tar_writer::{self, Entry};
pub use save::{Saving, save};
pub use space::KeepFree;
pub use stop_signal::stop_signal;
pub use store::{Image, ImageStore};
pub(crate) use tar_reader::{Kind, Member, TarReader};
