//! `coracle fsck`: checks the image store on disk itself, with or without an agent.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::FsckArgs;
use super::error::{CliError, Result};
use super::put;
use crate::images::{Check, Damage, ImageStore};
use crate::layout::Layout;

const MEND: &str = "`coracle fsck --repair` removes what is damaged while no pod runs, and so does a start of the node \
                    after a power cut; archives in preload directories are imported again then";

pub(super) fn run(args: &FsckArgs) -> Result<ExitCode> {
    let layout = Layout {
        root: args.root.clone(),
        run_dir: args.run_dir.clone(),
        ..Layout::default()
    };
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
    let pods = std::fs::read_dir(layout.pods_run_dir());
    if args.repair && pods.is_ok_and(|mut pods| pods.next().is_some()) {
        return Err(CliError::new("pods are running, and may use what would be removed")
            .hint("move their manifests away first, or let the node check its images at the next start"));
    }
    let store = ImageStore::open(&path).map_err(|e| failed().because(crate::chain(&e)))?;
    let check = match args.repair {
        true => store.repair(),
        false => store.check(),
    };
    let check = check.map_err(|e| failed().because(crate::chain(&e)))?;
    let text = match args.output.output {
        Some(_) => format!("{:#}\n", json(&check, args.repair)),
        None => show(&check, args.repair),
    };
    put(text.as_bytes())?;
    if check.damage.is_empty() || args.repair {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CliError::new(format!("{} damaged", check.damage.len())).hint(MEND))
}

fn json(check: &Check, repaired: bool) -> Value {
    let finding = |damage: &Damage| {
        json!({
            "kind": damage.kind.as_str(),
            "path": damage.path,
            "image": damage.image,
            "message": damage.why,
            "repaired": repaired,
        })
    };
    json!({
        "images": check.images,
        "layers": check.layers,
        "unused": check.unused,
        "findings": check.damage.iter().map(finding).collect::<Vec<_>>(),
    })
}

fn show(check: &Check, repaired: bool) -> String {
    let mut text = String::new();
    for damage in &check.damage {
        let what = if repaired { "removed" } else { "damaged" };
        text += &format!("{what}  {damage}\n");
    }
    text += &format!(
        "{} images, {} layers, {} damaged",
        check.images,
        check.layers,
        check.damage.len()
    );
    match (check.unused, repaired) {
        (0, _) => {}
        (unused, true) => text += &format!("; {unused} unused files removed"),
        (unused, false) => text += &format!("; {unused} unused files"),
    }
    text + "\n"
}
