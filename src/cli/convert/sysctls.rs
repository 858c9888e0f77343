//! `sysctls`, and the one that docker sets by itself.

use super::container::has_capability;
use super::network::is_of_host;
use super::ports::has_low;
use super::tree::{COMMENT, Commented, find, items, map_of_texts, pairs, scalar, set_list, text};
use super::work::{Pod, Work};
use crate::spec::sysctl::is_safe;
use crate::spec::value::Value;

/// The lowest port that programs without the capability NET_BIND_SERVICE may listen on.
const LOWEST: &str = "net.ipv4.ip_unprivileged_port_start";

/// Adds what a service sets to its pod. A step before another service sets nothing.
pub(super) fn sysctls(work: &Work<'_>, service: &Value, pod: &mut Pod) {
    let given = pairs(service.get("sysctls"));
    if work.is_step {
        if service.get("sysctls").is_some() {
            let what = format_args!("sysctls: the pod is that of the service that waits for it");
            work.lost(&mut pod.security, what);
        }
        return;
    }
    for (name, _) in given.iter().filter(|(name, _)| !is_safe(name)) {
        let hint = format!("the pod waits until the setting `allowedUnsafeSysctls` names {name}");
        let hint = (COMMENT.to_owned(), text(hint));
        if !pod.security.contains(&hint) {
            pod.security.push(hint);
        }
    }
    let mut all = items(find(&pod.security, "sysctls")).to_vec();
    for (name, value) in given {
        let sysctl = entry(name, value.unwrap_or_default());
        match all.iter().find(|known| is_named(known, name)) {
            Some(other) if *other != sysctl => {
                let what = format_args!("sysctls: {name}: another container of the pod has set it");
                work.lost(&mut pod.security, what);
            }
            Some(_) => {}
            None => all.push(sysctl),
        }
    }
    let unset = !all.iter().any(|known| is_named(known, LOWEST));
    if unset && needs_low_ports(work, service) {
        let why = "docker lets programs of any user listen below port 1024";
        all.comment(why.to_owned());
        all.push(entry(LOWEST, "0"));
    }
    set_list(&mut pod.security, "sysctls", all);
}

fn entry(name: &str, value: &str) -> Value {
    map_of_texts(&[("name", name), ("value", value)])
}

fn is_named(sysctl: &Value, name: &str) -> bool {
    scalar(sysctl, "name") == Some(name)
}

/// Whether a service may count on what docker allows (since 20.10): all users of a container with its own network
/// listen on low ports.
fn needs_low_ports(work: &Work<'_>, service: &Value) -> bool {
    if !work.shared.project.by_docker || is_of_host(work) {
        return false;
    }
    let binds = |key: &str| has_capability(service, key, &["ALL", "NET_BIND_SERVICE"]);
    let may_bind = !binds("cap_drop") || binds("cap_add");
    let user = scalar(service, "user").unwrap_or_default();
    match user.split(':').next().unwrap_or_default() {
        "root" | "0" => !may_bind,
        // The image says which user it is.
        "" => !may_bind || has_low(service),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::convert::convert_test::{line, yaml};

    const PORTS: &str = "# docker lets programs of any user listen below port 1024\n    - name: \
                         net.ipv4.ip_unprivileged_port_start\n      value: \"0\"\n";

    #[test]
    fn programs_without_root_listen_on_low_ports_as_docker_lets_them() {
        for (keys, expected) in [
            ("user: '1000'", true),
            ("user: nobody", true),
            (
                "user: 1000:1000, sysctls: [net.ipv4.ip_unprivileged_port_start=80]",
                false,
            ),
            ("user: 1000:1000, network_mode: host", false),
            ("user: '0', ports: ['80:80']", false),
            ("user: root, cap_drop: [ALL]", true),
            ("cap_drop: [CAP_NET_BIND_SERVICE]", true),
            ("cap_drop: [ALL], cap_add: [NET_BIND_SERVICE]", false),
            // The image's own user is not known.
            ("ports: ['8080:80']", true),
            ("expose: [443]", true),
            ("ports: ['80:8080']", false),
            ("restart: always", false),
        ] {
            let made = yaml(&format!("services:\n  a: {{image: 'a:1', {keys}}}\n"));
            assert_eq!(made.contains(PORTS), expected, "{keys}:\n{made}");
        }
        // One sysctl for both containers of a pod.
        let made = yaml(
            "services:\n  a: {image: 'a:1', user: '1'}\n  b: {image: 'b:1', user: '2', network_mode: 'service:a'}\n",
        );
        assert_eq!(made.matches(PORTS).count(), 1, "{made}");
    }

    #[test]
    fn podman_lets_only_those_listen_there_that_may() {
        let made = |program: &str| line(&format!("{program} run -u 1000 -p 80:80 a:1")).unwrap();
        assert!(made("sudo docker").contains(PORTS));
        assert!(!made("podman").contains(PORTS));
    }
}
