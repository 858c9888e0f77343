//! Safe and unsafe sysctls. Safe ones change nothing outside the pod; others are admitted only if the node's
//! `allowedUnsafeSysctls` has them (Kubernetes docs: Configure a Security Context; the kubelet's
//! `pkg/kubelet/lifecycle`).

/// The kubelet's list of 1.36 (`pkg/kubelet/sysctl/safe_sysctls.go`), for Linux 4.15 and later.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Namespaced sysctls: whole names, and prefixes.
const NAMESPACED: [&str; 5] = [
    "kernel.sem",
    "kernel.shm*",
    "kernel.msg*",
    "fs.mqueue.*",
    "net.*",
];

/// Whether the sysctl affects only the pod.
pub fn is_safe(name: &str) -> bool {
    SAFE.contains(&name)
}

/// Whether the node allows the sysctl: `patterns` are names, or prefixes with `*`.
pub fn is_allowed(name: &str, patterns: &[String]) -> bool {
    is_safe(name)
        || patterns
            .iter()
            .any(|pattern| covers(&dotted(pattern), name))
}

/// Returns what is wrong with an item of `allowedUnsafeSysctls`, in the kubelet's words.
pub fn pattern_problem(pattern: &str) -> Option<String> {
    let dotted = dotted(pattern);
    let bare = match dotted.strip_suffix('*') {
        Some(bare) => bare.strip_suffix('.').unwrap_or(bare),
        None => &dotted,
    };
    if super::names::sysctl(bare).is_some() {
        return Some(format!(
            "sysctl {pattern:?} must have at most 253 characters and match a sysctl's name, or begin one and end in *"
        ));
    }
    let known = NAMESPACED.iter().any(|own| match own.strip_suffix('*') {
        Some(prefix) => dotted.starts_with(prefix),
        None => dotted == *own,
    });
    (!known).then(|| format!("the sysctls {pattern:?} are not known to be namespaced"))
}

fn covers(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

/// Converts the other spelling, `net/ipv4/conf/eth0.1/x`, in which slash and dot are swapped.
pub(super) fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(i) if name.as_bytes()[i] == b'/' => {
            let swap = |c| match c {
                '/' => '.',
                '.' => '/',
                c => c,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_ones_need_to_be_allowed() {
        let allowed = ["net.core.*", "kernel.msgmax", "net/ipv4/conf/*"].map(str::to_owned);
        for (name, known) in [
            ("net.ipv4.tcp_rmem", true),
            ("net.core.somaxconn", true),
            ("kernel.msgmax", true),
            ("kernel.msgmaxi", false),
            ("net.corel.x", false),
            ("net.ipv4.conf.all.x", true),
            ("net.ipv4.tcp_mem", false),
        ] {
            assert_eq!(is_allowed(name, &allowed), known, "{name}");
        }
        assert!(!is_allowed("net.core.somaxconn", &[]));
    }

    #[test]
    fn patterns_are_of_namespaced_names() {
        for (pattern, good) in [
            ("net.*", true),
            ("net*", false),
            ("kernel.sem", true),
            ("kernel.sema", false),
            ("kernel.shm*", true),
            ("kernel.msg_max", true),
            ("fs.mqueue.*", true),
            ("vm.swappiness", false),
            ("*", false),
            ("", false),
            ("net.*.x", false),
            ("Net.x", false),
        ] {
            assert_eq!(pattern_problem(pattern).is_none(), good, "{pattern}");
        }
    }
}
