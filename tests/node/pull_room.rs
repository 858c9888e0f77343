//! Pulls of images that do not fit on the disk.

use super::registry::Registry;
use super::*;

#[test]
fn unused_images_make_room_for_one_that_a_pod_needs() {
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    let settings = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nimageMinimumGCAge: 1s\n\
                    evictionHard: {imagefs.available: 15%}\n";
    fs::write(agent.root.join("config.d/50-images.conf"), settings).expect("written");
    let store = agent.root.join("root/images");
    super::upgrade::sized(&store, 100 << 20, nix::mount::MsFlags::empty());
    agent.launch();
    let registry = Registry::start(&agent);
    let mut seed = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed.to_le_bytes()[7]
    })
    .take(30 << 20)
    .collect();
    let busybox = fs::read("/bin/busybox").expect("package busybox-static");
    for (name, content) in [("old", &noise[1..]), ("new", &noise[..])] {
        let layer =
            super::hostile::layer(&[("bin/sh", 0o755, 0, &busybox), ("noise", 0o644, 0, content)]);
        let archive = super::hostile::save(&agent, name, serde_json::json!({}), &[layer]);
        registry.copy(&format!("docker-archive:{archive}"), &format!("{name}:1"));
    }
    let image = |name: &str| format!("{}/{name}:1", registry.proxy.address);
    agent.ok(&["image", "pull", "--quiet", &image("old")]);
    let pod = shell_pod("a", "while :; do read x </dev/zero; done", "", "");
    agent.write("a.yaml", &pod.replace("busybox:test", &image("new")));
    agent.wait_running("a");
    let images = agent.ok(&["image", "ls"]);
    assert!(!images.contains("/old"), "{images}");
}
