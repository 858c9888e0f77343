//! A pod's `/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf`. Each container start writes them again, in the
//! kubelet's words (Kubernetes docs: Customizing DNS Service, DNS for Services and Pods; [`super::resolver`] has
//! `resolv.conf`).

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::resolver::{self, Resolver};
use super::{ConfigError, Sandboxes};
use crate::spec::{HostAlias, PodSpec, Reason};
use crate::sys::file;

impl Sandboxes {
    /// The pod's domain: `<subdomain>.<namespace>.svc.<clusterDomain>`.
    pub(super) fn domain(&self, spec: &PodSpec) -> Option<String> {
        let subdomain = spec.subdomain.as_ref()?;
        Some(format!("{subdomain}.{}", self.config.cluster_domain))
    }

    /// Blocking. Writes the files that all containers of the pod share, at each container start. Returns the pod's
    /// hostname: containers may have changed its file.
    pub(super) fn write_etc(&self, spec: &PodSpec, ips: &[IpAddr]) -> Result<String, ConfigError> {
        let state = self.layout().pod_state(&spec.uid);
        let domain = self.domain(spec);
        let node_hosts = file::read_text("/etc/hosts").unwrap_or_default();
        let hostname = if spec.host_network {
            nix::unistd::gethostname()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default()
        } else {
            hostname(spec, domain.as_deref())
        };
        let hosts = hosts(spec, domain.as_deref(), ips, &node_hosts);
        for (path, text) in [
            (state.etc_hosts(), hosts),
            (state.etc_hostname(), format!("{hostname}\n")),
        ] {
            write_if_changed(&path, &text).map_err(|source| ConfigError::Access {
                action: "write",
                path,
                source,
            })?;
        }
        self.write_resolv_conf(spec)?;
        Ok(hostname)
    }

    /// Blocking. Writes the pod's current `resolv.conf`. Containers see it at once.
    pub fn write_resolv_conf(&self, spec: &PodSpec) -> Result<(), ConfigError> {
        let path = self.layout().pod_state(&spec.uid).resolv_conf();
        let (resolver, _) = self.resolver(spec);
        write_if_changed(&path, &resolver.text()).map_err(|source| ConfigError::Access {
            action: "write",
            path,
            source,
        })
    }

    /// Blocking. What the pod's `resolv.conf` lacks of what its manifest asks for: reason and message of events.
    pub fn resolver_warnings(&self, spec: &PodSpec) -> Vec<(Reason, String)> {
        self.resolver(spec).1
    }

    /// Whether the pod asks coracle's own name server, also if it has no address of its own.
    pub fn uses_name_server(&self, spec: &PodSpec) -> bool {
        self.config.cluster_dns.is_empty() && resolver::wants_cluster_dns(spec)
    }

    fn resolver(&self, spec: &PodSpec) -> (Resolver, Vec<(Reason, String)>) {
        let node = resolver::node_resolv_conf(&self.config.resolv_conf);
        let servers = if resolver::wants_cluster_dns(spec) {
            self.cluster_dns()
        } else {
            Vec::new()
        };
        resolver::of_pod(spec, &node, &servers, &self.config.cluster_domain)
    }

    /// The name servers of pods with `dnsPolicy: ClusterFirst`: those of the settings, or else coracle's own.
    fn cluster_dns(&self) -> Vec<IpAddr> {
        if !self.config.cluster_dns.is_empty() {
            return self.config.cluster_dns.clone();
        }
        // One is enough, and musl's resolver asks all of them at once.
        let own = self.network.name_servers().unwrap_or_default();
        own.into_iter().take(1).collect()
    }
}

/// `/etc/hosts`.
fn hosts(spec: &PodSpec, domain: Option<&str>, ips: &[IpAddr], node_hosts: &str) -> String {
    let mut text = String::new();
    if spec.host_network {
        text.push_str("# Kubernetes-managed hosts file (host network).\n");
        text.push_str(node_hosts);
    } else {
        text.push_str(
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
        );
        // Without an address of its own the pod still has to resolve its own name.
        let loopback = [IpAddr::from([127, 0, 0, 1])];
        for ip in if ips.is_empty() { &loopback } else { ips } {
            let _ = match domain {
                Some(domain) => {
                    writeln!(text, "{ip}\t{}.{domain}\t{}", spec.hostname, spec.hostname)
                }
                None => writeln!(text, "{ip}\t{}", spec.hostname),
            };
        }
    }
    aliases(&mut text, &spec.host_aliases);
    text
}

fn aliases(text: &mut String, aliases: &[HostAlias]) {
    if aliases.is_empty() {
        return;
    }
    text.push_str("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let _ = writeln!(text, "{}\t{}", alias.ip, alias.hostnames.join("\t"));
    }
}

/// The kernel hostname of the pod.
pub(super) fn hostname(spec: &PodSpec, domain: Option<&str>) -> String {
    match domain {
        Some(domain) if spec.hostname_as_fqdn => format!("{}.{domain}", spec.hostname),
        _ => spec.hostname.clone(),
    }
}

/// Writes in place: the file is bind-mounted into containers, which would not see a renamed one. It is truncated
/// only afterwards, so that no reader finds it empty. Without a change nothing is written, which spares flash.
/// Containers may have written anything to the file: no more of it is read than could be right.
fn write_if_changed(path: &Path, text: &str) -> io::Result<()> {
    let length = text.len() as u64;
    if file::read_bounded(path, length).is_ok_and(|have| have == text.as_bytes()) {
        return Ok(());
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    file.set_len(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn whatever_a_container_made_of_a_file_it_says_again_what_it_should() {
        let path = std::env::temp_dir().join(format!("coracle-etc-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        write_if_changed(&path, "one\n").unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        for length in [0, 1, 3, 5, 1 << 20, 3 << 30] {
            File::options()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(length))
                .unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
            write_if_changed(&path, "two\n").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "two\n", "{length}");
        }
        fs::write(&path, "tw\0\n").unwrap();
        write_if_changed(&path, "two\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two\n");
        assert_eq!(
            fs::metadata(&path).unwrap().ino(),
            inode,
            "containers see it"
        );
        fs::remove_file(&path).unwrap();
    }
}
