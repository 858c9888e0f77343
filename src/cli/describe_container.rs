//! The containers of a pod, for `coracle describe pod`.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerState, ContainerStatus, PodSpec,
};

use super::describe::{Page, text, time};
use super::table::one_line;

/// Adds a block of containers of a pod, each with its status.
pub(super) fn containers(
    page: &mut Page,
    (title, pod): (&str, &PodSpec),
    all: &[Container],
    statuses: &[ContainerStatus],
) {
    let _ = writeln!(page.0, "{title}:");
    for container in all {
        let status = statuses.iter().find(|s| s.name == container.name);
        let _ = writeln!(page.0, "  {}:", one_line(&container.name));
        if let Some(status) = status {
            page.line(
                4,
                "Container ID",
                status.container_id.as_deref().unwrap_or(""),
            );
        }
        page.line(4, "Image", text(container.image.as_ref()));
        if let Some(status) = status {
            page.line(4, "Image ID", &status.image_id);
        }
        ports(page, container);
        for (title, words) in [("Command", &container.command), ("Args", &container.args)] {
            if let Some(words) = words.as_ref().filter(|w| !w.is_empty()) {
                let _ = writeln!(page.0, "    {title}:");
                for line in words.iter().flat_map(|word| word.lines()) {
                    let _ = writeln!(page.0, "      {}", one_line(line));
                }
            }
        }
        if let Some(status) = status {
            state(page, "State", status.state.as_ref());
            if status
                .last_state
                .as_ref()
                .is_some_and(|s| s.terminated.is_some())
            {
                state(page, "Last State", status.last_state.as_ref());
            }
            page.line(4, "Ready", if status.ready { "True" } else { "False" });
            page.line(4, "Restart Count", status.restart_count);
        }
        limits(page, container);
        super::describe_security::lines(page, pod.security_context.as_ref(), container, status);
        for (title, probe) in [
            ("Liveness", &container.liveness_probe),
            ("Readiness", &container.readiness_probe),
            ("Startup", &container.startup_probe),
        ] {
            if let Some(probe) = probe {
                page.line(4, title, super::describe_probe::line(probe));
            }
        }
        environment(page, container);
    }
}

/// Adds the ports as kubectl does: plural for several, and a second line for host ports.
fn ports(page: &mut Page, container: &Container) {
    let ports: Vec<_> = container.ports.iter().flatten().collect();
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let own = ports.iter().map(|port| (port.container_port, port));
    let host = ports.iter().map(|port| (port.host_port.unwrap_or(0), port));
    let joined = |list: Vec<String>| match list.is_empty() {
        true => "<none>".to_owned(),
        false => list.join(", "),
    };
    let several = if ports.len() > 1 { "s" } else { "" };
    let own = own.map(|(number, port)| format!("{number}/{}", protocol(port)));
    let host = host.map(|(number, port)| match port.host_ip.as_deref() {
        Some(ip) if !ip.is_empty() && number != 0 => {
            format!("{number}/{} on {ip}", protocol(port))
        }
        _ => format!("{number}/{}", protocol(port)),
    });
    page.line(4, &format!("Port{several}"), joined(own.collect()));
    page.line(4, &format!("Host Port{several}"), joined(host.collect()));
}

fn state(page: &mut Page, title: &str, state: Option<&ContainerState>) {
    let state = state.cloned().unwrap_or_default();
    if let Some(running) = state.running {
        page.line(4, title, "Running");
        page.line(6, "Started", time(running.started_at.as_ref()));
    } else if let Some(ended) = state.terminated {
        page.line(4, title, "Terminated");
        if let Some(reason) = &ended.reason {
            page.line(6, "Reason", reason);
        }
        if let Some(message) = ended.message.as_ref().filter(|m| !m.is_empty()) {
            page.line(6, "Message", message.trim_end());
        }
        page.line(6, "Exit Code", ended.exit_code);
        if let Some(signal) = ended.signal.filter(|s| *s > 0) {
            page.line(6, "Signal", signal);
        }
        page.line(6, "Started", time(ended.started_at.as_ref()));
        page.line(6, "Finished", time(ended.finished_at.as_ref()));
    } else {
        page.line(4, title, "Waiting");
        let waiting = state.waiting.unwrap_or_default();
        if let Some(reason) = &waiting.reason {
            page.line(6, "Reason", reason);
        }
        if let Some(message) = &waiting.message {
            page.line(6, "Message", message);
        }
    }
}

fn limits(page: &mut Page, container: &Container) {
    let resources = container.resources.clone().unwrap_or_default();
    for (title, map) in [
        ("Limits", resources.limits),
        ("Requests", resources.requests),
    ] {
        let Some(map) = map.filter(|m| !m.is_empty()) else {
            continue;
        };
        let _ = writeln!(page.0, "    {title}:");
        for (name, quantity) in map {
            page.line(6, &name, quantity.0);
        }
    }
}

fn environment(page: &mut Page, container: &Container) {
    match container.env.as_ref().filter(|e| !e.is_empty()) {
        None => page.line(4, "Environment", "<none>"),
        Some(env) => {
            page.0.push_str("    Environment:\n");
            for one in env {
                let value = match (&one.value, &one.value_from) {
                    (_, Some(_)) => "<set from a reference>",
                    (value, None) => value.as_deref().unwrap_or(""),
                };
                page.line(6, &one.name, value);
            }
        }
    }
    match container.volume_mounts.as_ref().filter(|m| !m.is_empty()) {
        None => page.line(4, "Mounts", "<none>"),
        Some(mounts) => {
            page.0.push_str("    Mounts:\n");
            for mount in mounts {
                let access = if mount.read_only == Some(true) {
                    "ro"
                } else {
                    "rw"
                };
                let path = mount.sub_path.as_ref().map(|p| format!(",path=\"{p}\""));
                let path = path.unwrap_or_default();
                let mount = format!("{} from {}", mount.mount_path, mount.name);
                let line = one_line(&format!("{mount} ({access}{path})"));
                let _ = writeln!(page.0, "      {line}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize as _;
    use serde_json::{Value, json};

    #[test]
    fn what_a_container_chose_cannot_control_the_terminal() {
        let container = json!({ "name": "c", "image": "\u{1b}i", "command": ["\u{1b}c", "a\nb"],
            "args": ["\u{1b}a"], "env": [{ "name": "E\u{1b}", "value": "\u{1b}e\nf" }],
            "volumeMounts": [{ "name": "v", "mountPath": "/\u{1b}m", "subPath": "\u{1b}p" }] });
        let status = json!({ "name": "c", "image": "i", "imageID": "1", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": 1, "message": "\u{1b}t\nu" } } });
        let mut shown = Page(String::new());
        let container = Container::deserialize(&container).unwrap();
        let status = ContainerStatus::deserialize(&status).unwrap();
        let pod = PodSpec::default();
        containers(&mut shown, ("Containers", &pod), &[container], &[status]);
        assert!(!shown.0.contains('\u{1b}'), "{}", shown.0);
        for line in [
            "      \\u{1b}c",
            "      b",
            "      \\u{1b}a",
            "      E\\u{1b}:          \\u{1b}e",
            "                        f",
            "      Message:          \\u{1b}t",
            "                        u",
            "      /\\u{1b}m from v (rw,path=\"\\u{1b}p\")",
        ] {
            assert!(
                shown.0.lines().any(|shown| shown == line),
                "{line}: {}",
                shown.0
            );
        }
    }

    #[test]
    fn ports_of_the_node_are_described_beside_the_containers() {
        let port = |port: Value| {
            let container = json!({ "name": "c", "ports": port });
            let mut shown = Page(String::new());
            ports(&mut shown, &Container::deserialize(&container).unwrap());
            shown.0
        };
        for (manifest, expected) in [
            (
                json!([]),
                "    Port:             <none>\n    Host Port:        <none>\n",
            ),
            (
                json!([{ "containerPort": 80 }, { "containerPort": 53, "protocol": "UDP", "hostPort": 5353 }]),
                "    Ports:            80/TCP, 53/UDP\n    Host Ports:       0/TCP, 5353/UDP\n",
            ),
            (
                json!([{ "containerPort": 80, "hostPort": 8080, "hostIP": "192.0.2.1" }]),
                "    Port:             80/TCP\n    Host Port:        8080/TCP on 192.0.2.1\n",
            ),
        ] {
            assert_eq!(port(manifest), expected);
        }
    }
}
