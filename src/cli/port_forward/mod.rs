//! `coracle port-forward`: local TCP ports whose connections end at ports of a pod. Each connection is an upgraded one of
//! the agent's API (`api::port_forward`), carried by two threads here. [`target`] finds the pod and its ports.

mod target;

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use self::target::{Forward, Target};
use super::args::PortForwardArgs;
use super::client::Client;
use super::copy::send_all;
use super::error::{CliError, Result};
use super::{pod_path, put};
use crate::api::encode;
use crate::api::port_forward::PROTOCOL;

/// Connections at once; further clients wait in the kernel's queue. The agent carries 96 for all its clients.
const MAX_CONNECTIONS: usize = 64;

/// Pause before an agent that is away is asked for the pod again.
const AGAIN: Duration = Duration::from_secs(1);

const LOST: &str = "lost connection to pod";

const BUFFER_BYTES: usize = 16 << 10;

/// Each thread's stack holds a buffer and little else.
const STACK_BYTES: usize = 128 << 10;

pub(super) fn run(client: &Client, args: &PortForwardArgs) -> Result<ExitCode> {
    let target = Target::find(client, &args.namespace.namespace, &args.target)?;
    let ports = args.ports.iter().map(|text| target.forward(text));
    let ports = ports.collect::<Result<Vec<Forward>>>()?;
    let addresses = addresses(&args.address)?;
    let mut listeners = Vec::new();
    for port in &ports {
        listeners.extend(listen(&addresses, *port)?);
    }
    if listeners.is_empty() {
        return Err(CliError::new(
            "unable to listen on any of the requested ports",
        ));
    }
    serve(client, &args.namespace.namespace, &target, listeners)
}

/// The addresses to listen on; the second: whether it may fail while another one works.
fn addresses(words: &[String]) -> Result<Vec<(IpAddr, bool)>> {
    let mut found = Vec::new();
    for word in words {
        match (word.as_str(), word.parse()) {
            ("localhost", _) => {
                found.push((Ipv4Addr::LOCALHOST.into(), true));
                found.push((Ipv6Addr::LOCALHOST.into(), true));
            }
            (_, Ok(address)) => found.push((address, false)),
            (_, Err(_)) => {
                return Err(CliError::usage(format!("`{word}` is no address"))
                    .hint("give IP addresses, or localhost; 0.0.0.0 is every IPv4 address of this machine"));
            }
        }
    }
    Ok(found)
}

/// Listens on a port of all these addresses, and says so.
fn listen(addresses: &[(IpAddr, bool)], mut port: Forward) -> Result<Vec<(TcpListener, Forward)>> {
    let mut listeners = Vec::new();
    let mut errors = Vec::new();
    let mut lenient = true;
    for (address, may_fail) in addresses {
        match TcpListener::bind((*address, port.local)) {
            Ok(listener) => {
                // A random port is the same on all addresses.
                port.local = listener.local_addr().map_or(port.local, |own| own.port());
                let own = SocketAddr::new(*address, port.local);
                put(format!("Forwarding from {own} -> {}\n", port.remote).as_bytes())?;
                listeners.push((listener, port));
            }
            Err(error) => {
                lenient &= may_fail;
                errors.push(format!(
                    "{}: {error}",
                    SocketAddr::new(*address, port.local)
                ));
            }
        }
    }
    if !errors.is_empty() && (listeners.is_empty() || !lenient) {
        let errors = errors.join("; ");
        eprintln!("Unable to listen on port {}: {errors}", port.local);
    }
    Ok(listeners)
}

/// Accepts connections until the pod has gone.
fn serve(
    client: &Client,
    namespace: &str,
    target: &Target,
    listeners: Vec<(TcpListener, Forward)>,
) -> Result<ExitCode> {
    let path = pod_path(namespace, &target.pod);
    // A place for each connection, given back at its end.
    let (give_back, places) = sync_channel(MAX_CONNECTIONS);
    for _ in 0..MAX_CONNECTIONS {
        let _ = give_back.try_send(());
    }
    let places = Arc::new(Mutex::new(places));
    let (fail, failure) = sync_channel(1);
    for (listener, port) in listeners {
        let work = Work {
            client: client.clone(),
            path: format!("{path}/portforward?port={}", port.remote),
            port,
            give_back: give_back.clone(),
            fail: fail.clone(),
        };
        let places = places.clone();
        spawn(move || accept(&listener, &places, &work))?;
    }
    let pod = Followed {
        client: client.clone(),
        path,
        watch: format!(
            "{}?watch=true&fieldSelector=metadata.name%3D{}",
            pod_path(namespace, ""),
            encode(&target.pod)
        ),
        uid: target.uid(),
    };
    spawn(move || {
        pod.wait_until_gone();
        let _ = fail.try_send(CliError::new(LOST));
    })?;
    let error = failure
        .recv()
        .unwrap_or_else(|_| CliError::new("all listeners have ended"));
    Err(error)
}

/// The pod, to be followed.
struct Followed {
    client: Client,
    path: String,
    watch: String,
    uid: Value,
}

impl Followed {
    /// Returns when the pod is gone or another has its name. An agent that is away says nothing about the pod.
    fn wait_until_gone(&self) {
        while self.watch().is_err() {
            thread::sleep(AGAIN);
        }
    }

    /// Watches the pod until it is gone; fails when the watch ends before.
    fn watch(&self) -> Result<()> {
        let changes = self.client.send("GET", &self.watch, None)?;
        // It may have gone before the watch began.
        match self.client.get(&self.path) {
            Ok(pod) if pod["metadata"]["uid"] == self.uid => {}
            Err(error) if error.exit_code() != 3 => return Err(error),
            Ok(_) | Err(_) => return Ok(()),
        }
        let lost = || CliError::new("lost the agent");
        for line in changes.body.lines() {
            let line = line.map_err(|error| lost().because(error))?;
            let change: Value =
                serde_json::from_str(&line).map_err(|error| lost().because(error))?;
            let uid = &change["object"]["metadata"]["uid"];
            if change["type"] == "DELETED" || uid.is_string() && *uid != self.uid {
                return Ok(());
            }
        }
        Err(lost())
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
    thread
        .map(drop)
        .map_err(|error| CliError::new("could not start a thread").because(error))
}

/// What a connection needs.
#[derive(Clone)]
struct Work {
    client: Client,
    path: String,
    port: Forward,
    give_back: SyncSender<()>,
    /// Ends the command.
    fail: SyncSender<CliError>,
}

fn accept(listener: &TcpListener, places: &Mutex<Receiver<()>>, work: &Work) {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) =>
            {
                continue;
            }
            Err(error) => {
                let error = CliError::new("could not accept connections").because(error);
                let _ = work.fail.try_send(error);
                return;
            }
        };
        let place = places.lock().unwrap_or_else(|bad| bad.into_inner()).recv();
        if place.is_err() {
            return;
        }
        // A pipe that nobody reads any more is no reason to stop.
        let _ = put(format!("Handling connection for {}\n", work.port.local).as_bytes());
        let one = work.clone();
        let spawned = spawn(move || {
            if let Err(error) = connection(&stream, &one) {
                let gone = error.exit_code() == 3;
                let Forward { local, remote } = one.port;
                eprintln!(
                    "error: an error occurred forwarding {local} -> {remote}: {}",
                    error.in_one_line()
                );
                if gone {
                    let _ = one.fail.try_send(CliError::new(LOST));
                }
            }
            let _ = one.give_back.try_send(());
        });
        if let Err(error) = spawned {
            eprintln!("{error}");
            let _ = work.give_back.try_send(());
        }
    }
}

/// Carries one connection until both sides have ended, or one is broken.
fn connection(local: &TcpStream, work: &Work) -> Result<()> {
    let (write, read) = work.client.upgrade(&work.path, PROTOCOL)?;
    thread::scope(|scope| {
        let other = thread::Builder::new().stack_size(STACK_BYTES);
        let other = other.spawn_scoped(scope, || {
            if down(read, local).is_err() {
                broken(local, &write);
            }
        });
        if other.is_err() || up(local, &write).is_err() {
            broken(local, &write);
        }
    });
    Ok(())
}

/// Ends both sides in both directions, which also ends what waits for them.
fn broken(local: &TcpStream, agent: &UnixStream) {
    let _ = local.shutdown(Shutdown::Both);
    let _ = agent.shutdown(Shutdown::Both);
}

fn up(local: &TcpStream, agent: &UnixStream) -> io::Result<()> {
    carry(local, |piece| send_all(agent, piece))?;
    agent.shutdown(Shutdown::Write)
}

fn down(agent: BufReader<UnixStream>, mut local: &TcpStream) -> io::Result<()> {
    carry(agent, |piece| local.write_all(piece))?;
    local.shutdown(Shutdown::Write)
}

fn carry(mut from: impl Read, mut to: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => to(&buffer[..length])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
