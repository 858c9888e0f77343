//! The statements of the manual, checked against the program.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use clap::Parser;
use coracle::cli::args::Cli;
use coracle::manual::{self, TOPICS};
use coracle::spec::{self, Reason};

fn coracle(args: &[&str], input: &str) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_coracle"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    process.wait_with_output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let out = coracle(args, "");
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {error}");
    String::from_utf8(out.stdout).unwrap()
}

fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    fs::read_to_string(path).unwrap()
}

/// All pages and the README, each with its name.
fn texts() -> Vec<(String, String)> {
    let page = |(topic, _): &(&str, &str)| ((*topic).to_owned(), manual::page(topic).unwrap());
    let mut all: Vec<_> = TOPICS.iter().map(page).collect();
    all.push(("README.md".to_owned(), readme()));
    all
}

/// The fenced blocks of one language, with lines joined after a backslash.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(word)) => open = Some((word == language, String::new())),
            (Some(_), Some(_)) => {
                found.extend(open.take().filter(|(of, _)| *of).map(|(_, text)| text));
            }
            (Some((_, block)), None) => *block += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    found
}

/// The text of all sources below `folder`, except one file.
fn sources(folder: &Path, except: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path, except);
        } else if path.extension().is_some_and(|e| e == "rs") && path != except {
            text += &fs::read_to_string(&path).unwrap();
        }
    }
    text
}

#[test]
fn every_reason_of_an_event_is_used_and_explained() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let text = sources(&src, &src.join("spec/reason.rs"));
    let page = manual::page("events").unwrap();
    for reason in Reason::ALL {
        let shown = format!("{reason:?}");
        let name = shown.split('(').next().unwrap();
        let word = format!("Reason::{name}");
        let mut uses = text.match_indices(&word).map(|(at, found)| {
            !text[at + found.len()..].starts_with(|c: char| c.is_alphanumeric())
        });
        assert!(uses.any(|whole| whole), "no code emits {reason}");
        assert!(
            page.contains(&format!("- `{reason}`")),
            "{reason} is not in the manual"
        );
    }
}

#[test]
fn every_topic_prints_and_a_misspelt_one_gets_a_suggestion() {
    let contents = stdout(&["help"]);
    for (topic, about) in TOPICS {
        assert!(
            contents.contains(topic) && contents.contains(about),
            "{contents}"
        );
        let page = stdout(&["help", topic]);
        assert!(page.contains(&manual::page(topic).unwrap()), "{topic}");
    }
    for (word, meant) in [("storge", "storage"), ("desribe", "describe")] {
        let out = coracle(&["help", word], "");
        let error = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{error}");
        assert!(error.contains(&format!("coracle help {meant}")), "{error}");
    }
}

#[test]
fn a_commands_help_is_about_that_command() {
    for words in [&["get"][..], &["image", "import"], &["shutdown"]] {
        let own: Vec<&str> = words.iter().copied().chain(["--help"]).collect();
        let own = stdout(&own);
        let help: Vec<&str> = ["help"].into_iter().chain(words.iter().copied()).collect();
        let help = stdout(&help);
        let usage = |text: &str| {
            text.lines()
                .find(|l| l.starts_with("Usage:"))
                .map(str::to_owned)
        };
        assert!(usage(&own).is_some());
        assert_eq!(usage(&own), usage(&help), "{words:?}");
    }
}

#[test]
fn the_man_pages_have_the_text_of_the_manual() {
    let main = stdout(&["man"]);
    for part in [
        ".TH coracle",
        ".SH NAME",
        ".SH OPTIONS",
        "OOMKilled",
        "UncleanShutdown",
    ] {
        assert!(main.contains(part), "{part}");
    }
    let shutdown = stdout(&["man", "coracle-shutdown"]);
    for part in [
        ".TH coracle-shutdown",
        "\\-\\-plan",
        "InhibitDelayMaxSec",
        "DAYS",
    ] {
        assert_eq!(shutdown.contains(part), part != "DAYS", "{part}");
    }
    assert!(main.is_ascii() && shutdown.is_ascii());
    assert_eq!(coracle(&["man", "other"], "").status.code(), Some(2));
}

/// One command, without the parts for the shell around it.
fn command(text: &str) -> Option<Vec<String>> {
    let text = text.split(" #").next()?.trim();
    let text = text.split(" > ").next()?;
    let mut words = text
        .split_whitespace()
        .map(|word| word.trim_matches('\'').to_owned());
    let first = words.find(|word| !["sudo", "ssh", "box"].contains(&word.as_str()))?;
    let ours = ["coracle", "./coracle", "./coracle-new"].contains(&first.as_str());
    ours.then(|| ["coracle".to_owned()].into_iter().chain(words).collect())
}

#[test]
fn every_command_line_is_valid() {
    let mut count = 0;
    for (name, text) in texts() {
        let blocks = blocks(&text, "sh").join("");
        let pipes = blocks.lines().flat_map(|line| line.split(['|', ';', '&']));
        for words in pipes.filter_map(command) {
            let parsed = Cli::try_parse_from(&words);
            assert!(parsed.is_ok(), "{name}: {words:?}: {}", parsed.unwrap_err());
            count += 1;
        }
    }
    assert!(count > 60, "only {count} commands found");
}

#[test]
fn every_manifest_and_every_settings_file_is_valid() {
    let mut count = 0;
    for (name, text) in texts() {
        for block in blocks(&text, "yaml") {
            let out = match block.contains("kind: KubeletConfiguration") {
                true => coracle(&["config", "check", "-"], &block),
                false => coracle(&["validate", "-"], &block),
            };
            let said = String::from_utf8_lossy(&out.stderr).into_owned()
                + &String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success(), "{name}: {said}\n{block}");
            count += 1;
        }
    }
    assert!(count > 6, "only {count} documents found");
}

#[test]
fn the_settings_page_names_all_settings_and_no_others() {
    let defaults = stdout(&["config", "print", "--defaults"]);
    let page = manual::page("settings").unwrap();
    let lists = page.split("## A change counts at once").nth(1).unwrap();
    let lists = lists.split("## Files and directories").next().unwrap();
    let named: Vec<&str> = lists.split('`').skip(1).step_by(2).collect();
    // Gates are excluded, and settings without a default: the kernel's value, no limit.
    let others = [
        "ReduceDefaultCrashLoopBackOffDecay",
        "MemoryQoS",
        "singleProcessOOMKill",
        "maxParallelImagePulls",
    ];
    for name in named.iter().filter(|name| !others.contains(name)) {
        let field = name.rsplit('.').next().unwrap();
        let there = defaults.lines().any(|line| {
            let line = line
                .trim_start()
                .trim_start_matches("# ")
                .trim_start_matches('#');
            line.starts_with(&format!("{field}:"))
        });
        assert!(there, "there is no setting `{name}` in:\n{defaults}");
    }
    for line in defaults.lines().filter(|l| !l.starts_with(['#', ' ', '-'])) {
        let field = line.split(':').next().unwrap();
        let known = [
            "apiVersion",
            "kind",
            "coracle",
            "crashLoopBackOff",
            "memorySwap",
            "userNamespaces",
        ];
        let listed = known.contains(&field) || field == "featureGates" || named.contains(&field);
        assert!(listed, "`{field}` is not on the page");
    }
}

/// Whether a manifest with this document is refused.
fn is_refused(document: &str) -> bool {
    !coracle(&["validate", "-"], document).status.success()
}

#[test]
fn fields_and_kinds_that_the_manual_calls_refused_are_refused_and_all_refused_kinds_are_listed() {
    let page = manual::page("limits").unwrap();
    let readme = readme();
    for kind in spec::refused_kinds().flat_map(|(kinds, _)| kinds) {
        let document = format!("{{apiVersion: v1, kind: {kind}, metadata: {{name: a}}}}");
        assert!(is_refused(&document), "{kind} is read");
        let named = format!("`{kind}`");
        assert!(page.contains(&named), "{kind} is not in the manual");
        assert!(readme.contains(kind), "{kind} is not in the README");
    }
    let mut count = 0;
    for (section, of_pod) in [("of a pod", true), ("of a container", false)] {
        let title = format!("## Fields {section} that are refused");
        let list = page
            .split(&title)
            .nth(1)
            .unwrap()
            .split("\n## ")
            .next()
            .unwrap();
        for item in list.lines().filter_map(|line| line.strip_prefix("- `")) {
            let field = item.split('`').next().unwrap();
            let (of_pod, of_container) = match of_pod {
                true => (format!("{field}, "), String::new()),
                false => (String::new(), format!(", {field}")),
            };
            let document = |of_pod: &str, of_container: &str| {
                format!(
                    "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{{of_pod}containers: \
                     [{{name: c, image: i{of_container}}}]}}}}"
                )
            };
            assert!(!is_refused(&document("", "")));
            assert!(
                is_refused(&document(&of_pod, &of_container)),
                "{field} is read"
            );
            let word = field.split(':').next().unwrap();
            let out = coracle(&["validate", "-"], &document(&of_pod, &of_container));
            let said = String::from_utf8_lossy(&out.stderr).into_owned()
                + &String::from_utf8_lossy(&out.stdout);
            assert!(
                said.contains(word),
                "{field} is refused for something else: {said}"
            );
            count += 1;
        }
    }
    assert!(count > 10, "only {count} fields found");
}

#[test]
fn links_of_the_readme_lead_to_existing_files() {
    for link in readme().split("](").skip(1) {
        let target = link.split(')').next().unwrap();
        let file = target.split('#').next().unwrap();
        if !file.is_empty() && !file.starts_with("http") {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            assert!(path.exists(), "{target}");
        }
    }
}
