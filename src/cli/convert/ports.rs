//! `ports` and `expose`: what of a container is reached from outside.

use super::tree::{Entries, items, number, scalar, set, set_text, text, word};
use super::work::Work;
use crate::spec::names::port_name;
use crate::spec::value::Value;

/// Limit of ports of one container.
const MAX_PORTS: usize = 500;

/// A published port, or a range.
struct Published<'a> {
    target: (u16, u16),
    host: Option<(u16, u16)>,
    ip: Option<&'a str>,
    protocol: String,
    name: Option<&'a str>,
}

/// The container's ports. `unpublished` says why nothing of it can be published.
pub(super) fn ports(work: &Work<'_>, service: &Value, unpublished: Option<&str>) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for item in items(service.get("ports")) {
        let written = word(item).or_else(|| scalar(item, "target"));
        let written = written.unwrap_or_default();
        let lost = |all: &mut Vec<Value>, why: &str| {
            work.lost(all, format_args!("port {written}: {why}"));
        };
        let Some(mut port) = published(item) else {
            work.lost(&mut all, format_args!("port {written}"));
            continue;
        };
        if let Some(why) = unpublished {
            lost(&mut all, why);
            continue;
        }
        if port.host.is_none() {
            lost(
                &mut all,
                "no port of the node is named; choose a `hostPort`",
            );
        }
        if scalar(item, "app_protocol").is_some() {
            lost(&mut all, "app_protocol");
        }
        let taken = |name: &str| all.iter().any(|port| scalar(port, "name") == Some(name));
        let invalid = |name: &str| port_name(name).is_some() || taken(name);
        if let Some(name) = port.name.take_if(|name| invalid(name)) {
            work.lost(&mut all, format_args!("port {written}: the name {name}"));
        }
        add(&mut all, &port, &lost);
    }
    for item in items(service.get("expose")) {
        let Some(port) = word(item).and_then(short) else {
            continue;
        };
        let protocol = text(port.protocol.to_uppercase());
        let is_there = |known: &Value| {
            let same = known.get("containerPort") == Some(&number(port.target.0));
            same && known.get("protocol").is_none_or(|p| *p == protocol)
        };
        if port.target.0 == port.target.1 && !all.iter().any(is_there) {
            all.push(entry(&port, port.target.0, None));
        }
    }
    all
}

/// Whether a container says that it listens on a port below 1024.
pub(super) fn has_low(service: &Value) -> bool {
    let is_low = |port: Option<Published<'_>>| port.is_some_and(|port| port.target.0 < 1024);
    let published = |item: &Value| is_low(published(item));
    let exposed = |item: &Value| is_low(word(item).and_then(short));
    items(service.get("ports")).iter().any(published)
        || items(service.get("expose")).iter().any(exposed)
}

fn add(all: &mut Vec<Value>, port: &Published<'_>, lost: &dyn Fn(&mut Vec<Value>, &str)) {
    let (first, last) = port.target;
    let count = usize::from(last - first) + 1;
    if all.len() + count > MAX_PORTS {
        return lost(all, &format!("more than {MAX_PORTS} ports"));
    }
    if let Some((host, host_last)) = port.host
        && usize::from(host_last - host) + 1 != count
    {
        if count != 1 {
            return lost(all, "ranges of different lengths");
        }
        lost(all, "the first of the range is taken");
    }
    for target in first..=last {
        let host = port.host.map(|(host, _)| host + (target - first));
        let new = entry(port, target, host);
        if !all.contains(&new) {
            all.push(new);
        }
    }
}

fn entry(port: &Published<'_>, target: u16, host: Option<u16>) -> Value {
    let mut entry = Entries::new();
    // Each has a name of its own.
    if let Some(name) = port.name.filter(|_| port.target.0 == port.target.1) {
        set_text(&mut entry, "name", name);
    }
    set(&mut entry, "containerPort", number(target));
    if let Some(host) = host {
        set(&mut entry, "hostPort", number(host));
    }
    if let Some(ip) = port.ip.filter(|_| host.is_some()) {
        set_text(&mut entry, "hostIP", ip);
    }
    if port.protocol != "tcp" {
        set_text(&mut entry, "protocol", &port.protocol.to_uppercase());
    }
    Value::Map(entry)
}

fn published(item: &Value) -> Option<Published<'_>> {
    if let Some(written) = word(item) {
        return short(written);
    }
    let mut port = of_parts(
        scalar(item, "target")?,
        scalar(item, "published"),
        scalar(item, "host_ip"),
        scalar(item, "protocol"),
    )?;
    port.name = scalar(item, "name");
    Some(port)
}

/// `[[IP:][HOST]:]CONTAINER[/PROTOCOL]`, with ranges.
fn short(text: &str) -> Option<Published<'_>> {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let (rest, target) = ports.rsplit_once(':').unwrap_or(("", ports));
    let (ip, host) = rest.rsplit_once(':').unwrap_or(("", rest));
    of_parts(target, Some(host), Some(ip), Some(protocol))
}

fn of_parts<'a>(
    target: &str,
    host: Option<&str>,
    ip: Option<&'a str>,
    protocol: Option<&str>,
) -> Option<Published<'a>> {
    let protocol = protocol.unwrap_or("tcp").to_ascii_lowercase();
    if !["tcp", "udp", "sctp"].contains(&&*protocol) {
        return None;
    }
    Some(Published {
        target: range(target)?,
        host: match host.unwrap_or_default() {
            "" => None,
            host => Some(range(host)?),
        },
        ip: ip.and_then(address),
        protocol,
        name: None,
    })
}

/// The address, unless it stands for all of them.
fn address(text: &str) -> Option<&str> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let any = ["", "0.0.0.0", "::", "*"].contains(&bare);
    (!any).then_some(bare)
}

fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (0 < first && first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms_are_read() {
        let said = |port: Published<'_>| {
            let ip = port.ip.unwrap_or_default();
            format!("{ip} {:?} {:?} {}", port.host, port.target, port.protocol)
        };
        for (given, expected) in [
            ("80", Some(" None (80, 80) tcp")),
            ("8080:80", Some(" Some((8080, 8080)) (80, 80) tcp")),
            (
                "127.0.0.1:8001:8002/udp",
                Some("127.0.0.1 Some((8001, 8001)) (8002, 8002) udp"),
            ),
            ("127.0.0.1::80", Some("127.0.0.1 None (80, 80) tcp")),
            ("0.0.0.0:1:2", Some(" Some((1, 1)) (2, 2) tcp")),
            ("[::1]:1:2", Some("::1 Some((1, 1)) (2, 2) tcp")),
            (
                "9090-9091:8080-8081",
                Some(" Some((9090, 9091)) (8080, 8081) tcp"),
            ),
            ("0", None),
            ("a:80", None),
            ("80/icmp", None),
            ("9-8:9-8", None),
            ("70000", None),
            ("", None),
        ] {
            assert_eq!(short(given).map(said).as_deref(), expected, "{given}");
        }
    }
}
