//! Name queries, and the answers of other servers to those that are passed on.

use std::time::Duration;

use super::mutate::{self, Random};
use super::{Entrance, fuzz, targets};

const NAMES: [&str; 9] = [
    "db.default.svc.cluster.local",
    "h7.db.default.svc.cluster.local",
    "out.default.svc.cluster.local",
    "on.default.svc.cluster.local",
    "loop.default.svc.cluster.local",
    "web.default.svc.cluster.local",
    "2.0.88.10.in-addr.arpa",
    "example.org",
    "",
];

/// A valid message: a question, and an answer with some records of any type.
fn message(random: &mut Random, answers: usize) -> Vec<u8> {
    let mut bytes = vec![
        0x12,
        0x34,
        if answers > 0 { 0x81 } else { 0x01 },
        0,
        0,
        1,
        0,
    ];
    bytes.push(u8::try_from(answers).expect("few"));
    bytes.extend([0, 0, 0, u8::from(answers == 0)]);
    let kinds: [u8; 9] = [1, 28, 5, 33, 12, 16, 6, 2, 255];
    let mut name = Vec::new();
    for label in random.choose(&NAMES).split('.').filter(|l| !l.is_empty()) {
        name.push(u8::try_from(label.len()).expect("short"));
        name.extend(label.bytes());
    }
    name.push(0);
    bytes.extend(&name);
    bytes.extend([0, kinds[random.below(kinds.len())], 0, 1]);
    for _ in 0..answers {
        // Compressed names point at the question, or anywhere.
        let to = if random.once_in(4) {
            random.below(256)
        } else {
            12
        };
        bytes.extend([0xc0, u8::try_from(to).expect("a byte")]);
        bytes.extend([0, kinds[random.below(8)], 0, 1, 0, 0, 0, 9]);
        let data = match random.below(3) {
            0 => vec![0xc0, 12],
            1 => vec![1, 2, 3, 4],
            _ => name.clone(),
        };
        bytes.extend([0, u8::try_from(data.len()).expect("short")]);
        bytes.extend(data);
    }
    if answers == 0 {
        // An EDNS record.
        bytes.extend([0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
    }
    bytes
}

/// Two messages, each after its length.
fn make(random: &mut Random) -> Vec<u8> {
    let mut question = message(random, 0);
    if random.once_in(2) {
        question = mutate::bytes(random, &question, &["\u{c}", "\u{3f}"]);
    }
    let answers = random.below(80);
    let mut said = message(random, answers);
    if random.once_in(2) {
        said = mutate::bytes(random, &said, &[]);
    }
    let length = u16::try_from(question.len()).unwrap_or(u16::MAX);
    question.truncate(usize::from(length));
    let mut all = length.to_be_bytes().to_vec();
    all.extend(question);
    all.extend(said);
    all
}

#[test]
fn names() {
    let entrance = Entrance {
        name: "names",
        share: 540,
        most_bytes: 2 << 20,
        most_time: Duration::from_secs(1),
    };
    fuzz(entrance, make, targets::names);
}
