//! What belongs to the node: its namespaces, its ports, the hosts that its agent calls, its processes on Windows.

use k8s_openapi::api::core::v1::{LifecycleHandler, WindowsSecurityContextOptions};

use super::Violation;
use super::visit::{View, containers, plural, quoted, setters, violation};
use crate::types::InOrder;

pub(super) fn namespaces(pod: &View<'_>) -> Option<Violation> {
    let spec = pod.spec;
    let shared = [
        ("hostIPC", spec.host_ipc),
        ("hostNetwork", spec.host_network),
        ("hostPID", spec.host_pid),
    ];
    let shared = shared.into_iter().filter(|(_, given)| *given == Some(true));
    let names: Vec<&str> = shared.map(|(name, _)| name).collect();
    violation("host namespaces", !names.is_empty(), || names.join(", "))
}

pub(super) fn ports(pod: &View<'_>) -> Option<Violation> {
    let (names, ports) = pod.offenders(|each| {
        let ports = each.ports.iter().filter_map(|port| port.host_port);
        ports
            .filter(|port| *port != 0)
            .map(|port| port.to_string())
            .collect()
    });
    violation("hostPort", !names.is_empty(), || {
        let list: Vec<String> = ports.iter().cloned().collect();
        format!(
            "{} {} {} {}",
            containers(&names),
            plural(names.len(), "uses", "use"),
            plural(ports.len(), "hostPort", "hostPorts"),
            list.join(", ")
        )
    })
}

/// Hosts of probes and hooks: the agent would call them.
pub(super) fn handlers(pod: &View<'_>) -> Option<Violation> {
    let given = |host: &Option<String>| host.clone().filter(|host| !host.is_empty());
    let of_handler = |handler: &LifecycleHandler| {
        let http = handler.http_get.as_ref().and_then(|get| given(&get.host));
        let tcp = handler.tcp_socket.as_ref().and_then(|tcp| given(&tcp.host));
        [http, tcp]
    };
    let (names, hosts) = pod.offenders(|each| {
        let probes = each.probes.into_iter().flatten().flat_map(|probe| {
            let http = probe.http_get.as_ref().and_then(|get| given(&get.host));
            let tcp = probe.tcp_socket.as_ref().and_then(|tcp| given(&tcp.host));
            [http, tcp]
        });
        let hooks = each.lifecycle.into_iter();
        let hooks = hooks.flat_map(|hooks| [&hooks.post_start, &hooks.pre_stop]);
        let hooks = hooks.flatten().flat_map(of_handler);
        probes.chain(hooks).flatten().collect()
    });
    // Each container is named once, in the order of names.
    let mut names = names;
    names.order();
    names.dedup();
    violation("probe or lifecycle host", !names.is_empty(), || {
        format!(
            "{} {} {} {}",
            containers(&names),
            plural(names.len(), "uses", "use"),
            plural(
                hosts.len(),
                "probe or lifecycle host",
                "probe or lifecycle hosts"
            ),
            quoted(&hosts)
        )
    })
}

pub(super) fn windows_process(pod: &View<'_>) -> Option<Violation> {
    let set = |options: Option<&WindowsSecurityContextOptions>| {
        options.is_some_and(|options| options.host_process == Some(true))
    };
    let of_pod = set(pod.context.and_then(|c| c.windows_options.as_ref()));
    let names = pod.named(|each| set(each.context.and_then(|c| c.windows_options.as_ref())));
    let setters = setters(of_pod, &names);
    violation("hostProcess", !setters.is_empty(), || {
        let setters = setters.join(" and ");
        format!("{setters} must not set securityContext.windowsOptions.hostProcess=true")
    })
}
