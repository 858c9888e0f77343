//! What survives of a container when the shim does not? One JSON file each, replaced by rename.

use std::fs;
use std::path::Path;

use super::ShimError;
use super::protocol::ContainerRecord;

use crate::sys::file;

/// Reads what a former shim wrote; nothing there, or nothing that can be read, is nothing known.
pub(super) fn read(run_dir: &Path, container: &str) -> Option<ContainerRecord> {
    let path = run_dir.join("records").join(format!("{container}.json"));
    serde_json::from_slice(&file::read_record(path).ok()?).ok()
}

/// Writes `<run_dir>/records/<container>.json`.
pub(super) fn write(run_dir: &Path, record: &ContainerRecord) -> Result<(), ShimError> {
    let folder = run_dir.join("records");
    let path = folder.join(format!("{}.json", record.container));
    let temporary = folder.join(format!(".{}.tmp", record.container));
    let text = serde_json::to_vec(record).map_err(|source| ShimError::Json {
        path: path.clone(),
        source,
    })?;
    let write = || {
        fs::create_dir_all(&folder)?;
        fs::write(&temporary, &text)?;
        fs::rename(&temporary, &path)
    };
    write().map_err(ShimError::path("write", &path))
}
