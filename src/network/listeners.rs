//! Programs of the node that listen on a port. A pod with that port would silently take over their clients.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use procfs::net::{TcpNetEntries, TcpState, UdpNetEntries, UdpState};
use procfs::{FromReadSI, current_system_info};

use super::firewall::HostPort;
use crate::spec::Protocol;
use crate::sys::file;

/// The sockets of the caller's network namespace.
const NET: &str = "/proc/thread-self/net";

/// A listening program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Its name; empty if it could not be found.
    pub process: String,
    /// Its process id, 0 if it could not be found.
    pub pid: i32,
    /// Its address and port.
    pub address: SocketAddr,
}

/// The program that would lose its clients to the port: it listens on the same port of an overlapping address. A
/// port bound to `[::]` counts for IPv4 too, because the kernel does not say whether it is. SCTP is not checked. What this
/// process listens on at one of the addresses `apart` does not count.
pub fn taken(port: &HostPort, apart: &[IpAddr]) -> Option<Listener> {
    let sockets = sockets(port.protocol).into_iter();
    let mut listeners = sockets
        .filter(|(at, _)| at.port() == port.port && overlap(at.ip(), port.host_ip))
        .map(|(address, inode)| {
            let (pid, process) = owner(inode).unwrap_or_default();
            Listener {
                process,
                pid,
                address,
            }
        });
    let is_own = |pid: i32| u32::try_from(pid).is_ok_and(|pid| pid == std::process::id());
    listeners.find(|one| !(apart.contains(&one.address.ip()) && is_own(one.pid)))
}

/// Sockets that accept any sender, with their inodes. A table that cannot be read (no IPv6) has none.
fn sockets(protocol: Protocol) -> Vec<(SocketAddr, u64)> {
    match protocol {
        Protocol::Tcp => ["tcp", "tcp6"]
            .into_iter()
            .filter_map(|name| {
                TcpNetEntries::from_file(Path::new(NET).join(name), current_system_info()).ok()
            })
            .flat_map(|entries| entries.0)
            .filter(|entry| entry.state == TcpState::Listen)
            .map(|entry| (entry.local_address, entry.inode))
            .collect(),
        // A connected socket is an outgoing conversation, not a service.
        Protocol::Udp => ["udp", "udp6"]
            .into_iter()
            .filter_map(|name| {
                UdpNetEntries::from_file(Path::new(NET).join(name), current_system_info()).ok()
            })
            .flat_map(|entries| entries.0)
            .filter(|entry| entry.state == UdpState::Close && entry.remote_address.port() == 0)
            .map(|entry| (entry.local_address, entry.inode))
            .collect(),
        Protocol::Sctp => Vec::new(),
    }
}

/// Whether a connection to `port` could have been for a socket at `at`.
fn overlap(at: IpAddr, port: Option<IpAddr>) -> bool {
    let at = at.to_canonical();
    match port {
        None => true,
        Some(port) if at.is_unspecified() => at.is_ipv6() || port.is_ipv4(),
        Some(port) if port.is_unspecified() => at.is_ipv4() == port.is_ipv4(),
        Some(port) => at == port,
    }
}

/// The process that has a socket open.
fn owner(inode: u64) -> Option<(i32, String)> {
    let wanted = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .find(|pid| has_open(*pid, &wanted))
        .map(|pid| {
            let name = file::read_text(format!("/proc/{pid}/comm")).unwrap_or_default();
            (pid, name.trim().to_owned())
        })
}

fn has_open(pid: i32, wanted: &str) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd"));
    files.into_iter().flatten().flatten().any(|file| {
        let target = fs::read_link(file.path());
        target.is_ok_and(|target| target.as_os_str() == wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_overlaps_with_itself_and_with_wildcards() {
        let cases: &[(&str, Option<&str>, bool)] = &[
            ("0.0.0.0", None, true),
            ("127.0.0.1", None, true),
            ("::1", Some("::"), true),
            ("0.0.0.0", Some("10.0.0.1"), true),
            ("0.0.0.0", Some("fd00::1"), false),
            ("::", Some("10.0.0.1"), true),
            ("::", Some("fd00::1"), true),
            ("::ffff:10.0.0.1", Some("10.0.0.1"), true),
            ("10.0.0.1", Some("10.0.0.1"), true),
            ("10.0.0.1", Some("10.0.0.2"), false),
            ("10.0.0.1", Some("0.0.0.0"), true),
            ("10.0.0.1", Some("::"), false),
            ("0.0.0.0", Some("::"), false),
            ("::", Some("0.0.0.0"), true),
            ("::1", Some("0.0.0.0"), false),
        ];
        for (at, port, expected) in cases {
            let parse = |text: &str| text.parse::<IpAddr>().unwrap();
            assert_eq!(
                overlap(parse(at), port.map(parse)),
                *expected,
                "{at} {port:?}"
            );
        }
    }

    #[test]
    fn the_name_servers_own_port_is_not_taken_at_the_bridges_addresses() {
        let socket = std::net::UdpSocket::bind("127.0.0.9:0").unwrap();
        let at = socket.local_addr().unwrap();
        let port = HostPort {
            protocol: Protocol::Udp,
            host_ip: None,
            port: at.port(),
            to: 1,
        };
        let found = taken(&port, &[]).unwrap();
        assert_eq!(
            (found.pid.unsigned_abs(), found.address),
            (std::process::id(), at)
        );
        assert!(taken(&port, &["127.0.0.8".parse().unwrap()]).is_some());
        assert!(taken(&port, &[at.ip()]).is_none());
    }
}
