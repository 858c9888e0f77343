use std::time::Duration;

use coracle::effects::probe::Outcome;
use coracle::spec::ProbeHandler;

use super::servers::{Server, always, closed, endless, serve};
use super::{ask, failure, success};

const HEALTH: &str = r#"
import concurrent.futures, grpc, time
def check(request, context):
    service = request[2:].decode()
    agent = dict(context.invocation_metadata()).get("user-agent", "")
    if service == "unknown": context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
    if service == "odd": context.abort(grpc.StatusCode.INTERNAL, "ü at 100%")
    if service == "agent": context.abort(grpc.StatusCode.ABORTED, agent)
    if service == "slow": time.sleep(5)
    return {"": b"\x08\x01", "bad": b"\x08\x02", "none": b"", "new": b"\x08\x63"}[service]
server = grpc.server(concurrent.futures.ThreadPoolExecutor())
name = "grpc.health.v1.Health" if HEALTHY else "other.Service"
handler = grpc.unary_unary_rpc_method_handler(check)
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, {"Check": handler})])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
"#;

fn server(healthy: &str) -> Server {
    Server::python(&HEALTH.replace("HEALTHY", healthy), |_| {})
}

fn check(port: u16, service: &str, timeout_ms: u64) -> Outcome {
    let service = service.to_owned();
    ask(&ProbeHandler::Grpc { port, service }, timeout_ms)
}

#[test]
fn the_servers_answer_decides() {
    let server = server("True");
    let failed = "error: health rpc probe failed: rpc error: code =";
    let table = [
        ("", success("service healthy")),
        (
            "bad",
            failure("service unhealthy (responded with \"NOT_SERVING\")"),
        ),
        (
            "none",
            failure("service unhealthy (responded with \"UNKNOWN\")"),
        ),
        ("new", failure("service unhealthy (responded with \"99\")")),
        (
            "unknown",
            failure(&format!("{failed} NotFound desc = unknown service")),
        ),
        (
            "odd",
            failure(&format!("{failed} Internal desc = ü at 100%")),
        ),
        (
            "agent",
            failure(&format!("{failed} Aborted desc = kube-probe/1.36")),
        ),
    ];
    for (service, expected) in table {
        assert_eq!(check(server.port, service, 5000), expected, "{service:?}");
    }
    let late = "timeout: health rpc did not complete within 1s";
    assert_eq!(check(server.port, "slow", 1000), failure(late));
}

#[test]
fn a_server_without_the_health_service_is_reported_as_such() {
    let server = server("False");
    let text =
        "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): ";
    match check(server.port, "", 5000) {
        Outcome::Failure(said) => assert!(said.starts_with(text), "{said}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_port_without_a_grpc_server_is_a_timeout() {
    let pause = Duration::from_millis(10);
    let ports = [
        closed(),
        always(""),
        always("HTTP/1.1 400 Bad Request\r\n\r\n"),
        serve(|_, _| std::thread::sleep(Duration::from_secs(3))),
        endless("HTTP/1.1 200 OK\r\n", "X: y\r\n", pause),
    ];
    for port in ports {
        let text = format!(
            "timeout: failed to connect service \"127.0.0.1:{port}\" within 500ms: context deadline exceeded"
        );
        assert_eq!(check(port, "", 500), failure(&text));
    }
}

#[test]
fn a_server_that_starts_late_is_found() {
    let port = closed();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        // The server begins HTTP/2, then sends nothing more.
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let _ = std::io::Write::write_all(&mut stream, &[0, 0, 0, 4, 0, 0, 0, 0, 0]);
        std::thread::sleep(Duration::from_secs(3));
    });
    let text = "timeout: health rpc did not complete within 1.8s";
    assert_eq!(check(port, "", 1800), failure(text));
}

#[test]
fn endless_frames_are_not_read_for_ever() {
    let port = closed();
    std::thread::spawn(move || {
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let pings = [0, 0, 8, 6, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(1000);
        let _ = std::io::Write::write_all(&mut stream, &settings);
        while std::io::Write::write_all(&mut stream, &pings).is_ok() {}
    });
    match check(port, "", 3000) {
        Outcome::Failure(text) => {
            let unavailable =
                "error: health rpc probe failed: rpc error: code = Unavailable desc = ";
            assert!(text.starts_with(unavailable), "{text}");
        }
        other => panic!("{other:?}"),
    }
}
