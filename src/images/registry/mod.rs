//! The client of registries (OCI distribution), and what it needs from the node: credentials, certificates, a folder.
//!
//! `coracle image-worker fetch` ([`fetch`]) is the only process that talks to a registry. It writes blobs into the
//! folder of the pull ([`folder`]), which is an OCI layout, and never unpacks one: an import worker does that. The
//! agent runs one after the other ([`pull`]).
//!
//! A request goes down these layers: [`sources`] knows where the image can be fetched from ([`registries_conf`] says
//! so), [`session`] one repository (tokens, redirects, retries), [`http`] one exchange with one host (TLS, proxies,
//! time-outs). [`resolve`] finds the manifest for a platform, [`signatures`] what the owner has signed, [`blob`] downloads into a [`partial`] file that outlives
//! the worker. [`web`] does the same for a bundle's archive on a web server.

mod auth_file;
mod blob;
mod bundle;
mod certificates;
mod challenge;
mod document;
#[doc(hidden)]
pub mod entrances;
mod error;
mod fetch;
mod folder;
mod forward;
mod guard;
mod http;
mod pace;
mod partial;
mod proxy;
mod pull;
mod registries_conf;
mod request;
mod resolve;
mod retry_after;
mod session;
mod signatures;
mod sources;
mod throttle;
mod tls;
mod token;
mod url;
mod web;

pub use auth_file::{AuthError, AuthFile};
pub use document::{DocumentRequest, WebDocument, fetch_document};
pub use folder::remove_damaged_blobs;
pub use pull::{BundleFetch, PullOptions, Pulled, Served, fetch_bundle, fetch_layout, pull_unless};
pub use registries_conf::{Place, RegistriesConf, RegistriesError};
pub use request::{Credentials, Source};

pub(super) use document::run as get;
pub(super) use fetch::run as fetch;
pub(super) use folder::{PullFolder, SIGNATURES, collect, layers_in_need, remove_imported};
pub(super) use signatures::untrusted;
