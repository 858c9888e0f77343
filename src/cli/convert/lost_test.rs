//! Settings that cannot be carried over and are named, and settings that only look like it.

use super::convert_test::{compose, whole};
use super::meaning_test::says;

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
