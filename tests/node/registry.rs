//! A registry beside an agent: Debian's `docker-registry`, with a proxy in front of it.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::proxy::{Deed, Proxy};
use super::*;

/// A registry in the agent's network that has `busybox:1`, and a proxy before it.
pub(crate) struct Registry {
    server: Child,
    pub(crate) proxy: Proxy,
    pub(crate) netns: std::sync::Arc<common::netns::Netns>,
}

impl Registry {
    pub(crate) fn start(agent: &Agent) -> Self {
        let dir = agent.root.join("registry");
        fs::create_dir_all(&dir).expect("temp dir");
        let config = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage:\n  filesystem: \
             {{rootdirectory: {}}}\nhttp: {{addr: \"127.0.0.1:5000\"}}\n",
            dir.display()
        );
        let file = dir.join("config.yml");
        fs::write(&file, config).expect("written");
        let mut command = Command::new("docker-registry");
        command
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let server = agent
            .command_in_netns(&mut command)
            .expect("docker-registry: apt-get install docker-registry");
        let at: SocketAddr = "127.0.0.1:5000".parse().expect("an address");
        let deadline = Instant::now() + PATIENCE;
        while agent.netns.run(|| TcpStream::connect(at)).is_err() {
            assert!(Instant::now() < deadline, "the registry does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        let proxy = Proxy::start(&agent.netns, Some(at));
        let registry = Self {
            server,
            proxy,
            netns: agent.netns.clone(),
        };
        registry.push("busybox:1");
        registry
    }

    /// Pushes busybox under a name.
    pub(crate) fn push(&self, name: &str) {
        let from = format!("docker-archive:{}", common::archive().display());
        let to = format!("docker://127.0.0.1:5000/{name}");
        let args = [
            "--insecure-policy",
            "copy",
            "--quiet",
            "--dest-tls-verify=false",
        ];
        let pushed = self.netns.run(|| {
            let mut skopeo = Command::new("skopeo");
            skopeo.args(args).args([&from, &to]).output()
        });
        let pushed = pushed.expect("skopeo: apt-get install skopeo");
        let said = String::from_utf8_lossy(&pushed.stderr);
        assert!(pushed.status.success(), "{said}");
    }

    /// Copies an OCI layout with everything in it, by skopeo.
    pub(crate) fn copy(&self, from: &str, name: &str) {
        let to = format!("docker://127.0.0.1:5000/{name}");
        let args = [
            "--insecure-policy",
            "copy",
            "--quiet",
            "--all",
            "--preserve-digests",
            "--dest-tls-verify=false",
            from,
            &to,
        ];
        let copied = self
            .netns
            .run(|| Command::new("skopeo").args(args).output());
        let copied = copied.expect("skopeo: apt-get install skopeo");
        let said = String::from_utf8_lossy(&copied.stderr);
        assert!(copied.status.success(), "{said}");
    }

    pub(crate) fn name(&self) -> String {
        format!("{}/busybox:1", self.proxy.address)
    }

    /// From now on only `user` with `password` is let in.
    pub(crate) fn ask_for_login(&self) {
        // `user:password` in base64.
        self.proxy.rule(|ask| match ask.header("authorization") {
            Some("Basic dXNlcjpwYXNzd29yZA==") => Deed::Pass,
            _ => Deed::Answer(
                401,
                vec![("WWW-Authenticate", "Basic realm=r".to_owned())],
                b"{}".to_vec(),
            ),
        });
    }

    /// Waits until this many bytes of layers were sent.
    pub(crate) fn wait_bytes(&self, bytes: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.proxy.blob_bytes() < bytes {
            assert!(
                Instant::now() < deadline,
                "{} bytes",
                self.proxy.blob_bytes()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
