//! Pods whose images need signatures, through a whole agent and Debian's `docker-registry`.

use super::pull::pod;
use super::registry::Registry;
use super::signing::{Repository, Signer};
use super::*;

/// An agent with a policy, and a registry in its network.
struct Shop {
    agent: Agent,
    registry: Registry,
    owner: Signer,
}

impl Shop {
    fn start() -> Self {
        let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
        let settings = format!(
            "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ncoracle: {{signaturePolicy: {}}}\n",
            agent.root.join("policy.json").display()
        );
        fs::write(agent.root.join("config.d/50-policy.conf"), settings).expect("written");
        agent.launch();
        let registry = Registry::start(&agent);
        let owner = Signer::new(&agent.root, "owner");
        Self {
            agent,
            registry,
            owner,
        }
    }

    /// The image's name without its tag.
    fn repository(&self) -> String {
        format!("{}/busybox", self.registry.proxy.address)
    }

    fn policy(&self, requirement: &Value) {
        let accept = serde_json::json!([{ "type": "insecureAcceptAnything" }]);
        let policy = serde_json::json!({
            "default": accept,
            "transports": { "docker": { (self.repository()): [requirement] } },
        });
        fs::write(self.agent.root.join("policy.json"), policy.to_string()).expect("written");
    }

    fn sign(&self) {
        let repository = Repository {
            registry: "127.0.0.1:5000".parse().expect("an address"),
            name: "busybox".to_owned(),
        };
        self.agent.netns.run(|| {
            let of = repository.digest_of("1");
            let signed = self.owner.sign(&self.repository(), &of);
            repository.push_signatures(&of, &[signed]);
        });
    }

    /// Waits until a pod waits because of its signatures; the message.
    fn wait_refused(&self, name: &str) -> String {
        let pod = self.agent.wait_pod(name, |pod| {
            let why = &main_status(pod)["state"]["waiting"];
            let message = why["message"].as_str().unwrap_or_default();
            why["reason"] == "SignatureValidationFailed"
                || (why["reason"] == "ImagePullBackOff"
                    && message.contains("SignatureValidationFailed"))
        });
        let message = &main_status(&pod)["state"]["waiting"]["message"];
        message.as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn a_pod_waits_for_the_signature_of_its_image_and_starts_once_it_is_there() {
    let shop = Shop::start();
    let (agent, name) = (&shop.agent, shop.registry.name());
    shop.policy(&shop.owner.repository());
    agent.write("a.yaml", &pod("a", &name, "IfNotPresent"));
    let text = format!(
        "Failed to pull image \"{name}\": `{name}` is not trusted: it has no signature, and `{}` of the policy demands one",
        shop.repository()
    );
    events::wait_event(agent, |event| {
        event["reason"] == "Failed"
            && event["message"]
                .as_str()
                .is_some_and(|said| said.starts_with(&text))
    });
    events::wait_event(agent, |event| {
        event["message"] == "Error: SignatureValidationFailed"
    });
    let message = shop.wait_refused("a");
    let expected =
        format!("image pull failed for {name} because the signature validation failed: ");
    assert!(
        message.contains(&expected) && message.contains("cosign sign --key"),
        "{message}"
    );
    assert!(!agent.ok(&["image", "ls"]).contains("127.0.0.1"));
    shop.sign();
    agent.ok(&["retry", "a"]);
    agent.wait_running("a");
}

#[test]
fn a_stored_image_starts_only_while_the_policy_lets_it() {
    let shop = Shop::start();
    let (agent, name) = (&shop.agent, shop.registry.name());
    shop.policy(&shop.owner.repository());
    shop.sign();
    agent.ok(&["image", "pull", &name]);
    // Verified once, it needs no network.
    shop.registry.proxy.rule(|_| proxy::Deed::Hang);
    shop.registry.proxy.reset();
    agent.write("a.yaml", &pod("a", &name, "IfNotPresent"));
    agent.wait_running("a");
    agent.write("never.yaml", &pod("never", &name, "Never"));
    agent.wait_running("never");
    assert_eq!(shop.registry.proxy.asked().len(), 0);
    // A container that runs goes on under another policy, and new ones do not start.
    shop.policy(&serde_json::json!({ "type": "reject" }));
    agent.write("b.yaml", &pod("b", &name, "Never"));
    let message = shop.wait_refused("b");
    assert!(message.contains("of the policy rejects it"), "{message}");
    let stranger = Signer::new(&agent.root, "stranger");
    shop.policy(&stranger.repository());
    agent.write("c.yaml", &pod("c", &name, "Never"));
    let message = shop.wait_refused("c");
    assert!(
        message.contains("it was made with another key"),
        "{message}"
    );
    agent.wait_running("a");
    fs::write(agent.root.join("policy.json"), "{\"default\": 1}").expect("written");
    agent.write("d.yaml", &pod("d", &name, "Never"));
    let message = shop.wait_refused("d");
    assert!(
        message.contains("policy.json`: invalid type") && message.contains("coracle doctor"),
        "{message}"
    );
    shop.policy(&shop.owner.repository());
    for pod in ["b", "c", "d"] {
        agent.ok(&["retry", pod]);
        agent.wait_running(pod);
    }
}

#[test]
fn an_image_without_its_signatures_is_pulled_again_for_them() {
    let shop = Shop::start();
    let (agent, name) = (&shop.agent, shop.registry.name());
    agent.ok(&["image", "pull", &name]);
    shop.policy(&shop.owner.repository());
    agent.write("never.yaml", &pod("never", &name, "Never"));
    assert!(shop.wait_refused("never").contains("it has no signature"));
    shop.sign();
    shop.registry.proxy.reset();
    agent.write("a.yaml", &pod("a", &name, "IfNotPresent"));
    agent.wait_running("a");
    let bytes = shop.registry.proxy.blob_bytes();
    assert!(bytes < 10_000, "{bytes} bytes: the layer is there");
    // The other one starts by itself: the store has changed.
    agent.wait_running("never");
}

#[test]
fn doctor_and_config_check_say_what_is_wrong_with_the_policy() {
    let shop = Shop::start();
    let agent = &shop.agent;
    let config = agent.root.join("config.d/50-policy.conf");
    let config = config.to_str().expect("utf-8");
    shop.policy(&serde_json::json!({ "type": "signedBy" }));
    let doctor = agent.cli(&["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(
        said.contains("`signedBy` (GPG) is not supported") && said.contains("no container starts"),
        "{said}"
    );
    let check = agent.cli(&["config", "check", config]);
    let said = String::from_utf8_lossy(&check.stderr);
    assert!(
        said.contains("warning: no container will start: the policy"),
        "{said}"
    );
    shop.policy(&shop.owner.repository());
    let doctor = agent.cli(&["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(said.contains("policy.json`, valid"), "{said}");
}
