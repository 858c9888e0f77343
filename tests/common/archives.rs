//! Image archives made on the spot by the scripts in `examples/`, kept for later runs until a script changes.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The images that tests start from; each has the name `docker.io/library/<word>:test`.
#[derive(Debug, Clone, Copy)]
pub enum Image {
    Busybox,
    Nginx,
    Python,
    Resolvers,
    Gateway,
    Kiosk,
}

impl Image {
    /// The path of the archive, which is made if it is not there.
    pub fn archive(self) -> &'static Path {
        static ARCHIVES: [OnceLock<PathBuf>; 6] = [const { OnceLock::new() }; 6];
        let (index, what) = match self {
            Self::Busybox => (0, "busybox"),
            Self::Nginx => (1, "nginx"),
            Self::Python => (2, "python"),
            Self::Resolvers => (3, "resolvers"),
            Self::Gateway => (4, "gateway"),
            Self::Kiosk => (5, "kiosk"),
        };
        ARCHIVES[index].get_or_init(|| make(what))
    }
}

fn make(what: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let path = folder.join(format!("{what}-{:016x}.tar", recipe(&examples)));
    if path.exists() {
        return path;
    }
    // Test programs may run side by side: the last rename wins, and all archives are the same.
    let staged = folder.join(format!("{what}-{}.tar", std::process::id()));
    let (script, first) = match what {
        "busybox" => ("make-image.sh", None),
        _ => ("make-server-image.sh", Some(what)),
    };
    let made = Command::new("sh")
        .arg(examples.join(script))
        .args(first)
        .arg(&staged)
        .arg(format!("docker.io/library/{what}:test"))
        .env("CORACLE_DEBS", folder.join("debs"))
        .output()
        .expect("sh runs");
    assert!(
        made.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    fs::rename(staged, &path).expect("renamed");
    path
}

/// A hash that changes with the scripts that make images.
fn recipe(examples: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in ["make-image.sh", "make-server-image.sh", "musl-getent.c"] {
        let text = fs::read(examples.join(file)).expect("it is in the repository");
        text.hash(&mut hasher);
    }
    hasher.finish()
}
