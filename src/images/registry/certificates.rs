//! Authorities and client certificates for TLS: those of the system, and for each registry `HOST[:PORT]/*.crt` (more
//! authorities) and `*.cert` with `*.key` (this client) in directories such as `/etc/containers/certs.d`
//! (containers-certs.d(5)).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_rustls::rustls;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::sign::CertifiedKey;

use super::error::FetchError;
use super::tls;
use crate::sys::file::read_bounded;
use crate::types::InOrder;

/// Where distributions keep the authorities they trust; the first file that exists.
const SYSTEM: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs/ca-bundle.crt",
];

/// The longest file of certificates; a system's has a quarter of a megabyte.
const MAX_BYTES: u64 = 4 << 20;

/// The maximum number of files in the folder of a registry.
const MAX_FILES: usize = 100;

/// What one registry adds.
#[derive(Debug, Default)]
struct Own {
    authorities: Vec<CertificateDer<'static>>,
    client: Option<CertifiedKey>,
}

/// All paths that certificates are read from: a process that may read only these can still connect.
pub(super) fn places(directories: &[PathBuf]) -> Vec<PathBuf> {
    let files = SYSTEM.map(PathBuf::from);
    // The files are replaced now and then. `/etc/ssl` itself has private keys, too.
    let folders = files.iter().filter_map(|file| file.parent());
    let folders = folders.filter(|folder| *folder != Path::new("/etc/ssl"));
    let folders: Vec<PathBuf> = folders.map(Path::to_owned).collect();
    files
        .into_iter()
        .chain(folders)
        .chain(directories.to_vec())
        .collect()
}

/// Whether there is a folder for one of these names of a registry: then it speaks TLS.
pub(super) fn known(directories: &[PathBuf], names: &[String]) -> bool {
    folders(directories, names).any(|folder| folder.is_dir())
}

/// The TLS settings for a registry that has these names.
pub(super) fn of(
    directories: &[PathBuf],
    names: &[String],
) -> Result<Arc<ClientConfig>, FetchError> {
    let mut own = Own::default();
    for folder in folders(directories, names) {
        read_folder(&folder, &mut own)?;
    }
    let mut authorities = system()?;
    authorities.append(&mut own.authorities);
    tls::checked(authorities, own.client)
}

fn folders(directories: &[PathBuf], names: &[String]) -> impl Iterator<Item = PathBuf> {
    let all = directories.iter().flat_map(|directory| {
        let of = |name: &String| directory.join(name);
        names.iter().map(of).collect::<Vec<_>>()
    });
    all.collect::<Vec<_>>().into_iter()
}

fn system() -> Result<Vec<CertificateDer<'static>>, FetchError> {
    for path in SYSTEM.map(Path::new) {
        match read_bounded(path, MAX_BYTES) {
            Ok(pem) => return certificates(path, &pem),
            Err(why) if why.kind() == ErrorKind::NotFound => {}
            Err(why) => return Err(unreadable(path, &why)),
        }
    }
    Ok(Vec::new())
}

fn read_folder(folder: &Path, own: &mut Own) -> Result<(), FetchError> {
    let entries = match fs::read_dir(folder) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|why| unreadable(folder, &why))?,
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    if paths.len() > MAX_FILES {
        let folder = folder.display();
        return Err(FetchError::Setup(format!(
            "`{folder}` has more than {MAX_FILES} files"
        )));
    }
    paths.order();
    for path in paths {
        let read = || read_bounded(&path, MAX_BYTES).map_err(|why| unreadable(&path, &why));
        match path.extension().and_then(|end| end.to_str()) {
            Some("crt") => own.authorities.append(&mut certificates(&path, &read()?)?),
            Some("cert") if own.client.is_none() => own.client = Some(client(&path, &read()?)?),
            Some("key") if !path.with_extension("cert").exists() => {
                let (key, cert) = (path.display(), path.with_extension("cert"));
                let cert = cert.display();
                return Err(FetchError::Setup(format!(
                    "`{key}` has no certificate `{cert}`"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FetchError> {
    let bad = |why: String| FetchError::Setup(format!("`{}` {why}", path.display()));
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|why| bad(format!("is no PEM: {why}")))?;
    match found.is_empty() {
        true => Err(bad("has no certificate".to_owned())),
        false => Ok(found),
    }
}

/// A certificate and the key beside it, which must fit: the TLS library would not forgive it later.
fn client(path: &Path, pem: &[u8]) -> Result<CertifiedKey, FetchError> {
    let key_path = path.with_extension("key");
    let bad = |why: &dyn std::fmt::Display| {
        FetchError::Setup(format!(
            "the key `{}` cannot be used: {why}",
            key_path.display()
        ))
    };
    let key = read_bounded(&key_path, MAX_BYTES).map_err(|why| bad(&why))?;
    let chain = certificates(path, pem)?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|why| bad(&why))?;
    tls::certified(chain, key).map_err(|why| bad(&why))
}

fn unreadable(path: &Path, why: &std::io::Error) -> FetchError {
    FetchError::Setup(format!("could not read `{}`: {why}", path.display()))
}
