//! The choice of ranges, and its errors.

use super::*;

fn used(list: &[(&str, &str)]) -> Vec<Used> {
    list.iter()
        .map(|(net, by)| Used {
            net: net.parse().expect("a range"),
            by: (*by).to_owned(),
        })
        .collect()
}

fn nets(list: &[&str]) -> Vec<IpNet> {
    list.iter()
        .map(|net| net.parse().expect("a range"))
        .collect()
}

/// `pods | services` or the error.
fn chosen(pods: &[&str], services: &[&str], ipv6: bool, others: &[(&str, &str)]) -> String {
    let (pods, services) = (nets(pods), nets(services));
    let wanted = Wanted {
        pods: &pods,
        services: &services,
        ipv6,
        seed: "machine coracle0",
    };
    match choose(&wanted, &used(others)) {
        Ok(ranges) => {
            let list = |nets: &[IpNet]| {
                let texts: Vec<String> = nets.iter().map(ToString::to_string).collect();
                texts.join(" ")
            };
            format!("{} | {}", list(&ranges.pods), list(&ranges.services))
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_first_free_range_is_taken() {
    for (others, expected) in [
        (&[][..], "10.77.0.0/20 | 10.77.16.0/20"),
        (
            &[("10.77.3.0/24", "route")],
            "10.201.64.0/20 | 10.201.80.0/20",
        ),
        // The second half only: pods stay, services move.
        (
            &[("10.77.20.1/32", "address")],
            "10.77.0.0/20 | 10.201.80.0/20",
        ),
        (
            &[("10.0.0.0/8", "route")],
            "172.28.96.0/20 | 172.28.112.0/20",
        ),
        // A VPN that takes all addresses in two halves.
        (&[("0.0.0.0/1", "route")], "10.77.0.0/20 | 10.77.16.0/20"),
    ] {
        assert_eq!(chosen(&[], &[], false, others), expected, "{others:?}");
    }
}

#[test]
fn ipv6_ranges_are_unique_local_and_belong_to_the_machine() {
    let both = chosen(&[], &[], true, &[]);
    let parts: Vec<&str> = both
        .split([' ', '|'])
        .filter(|part| !part.is_empty())
        .collect();
    assert!(
        parts[1].starts_with("fd") && parts[1].ends_with("::/64"),
        "{both}"
    );
    assert!(
        parts[3].starts_with("fd") && parts[3].ends_with("/112"),
        "{both}"
    );
    let other = chosen(&[], &[], true, &[(parts[1], "route")]);
    assert_ne!(both, other);
}

#[test]
fn given_ranges_are_used_as_they_are_or_refused_with_both_names() {
    let eight = ("10.0.0.0/8", "route 10.0.0.0/8 dev eth0");
    for (pods, services, ipv6, others, expected) in [
        (
            &["10.5.0.9/24", "fd00:5::/64"][..],
            &["10.6.0.0/24", "fd00:6::/112"][..],
            true,
            &[][..],
            "10.5.0.0/24 fd00:5::/64 | 10.6.0.0/24 fd00:6::/112",
        ),
        (
            &["fd00:5::/64"],
            &["fd00:6::/112"],
            true,
            &[],
            "fd00:5::/64 | fd00:6::/112",
        ),
        (
            &["10.5.0.0/24", "fd00:5::/64"],
            &[],
            false,
            &[],
            "10.5.0.0/24 | 10.77.16.0/20",
        ),
        (
            &["10.0.0.0/16"],
            &[],
            false,
            &[eight],
            "pod CIDR 10.0.0.0/16 collides with route 10.0.0.0/8 dev eth0; choose another with `--pod-cidr` or `podCIDR`",
        ),
        (
            &["10.5.0.0/24"],
            &["10.5.0.0/25"],
            false,
            &[],
            "service CIDR 10.5.0.0/25 collides with pod CIDR 10.5.0.0/24; choose another with `--service-cidr` or `serviceCIDR`",
        ),
        (
            &["10.5.0.0/24", "10.6.0.0/24"],
            &[],
            false,
            &[],
            "two ranges of one family: 10.5.0.0/24 and 10.6.0.0/24; give at most one for IPv4 and one for IPv6",
        ),
        (
            &["10.5.0.0/31"],
            &[],
            false,
            &[],
            "pod CIDR 10.5.0.0/31 is too small: it must have room for 4 addresses",
        ),
        (
            &["fd00:5::/64"],
            &[],
            false,
            &[],
            "pod CIDR fd00:5::/64 is IPv6, which is switched off on this node",
        ),
    ] {
        assert_eq!(chosen(pods, services, ipv6, others), expected);
    }
}

#[test]
fn if_everything_is_in_use_the_first_collision_is_named() {
    let others = [
        ("10.0.0.0/8", "route 10.0.0.0/8 dev tun0"),
        ("172.16.0.0/12", "route 172.16.0.0/12 dev tun0"),
        ("192.168.0.0/16", "route 192.168.0.0/16 dev tun0"),
    ];
    assert_eq!(
        chosen(&[], &[], false, &others),
        "no range for pod CIDR is free: 10.77.0.0/20 collides with route 10.0.0.0/8 dev tun0, and so does every \
         other one; set one with `--pod-cidr` or `podCIDR`"
    );
}
