//! Settings that cannot be carried over and are named, and settings that only look like it.

use super::convert_test::{compose, converted, fixtures, whole};
use super::files::with_override;
use super::meaning_test::{check, says};
use super::{Given, Source, convert, file_name};

#[test]
fn what_cannot_be_read_or_is_made_elsewhere_is_said() {
    says(
        "  a: {image: 'a:1', shm_size: much, stop_grace_period: soon, user: ':5', volumes: [':/media']}\n  \
         p: {provider: {type: model}}\nnetworks: {n: {ipam: {config: [{subnet: 10.0.0.0/8}]}}}\n",
        &[
            "a: not carried over: shm_size: much",
            "a: not carried over: stop_grace_period: soon",
            "a: not carried over: volume :/media: no source",
            "p: a program that compose calls provides it",
            "not carried over: networks.n.ipam",
            "runAsGroup: 5",
        ],
        &["is a name"],
    );
}

#[test]
fn numbers_that_compose_would_change_stay_with_a_remark() {
    let text = "services:\n  a:\n    image: a:1\n    environment: {UMASK: 022, OLD: '0777', B: 1_000, ID: 1000, V: 0.5}\n    \
                command: [chmod, 08, -010, \"07\", 0x1f, 1.05]\n    secrets: [{source: s, mode: 0400}]\nsecrets: {s: {file: ./s}}\n";
    let output = compose(text).unwrap();
    let named = output.remarks.iter().filter_map(|remark| {
        let (what, _) = remark.split_once("`: it stays as it is written; without quotes")?;
        what.split('`').nth(1)
    });
    let named: Vec<&str> = named.collect();
    assert_eq!(named, ["-010", "022", "08", "1_000"]);
    let made = whole(&output);
    check(
        text,
        &made,
        &["value: \"022\"", "- \"08\"", "value: \"1_000\""],
        &[],
    );
}

#[test]
fn an_image_without_its_entrypoint_needs_a_command() {
    let remark = "entrypoint: it is empty";
    for (keys, is_said) in [
        ("entrypoint: []", true),
        ("entrypoint: ''", true),
        ("entrypoint: [], command: []", true),
        ("entrypoint: [], command: x", false),
        ("entrypoint: ", false),
        ("command: []", false),
    ] {
        let text = format!("services: {{a: {{image: 'a:1', {keys}}}}}");
        let made = whole(&compose(&text).unwrap());
        assert_eq!(made.contains(remark), is_said, "{made}");
    }
}

#[test]
fn more_name_servers_than_a_pod_can_have_are_named() {
    says(
        "  a: {image: 'a:1', dns: [192.0.2.1, 192.0.2.2, 192.0.2.3, 192.0.2.4, 192.0.2.5]}\n",
        &[
            "- 192.0.2.3\n",
            "not carried over: dns: 192.0.2.4: ",
            "not carried over: dns: 192.0.2.5: ",
        ],
        &["- 192.0.2.4"],
    );
}

#[test]
fn a_project_and_what_it_builds_have_the_names_that_compose_gives_them() {
    let made = |folder: &str, text: &str, set: Option<&str>, given: Option<&str>| {
        let source = Source {
            read: &|path| Err(format!("`{path}`: not there")),
            variable: &|name| (name == "COMPOSE_PROJECT_NAME").then_some(set?.to_owned()),
            folder: &format!("/srv/{folder}"),
            profiles: &[],
            missing: &[],
        };
        let files = vec![("compose.yaml".to_owned(), text.to_owned())];
        whole(&convert(&Given::Files(files), &source, given, None).unwrap())
    };
    let built = "services: {back_end: {build: ., environment: {N: 'is $COMPOSE_PROJECT_NAME'}}}\n";
    for (folder, name) in [
        ("my_app", "my_app"),
        ("My.App", "myapp"),
        ("4web", "4web"),
        ("web-1.2", "web-12"),
        ("_x", "x"),
    ] {
        let made = made(folder, built, None, None);
        let image = format!("image: {name}-back_end\n");
        let variable = format!("value: is {name}\n");
        check(folder, &made, &[&image, &variable], &["not set"]);
    }
    let empty = built.replace("build: .", "build: ., image: '$UNSET'");
    check(
        "empty",
        &made("x", &empty, None, None),
        &["image: x-back_end\n"],
        &[],
    );
    let named = format!("name: shop\n{built}");
    for (set, given, name) in [
        (None, None, "shop"),
        (Some("other"), None, "other"),
        (Some("other"), Some("mine"), "mine"),
    ] {
        let made = made("my_app", &named, set, given);
        let image = format!("image: {name}-back_end\n");
        check(name, &made, &[&image, &format!("value: is {name}\n")], &[]);
    }
}

#[test]
fn a_file_that_overrides_the_compose_file_is_read_whatever_its_ending() {
    let folder = std::env::temp_dir().join(format!("coracle-override-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let first = folder.join("compose.yaml");
    assert_eq!(with_override(first.clone()), std::slice::from_ref(&first));
    for name in [
        "docker-compose.override.yml",
        "docker-compose.override.yaml",
        "compose.override.yml",
        "compose.override.yaml",
    ] {
        std::fs::write(folder.join(name), "").unwrap();
        let both = [first.clone(), folder.join(name)];
        assert_eq!(with_override(first.clone()), both);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn pods_of_one_name_in_several_namespaces_have_files_of_their_own() {
    assert_eq!(file_name("a", None), "a.yaml");
    assert_eq!(file_name("a", Some("default")), "a.yaml");
    assert_eq!(file_name("a", Some("shop")), "shop-a.yaml");
}

#[test]
fn restart_policies_of_every_container_are_carried_over_or_named() {
    let text = "services:\n  app:\n    image: a:1\n    deploy: {replicas: 2, restart_policy: {max_attempts: 3}}\n  job:\n    image: \
                b:1\n    restart: on-failure:5\n  web:\n    image: c:1\n    restart: always\n    depends_on: {job: {condition: \
                service_completed_successfully}}\n  side:\n    image: d:1\n    restart: on-failure:2\n    network_mode: service:web\n  \
                odd:\n    image: e:1\n    restart: sometimes\n";
    let output = compose(text).unwrap();
    let said = output.remarks.join("\n");
    for what in [
        "app: not carried over: deploy.restart_policy.max_attempts",
        "job: not carried over: restart: on-failure:5: retries are not limited",
        "side: not carried over: restart: on-failure:2: retries are not limited",
        "odd: not carried over: restart: sometimes: there is no such policy; it runs once",
    ] {
        assert!(said.contains(what), "no `{what}` in\n{said}");
    }
}

#[test]
fn values_of_health_checks_that_mean_nothing_are_named() {
    let text = "services: {a: {image: 'a:1', healthcheck: {test: [CMD, true], interval: often, timeout: 10s, retries: some}}}";
    let output = compose(text).unwrap();
    let said = output.remarks.join("\n");
    assert!(
        said.contains("healthcheck.interval: often: it is no duration"),
        "{said}"
    );
    assert!(
        said.contains("healthcheck.retries: some: it is no number"),
        "{said}"
    );
    assert!(!said.contains("healthcheck.timeout"), "{said}");
}

#[test]
fn what_is_no_limit_or_holds_anyway_is_not_named() {
    let text = "services: {a: {image: 'a:1', restart: always, cpus: 0, mem_limit: '0', userns_mode: host}}";
    let output = compose(text).unwrap();
    assert_eq!(output.remarks, [""; 0]);
    assert!(!whole(&output).contains("limits"));
}

#[test]
fn folders_of_devices_are_all_devices_in_them() {
    let devices = "['/dev/dvb:/dev/dvb', /dev/dma_heap, /dev/mine/]";
    says(
        &format!("  a: {{image: 'a:1', devices: {devices}}}\n"),
        &["/dev/dvb/*/*:/dev/dvb/, /dev/dma_heap/*:/dev/dma_heap/, /dev/mine/*:/dev/mine/"],
        &[],
    );
}

#[test]
fn networks_that_are_named_twice_are_asked_for_nothing() {
    let files = |first: &str, second: &str| {
        let files = [("1.yaml", first), ("2.yaml", second)];
        let files = files.map(|(name, a)| (name.to_owned(), format!("services: {{a: {a}}}")));
        let output = converted(&Given::Files(files.into()), &fixtures().join("none"), &[]);
        whole(&output.unwrap())
    };
    let list = "{image: 'a:1', networks: [front]}";
    let mapping = "{image: 'a:1', networks: {front: {aliases: [web]}}}";
    for (first, second) in [(list, mapping), (mapping, list)] {
        let made = files(first, second);
        check(first, &made, &["name: web\n"], &["networks.front"]);
    }
    says(
        "  base: {image: 'b:1', networks: [front]}\n  a: {extends: base, networks: {front: {aliases: [web]}}}\n",
        &["name: web\n"],
        &["networks.front"],
    );
}

#[test]
fn what_others_of_its_pod_wait_for_has_as_long_as_its_health_check_gives_it() {
    for (check, failures) in [
        ("interval: 5s", 120),
        ("start_period: 15m, interval: 10s, retries: 6", 192),
        ("interval: 5m", 180),
    ] {
        says(
            &format!(
                "  vpn: {{image: 'v:1', restart: always, healthcheck: {{test: 'true', {check}}}}}\n  app: {{image: 'a:1', \
                 network_mode: 'service:vpn', depends_on: {{vpn: {{condition: service_healthy}}}}}}\n"
            ),
            &[
                &format!(
                    "      periodSeconds: 5\n      timeoutSeconds: 30\n      failureThreshold: {failures}\n"
                ),
                &format!("if it is not after {} s, it is restarted", failures * 5),
            ],
            &[],
        );
    }
}

#[test]
fn secrets_and_configs_that_are_made_elsewhere_have_the_name_they_have_there() {
    for external in ["{external: {name: other}}", "{external: true, name: other}"] {
        let text = format!(
            "services: {{a: {{image: 'a:1', secrets: [s], configs: [c]}}}}\nsecrets: {{s: {external}}}\nconfigs: {{c: \
             {external}}}\nname: shop\n"
        );
        let made = whole(&compose(&text).unwrap());
        let wanted = ["secretName: other\n", "configMap:\n      name: other\n"];
        check(&text, &made, &wanted, &["name: shop-s", "name: shop-c"]);
    }
}
