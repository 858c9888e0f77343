//! What does a person type?
use std::process::ExitCode;
pub fn main() -> ExitCode {
    let mut a = std::env::args().skip(2);
    let mut r = crate::node::RunArgs::default();
    while let Some(f) = a.next() {
        let mut v = || a.next().unwrap().into();
        match f.as_str() {
            "--manifests" => r.manifests = Some(v()),
            "--root" => r.root = Some(v()),
            "--run-dir" => r.run_dir = Some(v()),
            "--log-dir" => r.log_dir = Some(v()),
            "--preload" => r.preload.push(v()),
            "--cgroup-parent" => r.cgroup_parent = a.next(),
            "--node-name" => r.node_name = a.next(),
            "--stop-pods-on-exit" => r.stop_pods_on_exit = true,
            _ => {}
        }
    }
    match crate::node::run(r) {
        Ok(c) => c,
        Err(e) => fail(&e, None),
    }
}
pub fn fail(e: &dyn std::error::Error, _hint: Option<&str>) -> ExitCode {
    eprintln!("error: {}", crate::chain(e));
    ExitCode::FAILURE
}
