//! `registries.conf`: where images are fetched from instead of the place that their name says (version 2 of the format,
//! containers-registries.conf(5)): mirrors, rewrites, blocks, insecure registries and aliases of short names.
//!
//! Unknown keys of a registry are errors: a misspelt `blocked` must not let an image through.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::error::ImageError;
use super::super::progress::Cause;
use crate::spec::ImageName;
use crate::sys::file::read_bounded;
use crate::types::InOrder;

/// The longest file.
const MAX_BYTES: u64 = 1 << 20;

/// The maximum number of files in a folder of drop-ins.
const MAX_FILES: usize = 100;

/// The maximum number of mirrors of one registry.
const MAX_MIRRORS: usize = 16;

/// What all files say together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistriesConf {
    /// By prefix.
    registries: BTreeMap<String, Entry>,
    /// Short names without tag, and what they stand for.
    aliases: BTreeMap<String, String>,
}

/// A place from which an image can be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The image's name there.
    pub name: ImageName,
    /// Whether plain HTTP and certificates of strangers will do.
    pub insecure: bool,
}

/// Why the files cannot be used, or what they say about an image.
#[derive(Debug, thiserror::Error)]
pub enum RegistriesError {
    /// A file or folder could not be read.
    #[error("could not read `{}`", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("`{}`: {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The reason, with its line.
        why: String,
    },
    /// The image's registry is blocked.
    #[error("the registry `{prefix}` is blocked by registries.conf")]
    Blocked {
        /// The prefix that fits the image.
        prefix: String,
    },
    /// A rewritten name is no image name.
    #[error("registries.conf makes `{name}` of the image's name: {why}")]
    Name {
        /// What came out.
        name: String,
        /// What is wrong with it.
        why: String,
    },
}

impl From<RegistriesError> for ImageError {
    fn from(why: RegistriesError) -> Self {
        Self::Pull {
            message: crate::chain(&why),
            hint: Some("`coracle doctor` checks these files; `coracle help images` says what they may have".to_owned()),
            cause: Cause::Other,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct File {
    registry: Vec<Entry>,
    aliases: BTreeMap<String, String>,
    /// Version 1 of the format.
    registries: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
struct Entry {
    prefix: String,
    location: String,
    insecure: bool,
    blocked: bool,
    mirror_by_digest_only: bool,
    mirror: Vec<Mirror>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
struct Mirror {
    location: String,
    insecure: bool,
    pull_from_mirror: Option<PullFromMirror>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PullFromMirror {
    All,
    DigestOnly,
    TagOnly,
}

impl RegistriesConf {
    /// Reads files, each with the `*.conf` of the folder `FILE.d` beside it. What comes later counts; missing files are
    /// as good as empty ones.
    pub fn read(files: &[PathBuf]) -> Result<Self, RegistriesError> {
        let mut all = Self::default();
        for file in files {
            let mut folder = file.clone().into_os_string();
            folder.push(".d");
            let parts = drop_ins(Path::new(&folder))?;
            for path in std::iter::once(file.clone()).chain(parts) {
                match read_bounded(&path, MAX_BYTES) {
                    Ok(bytes) => all
                        .add(&bytes)
                        .map_err(|why| RegistriesError::Invalid { path, why })?,
                    Err(why) if why.kind() == ErrorKind::NotFound => {}
                    Err(source) => return Err(RegistriesError::Read { path, source }),
                }
            }
        }
        Ok(all)
    }

    /// Adds what a file says.
    ///
    /// # Errors
    /// What is wrong with it, with the line where that is known.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
        let file: File = toml::from_str(text).map_err(|why| match why.span() {
            Some(span) => {
                let line = text
                    .bytes()
                    .take(span.start)
                    .filter(|b| *b == b'\n')
                    .count()
                    + 1;
                format!("line {line}: {}", why.message())
            }
            None => why.message().to_owned(),
        })?;
        if file.registries.is_some() {
            return Err(
                "`[registries.…]` is version 1 of the format; write `[[registry]]` tables"
                    .to_owned(),
            );
        }
        for mut entry in file.registry {
            entry.complete()?;
            self.registries.insert(entry.prefix.clone(), entry);
        }
        for (short, full) in file.aliases {
            let is_full =
                ImageName::parse(&full).is_ok_and(|name| full.starts_with(&name.registry));
            if short.contains(['.', ':', '@']) || ImageName::parse(&short).is_err() || !is_full {
                return Err(format!(
                    "the alias `{short}` of `{full}`: a short name stands for a full one, both without a tag"
                ));
            }
            self.aliases.insert(short, full);
        }
        Ok(())
    }

    /// The places of an image, those to try first at the front. `written` is its name as the user wrote it, which may be
    /// short.
    pub fn places(&self, image: &ImageName, written: &str) -> Result<Vec<Place>, RegistriesError> {
        let meant = self.unalias(image, written)?;
        let whole = with_plain_host(&meant.to_string());
        let best = self
            .registries
            .values()
            .filter_map(|entry| Some((matched(&with_plain_host(&entry.prefix), &whole)?, entry)));
        let Some((length, entry)) =
            best.max_by_key(|(length, entry)| (*length, entry.prefix.len()))
        else {
            return Ok(vec![Place {
                name: meant,
                insecure: false,
            }]);
        };
        if entry.blocked {
            return Err(RegistriesError::Blocked {
                prefix: entry.prefix.clone(),
            });
        }
        let at = |location: &str, insecure| {
            let name = match location {
                "" => Ok(meant.clone()),
                location => {
                    let name = format!("{location}{}", &whole[length..]);
                    ImageName::parse(&name).map_err(|why| RegistriesError::Name {
                        name,
                        why: why.to_string(),
                    })
                }
            };
            Ok(Place {
                name: name?,
                insecure,
            })
        };
        let by_digest = meant.digest.is_some();
        let serves = |mirror: &&Mirror| match mirror.pull_from_mirror {
            Some(PullFromMirror::All) => true,
            Some(PullFromMirror::DigestOnly) => by_digest,
            Some(PullFromMirror::TagOnly) => !by_digest,
            None => by_digest || !entry.mirror_by_digest_only,
        };
        let mirrors = entry.mirror.iter().filter(serves);
        mirrors
            .map(|mirror| at(&mirror.location, mirror.insecure))
            .chain([at(&entry.location, entry.insecure)])
            .collect()
    }

    fn unalias(&self, image: &ImageName, written: &str) -> Result<ImageName, RegistriesError> {
        let short = written.split('@').next().unwrap_or_default();
        let short = match short.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => name,
            _ => short,
        };
        let Some(full) = self.aliases.get(short) else {
            return Ok(image.clone());
        };
        let parsed = ImageName::parse(full).map_err(|why| RegistriesError::Name {
            name: full.clone(),
            why: why.to_string(),
        })?;
        Ok(ImageName {
            registry: parsed.registry,
            repository: parsed.repository,
            tag: image.tag.clone(),
            digest: image.digest.clone(),
        })
    }
}

impl Entry {
    /// Fills in what may be left out, and checks the rest.
    fn complete(&mut self) -> Result<(), String> {
        if self.prefix.is_empty() {
            self.prefix = self.location.clone();
        }
        if self.prefix.is_empty() {
            return Err("a `[[registry]]` has neither `prefix` nor `location`".to_owned());
        }
        let of = |why: &str| format!("the registry `{}` {why}", self.prefix.escape_debug());
        for text in [&self.prefix, &self.location]
            .into_iter()
            .chain(self.mirror.iter().map(|mirror| &mirror.location))
        {
            if text.contains("://") || text.ends_with('/') {
                return Err(of(&format!(
                    "has `{}`: write the host and the path, without `https://` and a `/` at the end",
                    text.escape_debug()
                )));
            }
        }
        let wildcard = self.prefix.strip_prefix("*.");
        if wildcard.unwrap_or(&self.prefix).contains('*')
            || wildcard.is_some_and(|rest| rest.contains('/'))
        {
            return Err(of("has a `*` that is not that of `*.HOST`"));
        }
        if wildcard.is_some() && self.prefix == self.location {
            return Err(of("has a `*` in its `location`"));
        }
        if self.mirror.len() > MAX_MIRRORS {
            return Err(of(&format!("has more than {MAX_MIRRORS} mirrors")));
        }
        if self.mirror.iter().any(|mirror| mirror.location.is_empty()) {
            return Err(of("has a mirror without `location`"));
        }
        if self.mirror_by_digest_only
            && self
                .mirror
                .iter()
                .any(|mirror| mirror.pull_from_mirror.is_some())
        {
            return Err(of(
                "has both `mirror-by-digest-only` and a mirror with `pull-from-mirror`",
            ));
        }
        Ok(())
    }
}

/// A name or a prefix with its host in lower case: names of hosts are the same in capitals.
fn with_plain_host(text: &str) -> String {
    match text.split_once('/') {
        Some((host, rest)) => format!("{}/{rest}", host.to_ascii_lowercase()),
        None => text.to_ascii_lowercase(),
    }
}

/// The length of what a prefix covers of a name; `None` if it does not fit. It ends where a part of the name ends.
fn matched(prefix: &str, name: &str) -> Option<usize> {
    if let Some(domain) = prefix.strip_prefix('*') {
        let host = name.split('/').next()?;
        // As containers/image has it, a domain stands for all ports of its hosts.
        let host = match host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
            _ => host,
        };
        return (host.len() > domain.len() && host.ends_with(domain)).then_some(host.len());
    }
    let rest = name.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with(['/', ':', '@'])).then_some(prefix.len())
}

/// The drop-ins of a folder, in the order of their names.
fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, RegistriesError> {
    let failed = |source| RegistriesError::Read {
        path: folder.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(why) => return Err(failed(why)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "conf")
        {
            found.push(path);
        }
        if found.len() > MAX_FILES {
            return Err(failed(std::io::Error::other(format!(
                "more than {MAX_FILES} files"
            ))));
        }
    }
    found.order();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(text: &str) -> RegistriesConf {
        let mut conf = RegistriesConf::default();
        conf.add(text.as_bytes())
            .unwrap_or_else(|why| panic!("{why}"));
        conf
    }

    fn places(conf: &RegistriesConf, written: &str) -> Vec<String> {
        let image = ImageName::parse(written).unwrap();
        match conf.places(&image, written) {
            Ok(places) => places
                .into_iter()
                .map(|place| {
                    format!(
                        "{}{}",
                        place.name,
                        if place.insecure { " insecure" } else { "" }
                    )
                })
                .collect(),
            Err(why) => vec![why.to_string()],
        }
    }

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn the_longest_prefix_decides_where_an_image_comes_from() {
        let conf = conf(
            r#"
            unqualified-search-registries = ["docker.io"]
            short-name-mode = "enforcing"
            [[registry]]
            location = "docker.io"
            [[registry.mirror]]
            location = "mirror.lan:5000/hub"
            insecure = true
            [[registry]]
            prefix = "docker.io/shop"
            location = "registry.lan/shop"
            [[registry]]
            prefix = "docker.io/shop/web:2"
            location = "registry.lan/old/web:1"
            [[registry]]
            prefix = "*.example.com"
            blocked = true
            [[registry]]
            location = "a.example.com"
            [[registry]]
            prefix = "*.wild.org"
            location = "one.lan"
            [aliases]
            "tool" = "quay.io/tools/tool"
            "#,
        );
        for (written, expected) in [
            (
                "nginx:1",
                &[
                    "mirror.lan:5000/hub/library/nginx:1 insecure",
                    "docker.io/library/nginx:1",
                ][..],
            ),
            ("shop/web:1", &["registry.lan/shop/web:1"]),
            ("shop/web:2", &["registry.lan/old/web:1"]),
            ("shop/web:22", &["registry.lan/shop/web:22"]),
            (
                "shopping/web:2",
                &[
                    "mirror.lan:5000/hub/shopping/web:2 insecure",
                    "docker.io/shopping/web:2",
                ],
            ),
            (
                "b.example.com/x:1",
                &["the registry `*.example.com` is blocked by registries.conf"],
            ),
            (
                "b.c.example.com/x:1",
                &["the registry `*.example.com` is blocked by registries.conf"],
            ),
            (
                "b.example.com:5000/x:1",
                &["the registry `*.example.com` is blocked by registries.conf"],
            ),
            ("a.wild.org:5000/x:1", &["one.lan:5000/x:1"]),
            ("a.example.com/x:1", &["a.example.com/x:1"]),
            ("example.com/x:1", &["example.com/x:1"]),
            ("a.wild.org/x/y:1", &["one.lan/x/y:1"]),
            ("other.org:5000/x:1", &["other.org:5000/x:1"]),
            ("tool:3", &["quay.io/tools/tool:3"]),
            (
                "docker.io/library/tool:3",
                &[
                    "mirror.lan:5000/hub/library/tool:3 insecure",
                    "docker.io/library/tool:3",
                ],
            ),
        ] {
            assert_eq!(places(&conf, written), expected, "{written}");
        }
    }

    #[test]
    fn mirrors_serve_digests_or_tags_or_both() {
        let by_mirror = conf(
            r#"
            [[registry]]
            location = "r.lan"
            [[registry.mirror]]
            location = "digests.lan"
            pull-from-mirror = "digest-only"
            [[registry.mirror]]
            location = "tags.lan"
            pull-from-mirror = "tag-only"
            [[registry.mirror]]
            location = "all.lan"
            pull-from-mirror = "all"
            "#,
        );
        assert_eq!(
            places(&by_mirror, "r.lan/x:1"),
            ["tags.lan/x:1", "all.lan/x:1", "r.lan/x:1"]
        );
        let name = format!("r.lan/x@{DIGEST}");
        let expected = ["digests.lan", "all.lan", "r.lan"].map(|host| format!("{host}/x@{DIGEST}"));
        assert_eq!(places(&by_mirror, &name), expected);
        let all = conf(
            "[[registry]]\nlocation = \"r.lan\"\nmirror-by-digest-only = true\nmirror = [{ location = \"m.lan\" }]\n",
        );
        assert_eq!(places(&all, "r.lan/x:1"), ["r.lan/x:1"]);
        assert_eq!(
            places(&all, &name),
            ["m.lan", "r.lan"].map(|host| format!("{host}/x@{DIGEST}"))
        );
    }

    #[test]
    fn later_files_replace_registries_and_aliases() {
        let mut both = conf(
            "[[registry]]\nlocation = \"r.lan\"\nblocked = true\n[aliases]\na = \"r.lan/a\"\n",
        );
        both.add(b"[[registry]]\nlocation = \"r.lan\"\n[aliases]\na = \"s.lan/a\"\n")
            .unwrap();
        assert_eq!(places(&both, "r.lan/x:1"), ["r.lan/x:1"]);
        assert_eq!(places(&both, "a:1"), ["s.lan/a:1"]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_reason() {
        for (text, expected) in [
            (
                "[[registry]]\nlocation = \"r\"\nblokced = true\n",
                "line 3: unknown field `blokced`",
            ),
            ("[[registry]]\n", "neither `prefix` nor `location`"),
            ("x = \n", "line 1"),
            (
                "[registries.search]\nregistries = [\"docker.io\"]\n",
                "version 1",
            ),
            ("[[registry]]\nprefix = \"*.a/b\"\n", "a `*` that is not"),
            (
                "[[registry]]\nlocation = \"*.a\"\n",
                "a `*` in its `location`",
            ),
            (
                "[[registry]]\nlocation = \"https://r.lan\"\n",
                "without `https://`",
            ),
            ("[[registry]]\nlocation = \"r.lan/\"\n", "a `/` at the end"),
            (
                "[[registry]]\nlocation = \"r\"\nmirror = [{}]\n",
                "a mirror without `location`",
            ),
            (
                "[[registry]]\nlocation = \"r\"\nmirror-by-digest-only = true\nmirror = [{ location = \"m\", pull-from-mirror = \"all\" }]\n",
                "both",
            ),
            (
                "[aliases]\na = \"b\"\n",
                "a short name stands for a full one",
            ),
            (
                "[aliases]\n\"r.lan/a\" = \"r.lan/b\"\n",
                "a short name stands for a full one",
            ),
            ("\u{0}", "line 1"),
        ] {
            let why = RegistriesConf::default().add(text.as_bytes()).unwrap_err();
            assert!(why.contains(expected), "{text}: {why}");
        }
        assert_eq!(
            RegistriesConf::default().add(b"\xff"),
            Err("it is not UTF-8".to_owned())
        );
    }
}
