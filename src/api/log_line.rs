//! A line of a CRI log file: `<RFC3339Nano time> <stdout|stderr> <F|P[:…]> <content>`.

use k8s_openapi::jiff::Timestamp;

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) time: &'a str,
    pub(crate) stderr: bool,
    /// The line continues in the stream's next record.
    pub(crate) partial: bool,
    pub(crate) content: &'a [u8],
}

impl<'a> Record<'a> {
    /// Parses a record without its newline; `None` if it is not one (a torn write after a crash, for example).
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        let mut parts = line.splitn(4, |&b| b == b' ');
        let time = std::str::from_utf8(parts.next()?).ok()?;
        let stderr = match parts.next()? {
            b"stdout" => false,
            b"stderr" => true,
            _ => return None,
        };
        let partial = match parts.next()?.split(|&b| b == b':').next()? {
            b"F" => false,
            b"P" => true,
            _ => return None,
        };
        Some(Self {
            time,
            stderr,
            partial,
            content: parts.next().unwrap_or_default(),
        })
    }

    /// The time of the write.
    pub(crate) fn timestamp(&self) -> Option<Timestamp> {
        self.time.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_four_parts_and_its_content_may_hold_spaces() {
        let record = Record::parse(b"2026-01-01T00:00:00.5Z stderr P:x a b ").unwrap();
        assert!(record.stderr && record.partial);
        assert_eq!(record.content, b"a b ");
        assert_eq!(
            Record::parse(b"2026-01-01T00:00:00Z stdout F")
                .unwrap()
                .content,
            b""
        );
        assert!(Record::parse(b"torn").is_none());
        assert!(Record::parse(b"2026-01-01T00:00:00Z stdxxx F a").is_none());
    }
}
