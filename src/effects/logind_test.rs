//! Is logind asked, and heard, in the way of D-Bus? By a bus of the test's own.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;

use super::*;

/// A bus with a logind on it, for one client: answers what it is asked, and says `signals` after the third property.
struct Fake {
    folder: PathBuf,
}

impl Fake {
    fn bus(&self) -> PathBuf {
        self.folder.join("bus")
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// `fields` are those after the reply's number, with their padding.
fn message(kind: u8, fields: &[u8], body: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_le_bytes();
    let mut bytes = vec![b'l', kind, 0, 1];
    bytes.extend(length(body));
    bytes.extend(9u32.to_le_bytes());
    bytes.extend(length(fields));
    bytes.extend(fields);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend(body);
    bytes
}

fn reply(to: u32, signature: &str, body: &[u8], files: u32) -> Vec<u8> {
    let mut fields = b"\x05\x01u\0".to_vec();
    fields.extend(to.to_le_bytes());
    fields.extend(b"\x09\x01u\0");
    fields.extend(files.to_le_bytes());
    fields.extend([8, 1, b'g', 0, u8::try_from(signature.len()).unwrap()]);
    fields.extend(signature.as_bytes());
    fields.push(0);
    message(2, &fields, body)
}

fn signal(begins: u8) -> Vec<u8> {
    let mut fields = Vec::new();
    for (code, text) in [(2, MANAGER), (3, "PrepareForShutdown")] {
        fields.resize(fields.len().next_multiple_of(8), 0);
        fields.extend([code, 1, b's', 0]);
        fields.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
        fields.extend(text.as_bytes());
        fields.push(0);
    }
    fields.resize(fields.len().next_multiple_of(8), 0);
    fields.extend(b"\x08\x01g\0\x01b\0");
    message(4, &fields, &[begins, 0, 0, 0])
}

fn serve(name: &str) -> Fake {
    let folder = std::env::temp_dir().join(format!("coracle-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let fake = Fake { folder };
    let listener = UnixListener::bind(fake.bus()).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let uid = nix::unistd::geteuid().to_string();
        let uid: String = uid.bytes().map(|b| format!("{b:02x}")).collect();
        assert_eq!(line, format!("\0AUTH EXTERNAL {uid}\r\n"));
        stream.write_all(b"OK 1234\r\n").unwrap();
        line.clear();
        reader.read_line(&mut line).unwrap();
        stream.write_all(b"AGREE_UNIX_FD\r\n").unwrap();
        line.clear();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "BEGIN\r\n");
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            while let Some((call, length)) = dbus::first(&bytes).unwrap() {
                let serial = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
                let asked = String::from_utf8_lossy(&bytes[..length]).into_owned();
                bytes.drain(..length);
                let has = |text: &str| asked.contains(text);
                let answer = match call.member.as_str() {
                    "Get" if has("InhibitDelayMaxUSec") => {
                        let mut body = b"\x01t\0\0\0\0\0\0".to_vec();
                        body.truncate(8);
                        body.extend(30_000_000u64.to_le_bytes());
                        // A signal comes before the answer.
                        let mut both = signal(1);
                        both.extend(reply(serial, "v", &body, 0));
                        both
                    }
                    "Get" => reply(serial, "v", b"\x01b\0\0\x01\0\0\0", 0),
                    "Inhibit" => {
                        let (theirs, _) = fdpass::pair().unwrap();
                        let answer = reply(serial, "h", &[0; 4], 1);
                        fdpass::send(stream.as_fd(), &answer, &[theirs.as_fd()]).unwrap();
                        continue;
                    }
                    _ => reply(serial, "", &[], 0),
                };
                // Bit by bit.
                for part in answer.chunks(7) {
                    stream.write_all(part).unwrap();
                }
            }
            match reader.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(count) => bytes.extend(&buffer[..count]),
            }
        }
    });
    fake
}

#[test]
fn a_bus_is_greeted_asked_and_heard() {
    let fake = serve("bus");
    smol::block_on(async {
        let mut logind = Logind::connect(&fake.bus()).await.unwrap();
        let waits = logind.delay_max().await.unwrap();
        assert_eq!(waits, Duration::from_secs(30));
        assert!(logind.preparing().await.unwrap());
        let lock = logind.inhibit("test", "why").await.unwrap();
        // It is the end whose other end is closed.
        let mut lock = UnixStream::from(lock);
        assert_eq!(lock.read(&mut [0]).unwrap(), 0);
        // It was said while another answer was waited for.
        assert_eq!(logind.next().await.unwrap(), Told::Preparing(true));
    });
}

#[test]
fn without_a_bus_that_is_said() {
    let error = smol::block_on(Logind::connect(Path::new("/nowhere/bus"))).unwrap_err();
    assert!(matches!(
        error,
        LogindError::Bus {
            what: "connecting",
            ..
        }
    ));
}

#[test]
fn the_override_is_what_logind_reads() {
    let folder = std::env::temp_dir().join(format!("coracle-logind-{}", std::process::id()));
    let path = folder.join("logind.conf.d/99-coracle.conf");
    write_override(&path, 30).unwrap();
    write_override(&path, 370).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.ends_with("\n[Login]\nInhibitDelayMaxSec=370\n"),
        "{text}"
    );
    fs::remove_dir_all(folder).unwrap();
}
