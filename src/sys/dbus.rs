//! D-Bus messages, as far as needed by a client that calls a few methods and receives a few signals: strings and
//! numbers, no nested types (<https://dbus.freedesktop.org/doc/dbus-specification.html>). A general library adds
//! 650 KB to the program, this 35.

/// Longest message that is accepted; those that matter have a few hundred bytes.
const MAX_BYTES: usize = 1 << 20;

/// The fixed part of a header.
const FIXED: usize = 16;

/// The type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A method call.
    Call,
    /// The result of a call.
    Return,
    /// The error of a call.
    Error,
    /// A signal.
    Signal,
    /// A type of a later version, to be ignored.
    Other,
}

/// A call of a method, without its arguments.
#[derive(Debug, Clone, Copy)]
pub struct Call<'c> {
    /// The destination's name on the bus.
    pub destination: &'c str,
    /// The object.
    pub path: &'c str,
    /// The interface.
    pub interface: &'c str,
    /// The method.
    pub member: &'c str,
}

/// One argument of a call.
#[derive(Debug, Clone, Copy)]
pub enum Argument<'a> {
    /// `s`
    String(&'a str),
    /// `i`
    Int32(i32),
}

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its type.
    pub kind: Kind,
    /// The call it answers, or 0.
    pub reply_to: u32,
    /// The object it is from.
    pub path: String,
    /// The interface.
    pub interface: String,
    /// The name of the signal.
    pub member: String,
    /// The name of the error.
    pub error: String,
    /// The signature of its body.
    pub signature: String,
    /// The number of descriptors that came with it.
    pub files: u32,
    body: Vec<u8>,
    big: bool,
}

/// An invalid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message that cannot be understood")]
pub struct Malformed;

/// The bytes of a call. `serial` is not 0.
pub fn call(serial: u32, call: Call<'_>, arguments: &[Argument<'_>]) -> Vec<u8> {
    let mut body = Writer::default();
    let mut signature = String::new();
    for argument in arguments {
        match argument {
            Argument::String(text) => {
                signature.push('s');
                body.string(text);
            }
            Argument::Int32(number) => {
                signature.push('i');
                body.number(&number.to_le_bytes());
            }
        }
    }
    let mut fields = Writer::default();
    let texts = [
        (1, b'o', call.path),
        (2, b's', call.interface),
        (3, b's', call.member),
        (6, b's', call.destination),
    ];
    for (code, type_, text) in texts {
        fields.field(code, type_);
        fields.string(text);
    }
    if !signature.is_empty() {
        fields.field(8, b'g');
        fields.signature(&signature);
    }
    let mut message = Writer::default();
    message.bytes.extend([b'l', 1, 0, 1]);
    message.number(&length(&body.bytes).to_le_bytes());
    message.number(&serial.to_le_bytes());
    message.number(&length(&fields.bytes).to_le_bytes());
    message.bytes.extend(fields.bytes);
    message.align(8);
    message.bytes.extend(body.bytes);
    message.bytes
}

/// The first message in the input, and its length; `None` if it is incomplete.
pub fn first(bytes: &[u8]) -> Result<Option<(Message, usize)>, Malformed> {
    let Some(fixed) = bytes.get(..FIXED) else {
        return Ok(None);
    };
    let big = match fixed[0] {
        b'l' => false,
        b'B' => true,
        _ => return Err(Malformed),
    };
    let mut header = Reader { bytes, at: 4, big };
    let body = header.size()?;
    header.at = 12;
    let fields = header.size()?;
    let start = FIXED + fields.div_ceil(8) * 8;
    let end = start + body;
    let Some(whole) = bytes.get(..end) else {
        return Ok(None);
    };
    let mut message = Message {
        kind: match fixed[1] {
            1 => Kind::Call,
            2 => Kind::Return,
            3 => Kind::Error,
            4 => Kind::Signal,
            _ => Kind::Other,
        },
        reply_to: 0,
        path: String::new(),
        interface: String::new(),
        member: String::new(),
        error: String::new(),
        signature: String::new(),
        files: 0,
        body: whole[start..].to_vec(),
        big,
    };
    let mut reader = Reader {
        bytes: &whole[..FIXED + fields],
        at: FIXED,
        big,
    };
    while reader.at < reader.bytes.len() {
        reader.align(8);
        let code = reader.byte()?;
        let type_ = reader.signature()?;
        let (mut text, mut number) = (String::new(), 0);
        match type_.as_str() {
            "s" | "o" => text = reader.string()?,
            "g" => text = reader.signature()?,
            "u" => number = reader.number()?,
            _ => return Err(Malformed),
        }
        match code {
            1 => message.path = text,
            2 => message.interface = text,
            3 => message.member = text,
            4 => message.error = text,
            5 => message.reply_to = number,
            8 => message.signature = text,
            9 => message.files = number,
            _ => {}
        }
    }
    Ok(Some((message, end)))
}

impl Message {
    /// A reader of its body, from the beginning.
    fn body(&self) -> Reader<'_> {
        Reader {
            bytes: &self.body,
            at: 0,
            big: self.big,
        }
    }

    /// The first value of the body, a boolean.
    pub fn truth(&self) -> Option<bool> {
        let yes = self.signature.starts_with('b');
        yes.then(|| self.body().number().ok())
            .flatten()
            .map(|n| n != 0)
    }

    /// The first value of the body, a string: of an error, the reason.
    pub fn text(&self) -> Option<String> {
        let yes = self.signature.starts_with('s');
        yes.then(|| self.body().string().ok()).flatten()
    }

    /// The value of a boolean property.
    pub fn property_truth(&self) -> Option<bool> {
        let mut body = self.body();
        let is = self.signature == "v" && body.signature().ok()? == "b";
        is.then(|| body.number().ok()).flatten().map(|n| n != 0)
    }

    /// The value of a property that is a string.
    pub fn property_text(&self) -> Option<String> {
        let mut body = self.body();
        let is = self.signature == "v" && body.signature().ok()? == "s";
        is.then(|| body.string().ok()).flatten()
    }

    /// The value of a 64-bit unsigned property.
    pub fn property_number(&self) -> Option<u64> {
        let mut body = self.body();
        let is = self.signature == "v" && body.signature().ok()? == "t";
        is.then(|| body.long().ok()).flatten()
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("our own messages are short")
}

#[derive(Debug, Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    /// A number is aligned to its size.
    fn number(&mut self, bytes: &[u8]) {
        self.align(bytes.len());
        self.bytes.extend(bytes);
    }

    fn string(&mut self, text: &str) {
        self.number(&length(text.as_bytes()).to_le_bytes());
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.bytes.push(u8::try_from(text.len()).expect("short"));
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
    }

    /// The beginning of a header field of that type.
    fn field(&mut self, code: u8, type_: u8) {
        self.align(8);
        self.bytes.extend([code, 1, type_, 0]);
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    big: bool,
}

impl Reader<'_> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, count: usize) -> Result<&[u8], Malformed> {
        let end = self.at.checked_add(count).ok_or(Malformed)?;
        let taken = self.bytes.get(self.at..end).ok_or(Malformed)?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.align(N);
        let mut bytes: [u8; N] = self.take(N)?.try_into().map_err(|_| Malformed)?;
        if self.big {
            bytes.reverse();
        }
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn number(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn size(&mut self) -> Result<usize, Malformed> {
        let size = usize::try_from(self.number()?).map_err(|_| Malformed)?;
        if size > MAX_BYTES {
            Err(Malformed)
        } else {
            Ok(size)
        }
    }

    fn text(&mut self, length: usize) -> Result<String, Malformed> {
        let bytes = self.take(length)?;
        let text = std::str::from_utf8(bytes)
            .map_err(|_| Malformed)?
            .to_owned();
        if self.byte()? == 0 {
            Ok(text)
        } else {
            Err(Malformed)
        }
    }

    fn string(&mut self) -> Result<String, Malformed> {
        let length = self.size()?;
        self.text(length)
    }

    fn signature(&mut self) -> Result<String, Malformed> {
        let length = usize::from(self.byte()?);
        self.text(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INHIBIT: Call<'_> = Call {
        destination: "org.freedesktop.login1",
        path: "/org/freedesktop/login1",
        interface: "org.freedesktop.login1.Manager",
        member: "Inhibit",
    };

    #[test]
    fn a_call_is_laid_out_as_the_specification_says() {
        let hello = Call {
            destination: "a.b",
            path: "/",
            interface: "a.b",
            member: "Hi",
        };
        let bytes = call(7, hello, &[Argument::String("x"), Argument::Int32(-2)]);
        let expected: &[&[u8]] = &[
            b"l\x01\0\x01",
            b"\x0c\0\0\0",
            b"\x07\0\0\0",
            b"\x48\0\0\0",
            b"\x01\x01o\0\x01\0\0\0/\0\0\0\0\0\0\0",
            b"\x02\x01s\0\x03\0\0\0a.b\0\0\0\0\0",
            b"\x03\x01s\0\x02\0\0\0Hi\0\0\0\0\0\0",
            b"\x06\x01s\0\x03\0\0\0a.b\0\0\0\0\0",
            b"\x08\x01g\0\x02si\0",
            b"\x01\0\0\0x\0\0\0\xfe\xff\xff\xff",
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn what_is_written_is_read_again_also_bit_by_bit() {
        let bytes = call(1, INHIBIT, &[Argument::String("shutdown")]);
        for cut in 0..bytes.len() {
            assert_eq!(first(&bytes[..cut]), Ok(None), "{cut}");
        }
        let (message, end) = first(&[&bytes[..], b"l\x02"].concat()).unwrap().unwrap();
        assert_eq!(end, bytes.len());
        assert_eq!(message.kind, Kind::Call);
        assert_eq!(message.member, "Inhibit");
        assert_eq!(message.path, INHIBIT.path);
        assert_eq!(message.text().as_deref(), Some("shutdown"));
        assert_eq!(message.truth(), None);
    }

    /// A return value from a big-endian machine.
    #[test]
    fn both_orders_of_bytes_are_read() {
        let big: &[&[u8]] = &[
            b"B\x02\x01\x01\0\0\0\x10\0\0\0\x09\0\0\0\x0f",
            b"\x05\x01u\0\0\0\0\x03\x08\x01g\0\x01v\0\0",
            b"\x01t\0\0\0\0\0\0\0\0\0\0\0\0\x01\x2c",
        ];
        let (message, end) = first(&big.concat()).unwrap().unwrap();
        assert_eq!((end, message.reply_to), (48, 3));
        assert_eq!(message.property_number(), Some(300));
        assert_eq!(message.property_truth(), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = first(&bytes);
        }

        #[test]
        fn no_changed_byte_makes_it_panic(at in 0usize..120, to in any::<u8>()) {
            let mut bytes = call(1, INHIBIT, &[Argument::String("shutdown")]);
            let at = at % bytes.len();
            bytes[at] = to;
            if let Ok(Some((message, _))) = first(&bytes) {
                let _ = (message.truth(), message.text());
                let _ = (message.property_truth(), message.property_number());
            }
        }
    }
}
