//! Numbers of bytes as people read them.

/// Formats bytes with a binary unit and one decimal.
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut tenths, mut unit) = (bytes.saturating_mul(10), 0);
    while tenths >= 10_240 && unit + 1 < units.len() {
        tenths /= 1024;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes}B"),
        _ => format!("{}.{}{}", tenths / 10, tenths % 10, units[unit]),
    }
}
