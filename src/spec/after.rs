//! What a pod starts after, from an annotation (`coracle help order`), and the circles that pods of several files can
//! form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::{Path, Report};
use super::pod::{PodKey, PodSpec};
use super::{names, suggest};
use crate::types::{Gather, duration_ms};

/// The annotation: `coracle.dev/after: "db, broker:ready?timeout=30s&then=start, mount:/data, time-sync"`.
pub const ANNOTATION: &str = "coracle.dev/after";

/// The most items of one pod.
pub const MAX_ITEMS: usize = 16;

/// The longest path and the longest name of a unit.
const MAX_PATH: usize = 1024;
const MAX_UNIT: usize = 255;

/// Bounds of a time-out, in milliseconds.
const TIMEOUT_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;

const OPTIONS: [&str; 3] = ["timeout", "then", "again"];

/// The words before a colon.
const KINDS: [&str; 4] = ["device", "file", "mount", "unit"];

/// The most pods of a circle that an error names.
const MAX_NAMED: usize = 20;

const TIME_SYNC: &str = "time-sync";

/// The endings of systemd's units.
const UNITS: [&str; 11] = [
    "automount",
    "device",
    "mount",
    "path",
    "scope",
    "service",
    "slice",
    "socket",
    "swap",
    "target",
    "timer",
];

/// Something outside coracle that a pod waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Outside {
    /// A block or character device of this path.
    Device(String),
    /// Anything at this path.
    File(String),
    /// A mount point.
    Mount(String),
    /// A systemd unit that is active.
    Unit(String),
    /// A synchronised clock.
    TimeSync,
}

/// How far another pod has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Milestone {
    /// Its containers are started.
    Started,
    /// It is ready.
    Ready,
    /// All of its containers have ended, none with an error: its phase is `Succeeded`.
    Complete,
}

impl Milestone {
    const WORDS: [(&str, Self); 2] = [("ready", Self::Ready), ("complete", Self::Complete)];
}

/// What one item waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// A pod of this node.
    Pod {
        /// Its name; it need not exist.
        key: PodKey,
        /// How far it has to be.
        milestone: Milestone,
    },
    /// Anything else.
    Outside(Outside),
}

/// One item of the annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What has to be there.
    pub need: Need,
    /// How long the pod waits for it before something happens, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Whether the pod starts without it after the time-out; else it goes on waiting.
    pub start: bool,
    /// Whether the pod is stopped and waits again when it is lost later.
    pub again: bool,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(path) => write!(f, "device:{path}"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Mount(path) => write!(f, "mount:{path}"),
            Self::Unit(name) => write!(f, "unit:{name}"),
            Self::TimeSync => f.write_str(TIME_SYNC),
        }
    }
}

/// As it is written, with the namespace and without options: `default/db:ready`.
impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { key, milestone } => {
                let mut words = Milestone::WORDS.iter();
                match words.find(|(_, of)| of == milestone) {
                    Some((word, _)) => write!(f, "{key}:{word}"),
                    None => write!(f, "{key}"),
                }
            }
            Self::Outside(outside) => write!(f, "{outside}"),
        }
    }
}

/// Returns what a pod of this namespace starts after.
pub(super) fn of(
    annotations: Option<&BTreeMap<String, String>>,
    namespace: &str,
    path: &Path<'_>,
    report: &Report,
) -> Vec<Item> {
    let Some(text) = annotations.and_then(|all| all.get(ANNOTATION)) else {
        return Vec::new();
    };
    match parse(text, namespace) {
        Ok(items) => items,
        Err((item, problem)) => {
            let hint = "write items like `db`, `broker:ready?timeout=30s&then=start`, `mount:/data`, \
                        `time-sync`, with commas between them (`coracle help order`)";
            let message = match item {
                Some((number, text)) => {
                    format!("Invalid value: item {number} ({text:?}): {problem}")
                }
                None => format!("Invalid value: {problem}"),
            };
            report.error_hint(&path.field(ANNOTATION), message, hint.to_owned());
            Vec::new()
        }
    }
}

/// A sentence, with the number and the text of the item it is about.
pub type Wrong = (Option<(usize, String)>, String);

/// The items of an annotation in a pod of this namespace.
///
/// # Errors
/// Names the first mistake.
pub fn parse(text: &str, namespace: &str) -> Result<Vec<Item>, Wrong> {
    let mut items: Vec<Item> = Vec::new();
    let count = text.split(',').count();
    if count > MAX_ITEMS {
        let problem = format!("there may be at most {MAX_ITEMS} items, not {count}");
        return Err((None, problem));
    }
    for (index, part) in text.split(',').enumerate() {
        let part = part.trim();
        let wrong = |problem: String| {
            let shown: String = part.chars().take(80).collect();
            (Some((index + 1, shown)), problem)
        };
        let item = item(part, namespace).map_err(wrong)?;
        if items.iter().any(|other| other.need == item.need) {
            return Err(wrong(format!("`{}` is named twice", item.need)));
        }
        items.push(item);
    }
    Ok(items)
}

fn item(text: &str, namespace: &str) -> Result<Item, String> {
    let (need, options) = match text.split_once('?') {
        Some((need, options)) => (need, Some(options)),
        None => (text, None),
    };
    let mut item = Item {
        need: self::need(need, namespace)?,
        timeout_ms: None,
        start: false,
        again: false,
    };
    let mut then = None;
    for option in options.into_iter().flat_map(|all| all.split('&')) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("timeout", Some(value)) if item.timeout_ms.is_none() => {
                item.timeout_ms = Some(timeout(value)?);
            }
            ("then", Some("start")) if then.is_none() => then = Some(true),
            ("then", Some("wait")) if then.is_none() => then = Some(false),
            ("again", None) if !item.again => item.again = true,
            ("timeout", None) => return Err("`timeout` needs a time: `timeout=30s`".to_owned()),
            ("then", _) if then.is_none() => {
                return Err("`then` is `then=start` or `then=wait`".to_owned());
            }
            ("again", Some(_)) => return Err("`again` takes no value".to_owned()),
            ("timeout" | "then" | "again", _) => return Err(format!("`{name}` is given twice")),
            _ => return Err(unknown_option(name)),
        }
    }
    if then.is_some() && item.timeout_ms.is_none() {
        return Err("`then` needs a time-out: `?timeout=30s&then=start`".to_owned());
    }
    item.start = then == Some(true);
    Ok(item)
}

fn unknown_option(name: &str) -> String {
    match suggest::nearest(name, &OPTIONS) {
        Some(near) => format!("there is no option `{name}`; did you mean `{near}`?"),
        None => "its options are `timeout=TIME`, `then=start`, `then=wait` and `again`".to_owned(),
    }
}

fn timeout(text: &str) -> Result<u64, String> {
    let ms = duration_ms(text).ok_or_else(|| format!("`{text}` is not a duration like 1m30s"))?;
    match TIMEOUT_MS.contains(&ms) {
        true => Ok(ms),
        false => Err(format!("`{text}` must be between 100ms and 24h")),
    }
}

fn need(text: &str, namespace: &str) -> Result<Need, String> {
    if text == TIME_SYNC {
        return Ok(Need::Outside(Outside::TimeSync));
    }
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    let Some((kind, rest)) = text.split_once(':') else {
        return pod(text, namespace, Milestone::Started);
    };
    let outside = match kind {
        "device" => Outside::Device(path(rest)?),
        "file" => Outside::File(path(rest)?),
        "mount" => Outside::Mount(path(rest)?),
        "unit" => Outside::Unit(unit(rest)?),
        _ => {
            let mut words = Milestone::WORDS.iter();
            let (_, milestone) = words
                .find(|(word, _)| *word == rest)
                .ok_or_else(|| unknown_kind(kind, rest))?;
            return pod(kind, namespace, *milestone);
        }
    };
    Ok(Need::Outside(outside))
}

fn unknown_kind(kind: &str, rest: &str) -> String {
    if let Some(near) = suggest::nearest(kind, &KINDS).filter(|_| rest.contains(['/', '.'])) {
        return format!("`{kind}:` is not known; did you mean `{near}:{rest}`?");
    }
    match suggest::nearest(rest, &Milestone::WORDS.map(|(word, _)| word)) {
        Some(near) => format!("did you mean `{kind}:{near}`?"),
        None => {
            format!("after the name of a pod there may be `:ready` or `:complete`, not `:{rest}`")
        }
    }
}

/// `name` or `namespace/name`.
fn pod(text: &str, own: &str, milestone: Milestone) -> Result<Need, String> {
    let (namespace, name) = text.split_once('/').unwrap_or((own, text));
    let wrong = names::dns_label(namespace).filter(|_| namespace != own);
    if wrong.or_else(|| names::dns_subdomain(name)).is_some() {
        return Err(format!(
            "`{text}` is no name of a pod, which looks like `db` or `namespace/db`"
        ));
    }
    let key = PodKey::new(namespace, name);
    Ok(Need::Pod { key, milestone })
}

/// An absolute path without `.`, `..` and empty parts.
fn path(text: &str) -> Result<String, String> {
    let Some(rest) = text.strip_prefix('/') else {
        return Err("a path begins with `/`".to_owned());
    };
    let odd = |part: &str| matches!(part, "" | "." | "..");
    if text.len() > MAX_PATH || text.contains(char::is_control) {
        return Err(format!(
            "a path has at most {MAX_PATH} bytes and no control characters"
        ));
    }
    if rest.split('/').any(odd) && text != "/" {
        return Err("write the path without `.`, `..` and double slashes".to_owned());
    }
    Ok(text.to_owned())
}

fn unit(text: &str) -> Result<String, String> {
    let known = |ending: &str| UNITS.contains(&ending);
    let named = text.rsplit_once('.');
    if named.is_none_or(|(name, ending)| name.is_empty() || !known(ending)) {
        return Err("a unit is named in full, like `ssh.service` or `data.mount`".to_owned());
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b":-_.\\@".contains(&b);
    match text.len() <= MAX_UNIT && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err("this is no name of a systemd unit".to_owned()),
    }
}

/// Pods that wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circle {
    /// All pods that are in it, or in circles through it.
    pub members: BTreeSet<PodKey>,
    /// One way around: each waits for the next, the last for the first.
    pub around: Vec<PodKey>,
}

impl Circle {
    /// The error, with each pod as `named` writes it.
    pub fn sentence(&self, named: impl Fn(&PodKey) -> String) -> String {
        let mut around: Vec<String> = self.around.iter().take(MAX_NAMED).map(&named).collect();
        if self.around.len() > MAX_NAMED {
            around.push(format!("{} more pods", self.around.len() - MAX_NAMED));
        }
        around.extend(self.around.first().map(named));
        format!(
            "pods wait for each other in a circle, so none of them could start: {}; remove one of them from the \
             annotation `{ANNOTATION}` of the one before it",
            around.join(" -> ")
        )
    }
}

/// The circles among these pods. The work grows with the number of items.
pub fn circles<'p>(pods: impl IntoIterator<Item = &'p PodSpec>) -> Vec<Circle> {
    let waits: Vec<&PodSpec> = pods
        .into_iter()
        .filter(|pod| !pod.after.is_empty())
        .collect();
    let number: BTreeMap<&PodKey, usize> = (waits.iter().enumerate())
        .map(|(index, pod)| (&pod.key, index))
        .gather();
    let next = |pod: &&PodSpec| {
        let named = pod.after.iter().filter_map(|item| match &item.need {
            Need::Pod { key, .. } => number.get(key).copied(),
            Need::Outside(_) => None,
        });
        named.collect::<Vec<_>>()
    };
    let next: Vec<Vec<usize>> = waits.iter().map(next).collect();
    let key = |pod: &usize| waits[*pod].key.clone();
    let circular = groups(&next).into_iter();
    let circular = circular.filter(|g| g.len() > 1 || next[g[0]].contains(&g[0]));
    let circle = |group: Vec<usize>| Circle {
        around: around(&group, &next).iter().map(key).collect(),
        members: group.iter().map(key).gather(),
    };
    circular.map(circle).collect()
}

/// A way around in a group of which each can reach each.
fn around(group: &[usize], next: &[Vec<usize>]) -> Vec<usize> {
    let inside: BTreeSet<usize> = group.iter().copied().gather();
    let mut way = vec![group[0]];
    loop {
        let last = way[way.len() - 1];
        let step = next[last].iter().find(|to| inside.contains(to));
        let step = *step.expect("each of the group has a way to the others");
        match way.iter().position(|pod| *pod == step) {
            Some(begin) => return way.split_off(begin),
            None => way.push(step),
        }
    }
}

/// The strongly connected components, by Tarjan's algorithm without recursion.
fn groups(next: &[Vec<usize>]) -> Vec<Vec<usize>> {
    const NEW: usize = usize::MAX;
    let (mut index, mut low) = (vec![NEW; next.len()], vec![NEW; next.len()]);
    let (mut open, mut is_open) = (Vec::new(), vec![false; next.len()]);
    let (mut count, mut found) = (0, Vec::new());
    for root in 0..next.len() {
        let mut calls: Vec<(usize, usize)> = match index[root] {
            NEW => vec![(root, 0)],
            _ => Vec::new(),
        };
        while let Some((pod, at)) = calls.pop() {
            if at == 0 {
                (index[pod], low[pod]) = (count, count);
                count += 1;
                open.push(pod);
                is_open[pod] = true;
            }
            if let Some(&to) = next[pod].get(at) {
                calls.push((pod, at + 1));
                match index[to] {
                    NEW => calls.push((to, 0)),
                    seen if is_open[to] => low[pod] = low[pod].min(seen),
                    _ => {}
                }
                continue;
            }
            if let Some((above, _)) = calls.last() {
                low[*above] = low[*above].min(low[pod]);
            }
            if low[pod] == index[pod] {
                let begin = open.iter().rposition(|other| *other == pod);
                let group = open.split_off(begin.expect("it is open"));
                group.iter().for_each(|pod| is_open[*pod] = false);
                found.push(group);
            }
        }
    }
    found
}

#[cfg(test)]
#[path = "after_test.rs"]
mod tests;
