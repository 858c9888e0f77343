//! One-line descriptions of probes, as kubectl's `DescribeProbe` writes them.

use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Describes action and timing.
pub(super) fn line(probe: &Probe) -> String {
    let number = |value: Option<i32>| value.unwrap_or_default();
    let when = format!(
        "delay={}s timeout={}s period={}s #success={} #failure={}",
        number(probe.initial_delay_seconds),
        number(probe.timeout_seconds),
        number(probe.period_seconds),
        number(probe.success_threshold),
        number(probe.failure_threshold),
    );
    let host = |host: &Option<String>| host.clone().unwrap_or_default();
    let what = if let Some(exec) = &probe.exec {
        format!(
            "exec [{}]",
            exec.command.clone().unwrap_or_default().join(" ")
        )
    } else if let Some(get) = &probe.http_get {
        let scheme = get.scheme.as_deref().unwrap_or_default().to_lowercase();
        let path = get.path.as_deref().unwrap_or_default();
        let slash = if path.starts_with('/') { "" } else { "/" };
        let (host, port) = (host(&get.host), text(&get.port));
        format!("http-get {scheme}://{host}:{port}{slash}{path}")
    } else if let Some(tcp) = &probe.tcp_socket {
        format!("tcp-socket {}:{}", host(&tcp.host), text(&tcp.port))
    } else if let Some(grpc) = &probe.grpc {
        let service = grpc.service.as_deref().unwrap_or_default();
        format!("grpc <pod>:{} {service}", grpc.port)
    } else {
        "unknown".to_owned()
    };
    format!("{what} {when}")
}

fn text(port: &IntOrString) -> String {
    match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn every_kind_of_probe_has_its_line() {
        for (expected, probe) in [
            (
                "exec [cat /x] delay=3s timeout=1s period=10s #success=1 #failure=3",
                json!({ "exec": { "command": ["cat", "/x"] }, "initialDelaySeconds": 3, "timeoutSeconds": 1,
                        "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3 }),
            ),
            (
                "http-get https://:web/ready delay=0s timeout=0s period=0s #success=0 #failure=0",
                json!({ "httpGet": { "port": "web", "path": "/ready", "scheme": "HTTPS" } }),
            ),
            (
                "tcp-socket :80 delay=0s timeout=0s period=0s #success=0 #failure=0",
                json!({ "tcpSocket": { "port": 80 } }),
            ),
            (
                "grpc <pod>:50051 shop delay=0s timeout=0s period=0s #success=0 #failure=0",
                json!({ "grpc": { "port": 50051, "service": "shop" } }),
            ),
        ] {
            let probe = serde_json::from_value(probe).expect("a probe");
            assert_eq!(super::line(&probe), expected);
        }
    }
}
