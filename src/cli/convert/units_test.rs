//! Forms of quadlet units and commands whose meaning is easily lost or changed, and what they become.

use super::convert_test::{converted, fixtures, line, whole};
use super::meaning_test::check;
use super::*;

/// The manifests of quadlet units: `FILE` and its text, one after the other.
pub(super) fn units(files: &[(&str, &str)]) -> std::result::Result<String, String> {
    let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    let files = files.iter().map(owned).collect();
    let output = converted(&Given::Files(files), &fixtures().join("none"), &[])?;
    Ok(whole(&output))
}

#[test]
fn quotes_escapes_and_switches_of_units_are_read_as_podman_does() {
    for (line, wanted, unwanted) in [
        (
            "HealthCmd=\"pg_isready -U postgres\"",
            &["- pg_isready -U postgres\n"][..],
            &["\\\""][..],
        ),
        ("HealthCmd=none", &[], &["readinessProbe"]),
        ("User=\"1000\"", &["runAsUser: 1000"], &["is a name"]),
        (
            "NoNewPrivileges=yes",
            &["allowPrivilegeEscalation: false"],
            &[],
        ),
        ("NoNewPrivileges=off", &[], &["allowPrivilegeEscalation"]),
        ("EnvironmentFile=-/gone.env", &[], &["gone.env"]),
        ("EnvironmentFile=/gone.env", &["gone.env"], &[]),
        (
            "AddDevice=-/dev/dri/renderD128",
            &["/dev/dri/renderD128:optional"],
            &[],
        ),
        (
            "Exec=/some/path \"a;b\\nc\" '\\110ello'",
            &["a;b\n      c\n", "- Hello"],
            &[],
        ),
        ("Environment=D=a\\x20b", &["value: a b"], &[]),
        (
            "Network=lan.network:ip=10.0.0.5",
            &["networks.lan.ipv4_address: a fixed address"],
            &[],
        ),
        (
            "Secret=source=my,type=env,target=A\nSecret=source=file,type=mount,mode=400",
            &[
                "key: my\n",
                "secretName: file\n",
                "mountPath: /run/secrets/file\n",
            ],
            &["source="],
        ),
        (
            "HealthCmd=test -f /ok\nHealthOnFailure=restart",
            &[
                "restartPolicy: OnFailure",
                "livenessProbe",
                "restart: no: it is restarted when its health check fails",
            ],
            &["restartPolicy: Never"],
        ),
        (
            "[Service]\nRestart=on-success",
            &["restart: on-success: it is restarted after failures, too"],
            &["restartPolicy"],
        ),
        (
            "Mount=type=image,source=data,destination=/d,rw=true",
            &["image /d: the option rw"],
            &[],
        ),
        ("Tmpfs=/run:uid=5", &["tmpfs /run: the option uid=5"], &[]),
        ("Exec=date +%%s", &["+%s"], &["stays as it is written"]),
        (
            "Volume=/srv/%i:/d",
            &["q.container: %i: it stays as it is written"],
            &[],
        ),
        (
            "Pod=missing.pod",
            &["Pod=missing.pod: give that unit, too"],
            &[],
        ),
    ] {
        let text = format!("[Container]\nImage=\"docker.io/library/postgres:17\"\n{line}\n");
        let made = units(&[("q.container", &text)]).unwrap_or_else(|why| panic!("{why}\n{text}"));
        check(&text, &made, &["image: docker.io/library/postgres:17"], &[]);
        check(&text, &made, wanted, unwanted);
    }
    let volume = "[Container]\nImage=i\nVolume=foo.volume:/a\nMount=type=volume,source=foo.volume,destination=/b\n";
    let both = units(&[
        ("q.container", volume),
        ("foo.volume", "[Volume]\nVolumeName=shared\n"),
    ])
    .unwrap();
    assert_eq!(
        both.matches("kind: PersistentVolumeClaim").count(),
        1,
        "{both}"
    );
}

#[test]
fn what_is_no_container_becomes_none_and_drop_ins_belong_to_their_units() {
    for (file, text, expected) in [
        (
            "z.artifact",
            "[Artifact]\nArtifact=x\n",
            "`z.artifact` is no unit that podman",
        ),
        (
            "l.login",
            "[Login]\nUsername=x\n",
            "`l.login` is no unit that podman",
        ),
        (
            "x.container",
            "[Container]\nExec=x\n",
            "x.container: it has no `Image`",
        ),
        (
            "x.container",
            "[Container]\nImage=nope.image\n",
            "Image=nope.image: give that unit, too",
        ),
        (
            "/q/x.container.d/10.conf",
            "[Container]\nExec=x\n",
            "adds to `x.container`: give that, too",
        ),
    ] {
        let error = units(&[(file, text)]).unwrap_err();
        assert!(error.contains(expected), "{file}: {error}");
    }
    let made = units(&[
        ("/q/x.container.d/10.conf", "[Container]\nEnvironment=A=b\n"),
        ("/q/x.container", "[Container]\nImage=i\n"),
    ]);
    check("drop-in", &made.unwrap(), &["image: i", "name: A"], &[]);
    // Also those of the kind and of the beginning of a name; of two files of one name the most particular one counts.
    let made = units(&[
        ("/q/container.d/10.conf", "[Container]\nEnvironment=A=1\n"),
        ("/q/container.d/20.conf", "[Container]\nEnvironment=B=2\n"),
        (
            "/q/web-.container.d/10.conf",
            "[Container]\nEnvironment=C=3\n",
        ),
        ("/q/web-one.container", "[Container]\nImage=one\n"),
        (
            "/q/other.container",
            "[Container]\nImage=two\nEnvironment=B=0\n",
        ),
    ]);
    let made = made.unwrap();
    let (web, other) = made.split_at(made.find("name: other").expect("both are there"));
    check(
        "web",
        web,
        &["image: one", "name: B", "name: C"],
        &["name: A"],
    );
    check(
        "other",
        other,
        &["image: two", "name: A", "name: B"],
        &["name: C", "\"0\""],
    );
}

#[test]
fn podmans_own_restart_policy_takes_precedence_over_systemds() {
    let made = |more: &str, restart: &str| {
        let unit = format!("[Container]\nImage=a:1\n{more}\n[Service]\n{restart}\n");
        units(&[("a.container", &unit)]).expect("converted")
    };
    for (more, restart, policy) in [
        ("PodmanArgs=--restart=always", "Restart=on-failure", None),
        ("PodmanArgs=--restart=always", "", None),
        ("PodmanArgs=--restart=on-failure", "", Some("OnFailure")),
        ("PodmanArgs=--restart=no", "Restart=always", None),
        ("", "Restart=on-failure", Some("OnFailure")),
        ("", "", Some("Never")),
    ] {
        let made = made(more, restart);
        let found = made
            .lines()
            .find_map(|line| line.strip_prefix("  restartPolicy: "));
        assert_eq!(found, policy, "{more} {restart}: {made}");
    }
}

#[test]
fn variables_of_services_are_named() {
    let unit = units(&[(
        "a.container",
        "[Container]\nImage=i\nVolume=${UPLOADS}:/data\nExec=$ARGS run $$HOME\n",
    )])
    .unwrap();
    check(
        "unit",
        &unit,
        &[
            "a.container: ${UPLOADS}: it stays",
            "a.container: $ARGS: it stays",
        ],
        &["$HOME: it"],
    );
}

#[test]
fn options_of_commands_take_their_values() {
    for (option, wanted) in [
        ("--device-cgroup-rule 'c 188:* rmw'", "--device-cgroup-rule"),
        ("--blkio-weight 10", "--blkio-weight"),
        ("--uidmap 0:1:2 --timeout 5", "--timeout"),
        ("--label-file f", "--label-file"),
        ("--no-hosts", "--no-hosts"),
    ] {
        let made = line(&format!("docker run {option} nginx")).unwrap();
        check(option, &made, &["image: nginx", wanted], &[]);
    }
    let none = line("podman run --health-cmd none nginx").unwrap();
    check("none", &none, &[], &["readinessProbe"]);
}

#[test]
fn health_checks_have_the_forms_of_podmans_command_line() {
    for (written, wanted) in [
        (
            "CMD-SHELL curl -f x || exit 1",
            &["- /bin/sh", "curl -f x || exit 1"][..],
        ),
        (r#"["CMD-SHELL","curl x"]"#, &["- /bin/sh", "- curl x"]),
        (
            "CMD curl -f x",
            &["command:\n        - curl\n        - -f\n        - x"],
        ),
        (
            r#"["CMD","curl","x"]"#,
            &["command:\n        - curl\n        - x"],
        ),
        (r#"["curl x"]"#, &["- /bin/sh", "- curl x"]),
        (
            r#"["curl","x"]"#,
            &["command:\n        - curl\n        - x"],
        ),
        ("pg_isready -U $${USER_}", &["pg_isready -U ${USER_}"]),
    ] {
        let made = units(&[(
            "q.container",
            &format!("[Container]\nImage=i\nHealthCmd={written}\n"),
        )])
        .unwrap();
        check(written, &made, wanted, &["CMD"]);
    }
}

#[test]
fn units_and_commands_name_what_they_use() {
    let cleared = units(&[
        (
            "/q/web.container",
            "[Container]\nImage=i\nPublishPort=80:80\nEnvironment=A=1\nStopTimeout=5\n",
        ),
        (
            "/q/web.container.d/10.conf",
            "[Container]\nPublishPort=\nPublishPort=8080:80\nEnvironment=\nEnvironment=B=2\nStopTimeout=\n",
        ),
    ]);
    check(
        "cleared",
        &cleared.unwrap(),
        &["hostPort: 8080", "name: B"],
        &["hostPort: 80\n", "name: A", "Grace"],
    );
    let secret = line("podman run --secret db_password,type=env,target=PW a:1").unwrap();
    check(
        "secret",
        &secret,
        &["name: db-password", "key: db_password"],
        &[],
    );
    let pod = units(&[
        ("x.pod", "[Pod]\nVolume=/srv/data:/data\n"),
        ("a.container", "[Container]\nImage=a\nPod=x.pod\n"),
        ("b.container", "[Container]\nImage=b\nPod=x.pod\n"),
    ]);
    assert_eq!(pod.unwrap().matches("mountPath: /data").count(), 2);
    let two = units(&[
        (
            "db.container",
            "[Container]\nImage=a\nServiceName=database\n",
        ),
        (
            "web.container",
            "[Unit]\nAfter=database.service\n[Container]\nImage=b\nEnvironment=DB=systemd-db\n",
        ),
    ]);
    check(
        "two",
        &two.unwrap(),
        &["coracle.dev/after: db", "name: systemd-db"],
        &["unit:"],
    );
    let apart = units(&[
        ("/one/a.container", "[Container]\nImage=a\n"),
        (
            "/two/b.container",
            "[Container]\nImage=b\nVolume=./data:/data\nMount=type=bind,src=./m,dst=/m\n",
        ),
    ]);
    check(
        "apart",
        &apart.unwrap(),
        &["path: /two/data", "path: /two/m"],
        &[],
    );
    let network = line("docker run --network name=proxy,alias=dash,ip=10.0.0.5 w:1").unwrap();
    check(
        "network",
        &network,
        &["name: dash", "networks.proxy.ipv4_address"],
        &[],
    );
    let network = line("podman run --network proxy:alias=dash,ip=10.0.0.5 w:1").unwrap();
    check(
        "network",
        &network,
        &["name: dash", "networks.proxy.ipv4_address"],
        &[],
    );
    let service = "kind: Service\nmetadata:\n  name: db\n";
    let named = line("docker run --network app --name db a:1").unwrap();
    check("named", &named, &[service], &[]);
    let alone = line("docker run --name db -p 80:80 a:1").unwrap();
    check("alone", &alone, &[], &["kind: Service"]);
    let unit = units(&[(
        "web.container",
        "[Container]\nImage=a\nContainerName=db\nNetwork=x.network\n",
    )]);
    check("unit", &unit.unwrap(), &[service], &["systemd-web"]);
    let unit = units(&[("web.container", "[Container]\nImage=a\nNetwork=x.network\n")]);
    check("unit", &unit.unwrap(), &["name: systemd-web\n"], &[]);
    let entrypoint = line(r#"podman run --entrypoint '["/bin/sh","-c"]' a:1 x"#).unwrap();
    check(
        "entrypoint",
        &entrypoint,
        &["command:\n    - /bin/sh\n    - -c\n"],
        &[],
    );
}

#[test]
fn a_root_that_can_only_be_read_has_podmans_places_in_memory() {
    let unit = |keys: &str| {
        let text = format!("[Container]\nImage=i\n{keys}\n");
        units(&[("q.container", &text)]).unwrap()
    };
    for (made, places) in [
        (unit("ReadOnly=true"), "/run /tmp /var/tmp"),
        (unit("ReadOnly=yes\nReadOnlyTmpfs=false"), ""),
        (unit("ReadOnlyTmpfs=true"), ""),
        (
            unit("ReadOnly=true\nVolume=/srv/t:/tmp/\nTmpfs=/run"),
            "/run /var/tmp",
        ),
        (
            unit("ReadOnly=true\nPodmanArgs=--read-only-tmpfs=false"),
            "",
        ),
        (
            line("sudo podman run --read-only a:1").unwrap(),
            "/run /tmp /var/tmp",
        ),
        (
            line("podman run --read-only --read-only-tmpfs=false a:1").unwrap(),
            "",
        ),
        (line("docker run --read-only a:1").unwrap(), ""),
    ] {
        for place in ["/run", "/tmp", "/var/tmp"] {
            let is_there = made.contains(&format!("mountPath: {place}\n"));
            let is_path = made.contains("path: /srv/t") && place == "/tmp";
            let wanted = places.split(' ').any(|wanted| wanted == place);
            assert_eq!(is_there, wanted || is_path, "{place}: {made}");
        }
        let count = places.split_whitespace().count();
        assert_eq!(made.matches("medium: Memory").count(), count, "{made}");
        assert!(!made.contains("not carried over"), "{made}");
    }
}

#[test]
fn mounts_without_a_source_and_with_commas_are_read_as_each_program_does() {
    for words in [
        "docker run --mount type=bind,dst=/x a:1",
        "docker run --mount type=bind,src=,dst=/x a:1",
    ] {
        let why = line(words).unwrap_err();
        assert!(why.contains("a bind mount needs a `source`"), "{why}");
    }
    let podman = line("podman run --mount type=bind,dst=/x a:1").unwrap();
    check(
        "podman",
        &podman,
        &["path: /x\n", "mountPath: /x\n"],
        &["not carried over"],
    );
    let unit = units(&[(
        "/two/q.container",
        "[Container]\nImage=i\nMount=type=bind,dst=/x\nMount='type=bind,\"src=./a,b\",\"dst=/c,d\"'\n\
         Mount=type=bind,source=\"/j k\",target=/l\n\
         Mount=type=bind,src=./it\\'s,dst=/m type=bind,src=/n\\x20\\\\,dst=/o\n",
    )])
    .unwrap();
    check(
        "unit",
        &unit,
        &[
            "path: /x\n",
            "path: /two/a,b\n",
            "mountPath: /c,d\n",
            "path: /j k\n",
            "path: \"/two/it's\"\n",
            "mountPath: /m\n",
            "path: \"/n \\\\\"\n",
            "mountPath: /o\n",
        ],
        &["the option"],
    );
    // Quotes inside of a word are gone before the options are read.
    let unit = units(&[(
        "q.container",
        "[Container]\nImage=i\nMount=type=bind,\"src=/a,b\",dst=/c\n\
         Mount=type=volume,src=x.volume,dst=/x type=volume,src=y.volume,dst=/y\n",
    )])
    .unwrap();
    let wanted = [
        "path: /a\n",
        "bind /c: the option b",
        "x.volume: give that unit, too",
        "y.volume: give that unit, too",
    ];
    check("unit", &unit, &wanted, &["path: /a,b"]);
    let docker = line("docker run --mount 'type=bind,\"src=/a,b\",dst=/c' a:1").unwrap();
    check("docker", &docker, &["path: /a,b\n"], &["the option"]);
}

#[test]
fn a_secret_that_is_a_file_and_a_variable_is_one_secret() {
    let both = "Secret=my_pw\nSecret=my_pw,type=env,target=PW";
    let made = units(&[
        ("a.container", &*format!("[Container]\nImage=a\n{both}\n")),
        (
            "b.container",
            "[Container]\nImage=b\nSecret=my_pw,type=env\n",
        ),
        (
            "c.container",
            "[Container]\nImage=c\nSecret=my_pw,target=/x\n",
        ),
    ])
    .unwrap();
    check(
        "secret",
        &made,
        &[
            "secretName: my-pw\n",
            "subPath: my_pw\n",
            "name: my-pw\n          key: my_pw\n",
            "make a Secret `my-pw` with the key `my_pw`",
        ],
        &["my-pw-2"],
    );
}

#[test]
fn what_a_unit_does_not_say_is_no_name() {
    let made = units(&[(
        "q.container",
        "[Container]\nImage=i\nHostName=%H\nNetwork=x.network\nVolume=${DIR}:/x\nMount=type=bind,src=%i,dst=/y\n",
    )])
    .unwrap();
    check(
        "names",
        &made,
        &[
            "hostname: %H: it may have letters",
            "volume /x: nothing can be called `${DIR}`",
            "bind /y: nothing can be called `%i`",
        ],
        &[
            "lower case",
            "PersistentVolumeClaim",
            "hostPath",
            "%h",
            "name: h\n",
        ],
    );
}

#[test]
fn switches_of_commands_may_be_off() {
    for (switches, on) in [
        ("--privileged --read-only", true),
        ("--privileged=1 --read-only=T", true),
        ("--privileged=0 --read-only=F", false),
        (
            "--privileged --read-only --privileged=0 --read-only=0",
            false,
        ),
        ("--privileged=False --read-only=false", false),
    ] {
        let made = line(&format!("docker run {switches} -d=true -t=false -i a:1")).unwrap();
        assert_eq!(made.contains("privileged: true"), on, "{made}");
        assert_eq!(made.contains("readOnlyRootFilesystem: true"), on, "{made}");
        assert!(!made.contains("tty"), "{made}");
        assert!(!made.contains("not carried over"), "{made}");
    }
}
