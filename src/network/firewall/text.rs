//! The input of `nft`: all tables in one transaction, or the difference between two states. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::chains;
use super::tables::{Elements, EndpointChain, Family, SetKind, Tables, kinds};
use crate::types::Gather;

/// Elements in one statement.
const AT_ONCE: usize = 200;

/// Replaces both tables, whatever they contain.
pub(super) fn whole(tables: &Tables) -> String {
    let mut text = String::new();
    for family in families(tables).iter().copied() {
        let (word, name) = (family.word(), &tables.bridge);
        text.push_str(&gone(family, name));
        let _ = writeln!(text, "table {word} {name} {{");
        for kind in kinds(tables.bridge_family).filter(|kind| kind.family == family) {
            declaration(&mut text, kind, &tables.sets[kind.name]);
        }
        if family == Family::Inet {
            for (name, chain) in &tables.chains {
                let EndpointChain { comment, rule } = chain;
                let _ = writeln!(
                    text,
                    "\tchain {name} {{\n\t\tcomment \"{comment}\"\n\t\t{rule}\n\t}}"
                );
            }
        }
        text.push_str(chains::part(&tables.frame, family));
        text.push_str("}\n");
    }
    text
}

/// Removes a table; it is made first, so that a missing table is no error.
pub(super) fn gone(family: Family, name: &str) -> String {
    let word = family.word();
    format!("table {word} {name} {{ }}\ndelete table {word} {name}\n")
}

fn families(tables: &Tables) -> &'static [Family] {
    match tables.bridge_family {
        true => &[Family::Inet, Family::Bridge],
        false => &[Family::Inet],
    }
}

fn declaration(text: &mut String, kind: &SetKind, elements: &Elements) {
    let SetKind { name, what, of, .. } = kind;
    let comment = kind.comment;
    let _ = writeln!(
        text,
        "\t{what} {name} {{\n\t\t{of}\n\t\tcomment \"{comment}\""
    );
    if !elements.is_empty() {
        let list: Vec<String> = elements
            .iter()
            .map(|(k, v)| element(k, v.as_deref()))
            .collect();
        let _ = writeln!(text, "\t\telements = {{ {} }}", list.join(",\n\t\t\t"));
    }
    text.push_str("\t}\n");
}

fn element(key: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{key} : {value}"),
        None => key.to_owned(),
    }
}

/// The difference between two states of the tables.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Only new things. The kernel takes these at once.
    pub(super) additions: String,
    /// Everything else. The kernel waits for all packets in flight before it frees what was removed.
    pub(super) rest: String,
}

/// `None`: they differ in parts that never change in place, and must be replaced as a whole.
pub(super) fn difference(old: &Tables, new: &Tables) -> Option<Difference> {
    if !is_alike(old, new) {
        return None;
    }
    let name = &new.bridge;
    let mut found = Difference::default();
    for (chain, content) in new
        .chains
        .iter()
        .filter(|(name, _)| !old.chains.contains_key(*name))
    {
        let EndpointChain { comment, rule } = content;
        let _ = writeln!(
            found.additions,
            "add chain inet {name} {chain} {{ comment \"{comment}\"; }}\nadd rule inet {name} {chain} {rule}"
        );
    }
    for kind in kinds(new.bridge_family) {
        let place = format!("{} {name} {}", kind.family.word(), kind.name);
        let changes = Changes::new(&old.sets[kind.name], &new.sets[kind.name]);
        statements(&mut found.additions, "add", &place, &changes.added);
        statements(&mut found.rest, "delete", &place, &changes.removed);
        statements(&mut found.rest, "add", &place, &changes.again);
    }
    for chain in old
        .chains
        .keys()
        .filter(|name| !new.chains.contains_key(*name))
    {
        let _ = writeln!(found.rest, "delete chain inet {name} {chain}");
    }
    Some(found)
}

/// The tables after the additions.
pub(super) fn with_additions(old: &Tables, new: &Tables) -> Tables {
    let mut tables = old.clone();
    for (name, elements) in &new.sets {
        let there = tables.sets.entry(name).or_default();
        for (key, value) in elements {
            there.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    for (name, chain) in &new.chains {
        tables
            .chains
            .entry(name.clone())
            .or_insert_with(|| chain.clone());
    }
    tables
}

/// Whether one can become the other without being replaced as a whole.
pub(super) fn is_alike(old: &Tables, new: &Tables) -> bool {
    old.bridge == new.bridge && old.frame == new.frame && old.bridge_family == new.bridge_family
}

/// Whether `new` contains all of `old`, unchanged.
pub(super) fn keeps_all(old: &Tables, new: &Tables) -> bool {
    let chains = old.chains.keys().all(|name| new.chains.contains_key(name));
    let keeps = |(name, elements): (&&str, &Elements)| {
        let now = &new.sets[name];
        elements
            .iter()
            .all(|(key, value)| now.get(key) == Some(value))
    };
    is_alike(old, new) && chains && old.sets.iter().all(keeps)
}

/// Whether a remaining key has another value.
pub(super) fn changes_values(old: &Tables, new: &Tables) -> bool {
    let changes = |(name, elements): (&&str, &Elements)| {
        let now = &new.sets[name];
        elements
            .iter()
            .any(|(key, value)| now.get(key).is_some_and(|now| now != value))
    };
    old.sets.iter().any(changes)
}

type Picked<'t> = BTreeMap<&'t String, &'t Option<String>>;

struct Changes<'t> {
    added: Picked<'t>,
    removed: Picked<'t>,
    /// Removes the key, and adds it with its new value.
    again: Picked<'t>,
}

impl<'t> Changes<'t> {
    fn new(old: &'t Elements, new: &'t Elements) -> Self {
        let added = new.iter().filter(|(k, _)| !old.contains_key(*k));
        let removed = old.iter().filter(|(k, v)| new.get(*k) != Some(*v));
        let again = new
            .iter()
            .filter(|(k, v)| old.get(*k).is_some_and(|was| was != *v));
        Self {
            added: added.gather(),
            removed: removed.gather(),
            again: again.gather(),
        }
    }
}

fn statements(text: &mut String, verb: &str, place: &str, elements: &Picked<'_>) {
    let list: Vec<String> = elements
        .iter()
        .map(|(k, v)| element(k, v.as_deref()))
        .collect();
    for some in list.chunks(AT_ONCE) {
        let _ = writeln!(text, "{verb} element {place} {{ {} }}", some.join(", "));
    }
}
