//! When images are pulled: how far a pull is, registries that cannot be asked, rates and windows.

use std::time::Instant;

use super::proxy::Deed;
use super::pull::{events, pod, push_with_layer};
use super::registry::Registry;
use super::*;

/// An agent with settings below `coracle`.
fn agent_with(settings: &str) -> Agent {
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    let text = format!(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ncoracle: {{{settings}}}\n"
    );
    fs::write(agent.root.join("config.d/50-pulls.conf"), text).expect("written");
    agent.launch();
    agent
}

fn unavailable(registry: &Registry) {
    registry
        .proxy
        .rule(|_| Deed::Answer(503, vec![], b"{}".to_vec()));
}

fn waiting(pod: &Value, field: &str) -> String {
    let text = main_status(pod)["state"]["waiting"][field].as_str();
    text.unwrap_or_default().to_owned()
}

#[test]
fn a_slow_pull_shows_how_far_it_is() {
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    registry.proxy.rule(|ask| match ask.is_blob() {
        true => Deed::Drip(16 << 10, Duration::from_millis(50)),
        false => Deed::Pass,
    });
    let name = registry.name();
    agent.write("a.yaml", &pod("a", &name, "IfNotPresent"));
    let shown = agent.wait_pod("a", |pod| {
        let message = waiting(pod, "message");
        message.starts_with(&format!("Pulling image \"{name}\": ")) && message.contains("% of ")
    });
    assert_eq!(waiting(&shown, "reason"), "ContainerCreating");
    let wide = agent.ok(&["get", "pods", "-o", "wide"]);
    assert!(wide.contains(" Pulling ") && wide.contains('%'), "{wide}");
    let narrow = agent.ok(&["get", "pods"]);
    assert!(narrow.contains(" ContainerCreating "), "{narrow}");
    registry.proxy.rule(|_| Deed::Pass);
    agent.wait_running("a");
}

#[test]
fn always_uses_the_stored_image_while_its_registry_cannot_be_asked() {
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    let name = registry.name();
    agent.write("a.yaml", &pod("a", &name, "Always"));
    agent.wait_running("a");
    unavailable(&registry);
    agent.write("b.yaml", &pod("b", &name, "Always"));
    agent.wait_running("b");
    let told = |pod: &str| {
        let all = events(&agent, pod).into_iter();
        let mut of = all.filter(|(reason, _)| reason == "UsingStoredImage");
        of.next().map(|(_, text)| text).unwrap_or_default()
    };
    let text = told("b");
    let begins = format!("Using the stored image \"{name}\": ");
    assert!(
        text.starts_with(&begins) && text.contains("the server answered 503"),
        "{text}"
    );
    let shown = agent.wait_pod("b", |pod| {
        let conditions = pod["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|condition| {
            condition["type"] == "coracle.dev/ImagesCurrent" && condition["status"] == "False"
        })
    });
    assert!(shown.to_string().contains(&begins.replace('"', "\\\"")));
    // For a while the registry is not asked again for what is there.
    registry.proxy.reset();
    agent.write("c.yaml", &pod("c", &name, "Always"));
    agent.wait_running("c");
    assert!(registry.proxy.asked().is_empty());
    assert!(told("c").contains("the server answered 503"));
    // What the registry refuses is refused.
    let refusing = format!("{}/other:1", registry.proxy.address);
    agent.write("d.yaml", &pod("d", &refusing, "Always"));
    agent.wait_pod("d", |pod| waiting(pod, "reason") == "ErrImagePull");
}

#[test]
fn a_stored_image_can_be_refused_while_its_registry_cannot_be_asked() {
    let agent = agent_with("pullAlwaysOffline: fail");
    let registry = Registry::start(&agent);
    let name = registry.name();
    agent.ok(&["image", "pull", &name]);
    unavailable(&registry);
    agent.write("a.yaml", &pod("a", &name, "Always"));
    let shown = agent.wait_pod("a", |pod| waiting(pod, "reason") == "ErrImagePull");
    assert!(waiting(&shown, "message").contains("the server answered 503"));
    // It is there for those that do not ask.
    agent.write("b.yaml", &pod("b", &name, "IfNotPresent"));
    agent.wait_running("b");
}

#[test]
fn images_arrive_no_faster_than_the_rate_allows() {
    let rate = 400 << 10;
    let agent = agent_with("pullRate: 400KiB/s");
    let registry = Registry::start(&agent);
    let begun = Instant::now();
    agent.ok(&["image", "pull", &registry.name()]);
    let (took, bytes) = (begun.elapsed().as_secs_f64(), registry.proxy.blob_bytes());
    let allowed = f64::from(rate) * took;
    assert!(bytes > rate as u64, "{bytes}");
    assert!(bytes as f64 <= allowed * 1.05, "{bytes} bytes in {took} s");
}

#[test]
fn pods_pull_in_windows_only_and_people_at_any_time() {
    let date = std::process::Command::new("date").arg("+%H").output();
    let local = date.expect("coreutils").stdout;
    let hour = String::from_utf8_lossy(&local).trim().parse::<u32>();
    let hour = hour.expect("an hour");
    let (from, to) = ((hour + 3) % 24, (hour + 4) % 24);
    let window = format!("{from:02}:00-{to:02}:00");
    let agent = agent_with(&format!("pullWindows: [\"{window}\"]"));
    let registry = Registry::start(&agent);
    let name = registry.name();
    agent.write("a.yaml", &pod("a", &name, "IfNotPresent"));
    let shown = agent.wait_pod("a", |pod| waiting(pod, "reason") == "ImagePullBackOff");
    let text = format!(
        "Back-off pulling image \"{name}\": the next window for pulls is {window} (`coracle.pullWindows`)"
    );
    assert_eq!(waiting(&shown, "message"), text);
    assert!(events(&agent, "a").contains(&("BackOff".to_owned(), text)));
    assert!(registry.proxy.asked().is_empty());
    agent.ok(&["image", "pull", &name]);
    agent.wait_running("a");
    // With `Always` what is there is used.
    registry.proxy.reset();
    agent.write("b.yaml", &pod("b", &name, "Always"));
    agent.wait_running("b");
    assert!(registry.proxy.asked().is_empty());
    let open = agent_with("pullWindows: [\"00:00-12:00\", \"12:00-24:00\"]");
    let registry = Registry::start(&open);
    open.write("a.yaml", &pod("a", &registry.name(), "IfNotPresent"));
    open.wait_running("a");
}

#[test]
fn a_pull_stops_when_its_window_closes() {
    let date = std::process::Command::new("date").arg("+%H %M %S").output();
    let local = date.expect("coreutils").stdout;
    let local = String::from_utf8_lossy(&local).into_owned();
    let mut numbers = local.split_whitespace().map(|text| text.parse::<u32>());
    let mut number = || numbers.next().expect("a number").expect("a number");
    let (minutes, seconds) = (number() * 60 + number(), number());
    // It is open long enough for the pull to begin.
    let closes = (minutes + if seconds < 35 { 1 } else { 2 }) % (24 * 60);
    let from = (minutes + 24 * 60 - 1) % (24 * 60);
    let time = |minutes: u32| format!("{:02}:{:02}", minutes / 60, minutes % 60);
    let window = format!("{}-{}", time(from), time(closes));
    let agent = agent_with(&format!("pullWindows: [\"{window}\"]"));
    let registry = Registry::start(&agent);
    registry.proxy.rule(|ask| match ask.is_blob() {
        true => Deed::Drip(1 << 10, Duration::from_millis(200)),
        false => Deed::Pass,
    });
    let name = registry.name();
    agent.write("a.yaml", &pod("a", &name, "IfNotPresent"));
    agent.wait_pod("a", |pod| {
        waiting(pod, "message").starts_with("Pulling image")
    });
    let deadline = Instant::now() + Duration::from_secs(100) + PATIENCE;
    let text = format!("the next window for pulls is {window}");
    while !agent.ok(&["get", "pods", "-o", "json"]).contains(&text) {
        assert!(Instant::now() < deadline, "it goes on: {}", agent.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    let said = events(&agent, "a");
    assert!(
        said.iter().all(|(reason, _)| reason != "Failed"),
        "{said:?}"
    );
}

#[test]
fn pods_with_a_stored_image_wait_once_for_a_registry_that_is_away() {
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    let name = registry.name();
    agent.ok(&["image", "pull", &name]);
    registry.proxy.reset();
    registry.proxy.rule(|ask| {
        if ask.path.contains("/manifests/") && ask.earlier == 0 {
            // Until the others are in the queue.
            std::thread::sleep(Duration::from_secs(3));
        }
        Deed::Answer(500, vec![], b"{}".to_vec())
    });
    let text = ["a", "b", "c"].map(|pod_name| pod(pod_name, &name, "Always"));
    agent.write("all.yaml", &text.join("\n---\n"));
    for pod_name in ["a", "b", "c"] {
        agent.wait_running(pod_name);
    }
    let asked = registry.proxy.asked();
    let asked = asked.iter().filter(|ask| ask.path.contains("/manifests/"));
    assert_eq!(asked.count(), 2, "a HEAD and a GET for the first of them");
}

#[test]
fn a_layer_that_is_gone_is_said_and_downloaded_again() {
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    push_with_layer(&registry, &agent.root, "two:1");
    let name = format!("{}/two:1", registry.proxy.address);
    agent.ok(&["image", "pull", "--quiet", &name]);
    let layers = fs::read_dir(agent.root.join("root/images/layers")).expect("layers");
    let mut layers = layers.flatten().map(|layer| layer.path().join("diff"));
    let layer = layers
        .find(|layer| layer.join("extra").exists())
        .expect("a layer");
    fs::remove_dir_all(&layer).expect("removed");
    agent.write("a.yaml", &pod("a", &name, "Never"));
    let held = agent.wait_pod("a", |pod| waiting(pod, "reason") == "ImageInspectError");
    let said = waiting(&held, "message");
    assert!(
        said.contains("is damaged: check it with `coracle fsck`"),
        "{said}"
    );
    registry.proxy.reset();
    agent.ok(&["image", "pull", "--quiet", &name]);
    let bytes = registry.proxy.blob_bytes();
    assert!(bytes < 20_000, "{bytes} bytes of an image of a megabyte");
    assert!(layer.join("extra").exists());
    agent.wait_running("a");
    // A pod with another policy mends it by itself.
    fs::remove_dir_all(&layer).expect("removed");
    agent.write("b.yaml", &pod("b", &name, "IfNotPresent"));
    agent.wait_running("b");
    assert!(layer.join("extra").exists());
}
