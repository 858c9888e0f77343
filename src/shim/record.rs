//! Records: the state of containers that survives the shim. One JSON file each, replaced by rename.

use std::path::Path;

use super::ShimError;
use super::protocol::ContainerRecord;

use crate::sys::file::{self, Durability};

/// Reads the record of an earlier shim; `None` if it is missing or unreadable.
pub(super) fn read(run_dir: &Path, container: &str) -> Option<ContainerRecord> {
    let path = run_dir.join("records").join(format!("{container}.json"));
    serde_json::from_slice(&file::read_record(path).ok()?).ok()
}

/// Writes `<run_dir>/records/<container>.json`.
pub(super) fn write(run_dir: &Path, record: &ContainerRecord) -> Result<(), ShimError> {
    let folder = run_dir.join("records");
    let path = folder.join(format!("{}.json", record.container));
    let text = serde_json::to_vec(record).map_err(|source| ShimError::Json {
        path: path.clone(),
        source,
    })?;
    file::make_dirs(&folder, 0o700)
        .and_then(|()| file::replace(&path, &text, 0o600, Durability::Process))
        .map_err(ShimError::path("write", &path))
}
