//! The house rules of `src/README.md`: which room may use which, and which text must not occur in it. A failure names the
//! line and what to do instead.

use std::fs;
use std::path::{Path, PathBuf};

struct Room {
    name: &'static str,
    /// Prefixes of `crate::…` paths.
    may_use: &'static [&'static str],
    /// Text that may not occur outside tests, and what to do instead.
    must_not: &'static [(&'static str, &'static str)],
}

const PURE: &[(&str, &str)] = &[
    ("std::fs", "let the node read it and hand over bytes"),
    ("std::net::TcpStream", "an effect does that"),
    ("Instant", "take `now` as a parameter"),
    ("SystemTime", "take `now` as a parameter"),
    ("smol::", "return a decision, let the node carry it out"),
    ("async ", "return a decision, let the node carry it out"),
    ("unsafe ", "wrap the system call in `sys`"),
    ("tracing::", "return an error or a notice"),
];

/// Rooms that act without deciding anything.
const EFFECTS: &[(&str, &str)] = &[
    ("tracing::info", "return what happened"),
    ("tracing::warn", "return the error; its caller logs it"),
    ("unsafe ", "wrap the system call in `sys`"),
];

/// What every room may use: the display of errors.
const EVERYWHERE: &[&str] = &["crate::chain"];

const ROOMS: &[Room] = &[
    Room {
        name: "types",
        may_use: &["crate::types"],
        must_not: PURE,
    },
    Room {
        name: "spec",
        may_use: &["crate::types", "crate::spec"],
        must_not: PURE,
    },
    Room {
        name: "plan",
        may_use: &["crate::types", "crate::spec", "crate::plan"],
        must_not: PURE,
    },
    Room {
        name: "sys",
        may_use: &["crate::sys"],
        must_not: &[
            ("smol", "wrap it where it is used"),
            ("tracing::", "return the error"),
        ],
    },
    Room {
        name: "effects",
        may_use: &[
            "crate::types",
            "crate::spec",
            "crate::sys",
            "crate::shim::protocol",
            "crate::shim::frame",
            "crate::effects",
            // A sandbox is on the bridge, and its containers run from images.
            "crate::network",
            "crate::images",
            // Where things are, and the settings of the node: plain data.
            "crate::layout",
            "crate::config",
        ],
        must_not: EFFECTS,
    },
    Room {
        name: "network",
        may_use: &[
            "crate::types",
            "crate::spec",
            "crate::sys",
            "crate::network",
            "crate::layout",
        ],
        must_not: EFFECTS,
    },
    Room {
        name: "images",
        may_use: &[
            "crate::types",
            "crate::spec",
            "crate::sys",
            "crate::images",
            // Eviction's limits: the space to keep free.
            "crate::config",
        ],
        must_not: EFFECTS,
    },
    Room {
        name: "shim",
        may_use: &[
            "crate::types",
            "crate::spec",
            "crate::sys",
            "crate::shim",
            "crate::layout",
            // Its half of `coracle cp`.
            "crate::copy",
        ],
        must_not: &[
            ("smol", "the shim has one thread and a poll loop"),
            ("thread::spawn", "the shim has one thread"),
            ("tracing::warn", "use `shim::warn`"),
        ],
    },
    Room {
        name: "api",
        may_use: &[
            "crate::types",
            "crate::spec",
            "crate::plan",
            "crate::shim::protocol",
            "crate::api",
            "crate::layout",
            // A program in a container: probes run some, too.
            "crate::effects::exec",
            // Passing descriptors to a shim, terminal sizes.
            "crate::sys",
            // The tests of the server speak to it with the real client.
            "crate::cli::client",
        ],
        must_not: &[
            ("unsafe ", "wrap the system call in `sys`"),
            (
                "umask(",
                "give the file its mode: other threads make files, too",
            ),
        ],
    },
    Room {
        name: "node",
        // It brings all rooms together, but is no client of itself.
        may_use: &[
            "crate::types",
            "crate::spec",
            "crate::plan",
            "crate::sys",
            "crate::effects",
            "crate::network",
            "crate::images",
            "crate::shim::protocol",
            "crate::api",
            "crate::config",
            "crate::layout",
            "crate::node",
        ],
        must_not: &[("unsafe ", "wrap the system call in `sys`")],
    },
    Room {
        name: "cli",
        may_use: &[
            "crate::types",
            "crate::spec",
            "crate::sys",
            "crate::api",
            "crate::cli",
            "crate::config",
            "crate::layout",
            "crate::manual",
            // `coracle run` is the node.
            "crate::node",
            // `doctor` tries what the node would do.
            "crate::network",
            "crate::effects::logind",
            // `blackbox` reads it without an agent.
            "crate::effects::black_box",
            // `report` takes them out of texts.
            "crate::effects::former_secrets",
            "crate::effects::mask",
            "crate::effects::log_lines",
            // `secret` encrypts, `validate` decrypts what this machine can.
            "crate::effects::credential",
            // `fsck` looks through the store.
            "crate::images",
            // Its half of `coracle cp`.
            "crate::copy",
        ],
        must_not: &[("unsafe ", "wrap the system call in `sys`")],
    },
    Room {
        name: "copy",
        may_use: &[
            "crate::types",
            "crate::sys",
            "crate::copy",
            // The reader and the writer of tar streams.
            "crate::images",
        ],
        must_not: &[
            ("unsafe ", "wrap the system call in `sys`"),
            ("smol", "it blocks: both halves are processes of their own"),
            ("tracing::", "tell it to `Notes`"),
        ],
    },
    Room {
        name: "config",
        may_use: &[
            "crate::types",
            "crate::spec",
            "crate::sys",
            "crate::config",
            "crate::layout",
        ],
        must_not: &[
            ("unsafe ", "wrap the system call in `sys`"),
            ("smol", "settings are plain data"),
            ("tracing::", "return an error or a warning"),
        ],
    },
    Room {
        name: "layout.rs",
        may_use: &["crate::spec"],
        must_not: &[
            ("std::fs", "it only names places"),
            ("unsafe ", "it only names places"),
        ],
    },
    Room {
        name: "manual",
        may_use: &["crate::spec", "crate::manual"],
        must_not: &[],
    },
];

/// Text that may occur only in some files.
struct Only {
    /// The rule, and what to do instead.
    rule: &'static str,
    /// The rooms that are searched.
    rooms: &'static [&'static str],
    /// The text that must not occur there.
    texts: &'static [&'static str],
    /// The files where it may occur, each with its reason.
    except: &'static [(&'static str, &'static str)],
}

const ONLY: &[Only] = &[
    Only {
        rule: "take the time from `sys::clock`, or as a parameter",
        rooms: &[""],
        texts: &[
            "Instant::now(",
            "SystemTime::now(",
            "Timestamp::now(",
            "Zoned::now(",
            "clock_gettime(",
            ".elapsed()",
        ],
        except: &[
            ("src/sys/clock.rs", "the reader of clocks"),
            (
                "src/effects/exec.rs",
                "measures how long a program is silent",
            ),
        ],
    },
    Only {
        rule: "whether to wait or to try again is decided in `plan`",
        rooms: &["effects", "network", "images"],
        texts: &["thread::sleep(", "Timer::after(", "Timer::interval("],
        except: &[
            (
                "src/effects/cgroup/hierarchy.rs",
                "cgroup v1 has no event for the end of the last process",
            ),
            ("src/effects/exec.rs", "a bound on a program's silence"),
            ("src/effects/bus.rs", "a bound on the bus's answers"),
            ("src/effects/logind/mod.rs", "a bound on the bus's answers"),
            (
                "src/effects/probe/grpc.rs",
                "grpc's own dial loop, within the probe's timeout",
            ),
            ("src/effects/probe/mod.rs", "the probe's timeout"),
            (
                "src/effects/sandbox/shim_client.rs",
                "a bound on a shim's answers",
            ),
            (
                "src/images/registry/session.rs",
                "a registry's `Retry-After`, within a bound",
            ),
            (
                "src/images/registry/throttle.rs",
                "the limit on how fast images arrive",
            ),
            (
                "src/network/names/server.rs",
                "a socket out of descriptors fails at once, again and again",
            ),
            (
                "src/network/names/upstream.rs",
                "a bound on another server's answers",
            ),
        ],
    },
];

#[test]
fn clocks_and_sleeps_stay_where_they_belong() {
    let mut broken = Vec::new();
    for only in ONLY {
        let mut used = Vec::new();
        for file in only
            .rooms
            .iter()
            .flat_map(|room| sources(&Path::new("src").join(room)))
        {
            let except = only.except.iter().find(|(path, _)| file.ends_with(path));
            for (number, line) in code(&file) {
                let Some(text) = only.texts.iter().find(|text| line.contains(**text)) else {
                    continue;
                };
                match except {
                    Some((path, _)) => used.push(*path),
                    None => broken.push(format!(
                        "{}:{number}: `{text}`: {}",
                        file.display(),
                        only.rule
                    )),
                }
            }
        }
        let idle = only.except.iter().filter(|(path, _)| !used.contains(path));
        broken
            .extend(idle.map(|(path, reason)| format!("{path}: no exception any more: {reason}")));
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Files outside `sys` that may contain `unsafe`: libcontainer's process model asks for it.
const UNSAFE: &[&str] = &["src/sys/", "src/shim/"];

#[test]
fn every_room_uses_only_the_rooms_it_may() {
    let mut broken = Vec::new();
    for room in ROOMS {
        for file in sources(&Path::new("src").join(room.name)) {
            for (number, line) in code(&file) {
                for used in crate_paths(&line) {
                    let mut allowed = room.may_use.iter().chain(EVERYWHERE);
                    if !allowed.any(|allowed| used.starts_with(allowed)) {
                        let rule = format!("`{}` may use only {:?}", room.name, room.may_use);
                        broken.push(format!("{}:{number}: uses {used}: {rule}", file.display()));
                    }
                }
                for (text, instead) in room.must_not {
                    if line.contains(text) {
                        broken.push(format!("{}:{number}: `{text}`: {instead}", file.display()));
                    }
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn unsafe_and_unwrap_stay_where_they_belong() {
    let mut broken = Vec::new();
    for file in sources(Path::new("src")) {
        let allowed = UNSAFE.iter().any(|prefix| file.starts_with(prefix));
        for (number, line) in code(&file) {
            if line.contains("unsafe {") && !allowed {
                broken.push(format!("{}:{number}: unsafe outside `sys`", file.display()));
            }
            if line.contains(".unwrap()") {
                broken.push(format!(
                    "{}:{number}: unwrap: say why it cannot fail with `expect`",
                    file.display()
                ));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Rooms that read what others can write: containers, images, clients, or a corrupt disk.
const READERS: [&str; 8] = [
    "api", "config", "effects", "images", "network", "node", "shim", "sys",
];

/// Reads without a bound, and what to use instead.
const UNBOUNDED: [&str; 5] = [
    "fs::read(",
    "fs::read_to_string(",
    "io::read_to_string",
    "from_reader(",
    "read_line(",
];

/// Reads that go on to the end of their source.
const TO_THE_END: [&str; 2] = [".read_to_end(", ".read_to_string("];

/// The number of lines above such a read in which its limit may appear.
const NEAR: usize = 6;

#[test]
fn nothing_is_read_without_a_bound() {
    let mut broken = Vec::new();
    for room in READERS {
        for file in sources(&Path::new("src").join(room)) {
            let lines = code(&file);
            for (index, (number, line)) in lines.iter().enumerate() {
                let place = format!("{}:{number}", file.display());
                for text in UNBOUNDED.iter().filter(|text| line.contains(**text)) {
                    broken.push(format!(
                        "{place}: `{text}`: use `sys::file::read_bounded`, `read_record` or `read_text`"
                    ));
                }
                let before = &lines[index.saturating_sub(NEAR)..=index];
                let bounded = before.iter().any(|(_, line)| line.contains(".take("));
                if TO_THE_END.iter().any(|text| line.contains(text)) && !bounded {
                    broken.push(format!("{place}: has no limit: add `.take(limit)`"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_file_opens_with_its_purpose() {
    for file in sources(Path::new("src")) {
        let text = fs::read_to_string(&file).expect("a source file");
        assert!(
            text.starts_with("//! "),
            "{}: opens without `//!`",
            file.display()
        );
    }
    let main = fs::read_to_string("src/main.rs").expect("main.rs");
    assert!(
        main.lines().count() <= 60,
        "main.rs is a signpost: at most 60 lines"
    );
}

#[test]
fn a_module_with_submodules_is_the_mod_rs_of_its_folder() {
    let files = sources(Path::new("src"));
    let beside: Vec<_> = files
        .iter()
        .filter(|file| file.with_extension("").is_dir())
        .map(|file| format!("{}: move it to mod.rs in its folder", file.display()))
        .collect();
    assert!(beside.is_empty(), "{}", beside.join("\n"));
}

/// Rust files below a folder, except those of tests; the path of a file gives that file.
fn sources(folder: &Path) -> Vec<PathBuf> {
    if folder.extension().is_some() {
        return vec![folder.to_owned()];
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a source folder").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") && !name.ends_with("_test.rs") {
            found.push(path);
        }
    }
    found
}

/// Numbered lines of code, without comments and without items that exist only in tests.
fn code(file: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(file).expect("a source file");
    without_tests(&text)
}

fn without_tests(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut all = text.lines().enumerate();
    while let Some((index, line)) = all.next() {
        let bare = line.trim_start();
        if bare == "#[cfg(test)]" {
            skip_item(&line[..line.len() - bare.len()], &mut all);
        } else if !bare.starts_with("//") {
            lines.push((index + 1, line.to_owned()));
        }
    }
    lines
}

/// Skips an item of this indentation, in rustfmt's layout.
fn skip_item<'a>(indentation: &str, lines: &mut impl Iterator<Item = (usize, &'a str)>) {
    let own = |line: &&str| {
        line.strip_prefix(indentation)
            .is_some_and(|rest| !rest.starts_with([' ', '#', '/']))
    };
    let mut first = true;
    for (_, line) in lines.filter(|(_, line)| own(line)) {
        let opens = first && line.ends_with(['{', '(', '[']);
        if !opens && line.ends_with(['}', ';', ',']) {
            return;
        }
        first = false;
    }
}

#[test]
fn only_test_items_are_skipped() {
    let text = "one\n#[cfg(test)]\n#[path = \"x\"]\nmod tests;\n// two\nthree\n    #[cfg(test)]\n    fn four(\n        a: u8,\n    ) {\n        5;\n    }\n    six\n";
    let found = without_tests(text);
    let kept: Vec<_> = found.iter().map(|(_, line)| line.trim()).collect();
    assert_eq!(kept, ["one", "three", "six"]);
}

/// `crate::a::b` paths in a line.
fn crate_paths(line: &str) -> Vec<String> {
    line.match_indices("crate::")
        .map(|(at, _)| {
            let rest = &line[at..];
            let end = rest
                .find(|c: char| !c.is_alphanumeric() && c != ':' && c != '_')
                .unwrap_or(rest.len());
            rest[..end].to_owned()
        })
        .collect()
}
