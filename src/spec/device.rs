//! The devices that containers ask for without being privileged, from annotations (`coracle help devices`).
//!
//! ```text
//! coracle.dev/devices: /dev/ttyUSB0:/dev/modem:rw, /dev/serial/by-id/*:restart    for all containers of the pod
//! devices.coracle.dev/<container>: acme.com/camera=front, /dev/rtc0:r:optional    for one of them
//! cdi.k8s.io/<any>: acme.com/camera=front                                        as container runtimes read it
//! ```
//!
//! An entry is read from its end, because names that udev gives to links contain colons.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodSpec as Written;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::error::{Path, Report};

/// The annotation for all containers of a pod.
pub(super) const ANNOTATION: &str = "coracle.dev/devices";

/// The domain of the annotations for one container, whose name follows.
pub(super) const OF_CONTAINER: &str = "devices.coracle.dev/";

/// The domain of the Container Device Interface's annotations.
const OF_CDI: &str = "cdi.k8s.io/";

/// Most entries of one annotation.
const MAX_ENTRIES: usize = 32;

/// Longest path.
const MAX_PATH: usize = 1024;

/// What every container has in its own `/dev`.
const OWN: [&str; 14] = [
    "console", "core", "fd", "full", "kcore", "null", "ptmx", "random", "stderr", "stdin",
    "stdout", "tty", "urandom", "zero",
];

/// Folders in `/dev` that are file systems of the container's own.
const OWN_FOLDERS: [&str; 3] = ["mqueue", "pts", "shm"];

/// Folders in the node's `/dev` to which any user may write links, or which are links themselves.
const NOT_DEVICES: [&str; 6] = ["fd", "mqueue", "shm", "stderr", "stdin", "stdout"];

/// What a pod's containers ask for; never empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Devices {
    /// All containers.
    all: Vec<DeviceRequest>,
    /// One container, by name.
    own: BTreeMap<String, Vec<DeviceRequest>>,
}

/// One entry of an annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The path or pattern on the node, or the name of a CDI device.
    pub name: String,
    /// What is asked for.
    pub source: DeviceSource,
    /// The container starts without it, too.
    pub optional: bool,
    /// The container restarts when the device is back.
    pub restart: bool,
}

/// Where a device comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSource {
    /// Nodes below `/dev`.
    Node {
        /// The path in the container; one that ends with `/` is a folder for all of them. `None`: as on the node.
        place: Option<String>,
        /// What the container may do.
        access: DeviceAccess,
    },
    /// A CDI device.
    Cdi,
}

/// What a container may do with a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceAccess {
    /// `r`.
    pub read: bool,
    /// `w`.
    pub write: bool,
    /// `m`: make nodes of it.
    pub mknod: bool,
}

impl DeviceAccess {
    /// Everything.
    pub const ALL: Self = Self {
        read: true,
        write: true,
        mknod: true,
    };

    /// Parses `rwm` or a part of it; each letter once.
    pub fn parse(text: &str) -> Option<Self> {
        let mut found = Self {
            read: false,
            write: false,
            mknod: false,
        };
        for letter in text.chars() {
            let place = match letter {
                'r' => &mut found.read,
                'w' => &mut found.write,
                'm' => &mut found.mknod,
                _ => return None,
            };
            if std::mem::replace(place, true) {
                return None;
            }
        }
        (!text.is_empty()).then_some(found)
    }
}

impl Devices {
    /// The requests of a container: its own, then those of all that it does not have itself.
    pub fn of(&self, container: &str) -> impl Iterator<Item = &DeviceRequest> {
        let own = self.own.get(container).map_or(&[][..], Vec::as_slice);
        let is_own = move |name: &str| own.iter().any(|request| request.name == name);
        let all = self.all.iter();
        own.iter()
            .chain(all.filter(move |request| !is_own(&request.name)))
    }

    /// Every request; those of several containers may have the same name.
    pub fn each(&self) -> impl Iterator<Item = &DeviceRequest> {
        self.all.iter().chain(self.own.values().flatten())
    }
}

impl DeviceRequest {
    /// Whether the name stands for all paths that match it.
    pub fn is_pattern(&self) -> bool {
        self.source != DeviceSource::Cdi && is_pattern(&self.name)
    }
}

/// Whether text has letters that stand for others: `*`, `?` or `[`.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Whether a path in the container's `/dev` is taken by what every container has.
pub fn is_taken(path: &str) -> bool {
    let Some(below) = path.strip_prefix("/dev/") else {
        return true;
    };
    let first = below.split('/').next().unwrap_or_default();
    OWN.contains(&first) || OWN_FOLDERS.contains(&first)
}

/// Whether a path below the node's `/dev`, without links, is where devices are.
pub fn may_be_device(below: &str) -> bool {
    let first = below.split('/').next().unwrap_or_default();
    !first.is_empty() && !NOT_DEVICES.contains(&first)
}

/// Whether this is an annotation for devices. A pod keeps them for life.
pub(super) fn is_annotation(key: &str) -> bool {
    key == ANNOTATION || key.starts_with(OF_CONTAINER) || key.starts_with(OF_CDI)
}

/// Returns what the annotations ask for, if they ask for any device.
pub(super) fn of(
    metadata: &ObjectMeta,
    spec: &Written,
    path: &Path<'_>,
    report: &Report,
) -> Option<Arc<Devices>> {
    let path = path.field("metadata");
    let path = path.field("annotations");
    let mut found = Devices::default();
    for (key, text) in metadata.annotations.iter().flatten() {
        let at = path.field(key);
        let read = |cdi_only| {
            entries(text, cdi_only).unwrap_or_else(|problem| {
                report.invalid(&at, text, problem);
                Vec::new()
            })
        };
        if key == ANNOTATION {
            merge(&mut found.all, read(false));
        } else if key.starts_with(OF_CDI) {
            merge(&mut found.all, read(true));
        } else if let Some(name) = key.strip_prefix(OF_CONTAINER) {
            let inits = spec.init_containers.iter().flatten();
            if !inits.chain(&spec.containers).any(|c| c.name == name) {
                report.not_found(&at, name);
            }
            found.own.insert(name.to_owned(), read(false));
        }
    }
    found.own.retain(|_, requests| !requests.is_empty());
    let any = !found.all.is_empty() || !found.own.is_empty();
    any.then(|| Arc::new(found))
}

/// Adds requests of another annotation.
fn merge(known: &mut Vec<DeviceRequest>, more: Vec<DeviceRequest>) {
    for request in more {
        if !known.iter().any(|other| other.name == request.name) {
            known.push(request);
        }
    }
}

/// Parses an annotation; the error is a sentence.
fn entries(text: &str, cdi_only: bool) -> Result<Vec<DeviceRequest>, String> {
    let mut found: Vec<DeviceRequest> = Vec::new();
    let written = text.split([',', '\n']).map(str::trim);
    for written in written.filter(|entry| !entry.is_empty()) {
        if found.len() == MAX_ENTRIES {
            return Err(format!("must have at most {MAX_ENTRIES} entries"));
        }
        let request = match cdi_only {
            true => cdi(written, Options::default())?,
            false => entry(written)?,
        };
        if found.iter().any(|other| other.name == request.name) {
            return Err(format!("`{}` is there twice", request.name));
        }
        found.push(request);
    }
    match found.is_empty() {
        true => Err("must name a device, such as `/dev/ttyUSB0`".to_owned()),
        false => Ok(found),
    }
}

/// The words at the end of an entry.
#[derive(Default)]
struct Options {
    optional: bool,
    restart: bool,
}

fn entry(written: &str) -> Result<DeviceRequest, String> {
    let (mut rest, mut options) = (written, Options::default());
    loop {
        rest = match rest.rsplit_once(':') {
            Some((before, "optional")) => {
                options.optional = true;
                before
            }
            Some((before, "restart")) => {
                options.restart = true;
                before
            }
            Some(_) | None => break,
        };
    }
    if !rest.starts_with('/') {
        return cdi(rest, options);
    }
    let (rest, access) = match rest.rsplit_once(':') {
        Some((before, word)) => match DeviceAccess::parse(word) {
            Some(access) => (before, access),
            None if !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase()) => {
                return Err(format!(
                    "`{word}` in `{written}` is neither permissions (`rwm`) nor `optional` or `restart`"
                ));
            }
            None => (rest, DeviceAccess::ALL),
        },
        None => (rest, DeviceAccess::ALL),
    };
    let (name, place) = match rest.rsplit_once(":/") {
        Some((name, place)) => (name, Some(format!("/{place}"))),
        None => (rest, None),
    };
    check_name(name)?;
    check_place(name, place.as_deref())?;
    Ok(DeviceRequest {
        name: name.to_owned(),
        source: DeviceSource::Node { place, access },
        optional: options.optional,
        restart: options.restart,
    })
}

/// Checks a path without `..` below `/dev`. The error is a sentence.
fn check_path(path: &str) -> Result<&str, String> {
    let below = path
        .strip_prefix("/dev/")
        .ok_or_else(|| format!("`{path}` must be a path below `/dev`"))?;
    let parts = || below.strip_suffix('/').unwrap_or(below).split('/');
    if parts().any(|part| matches!(part, "" | "." | "..")) {
        return Err(format!("`{path}` must not contain `//`, `.` or `..`"));
    }
    if path.len() > MAX_PATH || path.chars().any(char::is_control) {
        return Err(format!(
            "`{}` must be printable and at most {MAX_PATH} bytes long",
            path.escape_debug()
        ));
    }
    Ok(below)
}

fn check_name(name: &str) -> Result<(), String> {
    let below = check_path(name)?;
    if below.ends_with('/') {
        return Err(format!(
            "`{name}` is a folder; `{name}*` means all devices in it"
        ));
    }
    if !may_be_device(below) {
        return Err(format!("`{name}` is where no devices are"));
    }
    Ok(())
}

fn check_place(name: &str, place: Option<&str>) -> Result<(), String> {
    match place {
        // What a pattern matches is checked when it is known.
        None if is_pattern(name) => Ok(()),
        None if is_taken(name) => Err(format!(
            "`{name}` is a path that every container has; give the device another one: `{name}:/dev/…`"
        )),
        None => Ok(()),
        Some(place) => {
            check_path(place)?;
            if is_taken(place) {
                return Err(format!("`{place}` is a path that every container has"));
            }
            if place.contains([':', '*', '?', '[']) {
                return Err(format!("`{place}` must not contain `:`, `*`, `?` or `[`"));
            }
            match is_pattern(name) && !place.ends_with('/') {
                true => Err(format!(
                    "`{name}` may match several devices: their place must be a folder, `{place}/`"
                )),
                false => Ok(()),
            }
        }
    }
}

fn cdi(name: &str, options: Options) -> Result<DeviceRequest, String> {
    match is_cdi_name(name) {
        false => Err(format!(
            "`{name}` is neither a path below `/dev` nor a CDI device `vendor/class=name`"
        )),
        true => Ok(DeviceRequest {
            name: name.to_owned(),
            source: DeviceSource::Cdi,
            optional: options.optional,
            restart: options.restart,
        }),
    }
}

/// Whether text is a full name, `vendor/class=name`.
fn is_cdi_name(text: &str) -> bool {
    let parts = text.split_once('=');
    let parts = parts.and_then(|(kind, name)| Some((kind.split_once('/')?, name)));
    parts.is_some_and(|((vendor, class), name)| {
        is_word(vendor, "_-.") && is_word(class, "_-.") && is_cdi_device(name)
    }) && text.len() <= MAX_PATH
}

/// Whether text is `vendor/class`, the kind of a CDI file.
pub(super) fn is_cdi_kind(text: &str) -> bool {
    let parts = text.split_once('/');
    parts.is_some_and(|(vendor, class)| is_word(vendor, "_-.") && is_word(class, "_-."))
}

/// Whether text is the name of a device in a CDI file.
pub(super) fn is_cdi_device(text: &str) -> bool {
    let parts = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.chars().all(parts) && ends(text.chars().next()) && ends(text.chars().last())
}

/// Whether text begins with a letter, ends with a letter or digit, and has these signs between.
fn is_word(text: &str, signs: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let ends = text.ends_with(|c: char| c.is_ascii_alphanumeric());
    let all = |c: char| c.is_ascii_alphanumeric() || signs.contains(c);
    begins && ends && text.chars().all(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, place, permissions and options, as they are read.
    fn read(text: &str) -> Result<Vec<String>, String> {
        let show = |request: &DeviceRequest| {
            let mut line = request.name.clone();
            if let DeviceSource::Node { place, access } = &request.source {
                let letter = |yes, letter| if yes { letter } else { "" };
                line += &format!(
                    " at {} {}{}{}",
                    place.as_deref().unwrap_or("-"),
                    letter(access.read, "r"),
                    letter(access.write, "w"),
                    letter(access.mknod, "m")
                );
            }
            for (yes, word) in [(request.optional, "optional"), (request.restart, "restart")] {
                line += &if yes {
                    format!(" {word}")
                } else {
                    String::new()
                };
            }
            line
        };
        entries(text, false).map(|all| all.iter().map(show).collect())
    }

    #[test]
    fn an_entry_is_a_path_or_a_cdi_device_with_options_at_its_end() {
        for (text, expected) in [
            ("/dev/ttyUSB0", vec!["/dev/ttyUSB0 at - rwm"]),
            ("/dev/ttyUSB0:rw", vec!["/dev/ttyUSB0 at - rw"]),
            ("/dev/a:/dev/b:r", vec!["/dev/a at /dev/b r"]),
            (
                "/dev/serial/by-path/pci-0000:00:14.0-usb-0:1:1.0-port0:/dev/modem:rw:restart",
                vec![
                    "/dev/serial/by-path/pci-0000:00:14.0-usb-0:1:1.0-port0 at /dev/modem rw restart",
                ],
            ),
            (
                "/dev/serial/by-path/pci-0000:00:14.0-usb-0:1:1.0-port0",
                vec!["/dev/serial/by-path/pci-0000:00:14.0-usb-0:1:1.0-port0 at - rwm"],
            ),
            (
                " /dev/serial/by-id/*:/dev/modems/:optional:restart,\n/dev/pts/3:/dev/x\n\n",
                vec![
                    "/dev/serial/by-id/* at /dev/modems/ rwm optional restart",
                    "/dev/pts/3 at /dev/x rwm",
                ],
            ),
            (
                "acme.com/camera=front, acme.com/camera=0:1:optional",
                vec!["acme.com/camera=front", "acme.com/camera=0:1 optional"],
            ),
        ] {
            let expected = expected.into_iter().map(str::to_owned).collect();
            assert_eq!(read(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn mistakes_and_hostile_paths_are_named() {
        for (text, problem) in [
            ("", "must name a device, such as `/dev/ttyUSB0`"),
            (",,", "must name a device, such as `/dev/ttyUSB0`"),
            ("/etc/passwd", "`/etc/passwd` must be a path below `/dev`"),
            ("/dev", "`/dev` must be a path below `/dev`"),
            (
                "/dev/../etc/x",
                "`/dev/../etc/x` must not contain `//`, `.` or `..`",
            ),
            ("/dev//x", "`/dev//x` must not contain `//`, `.` or `..`"),
            (
                "/dev/dri/",
                "`/dev/dri/` is a folder; `/dev/dri/*` means all devices in it",
            ),
            ("/dev/shm/x", "`/dev/shm/x` is where no devices are"),
            ("/dev/fd/0", "`/dev/fd/0` is where no devices are"),
            ("/dev/stdin", "`/dev/stdin` is where no devices are"),
            (
                "/dev/null",
                "`/dev/null` is a path that every container has; give the device another one: `/dev/null:/dev/…`",
            ),
            (
                "/dev/pts/3",
                "`/dev/pts/3` is a path that every container has; give the device another one: `/dev/pts/3:/dev/…`",
            ),
            ("/dev/a:/etc/b", "`/etc/b` must be a path below `/dev`"),
            (
                "/dev/a:/dev/../b",
                "`/dev/../b` must not contain `//`, `.` or `..`",
            ),
            (
                "/dev/a:/dev/pts/b",
                "`/dev/pts/b` is a path that every container has",
            ),
            (
                "/dev/a:/dev/b:B",
                "`/dev/b:B` must not contain `:`, `*`, `?` or `[`",
            ),
            (
                "/dev/a:/dev/b:rwx",
                "`rwx` in `/dev/a:/dev/b:rwx` is neither permissions (`rwm`) nor `optional` or `restart`",
            ),
            (
                "/dev/a:rr",
                "`rr` in `/dev/a:rr` is neither permissions (`rwm`) nor `optional` or `restart`",
            ),
            (
                "/dev/a*:/dev/b",
                "`/dev/a*` may match several devices: their place must be a folder, `/dev/b/`",
            ),
            (
                "ttyUSB0",
                "`ttyUSB0` is neither a path below `/dev` nor a CDI device `vendor/class=name`",
            ),
            (
                "acme.com/camera",
                "`acme.com/camera` is neither a path below `/dev` nor a CDI device `vendor/class=name`",
            ),
            ("/dev/a, /dev/a:r", "`/dev/a` is there twice"),
            (
                "/dev/a\u{7}",
                "`/dev/a\\u{7}` must be printable and at most 1024 bytes long",
            ),
        ] {
            assert_eq!(read(text), Err(problem.to_owned()), "{text:?}");
        }
        let many = vec!["/dev/x"; 40].join(",");
        assert!(read(&many).is_err());
        let many: Vec<String> = (0..33).map(|number| format!("/dev/x{number}")).collect();
        let problem = "must have at most 32 entries".to_owned();
        assert_eq!(read(&many.join(",")), Err(problem));
    }

    #[test]
    fn a_container_has_its_own_requests_and_those_of_all() {
        let list = |text| entries(text, false).expect("valid");
        let devices = Devices {
            all: list("/dev/a, /dev/b:r"),
            own: [("c".to_owned(), list("/dev/b:w, /dev/c"))].into(),
        };
        let names = |container: &str| {
            let each = devices.of(container);
            each.map(|request| request.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("c"), ["/dev/b", "/dev/c", "/dev/a"]);
        assert_eq!(names("other"), ["/dev/a", "/dev/b"]);
        let written = DeviceSource::Node {
            place: None,
            access: DeviceAccess::parse("w").expect("valid"),
        };
        assert_eq!(devices.of("c").next().expect("there").source, written);
    }
}
