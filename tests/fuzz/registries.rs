//! What registries answer, and what administrators write about them and about images: mutations of the kept inputs.

use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;

use super::mutate::{self, Random};
use super::{Entrance, corpus, fuzz, targets};

type Seeds = Vec<Vec<u8>>;

fn seeds(name: &str) -> Seeds {
    let seeds: Seeds = corpus(name).into_iter().map(|(_, bytes)| bytes).collect();
    assert!(!seeds.is_empty(), "no kept inputs of {name}");
    seeds
}

/// A change of a seed: of its tree if it is JSON, else of its bytes.
fn changed(random: &mut Random, seeds: &Seeds, words: &[&str]) -> Vec<u8> {
    let seed = &seeds[random.below(seeds.len())];
    let tree = serde_json::from_slice::<Value>(seed).ok();
    let bytes = match tree.filter(|tree| tree.is_object() && random.once_in(2)) {
        Some(tree) => mutate::tree(random, &tree).to_string().into_bytes(),
        None => return mutate::bytes(random, seed, words),
    };
    match random.once_in(4) {
        true => mutate::bytes(random, &bytes, words),
        false => bytes,
    }
}

/// Fuzzes a target that tells valid inputs from others; some of both must occur.
fn run(name: &'static str, share: u64, words: &[&str], target: fn(&[u8]) -> bool) {
    let entrance = Entrance {
        name,
        share,
        most_bytes: 16 << 20,
        most_time: Duration::from_secs(2),
    };
    let seeds = LazyLock::new(|| seeds(name));
    let (mut good, mut bad) = (0, 0);
    let make = |random: &mut Random| changed(random, &seeds, words);
    fuzz(entrance, make, |input| match target(input) {
        true => good += 1,
        false => bad += 1,
    });
    let many = super::number("CORACLE_FUZZ_ONLY").is_none();
    assert!(good > 0 && bad > 0 || !many, "{good} valid, {bad} others");
}

#[test]
fn headers() {
    let words = [
        "Bearer ", "Basic ", "realm=", "\"", "\\", ", ", "//", "http://", "?", "#", "[", "@",
    ];
    run("headers", 1500, &words, targets::headers);
}

#[test]
fn documents() {
    let words = [
        "\"manifests\":",
        "\"sha256:",
        "[[[[",
        "{\"a\":",
        "1e999",
        "\\u0000",
    ];
    run("documents", 800, &words, targets::documents);
}

#[test]
fn image_names() {
    let words = [
        "/",
        ":",
        "@",
        "sha256:",
        "[::1]",
        "..",
        "localhost",
        "//",
        "A",
    ];
    run("image_names", 2000, &words, targets::image_names);
}

#[test]
fn registries_conf() {
    let words = [
        "[[registry]]\n",
        "[[registry.mirror]]\n",
        "prefix = \"*.\"\n",
        "'''",
        "\"\"\"",
        "[a.b]\n",
        "= {",
    ];
    run("registries_conf", 600, &words, targets::registries_conf);
}

#[test]
fn auth_file() {
    let words = [
        "\"auths\":",
        "\"auth\":",
        "====",
        "Og==",
        "\"credsStore\":",
        "https://",
    ];
    run("auth_file", 600, &words, targets::auth_file);
}

#[test]
fn policy() {
    let words = [
        "\"default\":",
        "\"type\":\"reject\"",
        "\"docker\":",
        "\"\":",
        "\"keyData\":",
        "*.",
    ];
    run("policy", 600, &words, targets::policy);
}

#[test]
fn signatures() {
    let words = ["\"Payload\":", "\"layers\":", "-----", "AAAA", "MFkw", "\n"];
    run("signatures", 600, &words, targets::signatures);
}
