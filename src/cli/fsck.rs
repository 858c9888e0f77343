//! `coracle fsck`: checks the image store on disk itself, with or without an agent.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::args::FsckArgs;
use super::client::Client;
use super::error::{CliError, Result};
use super::table::one_line;
use super::{directories, put};
use crate::images::{self, Check, Contents, Damage, ImageStore, ImportOptions, Lost};
use crate::layout::Layout;
use crate::spec::PodUid;
use crate::sys::file;
use crate::types::InOrder;

const MEND: &str = "`coracle fsck --repair` removes what is damaged while no pod runs, and so does a start of the node \
                    after a power cut; archives in preload directories are imported again then";

/// Only a comparison of contents is sure to find again what another one found.
const MEND_DEEP: &str =
    "`coracle fsck --deep --repair` removes what is damaged while no pod runs, and gets it again";

const CLEAR: &str =
    "remove the cause (an immutable file, a mount, a disk that fails), and repair again";

pub(super) fn run(client: &Client, args: &FsckArgs) -> Result<ExitCode> {
    let given = (args.root.clone(), args.run_dir.clone(), None);
    let layout = directories::find(client, given).layout;
    let path = layout.image_store();
    let failed = || {
        CliError::new(format!(
            "could not check the images in `{}`",
            path.display()
        ))
    };
    if !path.is_dir() {
        return Err(failed().because("there is no such directory"));
    }
    let pods = match args.repair {
        true => users(&layout),
        false => Vec::new(),
    };
    if !pods.is_empty() {
        let pods = pods.join(", ");
        return Err(CliError::new(format!(
            "pods are running, and may use what would be removed: {pods}"
        ))
        .hint("`coracle drain` stops them, or let the node check its images at the next start"));
    }
    let because = |why| failed().because(crate::chain(&why));
    let store = ImageStore::open(&path).map_err(because)?;
    let compared = match args.deep {
        true => Some(compare(&store).map_err(because)?),
        false => None,
    };
    let contents = compared.clone().unwrap_or_default();
    let check = match args.repair {
        true => store.repair_with(&contents),
        false => store.check_with(&contents),
    };
    let check = check.map_err(because)?;
    let regained = match args.repair {
        true => regain(client, &layout.root, &store, &check.lost),
        false => Vec::new(),
    };
    let report = Report {
        check: &check,
        compared: compared.as_ref(),
        repaired: args.repair,
        regained: &regained,
    };
    let text = match args.output.output {
        Some(_) => format!("{:#}\n", report.json()),
        None => report.text(),
    };
    put(text.as_bytes())?;
    let missing = regained.iter().filter(|r| r.failed.is_some()).count();
    if !check.left.is_empty() {
        let left = check.left.len();
        return Err(CliError::new(format!("{left} not removed")).hint(CLEAR));
    }
    if missing > 0 {
        return Err(CliError::new(format!("{missing} images are gone")));
    }
    if check.damage.is_empty() || args.repair {
        return Ok(ExitCode::SUCCESS);
    }
    let mend = if args.deep { MEND_DEEP } else { MEND };
    Err(CliError::new(format!("{} damaged", check.damage.len())).hint(mend))
}

/// The pods that may use images: all that have a folder, except those whose sandbox was removed because they had
/// finished. The agent takes that mark away before it makes another sandbox.
fn users(layout: &Layout) -> Vec<String> {
    let folders = std::fs::read_dir(layout.pods_run_dir());
    let uids = folders.into_iter().flatten().flatten();
    let uids = uids.map(|folder| PodUid::from(&*folder.file_name().to_string_lossy()));
    let runs = |uid: &PodUid| !layout.pod_run(uid).finished().exists();
    let mut pods: Vec<String> = uids
        .filter(runs)
        .map(|uid| name(layout, &uid).unwrap_or_else(|| uid.to_string()))
        .collect();
    pods.order();
    pods
}

/// `namespace/name`, from the pod's manifest.
fn name(layout: &Layout, uid: &PodUid) -> Option<String> {
    let text = file::read_record(layout.pod_run(uid).manifest()).ok()?;
    let pod: Value = serde_json::from_slice(&text).ok()?;
    let word = |field: &str| pod["metadata"][field].as_str();
    Some(one_line(&format!(
        "{}/{}",
        word("namespace")?,
        word("name")?
    )))
}

/// Compares contents, with a bar on a terminal.
fn compare(store: &ImageStore) -> std::result::Result<Contents, images::ImageError> {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::no_length(),
        false => ProgressBar::hidden(),
    };
    let compared = store.compare(&mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    compared
}

/// What became of a removed image.
#[derive(Debug, PartialEq, Eq)]
struct Regained {
    /// Its names, or its id without any.
    image: String,
    /// Where it was got from again.
    from: String,
    /// Why it was not, with what to do.
    failed: Option<String>,
}

/// Gets removed images again: from their archives, else from their registries by the agent.
fn regain(client: &Client, root: &Path, store: &ImageStore, lost: &[Lost]) -> Vec<Regained> {
    let agent = || serves(client, root).then_some(client);
    let mut regained: Vec<Regained> = Vec::new();
    for image in lost {
        let names: Vec<&str> = image
            .pulled
            .iter()
            .chain(&image.given)
            .map(String::as_str)
            .collect();
        let shown = match names.is_empty() {
            true => image.id.clone(),
            false => names.join(", "),
        };
        let archive = image.archive.as_ref().filter(|archive| archive.exists());
        let (from, got) = match (archive, image.pulled.first()) {
            (Some(archive), _) => (archive.display().to_string(), import(store, archive)),
            (None, Some(first)) => {
                let registry = first.split('/').next().unwrap_or_default().to_owned();
                (
                    registry,
                    agent().map_or_else(|| Err(no_agent(first)), |client| pull(client, image)),
                )
            }
            (None, None) => (
                String::new(),
                Err("import its archive again: `coracle image import FILE`".to_owned()),
            ),
        };
        regained.push(Regained {
            image: shown,
            from,
            failed: got.err(),
        });
    }
    regained
}

fn no_agent(name: &str) -> String {
    format!("no agent runs that could pull it; later: `coracle image pull {name}`")
}

/// Whether the agent behind the socket has its images there.
fn serves(client: &Client, root: &Path) -> bool {
    let Ok(shown) = client.get("/configz") else {
        return false;
    };
    let its = shown["kubeletconfig"]["coracle"]["rootDir"].as_str();
    let whole = |path: &Path| path.canonicalize().ok();
    its.is_some_and(|its| whole(Path::new(its)) == whole(root))
}

/// Imports an archive of a preload directory again.
fn import(store: &ImageStore, archive: &Path) -> std::result::Result<(), String> {
    let options = ImportOptions {
        preloaded: true,
        ..ImportOptions::default()
    };
    let exe = Path::new("/proc/self/exe");
    let imported = smol::block_on(images::import(exe, store.dir(), archive, &options, |_| {}));
    imported.map(drop).map_err(|why| crate::chain(&why))
}

/// Has the agent pull an image by the names that were pulled, and gives it its other names again.
fn pull(client: &Client, image: &Lost) -> std::result::Result<(), String> {
    let mut errors = Vec::new();
    let mut source = None;
    for name in &image.pulled {
        match pull_one(client, name) {
            Ok(()) => source = source.or(Some(name)),
            Err(why) => errors.push(format!("{why}; later: `coracle image pull {name}`")),
        }
    }
    for name in image.given.iter().filter(|_| source.is_some()) {
        let asked = json!({ "source": source, "target": name });
        let tagged = client.json("POST", "/coracle/v1/images/tag", Some(&asked));
        errors.extend(tagged.err().map(|why| why.to_string()));
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(errors.join("; ")),
    }
}

fn pull_one(client: &Client, name: &str) -> std::result::Result<(), String> {
    let asked = json!({ "name": name });
    let response = client.send("POST", "/coracle/v1/images/pull", Some(&asked));
    let response = response.map_err(|why| why.to_string())?;
    let mut ended = Err("the agent stopped before the pull was done".to_owned());
    for line in response.body.lines() {
        let line = line.map_err(|why| why.to_string())?;
        let step: Value = serde_json::from_str(&line).unwrap_or_default();
        match step["type"].as_str() {
            Some("image") => ended = Ok(()),
            Some("error") => {
                let message = step["message"].as_str().unwrap_or("unknown reason");
                ended = Err(message.to_owned());
            }
            _ => {}
        }
    }
    ended
}

/// What was found and done.
struct Report<'a> {
    check: &'a Check,
    compared: Option<&'a Contents>,
    repaired: bool,
    regained: &'a [Regained],
}

impl Report<'_> {
    fn json(&self) -> Value {
        let finding = |damage: &Damage| {
            json!({
                "kind": damage.kind.as_str(),
                "path": damage.path,
                "image": damage.image,
                "message": damage.why,
                "repaired": self.repaired && !self.check.has_left(damage),
            })
        };
        let check = self.check;
        let mut shown = json!({
            "images": check.images,
            "layers": check.layers,
            "unused": check.unused,
            "findings": check.damage.iter().map(finding).collect::<Vec<_>>(),
        });
        if let Some(compared) = self.compared {
            shown["compared"] = compared.compared.into();
            shown["notComparable"] = compared.unknown.into();
        }
        if self.repaired {
            let regained = self.regained.iter();
            let regained =
                regained.map(|r| json!({ "image": r.image, "from": r.from, "error": r.failed }));
            shown["regained"] = regained.collect::<Vec<_>>().into();
            let left = check.left.iter();
            let left = left.map(|left| json!({ "path": left.path, "error": left.why }));
            shown["notRemoved"] = left.collect::<Vec<_>>().into();
        }
        shown
    }

    fn text(&self) -> String {
        let check = self.check;
        let mut text = String::new();
        for damage in &check.damage {
            let removed = self.repaired && !check.has_left(damage);
            let what = if removed { "removed" } else { "damaged" };
            text += &format!("{what}  {damage}\n");
        }
        for left in &check.left {
            text += &format!("left  {}\n", left.why);
        }
        for image in self.regained {
            text += &match &image.failed {
                None => format!("regained  {} from {}\n", image.image, image.from),
                Some(why) => format!("gone  {}: {why}\n", image.image),
            };
        }
        text += &format!(
            "{} images, {} layers, {} damaged",
            check.images,
            check.layers,
            check.damage.len()
        );
        match (check.unused, self.repaired) {
            (0, _) => {}
            (unused, true) => text += &format!("; {unused} unused files removed"),
            (unused, false) => text += &format!("; {unused} unused files"),
        }
        if let Some(compared) = self.compared {
            text += &format!("; contents of {} layers compared", compared.compared);
            if compared.unknown > 0 {
                text += &format!(
                    ", {} cannot be (import or pull them again)",
                    compared.unknown
                );
            }
        }
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_pods_that_have_finished_use_no_images() {
        let folder = std::env::temp_dir().join(format!("coracle-fsck-{}", std::process::id()));
        let layout = Layout {
            run_dir: folder.clone(),
            ..Layout::default()
        };
        assert!(users(&layout).is_empty(), "no folder");
        for (uid, name) in [("uid-1", "shop/web"), ("uid-2", "shop/job"), ("uid-3", "")] {
            let run = layout.pod_run(&PodUid::from(uid));
            fs::create_dir_all(&run.dir).unwrap();
            if let Some((namespace, name)) = name.split_once('/') {
                let pod = json!({ "metadata": { "namespace": namespace, "name": name } });
                fs::write(run.manifest(), pod.to_string()).unwrap();
            }
        }
        assert_eq!(users(&layout), ["shop/job", "shop/web", "uid-3"]);
        fs::write(layout.pod_run(&PodUid::from("uid-2")).finished(), "").unwrap();
        assert_eq!(users(&layout), ["shop/web", "uid-3"]);
        fs::remove_dir_all(folder).unwrap();
    }
}
