//! Decoding of protobuf messages, and of Kubernetes' wrapper around them. Reads in place, and checks every length
//! against the input.

/// The prefix of Kubernetes' protobuf bodies, before a `runtime.Unknown`.
const MAGIC: &[u8] = b"k8s\0";

/// One field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A fixed-width value, which no message here uses.
    Fixed,
}

impl<'a> Value<'a> {
    pub(crate) fn text(self) -> Option<&'a str> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Number(_) | Self::Fixed => None,
        }
    }
}

/// Returns the fields of a message with their numbers, in order; `None` if the message is invalid.
pub(crate) fn fields(mut rest: &[u8]) -> Option<Vec<(u64, Value<'_>)>> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut rest)?),
            1 => take(&mut rest, 8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                Value::Bytes(take(&mut rest, length)?)
            }
            5 => take(&mut rest, 4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        if key >> 3 == 0 {
            return None;
        }
        found.push((key >> 3, value));
    }
    Some(found)
}

/// Returns the kind that a Kubernetes body names (empty if it does not) and the message in it.
pub(crate) fn unwrap(body: &[u8]) -> Option<(&str, &[u8])> {
    let (mut kind, mut raw) = ("", &[][..]);
    for (number, value) in fields(body.strip_prefix(MAGIC)?)? {
        match (number, value) {
            // TypeMeta: 1 apiVersion, 2 kind.
            (1, Value::Bytes(meta)) => {
                for (number, value) in fields(meta)? {
                    if number == 2 {
                        kind = value.text()?;
                    }
                }
            }
            (2, Value::Bytes(message)) => raw = message,
            // contentEncoding and contentType: if set, the message is encoded or of another type.
            (3 | 4, Value::Bytes(said)) if !said.is_empty() => return None,
            _ => {}
        }
    }
    Some((kind, raw))
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..10 {
        let byte = *take(rest, 1)?.first()?;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_whatever_is_cut_off_is_no_message() {
        // 1: 300, 2: "ab", 5 (fixed32), 7 (fixed64)
        let whole = [
            0x08, 0xac, 0x02, 0x12, 2, b'a', b'b', 0x2d, 0, 0, 0, 0, 0x39, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        let found = fields(&whole).expect("whole");
        assert_eq!(
            found[..2],
            [(1, Value::Number(300)), (2, Value::Bytes(b"ab"))]
        );
        assert_eq!(found.len(), 4);
        let ends = [0, 3, 7, 12, 21];
        for cut in 0..=whole.len() {
            assert_eq!(
                fields(&whole[..cut]).is_some(),
                ends.contains(&cut),
                "{cut}"
            );
        }
        for bad in [
            &[0xff; 11][..],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f],
            &[0x0b],
            &[0x00, 0x00],
        ] {
            assert_eq!(fields(bad), None, "{bad:?}");
        }
    }
}
