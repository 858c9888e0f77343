//! The content of encrypted Secrets: the program `systemd-creds` of the node encrypts and decrypts it with the key of the
//! host or its TPM. Plain text passes through pipes only.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::spec::encrypted::{Opened, Outcome, Part, Plain, Sealed};
use crate::sys::process;
use crate::sys::program::{self, RunError};
use crate::types::Gather;

/// The program (Debian's package `systemd`, since 250).
const PROGRAM: &str = "systemd-creds";

/// A run takes milliseconds; a TPM takes seconds at most, and longer if others use it, too.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest plain text (`CREDENTIAL_SIZE_MAX`) and encrypted text, in bytes.
const MAX_PLAIN: usize = 1 << 20;
const MAX_CIPHER: usize = 1_600_000;

/// The maximum of the program's error output that is shown.
const MAX_MESSAGE: usize = 300;

/// Where the host's key is, if it is not in its usual place; `systemd-creds` goes by it, too.
const KEY_PLACE: &str = "SYSTEMD_CREDENTIAL_SECRET";

/// Why a content could not be encrypted or decrypted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// The program is missing.
    #[error(
        "there is no program `systemd-creds` on this node; install systemd 250 or newer, or write the content as `data`"
    )]
    Missing,
    /// It could not be run to its end.
    #[error("`systemd-creds` {0}")]
    Run(String),
    /// It refused.
    #[error("systemd-creds: {0}")]
    Refused(String),
}

/// What was decrypted, so that unchanged content costs nothing; all clones share it.
#[derive(Debug, Clone, Default)]
pub struct Credentials(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// By digest.
    plain: BTreeMap<[u8; 32], Plain>,
    /// Why nothing is decrypted for now: a run did not end, and the next ones would take as long.
    stuck: Option<String>,
}

impl Credentials {
    /// Blocking. Decrypts the contents that are not known yet. After a run that did not end, the others fail with it.
    pub fn open(&self, sealed: Vec<Sealed>) -> Opened {
        self.open_by(sealed, decrypt)
    }

    fn open_by(
        &self,
        sealed: Vec<Sealed>,
        mut decrypt: impl FnMut(&Sealed) -> Result<Plain, CredentialError>,
    ) -> Opened {
        let mut outcome = |sealed: &Sealed| {
            let digest = sealed.digest();
            let (known, stuck) = {
                let all = self.lock();
                (all.plain.get(&digest).cloned(), all.stuck.clone())
            };
            match (known, stuck) {
                (Some(plain), _) => return Outcome::Plain(plain),
                (None, Some(why)) => return Outcome::Refused(why),
                (None, None) => {}
            }
            match decrypt(sealed) {
                Ok(plain) => {
                    self.lock().plain.insert(digest, plain.clone());
                    Outcome::Plain(plain)
                }
                Err(error) => {
                    let why = error.to_string();
                    if matches!(error, CredentialError::Run(_)) {
                        self.lock().stuck = Some(why.clone());
                    }
                    Outcome::Refused(why)
                }
            }
        };
        let opened = sealed.into_iter().map(|sealed| {
            let outcome = outcome(&sealed);
            (sealed, outcome)
        });
        opened.gather()
    }

    /// Tries again what a run that did not end kept from being tried.
    pub fn try_again(&self) {
        self.lock().stuck = None;
    }

    /// Forgets all but these.
    pub fn keep(&self, digests: &BTreeSet<[u8; 32]>) {
        self.lock()
            .plain
            .retain(|digest, _| digests.contains(digest));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Blocking. Decrypts a content.
///
/// # Errors
///
/// If the program is missing, or has no key for this content, or it was encrypted under another name.
pub fn decrypt(sealed: &Sealed) -> Result<Plain, CredentialError> {
    let name = format!("--name={}", sealed.credential());
    let args = ["decrypt", &name, "-", "-"];
    let plain = run(&args, sealed.cipher.as_bytes(), MAX_PLAIN)?;
    Ok(Plain(plain))
}

/// Whether the program refused the content itself, by what it says: on every machine it would be refused. It says
/// "incorrect key?" both of damaged content and of content for another machine, so that does not count.
pub fn is_bad_everywhere(why: &str) -> bool {
    const SAID: [&str; 4] = [
        // It was decrypted, and has the wrong name or times. Other refusals depend on the machine.
        "does not match filename",
        "Timestamps of credential are not in order",
        "Encrypted file too short",
        // It is no base64.
        "Failed to read encrypted credential data",
    ];
    SAID.iter().any(|said| why.contains(said))
}

/// Blocking. Encrypts a content with this kind of key, in base64.
///
/// # Errors
///
/// If the program is missing, cannot use such a key, or the content is longer than 1 MiB.
pub fn encrypt(part: &Part, name: &str, key: &str) -> Result<String, CredentialError> {
    let name = format!("--name={name}");
    let key = format!("--with-key={key}");
    let cipher = run(
        &["encrypt", &name, &key, "-", "-"],
        &part.plain.0,
        MAX_CIPHER,
    )?;
    String::from_utf8(cipher).map_err(|_| CredentialError::Run("writes no text".to_owned()))
}

fn run(args: &[&str], input: &[u8], limit: usize) -> Result<Vec<u8>, CredentialError> {
    let path = process::find_program(PROGRAM).ok_or(CredentialError::Missing)?;
    let mut command = Command::new(path);
    command.args(args).env_clear();
    if let Some(place) = std::env::var_os(KEY_PLACE) {
        command.env(KEY_PLACE, place);
    }
    let done = program::run(&mut command, input, PATIENCE, limit).map_err(|error| match error {
        RunError::System(error) => CredentialError::Run(format!("could not be run: {error}")),
        limit @ (RunError::Stuck | RunError::TooMuch(_)) => CredentialError::Run(limit.to_string()),
    })?;
    match done.status.success() {
        true => Ok(done.output),
        false => {
            let said = String::from_utf8_lossy(&done.complaint);
            Err(CredentialError::Refused(match shortened(&said) {
                silent if silent.is_empty() => done.status.to_string(),
                said => said,
            }))
        }
    }
}

/// The last line of what the program said, which is why it failed.
fn shortened(said: &str) -> String {
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last = last.unwrap_or_default().chars();
    last.filter(|c| !c.is_control()).take(MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(cipher: &str) -> Sealed {
        Sealed {
            namespace: "n".to_owned(),
            name: "s".to_owned(),
            cipher: cipher.to_owned(),
        }
    }

    /// Opens these; returns which were tried, and what each became.
    fn open(credentials: &Credentials, ciphers: &[&str]) -> (Vec<String>, Vec<String>) {
        let mut tried = Vec::new();
        let opened = credentials.open_by(ciphers.iter().map(|c| sealed(c)).collect(), |sealed| {
            tried.push(sealed.cipher.clone());
            match sealed.cipher.as_str() {
                "hangs" => Err(CredentialError::Run("does not end".to_owned())),
                "other key" => Err(CredentialError::Refused("no".to_owned())),
                fine => Ok(Plain(fine.as_bytes().to_vec())),
            }
        });
        let shown = opened.into_values().map(|outcome| match outcome {
            Outcome::Plain(plain) => String::from_utf8_lossy(&plain.0).into_owned(),
            Outcome::Refused(why) => why,
            Outcome::Unread => "unread".to_owned(),
        });
        (tried, shown.collect())
    }

    #[test]
    fn a_content_is_decrypted_once_and_a_run_that_hangs_keeps_others_from_hanging() {
        let credentials = Credentials::default();
        let (tried, shown) = open(&credentials, &["a", "b", "other key"]);
        assert_eq!(tried, ["a", "b", "other key"]);
        assert_eq!(shown, ["a", "b", "systemd-creds: no"]);
        // What is known costs nothing; what was refused is tried again.
        assert_eq!(
            open(&credentials, &["a", "b", "other key"]).0,
            ["other key"]
        );
        let (tried, shown) = open(&credentials, &["a", "hangs", "later"]);
        assert_eq!(tried, ["hangs"]);
        let why = "`systemd-creds` does not end";
        assert_eq!(shown, ["a", why, why]);
        // Neither in the next file.
        assert_eq!(open(&credentials, &["later"]).0, [""; 0]);
        credentials.try_again();
        assert_eq!(open(&credentials, &["later"]).1, ["later"]);
        credentials.keep(&[sealed("a").digest()].into());
        assert_eq!(open(&credentials, &["a", "b"]).0, ["b"]);
    }
}
