//! What a fetch worker is asked for: one JSON document on its standard input. Credentials come this way only, because
//! arguments and environments can be read by others.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::digest;
use super::super::trust::Demand;

/// The longest request.
pub(super) const MAX_BYTES: u64 = 256 << 10;

/// A user's name and password at a registry. Neither is ever shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// The user.
    pub username: String,
    /// The password, or an access token that serves as one.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Credentials {
    /// A digest by which they are known again. The same credentials for different repositories have different ones.
    pub fn fingerprint(&self, repository: &str) -> String {
        let parts = (repository, &self.username, &self.password);
        digest::of(&serde_json::to_vec(&parts).expect("plain data"))
    }

    /// The value of `Authorization`.
    pub(super) fn basic(&self) -> String {
        let pair = format!("{}:{}", self.username, self.password);
        let encoded = serde_json::to_value(k8s_openapi::ByteString(pair.into_bytes()));
        let encoded = encoded.expect("plain data");
        format!("Basic {}", encoded.as_str().unwrap_or_default())
    }
}

/// A place from which an image can be fetched, its registry or a mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The image's full name there.
    pub name: String,
    /// Whether plain HTTP and certificates of strangers will do.
    #[serde(default)]
    pub insecure: bool,
    /// For this registry, tried in turn; without any it is asked as anybody.
    #[serde(default)]
    pub credentials: Vec<Credentials>,
}

/// The input of a fetch worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    /// The store's directory.
    pub(super) store: PathBuf,
    /// The image's name, full or short.
    pub(super) name: String,
    /// `os/architecture[/variant]`; this machine's if missing.
    #[serde(default)]
    pub(super) platform: Option<String>,
    /// Whether it is a bundle with everything in it; then the name may be the URL of an archive.
    #[serde(default)]
    pub(super) bundle: bool,
    /// Nothing is fetched if the bundle has one of these digests; of an archive, what its server named it by.
    #[serde(default)]
    pub(super) known: Vec<String>,
    /// Where it can be fetched from, tried in turn.
    pub(super) sources: Vec<Source>,
    /// Registries, `host[:port]`, that are asked by plain HTTP.
    #[serde(default)]
    pub(super) plain_http: Vec<String>,
    /// Directories with a folder of certificates for each registry.
    #[serde(default = "certificate_directories")]
    pub(super) certificates: Vec<PathBuf>,
    /// The signatures that the image must have.
    #[serde(default)]
    pub(super) trust: Option<Demand>,
    /// Bytes to leave free on the disk.
    #[serde(default)]
    pub(super) keep_bytes: u64,
    /// Inodes to leave free.
    #[serde(default)]
    pub(super) keep_inodes: u64,
    /// How fast blobs may arrive, in bytes a second; 0: no limit.
    #[serde(default)]
    pub(super) bytes_per_second: u64,
    /// How long to wait.
    #[serde(default)]
    pub(super) patience: Patience,
}

/// Where docker, podman and containerd look for registries' certificates.
pub(super) fn certificate_directories() -> Vec<PathBuf> {
    vec![
        "/etc/containers/certs.d".into(),
        "/etc/docker/certs.d".into(),
    ]
}

/// Limits on waiting. None limits a whole download: a slow line may take days.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Patience {
    /// For a connection with its TLS handshake, in milliseconds.
    connect_ms: u64,
    /// For the whole head of an answer.
    answer_ms: u64,
    /// For the next byte: a cache may have to fetch first.
    stall_ms: u64,
    /// The time in which [`MIN_BYTES`] must arrive.
    window_ms: u64,
    /// The longest wait that a registry may ask for by `Retry-After`.
    retry_after_ms: u64,
}

/// What must arrive in each window of time; a modem of 9600 bit/s brings four times as much.
pub(super) const MIN_BYTES: u64 = 16 << 10;

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect_ms: 30_000,
            answer_ms: 120_000,
            stall_ms: 60_000,
            window_ms: 60_000,
            retry_after_ms: 60_000,
        }
    }
}

impl Patience {
    /// The same short time for everything.
    pub(super) fn short(ms: u64) -> Self {
        Self {
            connect_ms: ms,
            answer_ms: ms,
            stall_ms: ms,
            ..Self::default()
        }
    }

    pub(super) fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_ms)
    }

    pub(super) fn answer(&self) -> Duration {
        Duration::from_millis(self.answer_ms)
    }

    pub(super) fn stall(&self) -> Duration {
        Duration::from_millis(self.stall_ms)
    }

    pub(super) fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    pub(super) fn retry_after(&self) -> Duration {
        Duration::from_millis(self.retry_after_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_encoded_and_never_shown() {
        let credentials = Credentials {
            username: "Aladdin".to_owned(),
            password: "open sesame".to_owned(),
        };
        // The example of RFC 7617.
        assert_eq!(credentials.basic(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(format!("{credentials:?}"), "Credentials(…)");
        let print = credentials.fingerprint("r.example/app");
        let parts = ["r.example/app", "Aladdin", "open sesame"];
        assert_eq!(
            print,
            digest::of(serde_json::json!(parts).to_string().as_bytes())
        );
        assert_ne!(print, credentials.fingerprint("r.example/other"));
    }
}
