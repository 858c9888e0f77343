//! The house rules of `src/README.md`: which room may use which, and what may not stand in it. A failure names the
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

const ROOMS: &[Room] = &[
    Room {
        name: "spec",
        may_use: &["crate::spec"],
        must_not: PURE,
    },
    Room {
        name: "plan",
        may_use: &["crate::spec", "crate::plan"],
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
            "crate::spec",
            "crate::sys",
            "crate::shim::protocol",
            "crate::shim::frame",
            "crate::effects",
            // Where things are, and the settings of the node: plain data.
            "crate::layout",
            "crate::config",
        ],
        must_not: &[
            ("tracing::info", "return what happened"),
            ("tracing::warn", "return the error; who handles it logs it"),
            ("unsafe ", "wrap the system call in `sys`"),
        ],
    },
    Room {
        name: "shim",
        may_use: &["crate::spec", "crate::sys", "crate::shim", "crate::layout"],
        must_not: &[
            ("smol", "the shim has one thread and a poll loop"),
            ("thread::spawn", "the shim has one thread"),
            ("tracing::warn", "use `shim::warn`"),
        ],
    },
    Room {
        name: "api",
        may_use: &[
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
        must_not: &[("unsafe ", "wrap the system call in `sys`")],
    },
];

/// Files outside `sys` that may contain `unsafe`: libcontainer's process model asks for it.
const UNSAFE: &[&str] = &["src/sys/", "src/shim/"];

#[test]
fn every_room_keeps_to_itself() {
    let mut broken = Vec::new();
    for room in ROOMS {
        for file in sources(&Path::new("src").join(room.name)) {
            for (number, line) in code(&file) {
                for used in crate_paths(&line) {
                    if !room.may_use.iter().any(|allowed| used.starts_with(allowed)) {
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

/// Rooms that read what others can write: containers, images, clients, or just a disk that went bad.
const READERS: [&str; 6] = ["api", "config", "effects", "node", "shim", "sys"];

/// Reads without a bound, and what to use instead.
const UNBOUNDED: [&str; 5] = [
    "fs::read(",
    "fs::read_to_string(",
    "io::read_to_string",
    "from_reader(",
    "read_line(",
];

/// Reads that end where what is before them ends.
const TO_THE_END: [&str; 2] = [".read_to_end(", ".read_to_string("];

/// How many lines above one of these may say where the end is.
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
                    broken.push(format!(
                        "{place}: says not where it ends: add `.take(limit)`"
                    ));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_file_says_which_question_it_answers() {
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

/// Rust files below a folder, those of tests left out.
fn sources(folder: &Path) -> Vec<PathBuf> {
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

/// Numbered lines of code: without comments, and nothing from the `#[cfg(test)]` module at the end on.
fn code(file: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(file).expect("a source file");
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line == "#[cfg(test)]" {
            break;
        }
        if !line.trim_start().starts_with("//") {
            lines.push((index + 1, line.to_owned()));
        }
    }
    lines
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
