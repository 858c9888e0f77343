//! Images that can be fetched from several places.

use std::time::Duration;

use serde_json::{Value, json};

use crate::access::{Relay, certificates, tls};
use crate::fixture::Room;
use crate::proxy::{Deed, Proxy};
use crate::world::{World, assert_layers};

const SIZES: [usize; 2] = [2 << 20, 3 << 20];

/// A registry with an image, and proxies to it as its mirror and as itself.
fn world(name: &str) -> (World, Proxy, Proxy) {
    let world = World::new(name);
    world.push_layers("a:1", &SIZES);
    let (mirror, registry) = (world.proxy(), world.proxy());
    (world, mirror, registry)
}

/// A request for the image of a registry that has a mirror.
fn request(world: &World, mirror: &Proxy, registry: &Proxy) -> Value {
    let at = |proxy: &Proxy| format!("{}/a:1", proxy.address);
    let login = json!([{ "username": "user", "password": "open sesame" }]);
    let sources = json!([{ "name": at(mirror) }, { "name": at(registry), "credentials": login }]);
    world.request(&at(registry), &json!({ "sources": sources }))
}

#[test]
fn a_mirror_that_has_the_image_serves_it_alone() {
    let (world, mirror, registry) = world("mirror");
    let request = request(&world, &mirror, &registry);
    let fetched = world.fetch_by(&request);
    assert_eq!(fetched["failures"], json!([]));
    let name = request["name"].as_str().unwrap();
    assert_layers(&world.import(&fetched, name), &SIZES);
    assert!(mirror.blob_bytes() > 5 << 20, "{}", mirror.blob_bytes());
    assert_eq!(registry.asked().len(), 0);
    // The second time nothing but the head of the manifest is asked for, of the mirror.
    mirror.reset();
    let again = world.fetch_by(&request);
    assert!(again["id"].is_string(), "{again}");
    assert_eq!((mirror.blob_bytes(), registry.asked().len()), (0, 0));
}

#[test]
fn a_mirror_that_fails_in_any_way_costs_no_pull() {
    let (world, mirror, registry) = world("failing");
    let mut request = request(&world, &mirror, &registry);
    let patience = request["patience"].clone();
    let name = request["name"].as_str().unwrap().to_owned();
    type Rule = fn(&crate::proxy::Ask) -> Deed;
    let rules: [(&str, Rule); 7] = [
        ("is not in the registry", |_| {
            Deed::Answer(404, vec![], b"{}".to_vec())
        }),
        ("refuses access", |_| {
            Deed::Answer(403, vec![], b"{}".to_vec())
        }),
        ("answered 500", |_| {
            Deed::Answer(500, vec![], b"{}".to_vec())
        }),
        ("connection", |_| Deed::Hang),
        ("manifest", |_| {
            Deed::Answer(200, vec![], b"garbage".to_vec())
        }),
        ("is damaged", |ask| match ask.is_blob() {
            true => Deed::Corrupt,
            false => Deed::Pass,
        }),
        ("is not in the registry", |ask| match ask.is_blob() {
            true => Deed::Answer(404, vec![], b"{}".to_vec()),
            false => Deed::Pass,
        }),
    ];
    for (expected, rule) in rules {
        mirror.rule(rule);
        request["patience"] = patience.clone();
        if expected == "connection" {
            // Nothing else is to be too late on a busy machine.
            request["patience"]["stall_ms"] = json!(300);
            request["patience"]["answer_ms"] = json!(300);
        }
        let fetched = world.fetch_by(&request);
        let failure = fetched["failures"][0].as_str();
        let failure = failure.unwrap_or_else(|| panic!("{expected}: {fetched}"));
        assert!(failure.contains(expected), "{failure}");
        assert!(
            failure.starts_with(&mirror.address.to_string()),
            "{failure}"
        );
        assert_layers(&world.import(&fetched, &name), &SIZES);
        let store = world.room.open();
        store
            .prune(&std::collections::BTreeSet::new(), true)
            .unwrap();
    }
    // The registry's password is for nobody else.
    let asked = mirror.asked();
    assert!(asked.len() >= 7, "{}", asked.len());
    assert!(
        asked
            .iter()
            .all(|ask| ask.header("authorization").is_none())
    );
}

#[test]
fn what_a_mirror_began_the_registry_continues() {
    let (world, mirror, registry) = world("continued");
    mirror.rule(|ask| match (ask.is_blob(), ask.earlier) {
        (true, 0) => Deed::Cut(1 << 20),
        (true, _) => Deed::Answer(500, vec![], b"{}".to_vec()),
        (false, _) => Deed::Pass,
    });
    // It names its data otherwise than the mirror.
    registry.rule(|ask| match ask.is_blob() {
        true => Deed::Header("ETag", Some("\"another\"".to_owned())),
        false => Deed::Pass,
    });
    let request = request(&world, &mirror, &registry);
    let fetched = world.fetch_by(&request);
    let sent = mirror.blob_bytes() + registry.blob_bytes();
    assert_layers(
        &world.import(&fetched, request["name"].as_str().unwrap()),
        &SIZES,
    );
    let (whole, begun) = (5_u64 << 20, mirror.blob_bytes());
    assert!(begun > 1 << 20, "{begun}");
    assert!(sent * 100 <= whole * 105, "{sent} of {whole} bytes");
}

#[test]
fn an_image_that_is_nowhere_has_an_error_with_all_places() {
    let (world, mirror, registry) = world("nowhere");
    mirror.rule(|_| Deed::Answer(500, vec![], b"{}".to_vec()));
    registry.rule(|_| Deed::Answer(404, vec![], b"{}".to_vec()));
    let (message, hint) = world.refused(&request(&world, &mirror, &registry));
    let expected = format!(
        "manifest `1` is not in the registry `{}`; before that, {}/a:1: ",
        registry.address, mirror.address
    );
    assert!(
        message.starts_with(&expected) && message.contains("answered 500"),
        "{message}"
    );
    assert_eq!(hint, "check the name and the tag");
}

#[test]
fn an_insecure_registry_may_have_any_certificate_or_none() {
    let room = Room::new("insecure");
    certificates(&room);
    let setup = tls(&room, "");
    let world = World::inside(room, &setup);
    world.push_layers("a:1", &SIZES);
    let name = format!("{}/a:1", world.registry);
    let ask = |name: &str, insecure: bool| {
        let sources = json!([{ "name": name, "insecure": insecure }]);
        world.request(name, &json!({ "sources": sources }))
    };
    let (message, _) = world.refused(&ask(&name, false));
    assert!(message.contains("UnknownIssuer"), "{message}");
    assert_layers(
        &world.import(&world.fetch_by(&ask(&name, true)), &name),
        &SIZES,
    );
    // And plain HTTP to another machine.
    let plain = World::new("insecure-plain");
    plain.netns.ip("addr add 10.9.9.9/32 dev lo");
    plain.push_layers("a:1", &SIZES);
    let relay = Relay::start(&plain, "10.9.9.9:5001");
    let name = "10.9.9.9:5001/a:1";
    let sources = json!([{ "name": name, "insecure": true }]);
    let fetched = plain.fetch_by(&plain.request(name, &json!({ "sources": sources })));
    assert_layers(&plain.import(&fetched, name), &SIZES);
    drop(relay);
}

#[test]
fn a_registry_may_have_an_ipv6_address() {
    let world = World::new("ipv6");
    world.push_layers("a:1", &SIZES);
    let proxy = Proxy::start_at(&world.netns, Some(world.registry), "[::1]:0");
    let name = format!("{}/a:1", proxy.address);
    assert!(name.starts_with("[::1]:"), "{name}");
    assert_layers(&world.pull(&name), &SIZES);
}

#[test]
fn a_mirror_that_drips_is_left_for_the_registry() {
    let (world, mirror, registry) = world("drip");
    mirror.rule(|ask| match ask.is_blob() {
        true => Deed::Drip(1, Duration::from_millis(50)),
        false => Deed::Pass,
    });
    let mut request = request(&world, &mirror, &registry);
    request["patience"]["window_ms"] = json!(500);
    let fetched = world.fetch_by(&request);
    let name = request["name"].as_str().unwrap();
    assert_layers(&world.import(&fetched, name), &SIZES);
    assert!(registry.blob_bytes() > 5 << 20);
}
