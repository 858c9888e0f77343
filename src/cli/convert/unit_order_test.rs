//! The order of quadlet units, and what is said of those that are not there.

use super::meaning_test::check;
use super::units_test::units;

#[test]
fn units_of_one_pod_are_in_order_and_a_oneshot_is_waited_for_to_its_end() {
    let pod = units(&[
        ("p.pod", "[Pod]\n"),
        (
            "a.container",
            "[Unit]\nAfter=b.service\n[Container]\nImage=a\nPod=p.pod\n",
        ),
        (
            "b.container",
            "[Unit]\nAfter=p-pod.service\nRequires=p-pod.service\n[Container]\nImage=b\nPod=p.pod\n",
        ),
    ]);
    check(
        "its own pod",
        &pod.unwrap(),
        &["initContainers:\n  - name: b", "containers:\n  - name: a"],
        &["p-pod"],
    );
    let oneshot = units(&[
        (
            "mig.container",
            "[Container]\nImage=m:1\nVolume=/srv:/srv\n[Service]\nType=oneshot\n",
        ),
        (
            "app.container",
            "[Unit]\nAfter=mig.service\nRequires=mig.service\n[Container]\nImage=a:1\n[Service]\nRestart=always\n",
        ),
    ]);
    check(
        "oneshot",
        &oneshot.unwrap(),
        &["initContainers:\n  - name: mig"],
        &["coracle.dev/after"],
    );
}

#[test]
fn only_after_and_before_order_units() {
    let given = |core: &str, nginx: &str| {
        let unit = |keys: &str| format!("[Unit]\n{keys}\n[Container]\nImage=i\n");
        let files = [
            ("core.container", &*unit(core)),
            ("nginx.container", &*unit(nginx)),
        ];
        units(&files).unwrap()
    };
    for (core, nginx, wanted) in [
        (
            "Wants=nginx.service\nBefore=nginx.service",
            "After=core.service",
            Some("core"),
        ),
        ("Before=nginx.service nginx.container", "", Some("core")),
        (
            "Requires=nginx.service\nAfter=nginx.service",
            "",
            Some("nginx"),
        ),
        ("Wants=nginx.service", "", None),
        ("Requires=nginx.service", "BindsTo=core.service", None),
    ] {
        let made = given(core, nginx);
        let after: Vec<&str> = made
            .lines()
            .filter_map(|line| line.trim().strip_prefix("coracle.dev/after: "))
            .collect();
        assert_eq!(after, Vec::from_iter(wanted), "{core} {nginx}: {made}");
        assert!(!made.contains("not carried over"), "{core} {nginx}: {made}");
    }
    let alone = given("Before=other.service\nWants=gone.service", "");
    let expected = [
        "core.container: Before=other.service",
        "core: Wants=gone.service: pods start no units of systemd",
    ];
    check("alone", &alone, &expected, &["takes `unit"]);
    let alone = given("Wants=gone.container\nRequires=gone.kube", "");
    let expected = [
        "core: Wants=gone.container: give that unit, too",
        "core: Requires=gone.kube: give that unit, too",
    ];
    check("alone", &alone, &expected, &["takes `unit"]);
    let alone = given("After=gone.service gone.container data.volume", "");
    let expected = [
        "core: After=gone.service: `coracle.dev/after` takes `unit:gone.service`",
        "core: After=gone.container: give that unit, too",
    ];
    check(
        "alone",
        &alone,
        &expected,
        &["unit:gone.container", "data.volume"],
    );
    let pod = units(&[
        ("p.pod", "[Unit]\nBefore=web.service\n[Pod]\n"),
        ("a.container", "[Container]\nImage=a\nPod=p.pod\n"),
        (
            "b.container",
            "[Unit]\nBefore=p-pod.service\n[Container]\nImage=b\n",
        ),
        (
            "web.container",
            "[Unit]\nRequires=p-pod.service\n[Container]\nImage=w\n",
        ),
    ])
    .unwrap();
    let expected = ["coracle.dev/after: p\n", "coracle.dev/after: b\n"];
    check("pod", &pod, &expected, &["not carried over"]);
}

#[test]
fn a_pod_is_known_by_the_name_of_its_service() {
    for name in ["stack.service", "p.pod", "p-pod.service"] {
        let made = units(&[
            ("p.pod", "[Pod]\nServiceName=stack\n"),
            (
                "a.container",
                &format!("[Unit]\nAfter={name}\n[Container]\nImage=a\nPod=p.pod\n"),
            ),
            (
                "web.container",
                &format!("[Unit]\nAfter={name}\n[Container]\nImage=w\n"),
            ),
            (
                "job.container",
                &format!("[Unit]\nWants={name}\n[Container]\nImage=j\n"),
            ),
        ])
        .unwrap();
        check(
            name,
            &made,
            &["coracle.dev/after: p\n"],
            &["not carried over"],
        );
        assert_eq!(made.matches("coracle.dev/after").count(), 1, "{made}");
    }
}
