//! Bad networks and bad servers: a fetch gets what it came for, or fails in bounded time with a clear error.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::proxy::{Ask, Deed, Proxy};
use crate::world::{World, assert_layers};

const SIZES: [usize; 2] = [300_000, 400_000];

fn world(name: &str) -> (World, Proxy, String) {
    let world = World::new(name);
    world.push_layers("a:1", &SIZES);
    let proxy = world.proxy();
    let name = format!("{}/a:1", proxy.address);
    (world, proxy, name)
}

fn layers(
    deed: impl Fn(&Ask) -> Deed + Send + Sync + 'static,
) -> impl Fn(&Ask) -> Deed + Send + Sync {
    move |ask| match ask.is_blob() {
        true => deed(ask),
        false => Deed::Pass,
    }
}

fn status(status: u16, headers: Vec<(&'static str, String)>) -> Deed {
    let body = br#"{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}"#;
    Deed::Answer(status, headers, body.to_vec())
}

#[test]
fn a_busy_registry_is_asked_again_when_it_says() {
    let (world, proxy, name) = world("busy");
    proxy.rule(|ask| match ask.earlier {
        0 if ask.path != "/v2/" => status(429, vec![("Retry-After", "1".to_owned())]),
        1 if ask.is_blob() => status(503, vec![("Retry-After", "0".to_owned())]),
        _ => Deed::Pass,
    });
    assert_layers(&world.pull(&name), &SIZES);
}

#[test]
fn a_registry_that_stays_busy_is_left_alone() {
    let (world, proxy, name) = world("busier");
    let request = world.request(&name, &json!({}));
    proxy.rule(|_| status(429, vec![("Retry-After", "3600".to_owned())]));
    let (message, hint) = world.refused(&request);
    assert!(
        message.ends_with("the server answered 429 and asks to wait 3600s"),
        "{message}"
    );
    assert!(hint.starts_with("try again later"), "{hint}");
    proxy.reset();
    proxy.rule(|_| status(503, vec![("Retry-After", "0".to_owned())]));
    let (message, _) = world.refused(&request);
    assert!(message.contains("answered 503"), "{message}");
    let asked = proxy
        .asked()
        .iter()
        .filter(|ask| ask.path.contains("manifests"))
        .count();
    assert_eq!(asked, 4, "the first time, and three more");
    proxy.rule(|_| Deed::Pass);
    assert_layers(&world.pull(&name), &SIZES);
    proxy.reset();
    proxy.rule(|_| status(503, vec![("Retry-After", "0".to_owned())]));
    world.refused(&request);
    let asked = proxy.asked();
    let asked = asked.iter().filter(|ask| ask.path.contains("manifests"));
    let methods: Vec<&str> = asked.map(|ask| ask.method.as_str()).collect();
    assert_eq!(methods, ["HEAD"; 4], "not once more to look at it");
}

#[test]
fn headers_that_say_nothing_or_something_wrong_do_no_harm() {
    for (what, header, value) in [
        ("type", "Content-Type", Some("text/html")),
        ("notype", "Content-Type", None),
        ("digest", "Docker-Content-Digest", None),
        ("etag", "ETag", None),
    ] {
        let (world, proxy, name) = world(what);
        proxy.rule(move |ask| match (ask.is_blob(), ask.earlier) {
            (true, 0) => Deed::Cut(100_000),
            _ => Deed::Header(header, value.map(str::to_owned)),
        });
        assert_layers(&world.pull(&name), &SIZES);
    }
}

#[test]
fn a_manifest_that_is_not_the_one_announced_is_refused() {
    let (world, proxy, name) = world("announced");
    let other = format!("sha256:{}", "0".repeat(64));
    proxy.rule(move |ask| match ask.path.contains("manifests") {
        true => Deed::Header("Docker-Content-Digest", Some(other.clone())),
        false => Deed::Pass,
    });
    let (message, _) = world.refused(&world.request(&name, &json!({})));
    assert!(
        message.contains("manifest `1` is damaged: its digest is"),
        "{message}"
    );
    proxy.rule(|_| Deed::Header("Docker-Content-Digest", Some("nonsense".to_owned())));
    let (message, _) = world.refused(&world.request(&name, &json!({})));
    assert!(message.contains("`nonsense` is no digest"), "{message}");
}

#[test]
fn lies_about_lengths_and_endless_answers_end_in_bounded_time() {
    let (world, proxy, name) = world("lies");
    let request = world.request(
        &name,
        &json!({ "patience": { "stall_ms": 2000, "window_ms": 2000 } }),
    );
    // The config, which is a blob, too, is kept from here on: what follows is about layers.
    let blobs = AtomicUsize::new(0);
    proxy.rule(layers(move |_| {
        match blobs.fetch_add(1, Ordering::SeqCst) {
            0 => Deed::Pass,
            _ => status(404, vec![]),
        }
    }));
    world.refused(&request);
    let begun = Instant::now();
    type Case = (&'static str, fn(&Ask) -> Deed, &'static str);
    let cases: [Case; 9] = [
        (
            "a blob announced longer",
            |ask| match ask.is_blob() {
                true => Deed::Header("Content-Length", Some("99999999999".to_owned())),
                false => Deed::Pass,
            },
            "is announced with 99999999999 bytes, expected",
        ),
        (
            "a blob announced shorter",
            |ask| match ask.is_blob() {
                true => Deed::Header("Content-Length", Some("5".to_owned())),
                false => Deed::Pass,
            },
            "bytes, expected",
        ),
        (
            "a manifest announced huge",
            |ask| match ask.path.contains("manifests") {
                true => Deed::Header("Content-Length", Some("99999999999".to_owned())),
                false => Deed::Pass,
            },
            "manifest `1` is longer than 4194304 bytes",
        ),
        (
            "an endless manifest",
            |ask| match ask.path.contains("manifests") {
                true => Deed::Endless,
                false => Deed::Pass,
            },
            "manifest `1` is longer than 4194304 bytes",
        ),
        (
            "an endless head",
            |ask| match ask.path.contains("manifests") {
                true => Deed::Header("X-Long", Some("x".repeat(100_000))),
                false => Deed::Pass,
            },
            "the head of the answer is longer than",
        ),
        (
            "drops of a blob",
            |ask| match ask.is_blob() {
                true => Deed::Drip(10, Duration::from_millis(5)),
                false => Deed::Pass,
            },
            "fewer than 16384 bytes arrived in 2s",
        ),
        (
            "silence",
            |ask| match ask.path.contains("manifests") {
                true => Deed::Hang,
                false => Deed::Pass,
            },
            "in time",
        ),
        (
            "redirects in a circle",
            |ask| match ask.path.contains("manifests") {
                true => Deed::Answer(307, vec![("Location", ask.path.clone())], Vec::new()),
                false => Deed::Pass,
            },
            "more than 10 redirects",
        ),
        (
            "a redirect to nowhere",
            |ask| match ask.path.contains("manifests") {
                true => Deed::Answer(307, Vec::new(), Vec::new()),
                false => Deed::Pass,
            },
            "a redirect without a location",
        ),
    ];
    for (what, rule, part) in cases {
        proxy.rule(rule);
        let (message, _) = world.refused(&request);
        assert!(message.contains(part), "{what}: {message}");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(90),
        "{:?}",
        begun.elapsed()
    );
    // A blob is complete when it has its size, whatever follows.
    proxy.rule(layers(|_| Deed::Endless));
    assert_layers(&world.pull(&name), &SIZES);
}

#[test]
fn a_relative_location_is_followed() {
    let (world, proxy, name) = world("relative");
    proxy.rule(layers(|ask| match ask.path.ends_with("?again") {
        true => Deed::Pass,
        false => Deed::Answer(307, vec![("Location", "?again".to_owned())], Vec::new()),
    }));
    assert_layers(&world.pull(&name), &SIZES);
}

#[test]
fn a_registry_that_is_not_there_is_reported_by_its_address() {
    let (world, _, _) = world("nobody");
    let (message, _) = world.refused(&world.request("127.0.0.1:9/a:1", &json!({})));
    assert!(
        message.contains("https://127.0.0.1:9/v2/a/manifests/1: Connection refused"),
        "{message}"
    );
    let (message, _) =
        world.refused(&world.request(&format!("{}/none:1", world.registry), &json!({})));
    assert!(
        message.contains("manifest `1` is not in the registry"),
        "{message}"
    );
    assert!(
        message.contains("manifest unknown"),
        "the registry's own words: {message}"
    );
}

#[test]
fn nothing_is_downloaded_that_does_not_fit_the_disk() {
    let (world, proxy, name) = world("disk");
    let request = world.request(&name, &json!({ "keep_bytes": u64::MAX / 2 }));
    let (message, hint) = world.refused(&request);
    assert!(
        message.starts_with("no space left for images on"),
        "{message}"
    );
    assert!(hint.contains("coracle image prune"), "{hint}");
    assert!(proxy.blob_bytes() < 10_000, "only the config");
}

#[test]
fn a_bad_request_shows_no_password() {
    let (world, _, name) = world("request");
    let mut request = world.request(&name, &json!({}));
    request["sources"][0]["credentials"] =
        json!([{ "username": "u", "password": "hunter2", "more": "hunter2" }]);
    let (message, _) = world.refused(&request);
    assert!(
        message.contains("line 1, column") && !message.contains("hunter2"),
        "{message}"
    );
}
