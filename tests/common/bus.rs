//! A system bus with a logind and a systemd on it that answer any number of clients. Shared with the unit tests of
//! `effects/bus.rs`, which is why it takes `dbus` and `fdpass` from the module around it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{dbus, fdpass};

/// The bus; it serves its clients for as long as they stay.
pub(crate) struct Bus {
    folder: PathBuf,
    delay_us: Arc<AtomicU64>,
    units: Arc<Mutex<Units>>,
}

/// The state that systemd reports of every unit, and its clients. Who writes to a client holds the lock.
#[derive(Default)]
struct Units {
    state: &'static str,
    clients: Vec<UnixStream>,
}

impl Bus {
    /// Starts a bus whose logind delays a shutdown by `seconds`. With `preparing`, it announces `PrepareForShutdown`.
    pub(crate) fn serve(name: &str, seconds: u64, preparing: bool) -> Self {
        let folder = std::env::temp_dir().join(format!("coracle-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("temp dir");
        let bus = Self {
            folder,
            delay_us: Arc::new(AtomicU64::new(seconds * 1_000_000)),
            units: Arc::default(),
        };
        let listener = UnixListener::bind(bus.socket()).expect("bound");
        let (delay, units) = (bus.delay_us.clone(), bus.units.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, delay) = (stream.expect("a client"), delay.clone());
                let units = units.clone();
                std::thread::spawn(move || client(stream, &delay, &units, preparing));
            }
        });
        bus
    }

    /// The path of its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("bus")
    }

    /// Changes the state of all units, and reports it to the clients that wait.
    #[allow(
        dead_code,
        reason = "not every test that includes this file changes it"
    )]
    pub(crate) fn set_units(&self, state: &'static str) {
        let mut units = self.units.lock().expect("no panic holds this lock");
        units.state = state;
        let (interface, member) = ("org.freedesktop.DBus.Properties", "PropertiesChanged");
        let changed = signal((interface, member), 0);
        units
            .clients
            .retain_mut(|client| client.write_all(&changed).is_ok());
    }

    /// Changes logind's delay, without a signal to its clients.
    #[allow(
        dead_code,
        reason = "not every test that includes this file changes it"
    )]
    pub(crate) fn set_delay(&self, seconds: u64) {
        self.delay_us.store(seconds * 1_000_000, Ordering::Relaxed);
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A message; `fields` are those after the reply's number, with their padding.
fn message(kind: u8, fields: &[u8], body: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_le_bytes();
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
    fields.extend([8, 1, b'g', 0, u8::try_from(signature.len()).expect("short")]);
    fields.extend(signature.as_bytes());
    fields.push(0);
    message(2, &fields, body)
}

fn signal((interface, member): (&str, &str), truth: u8) -> Vec<u8> {
    let mut fields = Vec::new();
    for (code, text) in [(2, interface), (3, member)] {
        fields.resize(fields.len().next_multiple_of(8), 0);
        fields.extend([code, 1, b's', 0]);
        fields.extend(u32::try_from(text.len()).expect("short").to_le_bytes());
        fields.extend(text.as_bytes());
        fields.push(0);
    }
    fields.resize(fields.len().next_multiple_of(8), 0);
    fields.extend(b"\x08\x01g\0\x01b\0");
    message(4, &fields, &[truth, 0, 0, 0])
}

/// Answers the greeting, then every call, until the client leaves.
fn client(mut stream: UnixStream, delay_us: &AtomicU64, units: &Mutex<Units>, preparing: bool) {
    let mut reader = BufReader::new(stream.try_clone().expect("cloned"));
    let uid = nix::unistd::geteuid().to_string();
    let uid: String = uid.bytes().map(|b| format!("{b:02x}")).collect();
    for (expected, answer) in [
        (format!("\0AUTH EXTERNAL {uid}\r\n"), "OK 1234\r\n"),
        ("NEGOTIATE_UNIX_FD\r\n".to_owned(), "AGREE_UNIX_FD\r\n"),
        ("BEGIN\r\n".to_owned(), ""),
    ] {
        let mut line = String::new();
        if reader.read_line(&mut line).is_err() || line.is_empty() {
            return;
        }
        assert_eq!(line, expected);
        let _ = stream.write_all(answer.as_bytes());
    }
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        while let Some((call, length)) = dbus::first(&bytes).expect("well-formed") {
            let serial = u32::from_le_bytes(bytes[8..12].try_into().expect("four"));
            let asked = String::from_utf8_lossy(&bytes[..length]).into_owned();
            bytes.drain(..length);
            let mut units = units.lock().expect("no panic holds this lock");
            let answer = match call.member.as_str() {
                "Subscribe" => {
                    units.clients.push(stream.try_clone().expect("cloned"));
                    reply(serial, "", &[], 0)
                }
                "Get" if asked.contains("ActiveState") || asked.contains("LoadState") => {
                    let word = match (units.state, asked.contains("LoadState")) {
                        ("", true) => "not-found",
                        (_, true) => "loaded",
                        ("", false) => "inactive",
                        (state, false) => state,
                    };
                    let mut body = b"\x01s\0\0".to_vec();
                    body.extend(u32::try_from(word.len()).expect("short").to_le_bytes());
                    body.extend(word.as_bytes());
                    body.push(0);
                    reply(serial, "v", &body, 0)
                }
                "Get" if asked.contains("InhibitDelayMaxUSec") => {
                    let mut body = b"\x01t\0\0\0\0\0\0".to_vec();
                    body.extend(delay_us.load(Ordering::Relaxed).to_le_bytes());
                    // A signal comes before the answer.
                    let mut both = match preparing {
                        true => {
                            let manager = "org.freedesktop.login1.Manager";
                            signal((manager, "PrepareForShutdown"), 1)
                        }
                        false => Vec::new(),
                    };
                    both.extend(reply(serial, "v", &body, 0));
                    both
                }
                "Get" => reply(serial, "v", &[1, b'b', 0, 0, preparing.into(), 0, 0, 0], 0),
                "Inhibit" => {
                    let (theirs, _) = fdpass::pair().expect("a pair");
                    let answer = reply(serial, "h", &[0; 4], 1);
                    fdpass::send(stream.as_fd(), &answer, &[theirs.as_fd()]).expect("sent");
                    continue;
                }
                _ => reply(serial, "", &[], 0),
            };
            // The bytes arrive in several pieces.
            for part in answer.chunks(7) {
                if stream.write_all(part).is_err() {
                    return;
                }
            }
        }
        match reader.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => bytes.extend(&buffer[..count]),
        }
    }
}
