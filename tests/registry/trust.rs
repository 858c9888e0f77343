//! Images that need signatures.

use coracle::images::registry::{PullOptions, Pulled, Source, pull_unless};
use coracle::images::trust::Policy;
use coracle::images::{Cause, ImageError};
use coracle::spec::ImageName;
use serde_json::{Value, json};

use crate::fixture::exe;
use crate::proxy::{Deed, Proxy};
use crate::signing::{Repository, Signed, Signer, digest, manifest};
use crate::world::{World, assert_layers};

const SIZES: [usize; 2] = [2 << 20, 1 << 20];

/// A registry with the image `a:1`, behind a proxy that counts.
struct Shop {
    world: World,
    proxy: Proxy,
    repository: Repository,
    owner: Signer,
}

impl Shop {
    fn new(name: &str) -> Self {
        let world = World::new(name);
        world.push_layers("a:1", &SIZES);
        let repository = Repository {
            registry: world.registry,
            name: "a".to_owned(),
        };
        Self {
            proxy: world.proxy(),
            owner: Signer::new(&world.room.0, "owner"),
            repository,
            world,
        }
    }

    fn name(&self) -> String {
        format!("{}/a:1", self.proxy.address)
    }

    /// Without its tag, as cosign signs.
    fn signed_name(&self) -> String {
        format!("{}/a", self.proxy.address)
    }

    /// The digest of the image.
    fn digest(&self) -> String {
        self.world.netns.run(|| self.repository.digest_of("1"))
    }

    fn push(&self, of: &str, signed: &[Signed]) {
        let push = || self.repository.push_signatures(of, signed);
        self.world.netns.run(push);
    }

    fn sign(&self, of: &str) {
        self.push(of, &[self.owner.sign(&self.signed_name(), of)]);
    }

    /// A policy for the image's repository.
    fn policy(&self, requirement: &Value) -> Policy {
        let scopes = json!({ (self.signed_name()): [requirement] });
        let text = json!({ "default": [{ "type": "reject" }], "transports": { "docker": scopes } });
        Policy::parse(text.to_string().as_bytes()).unwrap_or_else(|why| panic!("{why}"))
    }

    fn pull_from(&self, policy: &Policy, sources: &[String]) -> Result<Pulled, ImageError> {
        let name = self.name();
        let of = |name: &String| Source {
            name: name.clone(),
            insecure: false,
            credentials: Vec::new(),
        };
        let options = PullOptions {
            trust: policy.demand_of(&ImageName::parse(&name).unwrap())?,
            sources: sources.iter().map(of).collect(),
            name,
            ..PullOptions::default()
        };
        let store = self.world.room.store();
        let never = std::future::pending();
        let pull = || smol::block_on(pull_unless(never, exe(), &store, &options, |_| {}));
        self.world.netns.run(pull).map(|(pulled, _)| pulled)
    }

    fn pull(&self, policy: &Policy) -> Result<Pulled, ImageError> {
        self.pull_from(policy, &[self.name()])
    }

    /// Pulls what must be let in.
    fn ok(&self, policy: &Policy) {
        let pulled = self.pull(policy).unwrap_or_else(|why| panic!("{why}"));
        assert!(matches!(pulled, Pulled::New(_)), "{pulled:?}");
        let image = self.world.room.open().lookup(&self.name()).unwrap();
        assert_layers(&image.unwrap(), &SIZES);
        self.check(policy).unwrap();
    }

    /// Pulls what must be refused; the reason, and what to do.
    fn refused(&self, policy: &Policy) -> String {
        self.proxy.reset();
        let why = self.pull(policy).expect_err("an untrusted image");
        let ImageError::Pull { cause, .. } = &why else {
            panic!("{why:?}");
        };
        assert_eq!(*cause, Cause::Signature, "{why}");
        // No layer was fetched, and nothing can be run.
        assert!(self.proxy.blob_bytes() < 1 << 20, "{why}");
        assert_eq!(self.world.room.open().list().unwrap(), []);
        format!("{why}; {}", why.hint().unwrap_or_default())
    }

    /// Whether the stored image may run, without any network.
    fn check(&self, policy: &Policy) -> Result<(), ImageError> {
        let store = self.world.room.open();
        let name = ImageName::parse(&self.name()).unwrap();
        let image = store.lookup(&self.name()).unwrap().expect("it is stored");
        store.check_trust(policy, &image.id, &name)
    }
}

#[test]
fn an_image_is_let_in_once_it_is_signed() {
    let shop = Shop::new("signed");
    let policy = shop.policy(&shop.owner.repository());
    let why = shop.refused(&policy);
    let expected = format!("`{}` is not trusted: it has no signature", shop.name());
    assert!(
        why.contains(&expected) && why.contains("cosign sign"),
        "{why}"
    );
    shop.sign(&shop.digest());
    shop.ok(&policy);
    // What is there needs no network.
    shop.proxy.reset();
    assert!(matches!(shop.pull(&policy), Ok(Pulled::Unchanged(_))));
    assert_eq!(shop.proxy.blob_bytes(), 0);
}

#[test]
fn signatures_may_be_referrers_with_a_list_of_the_registry_or_a_tag() {
    let shop = Shop::new("referrers");
    let policy = shop.policy(&shop.owner.repository());
    let of = shop.digest();
    let signed = [shop.owner.sign(&shop.signed_name(), &of)];
    let push = || shop.repository.push_referrer(&of, &signed);
    let list = shop.world.netns.run(push);
    shop.ok(&policy);
    // By a list of the registry; the tag is hidden.
    let store = shop.world.room.open();
    store
        .remove(&shop.name(), &Default::default(), &Default::default())
        .unwrap();
    let hidden = of.replace(':', "-");
    shop.proxy.rule(move |ask| match ask.path.as_str() {
        path if path.contains("/referrers/sha256:") => Deed::Answer(
            200,
            vec![(
                "Content-Type",
                "application/vnd.oci.image.index.v1+json".to_owned(),
            )],
            list.to_string().into_bytes(),
        ),
        path if path.contains(&hidden) => Deed::Answer(404, vec![], b"{}".to_vec()),
        _ => Deed::Pass,
    });
    shop.ok(&policy);
}

#[test]
fn a_bundle_that_names_no_repository_is_refused_with_a_way_out() {
    let shop = Shop::new("bundle");
    let policy = shop.policy(&shop.owner.repository());
    let list = json!({ "manifests": [{
        "digest": digest(b"a bundle"), "size": 8, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": "application/vnd.dev.sigstore.bundle.v0.3+json",
    }] });
    shop.proxy
        .rule(move |ask| match ask.path.contains("/referrers/") {
            true => Deed::Answer(200, vec![], list.to_string().into_bytes()),
            false => Deed::Pass,
        });
    let why = shop.refused(&policy);
    assert!(why.contains("--new-bundle-format=false"), "{why}");
}

#[test]
fn what_is_signed_otherwise_is_refused_with_the_reason() {
    let shop = Shop::new("wrong");
    let policy = shop.policy(&shop.owner.repository());
    let stranger = Signer::new(&shop.world.room.0, "stranger");
    let (of, name) = (shop.digest(), shop.signed_name());
    let other = digest(b"another image");
    let damaged = Signed {
        payload: shop.owner.sign(&name, &other).payload,
        ..shop.owner.sign(&name, &of)
    };
    for (signed, expected) in [
        (stranger.sign(&name, &of), "another key"),
        (shop.owner.sign(&name, &other), "it is one of sha256:"),
        (
            shop.owner.sign("other.lan/a", &of),
            "it is one for `other.lan/a`",
        ),
        (shop.owner.sign_text("{}"), "missing field `critical`"),
        (damaged, "another key, or is damaged"),
        (
            Signed {
                signature: "!".to_owned(),
                ..shop.owner.sign(&name, &of)
            },
            "it has no signature",
        ),
    ] {
        shop.push(&of, &[signed]);
        let why = shop.refused(&policy);
        assert!(why.contains(expected), "{expected}: {why}");
    }
    // One good signature among others is enough.
    let good = shop.owner.sign(&name, &of);
    shop.push(&of, &[good, stranger.sign(&name, &of)]);
    shop.ok(&policy);
}

#[test]
fn a_registry_that_lies_about_signatures_lets_nothing_in() {
    let shop = Shop::new("lies");
    let policy = shop.policy(&shop.owner.repository());
    let of = shop.digest();
    shop.sign(&of);
    let endless = manifest(&vec![shop.owner.sign("x.lan/y", &of); 300], None).0;
    let many: Vec<Value> = (0..2000)
        .map(|n: u32| json!({ "digest": digest(&n.to_le_bytes()), "size": 1, "mediaType": "x" }))
        .collect();
    let many = json!({ "manifests": many }).to_string();
    let answers: [(u16, Vec<u8>); 6] = [
        (200, b"garbage".to_vec()),
        (200, vec![b' '; 3 << 20]),
        (200, endless.to_string().into_bytes()),
        (200, many.into_bytes()),
        (403, b"{}".to_vec()),
        (405, b"{}".to_vec()),
    ];
    for (status, body) in answers {
        let answer = body.clone();
        shop.proxy.rule(move |ask| {
            match ask.path.contains(".sig") || ask.path.contains("/referrers/") {
                true => Deed::Answer(status, vec![], answer.clone()),
                false => Deed::Pass,
            }
        });
        let why = shop.refused(&policy);
        assert!(why.contains("is not trusted"), "{why}");
        let asked = shop.proxy.asked().len();
        assert!(asked < 120, "{asked} requests for {status}");
    }
    // The signed document is another one.
    shop.proxy.rule(|ask| match ask.earlier {
        0 if ask.is_blob() => Deed::Corrupt,
        _ => Deed::Pass,
    });
    let why = shop.refused(&policy);
    assert!(
        why.contains("no signature") || why.contains("digest"),
        "{why}"
    );
}

#[test]
fn the_tag_counts_unless_the_policy_says_otherwise() {
    let shop = Shop::new("identity");
    let of = shop.digest();
    shop.sign(&of);
    let strict = json!({ "type": "sigstoreSigned", "keyPath": shop.owner.public() });
    let why = shop.refused(&shop.policy(&strict));
    assert!(
        why.contains("it is one for `") && why.contains("matchRepository"),
        "{why}"
    );
    let remap = json!({ "type": "remapIdentity", "prefix": shop.proxy.address.to_string(),
                        "signedPrefix": "vendor.example" });
    let remap = shop.policy(&shop.owner.requirement(&remap));
    assert!(shop.refused(&remap).contains("it is one for"));
    shop.push(&of, &[shop.owner.sign("vendor.example/a:1", &of)]);
    shop.ok(&remap);
    assert!(shop.check(&shop.policy(&strict)).is_err());
}

#[test]
fn a_rejected_image_is_not_even_asked_for() {
    let shop = Shop::new("reject");
    let why = shop.refused(&shop.policy(&json!({ "type": "reject" })));
    assert!(why.contains("of the policy rejects it"), "{why}");
    assert_eq!(shop.proxy.asked().len(), 0);
    shop.ok(&shop.policy(&json!({ "type": "insecureAcceptAnything" })));
}

#[test]
fn a_signature_of_the_index_or_of_the_image_in_it_will_do() {
    let shop = Shop::new("index");
    let policy = shop.policy(&shop.owner.repository());
    let of = shop.digest();
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "digest": of, "size": shop.world.netns.run(|| manifest_size(&shop)),
            "platform": { "architecture": crate::fixture::arch(), "os": "linux" },
        }],
    });
    let push = || shop.repository.push_manifest("1", &index);
    let top = shop.world.netns.run(push);
    assert!(shop.refused(&policy).contains("no signature"));
    shop.sign(&top);
    shop.ok(&policy);
    let store = shop.world.room.open();
    store
        .remove(&shop.name(), &Default::default(), &Default::default())
        .unwrap();
    // Only the image.
    shop.push(&top, &[]);
    assert!(shop.refused(&policy).contains("no signature"));
    shop.sign(&of);
    shop.ok(&policy);
}

/// The length of the image's manifest.
fn manifest_size(shop: &Shop) -> usize {
    let name = format!("docker://{}/a:1", shop.world.registry);
    let mut skopeo = std::process::Command::new("skopeo");
    let raw = skopeo
        .args(["inspect", "--raw", "--tls-verify=false", &name])
        .output();
    raw.expect("skopeo: apt-get install skopeo").stdout.len()
}

#[test]
fn a_mirror_without_the_signatures_is_left_for_the_registry() {
    let shop = Shop::new("mirror");
    let policy = shop.policy(&shop.owner.repository());
    shop.sign(&shop.digest());
    let mirror = shop.world.proxy();
    mirror.rule(|ask| match ask.path.contains("sha256-") {
        true => Deed::Answer(404, vec![], b"{}".to_vec()),
        false => Deed::Pass,
    });
    let sources = [format!("{}/a:1", mirror.address), shop.name()];
    let pulled = shop.pull_from(&policy, &sources);
    assert!(matches!(pulled, Ok(Pulled::New(_))), "{pulled:?}");
    shop.check(&policy).unwrap();
    assert!(!mirror.asked().is_empty());
}

#[test]
fn a_stored_image_follows_the_policy_of_now_without_a_network() {
    let shop = Shop::new("stored");
    let anything = shop.policy(&json!({ "type": "insecureAcceptAnything" }));
    let signed = shop.policy(&shop.owner.repository());
    shop.sign(&shop.digest());
    shop.ok(&anything);
    // It was let in without a look at its signatures.
    let why = shop
        .check(&signed)
        .expect_err("its signatures are not known");
    assert!(why.to_string().contains("it has no signature"), "{why}");
    // The registry has nothing newer, and the signatures.
    shop.proxy.reset();
    shop.ok(&signed);
    let bytes = shop.proxy.blob_bytes();
    assert!(bytes < 1 << 20, "{bytes}: layers are there");
    shop.proxy.rule(|_| Deed::Hang);
    shop.check(&signed).unwrap();
    let stranger = Signer::new(&shop.world.room.0, "stranger");
    let why = shop.check(&shop.policy(&stranger.repository()));
    assert!(why.unwrap_err().to_string().contains("another key"));
    let rejected = shop.check(&shop.policy(&json!({ "type": "reject" })));
    assert!(rejected.unwrap_err().to_string().contains("rejects it"));
    shop.check(&Policy::default()).unwrap();
}
