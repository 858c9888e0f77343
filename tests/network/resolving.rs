//! Name resolution by the resolvers that programs use: busybox, glibc, musl.

use std::net::{IpAddr, Ipv4Addr};

use crate::common::shell_pod;
use crate::world::*;

/// A pod that has the three resolvers.
fn resolver_pod(name: &str, more: &str) -> String {
    shell_pod(name, "exec sleep 1000", more, "")
        .replace("image: busybox:test", "image: resolvers:test")
}

fn world(resolv_conf: Option<&'static str>) -> World {
    let world = World::with(Plan {
        images: &[Image::Resolvers],
        resolv_conf,
        ..Plan::default()
    });
    world
        .agent
        .write("client.yaml", &resolver_pod("client", ""));
    world.agent.wait_running("client");
    world
}

/// Runs each resolver for a name until all of them print `wanted`.
fn all_find(world: &World, name: &str, wanted: &str) {
    // busybox's nslookup uses the name as it is, without a search list.
    let whole = if name.contains(".cluster.local") || name.contains(".test") {
        Some(name)
    } else {
        None
    };
    let mut commands = vec![vec!["getent", "ahosts", name], vec!["musl-getent", name]];
    commands.extend(whole.map(|name| vec!["busybox", "nslookup", name]));
    for command in commands {
        wait_for(&format!("{command:?} -> {wanted}"), || {
            let (_, said) = exec(&world.agent, "client", &command);
            if said.contains(wanted) {
                Ok(())
            } else {
                Err(said)
            }
        });
    }
}

#[test]
fn every_resolver_finds_pods_and_services_by_short_and_long_names() {
    let world = world(None);
    let other = resolver_pod("db", "  hostname: db-0\n  subdomain: sql\n");
    let other = other.replace("  name: db\n", "  name: db\n  labels: {app: sql}\n");
    world.agent.write("db.yaml", &other);
    let ips = addresses(&world.agent.wait_running("db"));
    let services = "apiVersion: v1\nkind: Service\nmetadata: {name: sql}\nspec:\n  clusterIP: None\n  ipFamilyPolicy: PreferDualStack\n  selector: {app: \
                    sql}\n  ports: [{port: 5432}]\n";
    world.agent.write("sql.yaml", services);
    for ip in &ips {
        let ip = ip.to_string();
        all_find(&world, "db.default.pod.cluster.local", &ip);
        all_find(&world, "sql", &ip);
        all_find(&world, "sql.default", &ip);
        all_find(&world, "sql.default.svc.cluster.local", &ip);
        all_find(&world, "db-0.sql", &ip);
        all_find(&world, "db-0.sql.default.svc.cluster.local", &ip);
    }
}

#[test]
fn every_resolver_finds_aliases_and_the_node() {
    let world = world(None);
    let names = "coracle.dev/aliases: \"app_db, chat.printer.test\"";
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: sql\n  annotations: {{{names}}}\nspec:\n  clusterIP: None\n  selector: \
         {{app: sql}}\n"
    );
    let pod = resolver_pod("db", "");
    let pod = pod.replace("  name: db\n", "  name: db\n  labels: {app: sql}\n");
    world
        .agent
        .write("db.yaml", &format!("{pod}---\n{service}"));
    let ip = addresses(&world.agent.wait_running("db"))[0].to_string();
    for name in ["sql", "app_db"] {
        all_find(&world, name, &ip);
    }
    let dots = "chat.printer.test";
    for command in [&["getent", "ahosts", dots][..], &["musl-getent", dots]] {
        let (_, said) = exec(&world.agent, "client", command);
        assert!(said.contains(&ip), "{command:?}: {said}");
    }
    // The alias does not hide its domain.
    let _server = NameServer::start(&world.remote, "printer.test", "192.0.2.99");
    all_find(&world, "printer.test", "192.0.2.99");
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    serve_on(world.node(), "node", &any, 7070);
    for name in ["host.containers.internal", "host.docker.internal"] {
        let (_, said) = exec(&world.agent, "client", &["busybox", "nc", name, "7070"]);
        assert!(said.starts_with("node "), "{name}: {said}");
    }
}

#[test]
fn other_names_are_forwarded_to_the_nodes_resolver_and_pod_names_work_without_it() {
    let world = world(None);
    let server = NameServer::start(&world.remote, "printer.test", "192.0.2.99");
    all_find(&world, "printer.test", "192.0.2.99");
    drop(server);
    let ask = |name: &str| exec(&world.agent, "client", &["getent", "ahosts", name]);
    assert!(
        !ask("printer.test").0,
        "the name cannot be resolved without the resolver"
    );
    all_find(
        &world,
        "client.default.pod.cluster.local",
        &addresses(&world.agent.pod("client"))[0].to_string(),
    );
    let _server = NameServer::start(&world.remote, "printer.test", "192.0.2.98");
    all_find(&world, "printer.test", "192.0.2.98");
}

#[test]
fn on_a_node_without_resolvers_an_unknown_name_fails_at_once() {
    let world = world(Some("# none\n"));
    let start = std::time::Instant::now();
    assert!(
        !exec(
            &world.agent,
            "client",
            &["getent", "ahosts", "printer.test"]
        )
        .0
    );
    assert!(
        start.elapsed() < std::time::Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn names_are_resolved_again_after_an_agent_restart() {
    let world = world(None);
    let ip = addresses(&world.agent.pod("client"))[0].to_string();
    all_find(&world, "client.default.pod.cluster.local", &ip);
    world.agent.kill_and_restart();
    all_find(&world, "client.default.pod.cluster.local", &ip);
}

#[test]
fn names_are_resolved_even_if_a_program_listens_on_port_53_of_all_addresses() {
    let world = World::with(Plan {
        images: &[Image::Resolvers],
        ..Plan::default()
    });
    let _server = NameServer::start(world.node(), "printer.test", "192.0.2.99");
    world
        .agent
        .write("client.yaml", &resolver_pod("client", ""));
    let ip = addresses(&world.agent.wait_running("client"))[0].to_string();
    all_find(&world, "client.default.pod.cluster.local", &ip);
}

#[test]
fn remote_hosts_get_no_answers() {
    let world = world(None);
    let text = exec(&world.agent, "client", &["cat", "/etc/resolv.conf"]).1;
    let server = text
        .lines()
        .find_map(|line| line.strip_prefix("nameserver "))
        .expect("a server");
    world
        .remote
        .ip(&format!("route add {server}/32 via {NODE4}"));
    let name = "client.default.pod.cluster.local";
    let output = world
        .remote
        .output("dig", &["+time=1", "+tries=1", &format!("@{server}"), name]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!said.contains("status: NOERROR"), "{said}");
}
