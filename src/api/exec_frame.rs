//! Frames of an exec session. After `Upgrade: coracle-exec.v1` both sides send `[channel u8][length u32
//! big-endian][data]`.
//!
//! | channel | from | data |
//! |---|---|---|
//! | 0 | client | bytes for stdin |
//! | 1, 2 | agent | bytes of stdout, stderr (with a terminal only stdout) |
//! | 3 | agent | the end: `{"exitCode":n}` or `{"error":"…"}` |
//! | 4 | client | `{"width":columns,"height":rows}` |
//! | 255 | client | nothing: stdin is at its end |

use serde::{Deserialize, Serialize};

/// Protocol name in `Upgrade`.
pub const PROTOCOL: &str = "coracle-exec.v1";

/// Maximum data of one frame, in bytes.
pub const MAX_DATA: usize = 64 * 1024;

/// Bytes for stdin.
pub const STDIN: u8 = 0;
/// Bytes of stdout.
pub const STDOUT: u8 = 1;
/// Bytes of stderr.
pub const STDERR: u8 = 2;
/// The end of the session.
pub const STATUS: u8 = 3;
/// The terminal's new size.
pub const RESIZE: u8 = 4;
/// Stdin is at its end.
pub const CLOSE_STDIN: u8 = 255;

/// Data of channel 3.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecStatus {
    /// The command's exit code; 128 + n for death by signal n.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The session broke before the command ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Data of channel 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// A frame's first five bytes.
pub fn header(channel: u8, data: &[u8]) -> [u8; 5] {
    let [a, b, c, d] = u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes();
    [channel, a, b, c, d]
}

/// Parses channel and length; `None` if the length exceeds [`MAX_DATA`].
pub fn parse_header(header: [u8; 5]) -> Option<(u8, usize)> {
    let [channel, a, b, c, d] = header;
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    (length <= MAX_DATA).then_some((channel, length))
}
