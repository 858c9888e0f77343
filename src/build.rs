//! The build script: packs the manual, notes what is built from what, and keeps unwind tables and repeated code out of
//! the release binary. The same sources give the same bytes: no clock, no path of this machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;

/// The pages of the manual.
const PAGES: &str = "src/manual";

/// Discards the unwind tables, an eighth of the binary: it aborts when it panics, and nothing else reads them. Cargo has no
/// setting for that: the standard library comes with its tables. Those of the C runtime's own files stay, a few bytes: GNU
/// ld wants what they refer to.
const SCRIPT: &str = "SECTIONS { /DISCARD/ : { *(EXCLUDE_FILE(*crtbegin*.o *crtend*.o) .eh_frame) *(.eh_frame_hdr) } } \
                      INSERT AFTER .text;\n";

/// Keeps functions with the same code once, a fiftieth of the binary. LLD, which rustc brings for some targets, can do
/// that; GNU ld cannot.
const FOLD: &str = "-Wl,--icf=all";

/// Leads opens of files to `sys/uid_map.rs`, which says why.
const OPEN: &str = "-Wl,-u,__wrap_open64,--wrap=open64";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=src/build.rs");
    println!("cargo::rerun-if-changed={PAGES}");
    let (Some(profile), Some(folder)) = (env::var_os("PROFILE"), env::var_os("OUT_DIR")) else {
        return Err(io::Error::other("cargo runs this"));
    };
    let folder = Path::new(&folder);
    pack_manual(&folder.join("manual.gz"))?;
    note_origin(profile == "release")?;
    println!("cargo::rustc-link-arg-bin=coracle={OPEN}");
    // Tests unwind and keep the tables.
    if profile == "release" {
        let script = folder.join("no-unwind-tables.ld");
        fs::write(&script, SCRIPT)?;
        for argument in ["--no-eh-frame-hdr", &format!("-T,{}", script.display())] {
            println!("cargo::rustc-link-arg-bin=coracle=-Wl,{argument}");
        }
        if links_with(FOLD, folder)? {
            println!("cargo::rustc-link-arg-bin=coracle={FOLD}");
        }
    }
    Ok(())
}

/// Whether the linker knows an argument: an empty program is linked with it.
fn links_with(argument: &str, folder: &Path) -> io::Result<bool> {
    let (Some(rustc), Some(target)) = (env::var_os("RUSTC"), env::var_os("TARGET")) else {
        return Ok(false);
    };
    let source = folder.join("empty.rs");
    fs::write(&source, "fn main() {}\n")?;
    let mut command = Command::new(rustc);
    command.arg("--target").arg(target);
    command.args(["-C", &format!("link-arg={argument}"), "-o"]);
    command.arg(folder.join("empty")).arg(source);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = std::ffi::OsString::from("linker=");
        option.push(linker);
        command.arg("-C").arg(option);
    }
    Ok(command.output()?.status.success())
}

/// Notes the commit and its time for `coracle version`: as `CORACLE_COMMIT` and `SOURCE_DATE_EPOCH` say, else as git knows
/// them (only for a release: others are not built again for every commit). Empty where neither knows.
fn note_origin(release: bool) -> io::Result<()> {
    for name in ["CORACLE_COMMIT", "SOURCE_DATE_EPOCH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let given = |name| env::var(name).ok();
    let from_git = |format: &str| match release {
        true => git(&["log", "-1", &format!("--format={format}")]),
        false => None,
    };
    if release {
        for path in [".git/HEAD", ".git/logs/HEAD", "src", "Cargo.lock"] {
            if Path::new(path).exists() {
                println!("cargo::rerun-if-changed={path}");
            }
        }
    }
    let commit = given("CORACLE_COMMIT").or_else(|| {
        let changed = git(&["diff", "--name-only", "HEAD", "--", "src", "Cargo.lock"]);
        let mark = changed.map_or("", |files| if files.is_empty() { "" } else { "-dirty" });
        from_git("%H").map(|commit| commit + mark)
    });
    let time = given("SOURCE_DATE_EPOCH").or_else(|| from_git("%ct"));
    println!(
        "cargo::rustc-env=CORACLE_COMMIT={}",
        commit.unwrap_or_default()
    );
    println!(
        "cargo::rustc-env=CORACLE_BUILD_TIME={}",
        time.unwrap_or_default()
    );
    let lock = fs::read_to_string("Cargo.lock").unwrap_or_default();
    let version = lock
        .split_once("name = \"libcontainer\"\nversion = \"")
        .and_then(|(_, rest)| rest.split_once('"'));
    println!(
        "cargo::rustc-env=CORACLE_LIBCONTAINER={}",
        version.unwrap_or_default().0
    );
    Ok(())
}

/// What git prints, if it knows this folder.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Packs all pages, and the table of fields, into one compressed file, which `manual/mod.rs` includes.
fn pack_manual(path: &Path) -> io::Result<()> {
    let mut pages: Vec<PathBuf> = fs::read_dir(PAGES)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<_>>()?;
    pages.retain(|path| path.extension().is_some_and(|e| e == "md" || e == "txt"));
    pages.sort();
    let mut packed = GzEncoder::new(fs::File::create(path)?, Compression::best());
    for page in pages {
        let name = page.file_stem().unwrap_or_default().to_string_lossy();
        write!(packed, "{name}\0{}\0", fs::read_to_string(&page)?)?;
    }
    packed.finish()?;
    Ok(())
}
