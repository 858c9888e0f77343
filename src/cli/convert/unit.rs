//! Files of systemd's syntax: sections of keys, as quadlet units are written.

use super::tree::is_yes;
use super::words::{fields, split_unit};

/// The endings of units.
pub(super) const KINDS: [&str; 7] = [
    "container",
    "pod",
    "volume",
    "network",
    "kube",
    "image",
    "build",
];

/// A unit: its name without the ending, its kind, and the values of its keys in order.
pub(super) struct Unit {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) keys: Vec<(String, String, String)>,
    /// The specifiers and variables that nothing is known of here, each once.
    pub(super) unknown: Vec<String>,
    /// The home of the user whose unit it is; `None` for one of the system.
    home: Option<String>,
    /// The specifiers that stand for folders of the user, if it is one's unit, each once.
    pub(super) of_user: Vec<String>,
}

/// Below this folder of a user's home are the user's units (podman-systemd.unit(5)).
const OF_USER: &str = "/.config/containers/systemd";

impl Unit {
    pub(super) fn read(file: &str, content: &str) -> Result<Self, String> {
        let base = file.rsplit('/').next().unwrap_or_default();
        let (name, kind) = base.rsplit_once('.').unwrap_or((base, "container"));
        let kind = match KINDS.contains(&kind) {
            true => kind,
            false if has_container(content) => "container",
            false => {
                return Err(format!(
                    "`{file}` is no unit that podman runs containers from"
                ));
            }
        };
        let mut unit = Self {
            name: name.trim_end_matches('@').to_owned(),
            kind: kind.to_owned(),
            keys: Vec::new(),
            unknown: Vec::new(),
            home: home(file),
            of_user: Vec::new(),
        };
        unit.add(file, content)?;
        Ok(unit)
    }

    /// Adds what the unit's file says, or another one of the folder beside it.
    pub(super) fn add(&mut self, file: &str, content: &str) -> Result<(), String> {
        let mut section = String::new();
        let mut pending = String::new();
        for line in content.lines() {
            let line = line.trim();
            if pending.is_empty() && line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(more) = line.strip_suffix('\\') {
                pending.push_str(more);
                pending.push(' ');
                continue;
            }
            pending.push_str(line);
            let line = std::mem::take(&mut pending);
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                name.clone_into(&mut section);
            } else if let Some((key, value)) = line.split_once('=') {
                // The values become words of a program's command line in a service, where `$$` stands for `$`.
                self.note_variables(value);
                let value = self.replaced(value.trim()).replace("$$", "$");
                let key = key.trim();
                if value.is_empty() {
                    // It takes back what was there before.
                    self.keys.retain(|(of, k, _)| *of != section || k != key);
                } else {
                    self.keys.push((section.clone(), key.to_owned(), value));
                }
            } else {
                return Err(format!("{file}: `{line}` is no `KEY=VALUE`"));
            }
        }
        Ok(())
    }

    /// Notes the variables that systemd would put into the command line.
    fn note_variables(&mut self, value: &str) {
        let literal = value.replace("$$", "");
        for part in literal.split('$').skip(1) {
            let inner = part.strip_prefix('{');
            let name = inner.unwrap_or(part);
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let name = &name[..end.unwrap_or(name.len())];
            if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
                continue;
            }
            let variable = match inner {
                Some(_) => format!("${{{name}}}"),
                None => format!("${name}"),
            };
            if !self.unknown.contains(&variable) {
                self.unknown.push(variable);
            }
        }
    }

    /// A value with the specifiers of systemd that are the same on every machine, as they are for services of the system.
    /// Of a user, only the home is known.
    fn replaced(&mut self, value: &str) -> String {
        let mut out = String::new();
        let mut letters = value.chars();
        while let Some(c) = letters.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match letters.next() {
                Some('h') => out.push_str(self.home.as_deref().unwrap_or("/root")),
                Some(letter @ ('t' | 'S' | 'E')) => {
                    let folder = match letter {
                        't' => "/run",
                        'S' => "/var/lib",
                        _ => "/etc",
                    };
                    out.push_str(folder);
                    let what = format!("%{letter}: it is the system's {folder} here");
                    if self.home.is_some() && !self.of_user.contains(&what) {
                        self.of_user.push(what);
                    }
                }
                Some('T') => out.push_str("/tmp"),
                Some('%') => out.push('%'),
                Some(letter) if letter.is_ascii_alphabetic() => {
                    let specifier = format!("%{letter}");
                    out.push_str(&specifier);
                    if !self.unknown.contains(&specifier) {
                        self.unknown.push(specifier);
                    }
                }
                other => out.extend(Some('%').into_iter().chain(other)),
            }
        }
        out
    }

    /// Has relative paths begin at a folder.
    pub(super) fn rebase(&mut self, folder: &str) {
        let joined = |path: &str| match path.starts_with(['/', '~']) {
            true => path.to_owned(),
            false => format!("{folder}/{}", path.trim_start_matches("./")),
        };
        for (_, key, value) in &mut self.keys {
            *value = match &**key {
                "EnvironmentFile" => match value.strip_prefix('-') {
                    Some(path) => format!("-{}", joined(path)),
                    None => joined(value),
                },
                "Yaml" | "ConfigMap" => joined(value),
                "Volume" if value.starts_with('.') => joined(value),
                "Mount" => {
                    let words = split_unit(value).into_iter();
                    let words: Vec<_> = words.map(|word| rebased_mount(&word, &joined)).collect();
                    words.join(" ")
                }
                _ => continue,
            };
        }
    }

    /// The names of the units that it names, each once.
    pub(super) fn names(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        let named = self.keys.iter().flat_map(|(_, key, value)| match &**key {
            "Image" | "Pod" => vec![unquoted(value).to_owned()],
            "Volume" | "Network" => value.split(':').take(1).map(str::to_owned).collect(),
            "Mount" => split_unit(value)
                .iter()
                .filter_map(|word| source_of(word))
                .collect(),
            _ => Vec::new(),
        });
        for name in named {
            let is_plain = !name.contains(['/', '%', '$']);
            let kind = name.rsplit_once('.').map_or("", |(_, kind)| kind);
            let is_unit = ["volume", "network", "image", "build", "pod"].contains(&kind);
            if is_plain && is_unit && !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }

    pub(super) fn values(&self, section: &str, key: &str) -> Vec<&str> {
        let all = self
            .keys
            .iter()
            .filter(|(s, k, _)| s == section && k == key);
        all.map(|(_, _, value)| &**value).collect()
    }

    pub(super) fn last(&self, section: &str, key: &str) -> Option<&str> {
        self.values(section, key).pop().map(unquoted)
    }
}

/// The source of a mount, which is one word of `Mount=`.
fn source_of(mount: &str) -> Option<String> {
    let parts = fields(mount);
    let mut parts = parts.iter().filter_map(|part| part.split_once('='));
    let source = parts.find(|(key, _)| matches!(*key, "source" | "src"));
    source.map(|(_, source)| source.to_owned())
}

/// A mount whose relative source begins elsewhere, again as one word: in quotes, which hold those of its options.
fn rebased_mount(mount: &str, joined: &dyn Fn(&str) -> String) -> String {
    let mut parts = fields(mount);
    for part in &mut parts {
        if let Some((key @ ("source" | "src"), path)) = part.split_once('=')
            && path.starts_with('.')
        {
            *part = format!("{key}={}", joined(path));
        }
        *part = format!("\"{}\"", part.replace('"', "\"\""));
    }
    let line = parts.join(",").replace('\\', "\\\\");
    format!("'{}'", line.replace('\'', "\\'"))
}

/// The home of the user whose units are in the folder of a file.
fn home(file: &str) -> Option<String> {
    let (folder, _) = file.rsplit_once('/')?;
    let (home, below) = folder.split_once(OF_USER)?;
    let is_it = home.starts_with('/') && (below.is_empty() || below.starts_with('/'));
    is_it.then(|| home.to_owned())
}

/// Whether a text describes a container.
pub(super) fn has_container(content: &str) -> bool {
    content.lines().any(|line| line.trim() == "[Container]")
}

/// A single value without the quotes around it.
pub(super) fn unquoted(value: &str) -> &str {
    let inner = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
    inner.unwrap_or(value)
}

/// Whether systemd takes a value as true.
pub(super) fn is_true(value: &str) -> bool {
    is_yes(unquoted(value))
}

/// Whether a file is a unit, or adds to one, by its name.
pub(super) fn is_unit(file: &str) -> bool {
    has_kind(file) || adds_to(file).is_some()
}

/// Whether a file is a unit by its ending.
pub(super) fn has_kind(file: &str) -> bool {
    let ending = file.rsplit('.').next().unwrap_or_default();
    KINDS.contains(&ending)
}

/// What a file adds to: the name of its folder without `.d`, which is that of a unit (`web.container`), the beginning of
/// some (`web-.container`) or their kind (`container`).
pub(super) fn adds_to(file: &str) -> Option<&str> {
    let (folder, _) = file.rsplit_once('/')?;
    let folder = folder.rsplit('/').next()?.strip_suffix(".d")?;
    let kind = folder.rsplit('.').next()?;
    KINDS.contains(&kind).then_some(folder)
}

/// The names of the folders, without `.d`, whose files add to a unit, the most particular first: it wins over files of the
/// same name in others (podman-systemd.unit(5)).
pub(super) fn folders(name: &str, kind: &str) -> Vec<String> {
    let dashes = name.rmatch_indices('-').map(|(at, _)| &name[..=at]);
    let shorter = dashes.filter(|start| start.len() < name.len());
    let named = std::iter::once(name).chain(shorter);
    let named = named.map(|name| format!("{name}.{kind}"));
    named.chain([kind.to_owned()]).collect()
}
