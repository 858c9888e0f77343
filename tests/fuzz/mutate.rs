//! Mutations: an input is made from another by a few changes of bytes, or of a tree of values.

use serde_json::{Map, Value, json};

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The generator of one input of a run.
    pub(crate) fn new(seed: u64, input: u64) -> Self {
        let mut own = Self(seed);
        let first = own.next();
        let mut own = Self(first ^ input.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        own.next();
        own
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if there is none.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).expect("64 bits");
        usize::try_from(self.next() % end).expect("less than it was")
    }

    /// True once in this many times on average.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn choose<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}

/// Numbers and texts at which code tends to break.
const ODD: [&str; 40] = [
    "-1",
    "0",
    "1",
    "127",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "99999999999999999999",
    "1e400",
    "-0",
    "0.1m",
    "1Ei",
    "9999999999Ei",
    "NaN",
    ".inf",
    "~",
    "null",
    "true",
    "",
    " ",
    "\u{0}",
    "\u{feff}",
    "\u{202e}",
    "ä",
    "../../x",
    "/",
    ".",
    "$(A)",
    "$$(",
    "%00",
    "&a *a",
    "<<: *a",
    "!!binary",
];

fn odd(random: &mut Random) -> &'static str {
    random.choose(&ODD)
}

/// Makes a few changes of bytes, and sometimes inserts one of `words`.
pub(crate) fn bytes(random: &mut Random, seed: &[u8], words: &[&str]) -> Vec<u8> {
    let mut all = seed.to_vec();
    for _ in 0..=random.below(6) {
        let at = random.below(all.len() + 1);
        let most = if random.once_in(8) { 4_000 } else { 40 };
        let end = (at + random.below(most)).min(all.len());
        match random.below(9) {
            0 if at < all.len() => all[at] ^= 1 << random.below(8),
            1 if at < all.len() => all[at] = u8::try_from(random.below(256)).expect("a byte"),
            2 => drop(all.drain(at..end)),
            3 => {
                let copy = all[at..end].to_vec();
                let to = random.below(all.len() + 1);
                all.splice(to..to, copy);
            }
            4 => all.truncate(at),
            5 => {
                // Repeats a byte many times.
                let copy = all[at..end.min(at + 8)].repeat(random.below(300));
                all.splice(at..at, copy);
            }
            6 => drop(all.splice(at..at, odd(random).bytes())),
            7 if !words.is_empty() => drop(all.splice(at..at, random.choose(words).bytes())),
            _ => {
                // Replaces a number by an odd one.
                if let Some(from) = all[at..].iter().position(u8::is_ascii_digit) {
                    let from = at + from;
                    let length = all[from..]
                        .iter()
                        .take_while(|b| b.is_ascii_digit())
                        .count();
                    all.splice(from..from + length, odd(random).bytes());
                }
            }
        }
    }
    all
}

/// Makes a few changes of a tree.
pub(crate) fn tree(random: &mut Random, seed: &Value) -> Value {
    let mut all = seed.clone();
    for _ in 0..=random.below(4) {
        let depth = random.below(12);
        change(random, &mut all, depth);
    }
    all
}

fn change(random: &mut Random, place: &mut Value, depth: usize) {
    let inner = match place {
        Value::Object(map) if depth > 0 && !map.is_empty() => {
            let at = random.below(map.len());
            map.values_mut().nth(at)
        }
        Value::Array(list) if depth > 0 && !list.is_empty() => {
            let at = random.below(list.len());
            list.get_mut(at)
        }
        _ => None,
    };
    if let Some(inner) = inner {
        return change(random, inner, depth - 1);
    }
    match place {
        Value::Object(map) if random.once_in(2) => change_map(random, map),
        Value::Array(list) if !list.is_empty() && random.once_in(2) => {
            let copy = list[random.below(list.len())].clone();
            match random.below(3) {
                0 => drop(list.pop()),
                1 => list.push(copy),
                _ => *list = vec![copy; random.below(200)],
            }
        }
        _ => *place = leaf(random, place),
    }
}

fn change_map(random: &mut Random, map: &mut Map<String, Value>) {
    let Some(key) = map.keys().nth(random.below(map.len())).cloned() else {
        return;
    };
    match random.below(4) {
        0 => drop(map.remove(&key)),
        1 => {
            let value = map.remove(&key).unwrap_or_default();
            map.insert(odd(random).to_owned(), value);
        }
        2 => drop(map.insert(format!("{key}s"), leaf(random, &Value::Null))),
        _ => {
            let value = leaf(random, &map[&key]);
            map.insert(key, value);
        }
    }
}

fn leaf(random: &mut Random, old: &Value) -> Value {
    match random.below(9) {
        0 => json!(odd(random)),
        1 => serde_json::from_str(odd(random)).unwrap_or_default(),
        2 => json!("x".repeat(random.below(70_000))),
        3 => json!([old]),
        4 => json!({ "name": old }),
        5 => {
            let deep = |value, _| json!([value]);
            (0..random.below(200)).fold(old.clone(), deep)
        }
        6 => json!(format!("{}{}", old.as_str().unwrap_or("a"), odd(random))),
        7 => json!(random.below(1 << 40)),
        _ => Value::Null,
    }
}
