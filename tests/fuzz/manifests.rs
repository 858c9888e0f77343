//! Manifests: the bytes of a file become pods and services, or errors with positions.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use coracle::spec::convert::{self, ConvertContext};
use serde_json::Value;

use super::mutate::{self, Random};
use super::{Entrance, fuzz, targets};

const WORDS: [&str; 14] = [
    "---\n", "\t", ": ", "- ", "|\n", ">-\n", "\"", "'", "{", "[", "&x ", "*x", "? ", "#",
];

/// Documents as text and, if they can be parsed, as trees.
static SEEDS: LazyLock<Vec<(Vec<u8>, Vec<Value>)>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["tests/fixtures/spec", "examples/quickstart"] {
        let entries = fs::read_dir(root.join(folder)).expect("a folder of the tree");
        files.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    files.sort();
    let kinds = ["yaml", "yml", "json"];
    let is_one = |path: &&std::path::PathBuf| {
        let kind = path.extension().and_then(|kind| kind.to_str());
        kind.is_some_and(|kind| kinds.contains(&kind))
    };
    let seeds = files.iter().filter(is_one).map(|path| {
        let text = fs::read_to_string(path).expect("a document");
        let trees = serde_yaml::Deserializer::from_str(&text);
        let trees = trees.map_while(|tree| serde::Deserialize::deserialize(tree).ok());
        let trees = trees.filter(Value::is_object).collect();
        (text.into_bytes(), trees)
    });
    seeds.collect()
});

fn make(random: &mut Random) -> Vec<u8> {
    let (text, trees) = &SEEDS[random.below(SEEDS.len())];
    if trees.is_empty() || random.once_in(3) {
        return mutate::bytes(random, text, &WORDS);
    }
    let at = random.below(trees.len());
    let tree = mutate::tree(random, &trees[at]);
    let text = match random.once_in(2) {
        true => serde_json::to_vec(&tree).expect("JSON"),
        false => serde_yaml::to_string(&tree).map_or_else(|_| Vec::new(), String::into_bytes),
    };
    match random.once_in(4) {
        true => mutate::bytes(random, &text, &WORDS),
        false => text,
    }
}

#[test]
fn manifests() {
    let entrance = Entrance {
        name: "manifests",
        share: 200,
        most_bytes: 128 << 20,
        most_time: Duration::from_secs(4),
    };
    let mut good = 0;
    fuzz(entrance, make, |input| good += targets::manifests(input));
    let many = super::number("CORACLE_FUZZ_ONLY").is_none();
    assert!(good > 0 || !many, "some inputs are pods");
}

#[test]
fn the_largest_files_take_limited_memory() {
    let begin = "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"},\"spec\":{\"containers\":[";
    let context = ConvertContext::of("n");
    let room = convert::MAX_BYTES - 200;
    for (name, head, unit, tail) in [
        ("containers", begin, "{},", "{}]}}"),
        (
            "ports",
            &format!("{begin}{{\"name\":\"c\",\"ports\":["),
            "{},",
            "{}]}]}}",
        ),
        ("lists", "", "- - - - []\n", ""),
        ("numbers", "[", "1,", "1]"),
        ("maps", "", "{a: {b: c}}\n---\n", ""),
        ("deep", "", "[", ""),
        ("bad scalars", "", "a: *b\n", ""),
    ] {
        let mut text = head.to_owned();
        text.push_str(&unit.repeat((room - head.len()) / unit.len()));
        text.push_str(tail);
        super::memory::begin();
        let began = super::cpu_time();
        let found = convert::documents(text.as_bytes(), "f.yaml", &context);
        let errors = found.err().unwrap_or_default();
        let (bytes, time) = (super::memory::most(), super::cpu_time() - began);
        assert!(bytes < 128 << 20, "{name}: {bytes} bytes, {errors:?}");
        assert!(time < Duration::from_secs(20), "{name}: {time:?}");
        assert!(!errors.is_empty(), "{name}: none of them is a pod");
    }
}
