//! The node's resolvers: the servers in its `resolv.conf`, read again whenever the file changes.

use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Port of a name server that is written without one.
const PORT: u16 = 53;
/// The maximum number of servers, as in the C library.
const MAX_SERVERS: usize = 3;
/// The maximum read of the file.
const MAX_BYTES: u64 = 64 * 1024;

/// The node's servers, from its file.
#[derive(Debug)]
pub(super) struct ResolvConf {
    path: PathBuf,
    read: Mutex<Option<(Version, Arc<[SocketAddr]>)>>,
}

/// Identifies one content of the file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    changed_ns: (i64, i64),
    bytes: u64,
}

impl ResolvConf {
    /// An empty path stands for a node without servers.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            read: Mutex::new(None),
        }
    }

    /// The servers in the file now, in order; none if it cannot be read.
    pub(super) fn servers(&self) -> Arc<[SocketAddr]> {
        let Ok(version) = version(&self.path) else {
            return Arc::default();
        };
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, servers)) = &*read
            && *before == version
        {
            return servers.clone();
        }
        let Ok(servers) = read_servers(&self.path) else {
            return Arc::default();
        };
        *read = Some((version, servers.clone()));
        servers
    }
}

fn version(path: &Path) -> io::Result<Version> {
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(Version {
        device: found.dev(),
        inode: found.ino(),
        changed_ns: (found.ctime(), found.ctime_nsec()),
        bytes: found.size(),
    })
}

fn read_servers(path: &Path) -> io::Result<Arc<[SocketAddr]>> {
    let mut text = Vec::new();
    fs::File::open(path)?
        .take(MAX_BYTES)
        .read_to_end(&mut text)?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

fn parse(text: &str) -> Arc<[SocketAddr]> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            (words.next() == Some("nameserver")).then(|| words.next())?
        })
        .filter_map(server)
        .take(MAX_SERVERS)
        .collect()
}

/// An address; one that is valid on one link only has the link's name or number behind it, as in `fe80::1%eth0`.
fn server(text: &str) -> Option<SocketAddr> {
    let Some((address, link)) = text.split_once('%') else {
        let address: IpAddr = text.parse().ok()?;
        return (!address.is_unspecified()).then(|| SocketAddr::new(address, PORT));
    };
    let scope = match link.parse() {
        Ok(number) => number,
        Err(_) => nix::net::if_::if_nametoindex(link).ok()?,
    };
    Some(SocketAddrV6::new(address.parse().ok()?, PORT, 0, scope).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nameserver_lines_with_an_address_count_and_three_of_them() {
        let text = "# nameserver 9.9.9.9\nnameserver 10.0.0.1\n search a b\nnameserver\tfe80::1%1 # x\n\
                    nameserver nonsense\nnameserver 0.0.0.0\nnameservers 1.1.1.1\noptions ndots:5\n\
                    nameserver ::1\nnameserver 10.0.0.4\n";
        let found: Vec<String> = parse(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1:53", "[fe80::1%1]:53", "[::1]:53"]);
    }

    #[test]
    fn a_file_that_is_not_there_names_no_servers() {
        for path in ["", "/nonexistent/resolv.conf"] {
            assert!(ResolvConf::new(path.into()).servers().is_empty());
        }
    }
}
