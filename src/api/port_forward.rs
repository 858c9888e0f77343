//! Port forwarding: one upgraded connection for each TCP connection to a port of a pod. It carries the bytes as they
//! are, and each side's end of them. The connection is made in the pod's network namespace to the loopback address, as
//! kubelet's runtimes do, so that it works for pods without an address and for programs that listen nowhere else.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{Request, Response, StatusCode};
use smol::Async;
use smol::future::{or, try_zip, yield_now};
use smol::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use smol_hyper::rt::FuturesIo;

use super::door::{Patient, Ticket};
use super::error::ApiError;
use super::exec::hang_up;
use super::query::Query;
use super::server::{Body, Context, Spawner, reply};
use crate::spec::PodUid;
use crate::sys::netns;

/// Protocol name in `Upgrade`.
pub const PROTOCOL: &str = "coracle-portforward.v1";

/// For the pod's answer to a connection. On the loopback interface it comes at once, unless the program's queue is
/// full.
const CONNECT: Duration = Duration::from_secs(5);

/// For what a client has sent last, once it has gone, to be taken by the pod.
const LAST_BYTES: Duration = Duration::from_secs(30);

const BUFFER_BYTES: usize = 16 << 10;

pub(crate) async fn answer(
    request: Request<Bytes>,
    context: &Context,
    spawner: &Spawner,
    query: &Query,
    (namespace, name): (&str, &str),
) -> Result<Response<Body>, ApiError> {
    let upgrade = request.headers().get(UPGRADE);
    if upgrade.and_then(|v| v.to_str().ok()) != Some(PROTOCOL) {
        return Err(ApiError::bad_request(format!(
            "port forwarding needs `Upgrade: {PROTOCOL}`: kubectl's protocols are not spoken here, use `coracle port-forward`"
        )));
    }
    let port = query.number::<u16>("port")?.filter(|port| *port > 0);
    let Some(port) = port else {
        return Err(ApiError::bad_request("`port` is needed: 1 to 65535"));
    };
    let pod = context
        .store
        .pod(namespace, name)
        .ok_or_else(|| ApiError::not_found("pods", name))?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
    let phase = phase.unwrap_or_default();
    if phase != "Running" {
        return Err(ApiError::bad_request(format!(
            "unable to forward port because pod is not running. Current status={phase}"
        )));
    }
    let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
    let shares = pod.spec.as_ref().and_then(|spec| spec.host_network);
    let namespace = match shares {
        Some(true) => None,
        Some(false) | None => Some(context.layout.netns(&uid)),
    };
    let target = smol::unblock(move || dial(namespace, port)).await;
    let target = target.and_then(Async::new).map_err(|error| {
        ApiError::internal(format!(
            "error forwarding port {port} to pod {name}: {error}"
        ))
    })?;
    Ok(switch(request, spawner, target))
}

/// Connects to a port of the pod's loopback interface, IPv4 first.
fn dial(namespace: Option<PathBuf>, port: u16) -> io::Result<TcpStream> {
    let connect = |ip: IpAddr| TcpStream::connect_timeout(&SocketAddr::new(ip, port), CONNECT);
    let both = || {
        let first = match connect(Ipv4Addr::LOCALHOST.into()) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        connect(Ipv6Addr::LOCALHOST.into()).map_err(|second| {
            io::Error::other(format!(
                "failed to connect to localhost:{port} inside the pod, IPv4: {first}, IPv6: {second}"
            ))
        })
    };
    match namespace {
        Some(pin) => netns::enter(&pin, || Ok(()), |(), _| both()),
        None => both(),
    }
}

/// Upgrades the connection, whose bytes a task then carries.
fn switch(request: Request<Bytes>, spawner: &Spawner, target: Async<TcpStream>) -> Response<Body> {
    // Held until the connection has ended.
    let ticket = request.extensions().get::<Arc<Ticket>>().cloned();
    let upgraded = hyper::upgrade::on(request);
    spawner
        .spawn(async move {
            let _ticket = ticket;
            if let Ok(upgraded) = upgraded.await
                && let Ok(parts) = upgraded.downcast::<FuturesIo<Patient>>()
            {
                let client = parts.io.into_inner().into_inner();
                // A broken connection is closed on both sides; there is no one else to tell.
                let _ = carry(&client, &parts.read_buf, &target).await;
            }
        })
        .detach();
    let mut response = reply(StatusCode::SWITCHING_PROTOCOLS, "text/plain", "");
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response
}

/// Carries bytes both ways until both sides have ended, one has failed, or the client has gone.
async fn carry(
    client: &Async<UnixStream>,
    early: &[u8],
    target: &Async<TcpStream>,
) -> io::Result<()> {
    let up = async {
        let mut to = target;
        to.write_all(early).await?;
        copy(client, target).await?;
        target.get_ref().shutdown(Shutdown::Write)
    };
    let down = async {
        copy(target, client).await?;
        client.get_ref().shutdown(Shutdown::Write)
    };
    let both = async { try_zip(up, down).await.map(drop) };
    // A pod that never ends its side would otherwise keep a connection whose client has gone.
    let gone = async {
        hang_up(client).await?;
        smol::Timer::after(LAST_BYTES).await;
        Ok(())
    };
    or(both, gone).await
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = match from.read(&mut buffer).await? {
            0 => return Ok(()),
            length => length,
        };
        to.write_all(&buffer[..length]).await?;
        // Two fast ends would otherwise keep everything else waiting.
        yield_now().await;
    }
}
