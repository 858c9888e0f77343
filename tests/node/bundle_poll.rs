//! Bundles that come by themselves, and from web servers.

use std::time::Instant;

use super::bundles::{Site, archived, key_pair, pod, versioned};
use super::registry::Registry;
use super::web::{Served, Web, tls};
use super::*;

/// An agent that has not been started.
fn site() -> Site {
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    Site { agent }
}

/// Writes the settings of coracle's own, in YAML's short form.
fn settings(site: &Site, own: &str) {
    let text = format!(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ncoracle: {{{own}}}\n"
    );
    fs::write(site.agent.root.join("config.d/50-poll.conf"), text).expect("written");
}

/// Makes a bundle of one file.
fn make(site: &Site, archive: &str, text: &str, more: &[&str]) {
    let dir = site.agent.root.join("bundles").join(archive);
    fs::create_dir_all(&dir).expect("temp dir");
    fs::write(dir.join("web.yaml"), text).expect("written");
    site.create_with(archive, &dir, more);
}

/// Puts a bundle into the registry as `site:live`, its signature beside it.
fn push(site: &Site, registry: &Registry, archive: &str) {
    let index = archived(&site.archive(archive), "index.json");
    let mut names = vec![("site".to_owned(), "live".to_owned())];
    let signature = &index["manifests"][1]["annotations"]["org.opencontainers.image.ref.name"];
    names.extend(
        signature
            .as_str()
            .map(|tag| (tag.to_owned(), tag.to_owned())),
    );
    for (name, to) in names {
        let from = format!("oci-archive:{}:{name}", site.archive(archive).display());
        registry.copy(&from, &format!("site:{to}"));
    }
}

fn polled(site: &Site) -> Value {
    let listed = site.agent.ok(&["bundle", "ls", "-o", "json"]);
    serde_json::from_str::<Value>(&listed).expect("JSON")["polled"].take()
}

/// Waits until the agent has looked, and returns what it found wrong.
fn wait_look(site: &Site) -> Option<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let polled = polled(site);
        if !polled["lastLook"].is_null() {
            return polled["lastError"].as_str().map(str::to_owned);
        }
        assert!(Instant::now() < deadline, "{}", site.agent.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The agent starts again, and has looked.
fn look_again(site: &Site) -> Option<String> {
    site.agent.kill_and_restart();
    wait_look(site)
}

#[test]
fn a_new_digest_is_applied_once_and_what_was_taken_back_stays_away() {
    let site = site();
    let registry = Registry::start(&site.agent);
    let (key, public) = key_pair(&site.agent.root, "own");
    let sign = ["--sign-by", key.as_str()];
    make(&site, "one", &pod("web", "1"), &sign);
    make(&site, "never", &versioned("web", "2", "exit 1"), &sign);
    make(&site, "three", &pod("web", "3"), &sign);
    let address = registry.proxy.address;
    let within = |time: &str| {
        settings(
            &site,
            &format!(
                "bundle: {{source: \"oci://{address}/site:live\", interval: 1h, key: {public}, readyWithin: {time}}}"
            ),
        );
    };
    within("100s");
    push(&site, &registry, "one");
    let agent = &site.agent;
    agent.launch();
    assert_eq!(wait_look(&site), None);
    site.wait_version("web", "1");
    let first = site.wait_bundle(|bundle| bundle["trial"].is_null());
    assert_eq!(first["current"]["generation"], 1);
    assert!(agent.ok(&["get", "events"]).contains("BundleApplied"));
    let shown = agent.ok(&["bundle", "ls"]);
    assert!(
        shown.contains("POLLED") && shown.contains("site:live"),
        "{shown}"
    );
    // Nothing but the digest is asked for while it is the same.
    registry.proxy.reset();
    assert_eq!(look_again(&site), None);
    let asked = registry.proxy.asked();
    assert!(
        asked.iter().any(|ask| ask.path.contains("/manifests/live")),
        "{asked:?}"
    );
    assert!(
        asked
            .iter()
            .all(|ask| ask.method == "HEAD" || ask.path == "/v2/"),
        "{asked:?}"
    );

    // One that fails its trial is taken back, and not tried again.
    within("4s");
    push(&site, &registry, "never");
    assert_eq!(look_again(&site), None);
    let failed = site.wait_bundle(|bundle| !bundle["failed"].is_null());
    assert_eq!(failed["current"]["generation"], 1, "{failed}");
    site.wait_version("web", "1");
    within("100s");
    for _ in 0..2 {
        assert_eq!(look_again(&site), None);
        let bundle = &site.ls()[0];
        assert_eq!(bundle["failed"]["generation"], 2, "{bundle}");
        assert_eq!(bundle["current"]["generation"], 1, "{bundle}");
    }
    push(&site, &registry, "three");
    assert_eq!(look_again(&site), None);
    site.wait_version("web", "3");
    let third = site.wait_bundle(|bundle| bundle["trial"].is_null());
    assert_eq!(third["current"]["generation"], 3, "{third}");

    // What was rolled back by hand stays away; another digest does not.
    agent.ok(&["bundle", "rollback"]);
    site.wait_version("web", "1");
    assert_eq!(look_again(&site), None);
    assert_eq!(site.ls()[0]["current"]["generation"], 1);
    push(&site, &registry, "one");
    assert_eq!(look_again(&site), None);
    assert_eq!(site.ls()[0]["current"]["generation"], 1);
    push(&site, &registry, "three");
    assert_eq!(look_again(&site), None);
    site.wait_version("web", "3");
}

#[test]
fn what_is_not_signed_as_demanded_is_refused_and_what_runs_is_kept() {
    let site = site();
    let registry = Registry::start(&site.agent);
    let (key, public) = key_pair(&site.agent.root, "own");
    let (_, other) = key_pair(&site.agent.root, "other");
    make(&site, "one", &pod("web", "1"), &["--sign-by", &key]);
    make(&site, "unsigned", &pod("web", "2"), &[]);
    make(&site, "signed", &pod("web", "3"), &["--sign-by", &key]);
    let source = format!(
        "bundle: {{source: \"oci://{}/site:live\", key: ",
        registry.proxy.address
    );
    settings(&site, &format!("{source}{public}}}"));
    push(&site, &registry, "one");
    site.agent.launch();
    assert_eq!(wait_look(&site), None);
    site.wait_version("web", "1");
    let refused = |part: &str| {
        let why = look_again(&site).expect("it is refused");
        assert!(why.contains(part), "{why}");
        let events = site.agent.ok(&["get", "events"]);
        assert!(
            events.contains("BundlePollFailed") && events.contains(part),
            "{events}"
        );
        assert_eq!(site.ls()[0]["current"]["generation"], 1);
        site.wait_version("web", "1");
    };
    push(&site, &registry, "unsigned");
    refused("it has no signature");
    push(&site, &registry, "signed");
    // The key of all bundles is demanded, too.
    settings(&site, &format!("bundleKey: {other}, {source}{public}}}"));
    refused("none of its signatures was made for it with that key");
    settings(&site, &format!("{source}/nowhere.pub}}"));
    refused("`coracle.bundle.key`");
    settings(&site, &format!("bundleKey: {public}, {source}{public}}}"));
    assert_eq!(look_again(&site), None);
    site.wait_version("web", "3");
}

#[test]
fn a_source_that_is_away_at_the_start_is_asked_again_soon() {
    let site = site();
    let registry = Registry::start(&site.agent);
    make(&site, "one", &pod("web", "1"), &[]);
    push(&site, &registry, "one");
    // The registry itself, which is not there yet when the agent starts.
    drop(registry);
    settings(
        &site,
        "bundle: {source: \"oci://127.0.0.1:5000/site:live\", interval: 12h}",
    );
    site.agent.launch();
    let why = wait_look(&site).expect("there is no registry");
    assert!(why.contains("127.0.0.1:5000"), "{why}");
    let _registry = Registry::start(&site.agent);
    // After half a minute.
    let deadline = Instant::now() + Duration::from_secs(45) + PATIENCE;
    while site.ls()[0].is_null() {
        assert!(Instant::now() < deadline, "{}", site.agent.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    site.wait_version("web", "1");
    let polled = polled(&site);
    assert_eq!(polled["lastError"], Value::Null, "{polled}");
}

#[test]
fn a_source_is_left_alone_while_nothing_may_be_pulled() {
    let site = site();
    let registry = Registry::start(&site.agent);
    make(&site, "one", &pod("web", "1"), &[]);
    push(&site, &registry, "one");
    registry.proxy.reset();
    let date = std::process::Command::new("date").arg("+%H").output();
    let hour = String::from_utf8_lossy(&date.expect("coreutils").stdout)
        .trim()
        .parse::<u32>()
        .expect("an hour");
    let window = format!("{:02}:00-{:02}:00", (hour + 3) % 24, (hour + 4) % 24);
    let source = format!(
        "bundle: {{source: \"oci://{}/site:live\"}}",
        registry.proxy.address
    );
    settings(&site, &format!("pullWindows: [\"{window}\"], {source}"));
    site.agent.launch();
    let deadline = Instant::now() + PATIENCE;
    while polled(&site)["lastError"].is_null() {
        assert!(Instant::now() < deadline, "{}", site.agent.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = polled(&site);
    let why = format!("the next window for pulls is {window} (`coracle.pullWindows`)");
    assert_eq!(
        (&said["lastError"], &said["lastLook"]),
        (&Value::from(why), &Value::Null)
    );
    assert!(registry.proxy.asked().is_empty());
    settings(&site, &source);
    assert_eq!(look_again(&site), None);
    site.wait_version("web", "1");
}

fn served(site: &Site, archive: &str, etag: &str) -> Served {
    Served {
        body: fs::read(site.archive(archive)).expect("made"),
        etag: etag.to_owned(),
        ..Served::default()
    }
}

#[test]
fn an_archive_is_applied_from_a_web_server_with_a_certificate_of_its_own_authority() {
    let site = site();
    let root = site.agent.root.clone();
    settings(
        &site,
        &format!(
            "registryCertificateDirs: [{}]",
            root.join("certs.d").display()
        ),
    );
    site.agent.launch();
    let registry = Registry::start(&site.agent);
    make(&site, "one", &pod("web", "1"), &[]);
    drop(registry);
    let web = Web::start(&site.agent, Some(tls(&root)));
    let first = Web::start(&site.agent, None);
    web.serve(served(&site, "one", "\"1\""));
    first.serve(Served {
        redirect: Some(format!("https://{}/other/site.tar", web.address)),
        ..Served::default()
    });
    let url = format!("https://{}/site.tar?token=hunter2", web.address);
    let refused = site.agent.cli(&["bundle", "apply", &url]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("UnknownIssuer"),
        "{said}"
    );
    let trusted = root.join("certs.d").join(web.address.to_string());
    fs::create_dir_all(&trusted).expect("temp dir");
    fs::copy(root.join("ca.crt"), trusted.join("ca.crt")).expect("copied");
    let planned = site.agent.cli(&["bundle", "plan", &url]);
    assert_eq!(planned.status.code(), Some(1), "{planned:?}");
    // The plan has downloaded it.
    web.reset();
    assert_eq!(
        site.agent.ok(&["bundle", "apply", &url]),
        "bundle site: generation 1 is in force\n"
    );
    site.wait_version("web", "1");
    assert_eq!(web.sent(), 0);
    let pulls = fs::read_dir(root.join("root/images/pulls")).expect("a directory");
    assert_eq!(pulls.count(), 0, "what is applied is not kept twice");
    let source = site.ls()[0]["current"]["source"].clone();
    assert_eq!(source, format!("https://{}/site.tar", web.address));
    assert!(
        !site.agent.log().contains("hunter2"),
        "{}",
        site.agent.log()
    );
    // A redirect, from plain HTTP on this machine.
    let moved = format!("http://{}/site.tar", first.address);
    let said = site.agent.ok(&["bundle", "apply", &moved]);
    assert_eq!(said, "bundle site: generation 1 is in force already\n");
    let plain = site
        .agent
        .cli(&["bundle", "apply", "http://config.lan/site.tar"]);
    let said = String::from_utf8_lossy(&plain.stderr);
    assert!(said.contains("without encryption"), "{said}");
    web.serve(Served {
        body: b"<html>".to_vec(),
        ..Served::default()
    });
    let page = site.agent.cli(&["bundle", "apply", &url]);
    let said = String::from_utf8_lossy(&page.stderr);
    assert!(
        !page.status.success() && said.contains("is not an image archive"),
        "{said}"
    );
}

#[test]
fn an_archive_that_is_interrupted_twenty_times_is_downloaded_once() {
    let site = site();
    let agent = &site.agent;
    // What is on its way to a worker that is killed is lost: little, however busy this machine is.
    for buffers in ["tcp_rmem", "tcp_wmem"] {
        let file = format!("/proc/sys/net/ipv4/{buffers}");
        agent
            .netns
            .run(|| fs::write(file, "4096 16384 16384"))
            .expect("written");
    }
    agent.launch();
    let registry = Registry::start(agent);
    make(&site, "one", &pod("web", "1"), &[]);
    make(&site, "two", &pod("web", "2"), &[]);
    drop(registry);
    let web = Web::start(agent, None);
    let url = format!("http://{}/site.tar", web.address);
    let mut one = served(&site, "one", "\"1\"");
    // A file may be longer than its archive: zeros end it.
    one.body.resize(one.body.len().max(6 << 20), 0);
    let whole = one.body.len();
    one.cuts = (100, whole / 25);
    one.pause = Duration::from_millis(2);
    web.serve(one.clone());
    for kill in 1..=3 {
        std::thread::scope(|scope| {
            let applying = scope.spawn(|| agent.cli(&["bundle", "apply", &url]));
            let deadline = Instant::now() + PATIENCE;
            while web.sent() < kill * whole as u64 / 5 {
                assert!(Instant::now() < deadline, "{} of {whole} bytes", web.sent());
                std::thread::sleep(Duration::from_millis(2));
            }
            agent.kill();
            let _ = applying.join();
        });
        agent.launch();
    }
    assert_eq!(
        agent.ok(&["bundle", "apply", &url]),
        "bundle site: generation 1 is in force\n"
    );
    assert!(web.heads().len() >= 20, "{}", web.heads().len());
    assert!(
        web.heads()
            .iter()
            .any(|head| head.contains("if-range: \"1\""))
    );
    let sent = web.sent();
    assert!(
        sent >= whole as u64 && sent * 100 <= whole as u64 * 105,
        "{sent} of {whole} bytes"
    );
    site.wait_version("web", "1");
    // Another archive after an interruption is read from its start.
    one.etag = "\"2\"".to_owned();
    one.cuts = (100, whole / 100);
    web.serve(Served {
        body: one.body[..100_000].to_vec(),
        ..one
    });
    let cut = agent.cli(&["bundle", "apply", &url]);
    assert!(!cut.status.success(), "{cut:?}");
    web.serve(served(&site, "two", "\"3\""));
    agent.ok(&["bundle", "apply", &url]);
    site.wait_version("web", "2");
}

#[test]
fn a_web_server_is_polled_by_its_etag() {
    let site = site();
    let registry = Registry::start(&site.agent);
    make(&site, "one", &pod("web", "1"), &[]);
    make(&site, "two", &pod("web", "2"), &[]);
    drop(registry);
    let web = Web::start(&site.agent, None);
    web.serve(served(&site, "one", "\"1\""));
    settings(
        &site,
        &format!("bundle: {{source: \"http://{}/site.tar\"}}", web.address),
    );
    site.agent.launch();
    assert_eq!(wait_look(&site), None);
    site.wait_version("web", "1");
    web.reset();
    assert_eq!(look_again(&site), None);
    assert_eq!((web.heads().len(), web.sent()), (1, 0));
    // The same archive by another name changes nothing, and is not downloaded a third time.
    web.serve(served(&site, "one", "\"1b\""));
    assert_eq!(look_again(&site), None);
    assert_eq!(site.ls()[0]["current"]["generation"], 1);
    web.reset();
    assert_eq!(look_again(&site), None);
    assert_eq!(web.sent(), 0);
    web.serve(served(&site, "two", "\"2\""));
    assert_eq!(look_again(&site), None);
    site.wait_version("web", "2");
    // Removed by hand, it stays away.
    site.agent.ok(&["bundle", "rm", "--force", "site"]);
    site.agent.wait_gone("web");
    web.reset();
    assert_eq!(look_again(&site), None);
    assert_eq!(
        (web.sent(), site.ls()),
        (0, Value::from(Vec::<Value>::new()))
    );
}
