//! The kubelet's reasons for which a pod waits: resources, sysctls, system and node, host ports.

use super::*;

#[test]
fn every_resource_has_its_reason_and_the_first_one_that_is_short_is_reported() {
    let spec = |cpu, mib, disk| {
        let mut spec = sized("p", cpu, mib);
        spec.storage_request_bytes = disk;
        spec
    };
    let huge = |sizes: &[(&str, u64)]| {
        let mut spec = sized("p", 1_000, 100);
        spec.huge_pages = pages(sizes);
        spec
    };
    for (spec, reason, figures) in [
        (
            huge(&[("2Mi", 10 * MIB), ("1Gi", 0)]),
            "OutOfhugepages-2Mi",
            "hugepages-2Mi, requested: 10485760, used: 0, capacity: 8388608",
        ),
        (
            huge(&[("2Mi", 2 * MIB), ("64Ki", MIB)]),
            "OutOfhugepages-64Ki",
            "hugepages-64Ki, requested: 1048576, used: 0, capacity: 0",
        ),
        (
            spec(1_001, 101, 2_000),
            "OutOfcpu",
            "cpu, requested: 1001, used: 0, capacity: 1000",
        ),
        (
            spec(1_000, 101, 2_000),
            "OutOfmemory",
            "memory, requested: 105906176, used: 0, capacity: 104857600",
        ),
        (
            spec(1_000, 100, 1_001),
            "OutOfephemeral-storage",
            "ephemeral-storage, requested: 1001, used: 0, capacity: 1000",
        ),
    ] {
        let message = format!("Node didn't have enough resource: {figures}");
        let expected = Some((reason.to_owned(), message));
        assert_eq!(refused(&mut Node::set(small()), &spec), expected);
    }
    assert_eq!(
        refused(&mut Node::set(small()), &spec(1_000, 100, 1_000)),
        None
    );
    // A pod that requests nothing still needs a place.
    let bare = |n: u32| {
        pod(
            &format!("p{n:02}"),
            &format!("p{n:02}"),
            RestartPolicy::Always,
            &["c"],
        )
    };
    let all: Vec<_> = (0..12).map(bare).collect();
    let mut node = Node::set(small());
    node.wants(&all.iter().collect::<Vec<_>>());
    let stands = node.stands();
    assert_eq!(&stands[9..], ["p09 runs", "p10 OutOfpods", "p11 OutOfpods"]);
    let hold = node.state.pods[&all[10].uid].hold().cloned().unwrap();
    let text = "Node didn't have enough resource: pods, requested: 1, used: 10, capacity: 10";
    assert_eq!(hold.message, text);
    // A pod that needs only a place gets it on a node that has given away more than it has.
    let mut node = Node::set(small());
    node.wants(&[&sized("big", 1_000, 100)]);
    let mut less = small();
    less.capacity.as_mut().unwrap().cpu_milli = 10;
    node.tell(Event::Node(NodeFact::SettingsChanged(less)));
    node.wants(&[&sized("big", 1_000, 100), &bare(1)]);
    assert_eq!(node.stands(), ["big runs", "p01 runs"]);
}

fn with_label(mut spec: PodSpec, key: &str, value: &str) -> PodSpec {
    Arc::make_mut(&mut spec.manifest).change_metadata(|metadata| {
        let labels = metadata.labels.get_or_insert_default();
        labels.insert(key.to_owned(), value.to_owned());
    });
    spec
}

#[test]
fn an_unsafe_sysctl_waits_until_the_node_allows_it() {
    let with = |name: &str| {
        let mut pod = sized("p", 100, 10);
        pod.sysctls = vec![(name.to_owned(), "1".to_owned())];
        pod
    };
    let node = |allowed: &[&str]| {
        let mut node = Node::set(small());
        node.state.node = Arc::new(NodeIdentity {
            unsafe_sysctls: allowed.iter().map(|name| name.to_string()).collect(),
            ..NodeIdentity::default()
        });
        node
    };
    let refusal = refused(&mut node(&[]), &with("net.core.somaxconn")).unwrap();
    let text = "forbidden sysctl: \"net.core.somaxconn\" not allowlisted";
    assert_eq!(refusal, ("SysctlForbidden".into(), text.into()));
    for (name, allowed, fine) in [
        ("net.ipv4.tcp_syncookies", &[] as &[&str], true),
        ("net.core.somaxconn", &["net.core.*"], true),
        ("kernel.msgmax", &["net.core.*"], false),
    ] {
        let refusal = refused(&mut node(allowed), &with(name));
        assert_eq!(refusal.is_none(), fine, "{name}");
    }
}

#[test]
fn a_pod_with_an_app_armor_profile_waits_on_a_node_without_app_armor() {
    let mut pod = sized("p", 100, 10);
    let node = |app_armor| {
        let mut node = Node::set(small());
        node.state.node = Arc::new(NodeIdentity {
            app_armor,
            ..NodeIdentity::default()
        });
        node
    };
    assert_eq!(refused(&mut node(false), &pod), None);
    pod.containers[0].security.app_armor = coracle::spec::AppArmor::RuntimeDefault;
    assert_eq!(refused(&mut node(true), &pod), None);
    let refusal = refused(&mut node(false), &pod).expect("refused");
    let text = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    assert_eq!(refusal, ("AppArmor".into(), text.into()));
}

#[test]
fn a_pod_with_a_user_namespace_waits_on_a_node_that_cannot_make_one() {
    let mut pod = sized("p", 100, 10);
    let node = |why: Option<&str>| {
        let mut node = Node::set(small());
        node.state.node = Arc::new(NodeIdentity {
            no_user_namespaces: why.map(str::to_owned),
            ..NodeIdentity::default()
        });
        node
    };
    assert_eq!(refused(&mut node(Some("an old kernel")), &pod), None);
    pod.own_users = true;
    assert_eq!(refused(&mut node(None), &pod), None);
    let refusal = refused(&mut node(Some("an old kernel")), &pod).expect("refused");
    let text = "Cannot run a pod with `hostUsers: false`: an old kernel";
    assert_eq!(refusal, ("UserNamespaces".into(), text.into()));
}

#[test]
fn a_pod_for_another_system_or_node_waits_with_the_kubelets_reason() {
    let node = || {
        let mut node = Node::set(small());
        node.state.node = Arc::new(NodeIdentity {
            name: "gw-1".to_owned(),
            labels: [("disk", "ssd"), ("slots", "4"), ("empty", "")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..NodeIdentity::default()
        });
        node
    };
    let os = with_label(sized("p", 100, 10), "kubernetes.io/os", "windows");
    let refusal = refused(&mut node(), &os).unwrap();
    let text = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
    assert_eq!(
        refusal,
        ("PodOSSelectorNodeLabelDoesNotMatch".into(), text.into())
    );
    let linux = with_label(sized("p", 100, 10), "kubernetes.io/os", "linux");
    assert_eq!(refused(&mut node(), &linux), None);
    let mut os = sized("p", 5_000, 10);
    os.placement.other_os = true;
    let text = "Failed to admit pod as the OS field doesn't match node OS";
    let refusal = refused(&mut node(), &os).unwrap();
    assert_eq!(
        refusal,
        ("PodOSNotSupported".into(), text.into()),
        "the operating system is checked before resources"
    );
    let text = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    let elsewhere = Some(("NodeAffinity".to_owned(), text.to_owned()));
    let list = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
    let label = |key: &str, test: Test| Term {
        labels: vec![Requirement {
            key: key.to_owned(),
            test,
        }],
        names: vec![],
    };
    let name = |test: Test| Term {
        labels: vec![],
        names: vec![Requirement {
            key: "metadata.name".to_owned(),
            test,
        }],
    };
    let both = Term {
        names: name(Test::In(list(&["gw-2"]))).names,
        ..label("disk", Test::Exists)
    };
    let table: [(&[Term], bool); 21] = [
        (&[label("disk", Test::In(list(&["hdd", "ssd"])))], true),
        (&[label("disk", Test::In(list(&["hdd"])))], false),
        (&[label("none", Test::In(list(&[""])))], false),
        (&[label("disk", Test::NotIn(list(&["hdd"])))], true),
        (&[label("disk", Test::NotIn(list(&["ssd"])))], false),
        (&[label("none", Test::NotIn(list(&["ssd"])))], true),
        (&[label("empty", Test::Exists)], true),
        (&[label("none", Test::Exists)], false),
        (&[label("none", Test::DoesNotExist)], true),
        (&[label("empty", Test::DoesNotExist)], false),
        (&[label("slots", Test::Above(3))], true),
        (&[label("slots", Test::Above(4))], false),
        (&[label("slots", Test::Below(5))], true),
        (&[label("slots", Test::Below(4))], false),
        (&[label("disk", Test::Above(0))], false),
        (&[name(Test::In(list(&["gw-1"])))], true),
        (&[name(Test::NotIn(list(&["gw-1"])))], false),
        // All requirements of a term have to match, and any of the terms.
        (std::slice::from_ref(&both), false),
        (&[both.clone(), label("disk", Test::Exists)], true),
        (&[Term::default()], false),
        (&[], false),
    ];
    for (terms, fits) in table {
        let mut spec = sized("p", 100, 10);
        spec.placement.terms = Some(terms.to_vec());
        let expected = elsewhere.clone().filter(|_| !fits);
        assert_eq!(refused(&mut node(), &spec), expected, "{terms:?}");
    }
    for (value, fits) in [("ssd", true), ("hdd", false)] {
        let mut spec = sized("p", 100, 10);
        spec.placement.selector = [("disk".to_owned(), value.to_owned())].into();
        assert_eq!(
            refused(&mut node(), &spec),
            elsewhere.clone().filter(|_| !fits)
        );
    }
}

#[test]
fn a_host_port_belongs_to_one_pod_and_to_the_next_one_when_it_is_free() {
    use Protocol::{Tcp, Udp};
    let text =
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    for (first, second, both) in [
        ((None, 80, Tcp), (None, 80, Tcp), false),
        ((None, 80, Tcp), (None, 81, Tcp), true),
        ((None, 80, Tcp), (None, 80, Udp), true),
        (
            (Some("10.0.0.1"), 80, Tcp),
            (Some("10.0.0.2"), 80, Tcp),
            true,
        ),
        (
            (Some("10.0.0.1"), 80, Tcp),
            (Some("10.0.0.1"), 80, Tcp),
            false,
        ),
        ((Some("10.0.0.1"), 80, Tcp), (None, 80, Tcp), false),
        (
            (Some("0.0.0.0"), 80, Tcp),
            (Some("10.0.0.1"), 80, Tcp),
            false,
        ),
    ] {
        let a = on_port("a", first.0, first.1, first.2);
        let b = on_port("b", second.0, second.1, second.2);
        let mut node = Node::set(small());
        node.wants(&[&a]);
        node.wants(&[&a, &b]);
        let how = if both { "b runs" } else { "b NodePorts" };
        assert_eq!(node.stands(), ["a runs", how], "{first:?} {second:?}");
        if !both {
            let hold = node.state.pods[&b.uid].hold().cloned().unwrap();
            let whose = format!("{text} (80/TCP is in use by pod default/a)");
            assert_eq!(hold.message, whose);
        }
        node.wants(&[&b]);
        node.end_of(&a.uid, 0);
        node.work();
        assert_eq!(node.stands(), ["b runs"]);
    }
    // A pod that has finished keeps its ports until its sandbox is gone.
    let mut a = on_port("a", None, 80, Tcp);
    a.restart_policy = RestartPolicy::Never;
    let b = on_port("b", None, 80, Tcp);
    let mut node = Node::set(small());
    node.wants(&[&a]);
    node.wants(&[&a, &b]);
    node.end_of(&a.uid, 0);
    assert!(node.state.pods[&b.uid].hold().is_some());
    node.work();
    assert_eq!(node.stands(), ["a does not run", "b runs"]);
}
