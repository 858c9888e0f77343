use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;

use coracle::spec::ProbeHandler;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, socket,
};

use super::servers::{always, closed};
use super::{ask, failure, success};

fn tcp(host: Option<&str>, port: u16) -> ProbeHandler {
    let host = host.map(str::to_owned);
    ProbeHandler::TcpSocket { host, port }
}

#[test]
fn an_open_port_is_a_success_and_a_closed_one_a_failure() {
    assert_eq!(ask(&tcp(None, always("")), 1000), success(""));
    assert_eq!(ask(&tcp(Some("localhost"), always("")), 1000), success(""));
    let port = closed();
    let text = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(ask(&tcp(None, port), 1000), failure(&text));
}

#[test]
fn an_unknown_host_is_reported_as_no_such_host() {
    let outcome = ask(&tcp(Some("no-such-host.invalid"), 80), 20_000);
    let text = "dial tcp: lookup no-such-host.invalid: no such host";
    assert_eq!(outcome, failure(text));
}

#[test]
fn a_connection_without_an_answer_times_out() {
    let kind = SockType::Stream;
    let listener = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let any = SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
    bind(listener.as_raw_fd(), &any).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let port = getsockname::<SockaddrIn>(listener.as_raw_fd())
        .unwrap()
        .port();
    // One connection waits to be accepted, and there is no room for another.
    let _waiting = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let text = format!("dial tcp 127.0.0.1:{port}: i/o timeout");
    assert_eq!(ask(&tcp(None, port), 300), failure(&text));
}
