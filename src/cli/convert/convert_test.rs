//! Projects in `tests/fixtures/convert`, one a folder, and what they are converted to: `expected.yaml` and the remarks in
//! `expected.remarks`. `UPDATE_GOLDEN=1` writes them again.

use std::fs;
use std::path::PathBuf;

use super::*;

pub(super) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/convert")
}

/// Converts texts, with the files of a folder beside them.
pub(super) fn converted(
    given: &Given,
    folder: &Path,
    profiles: &[String],
) -> std::result::Result<Output, String> {
    let read = |path: &str| {
        let name = Path::new(path);
        let found = fs::read(folder.join(name));
        found.map_err(|_| format!("`{path}`: not there"))
    };
    let variables = fs::read_to_string(folder.join(".env")).unwrap_or_default();
    let variables = interpolate::env_file(&variables, &|_| None).unwrap();
    let variable = |name: &str| {
        let found = variables.pairs.iter().rev().find(|(n, _)| n == name);
        found.map(|(_, value)| value.clone())
    };
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let source = Source {
        read: &read,
        variable: &variable,
        folder: &format!("/srv/{name}"),
        profiles,
        missing: &variables.missing,
    };
    convert(given, &source, None, None)
}

/// Converts one text.
pub(super) fn compose(text: &str) -> std::result::Result<Output, String> {
    let files = vec![("compose.yaml".to_owned(), text.to_owned())];
    converted(&Given::Files(files), &fixtures().join("none"), &[])
}

/// The manifests of a text, which are valid.
pub(super) fn yaml(text: &str) -> String {
    let output = compose(text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    whole(&output)
}

pub(super) fn line(words: &str) -> std::result::Result<String, String> {
    let words = words::split(words).unwrap();
    let output = converted(&Given::Line(words), &fixtures().join("none"), &[])?;
    Ok(whole(&output))
}

pub(super) fn whole(output: &Output) -> String {
    let texts = output.texts();
    let texts: Vec<&str> = texts.iter().map(|(_, text)| &**text).collect();
    let whole = texts.join("---\n");
    let report = validate::validate_bytes("converted", whole.as_bytes());
    assert!(report.errors.is_empty(), "{:#?}\n{whole}", report.errors);
    for remark in &output.remarks {
        assert!(
            whole.contains(remark) || remark.contains(": the name "),
            "{remark}\n{whole}"
        );
    }
    whole
}

#[test]
fn projects_become_the_manifests_beside_them_and_these_are_valid() {
    let mut differences = String::new();
    let mut count = 0;
    for entry in fs::read_dir(fixtures()).unwrap() {
        let folder = entry.unwrap().path();
        let mut files = Vec::new();
        for file in fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let ending = name.rsplit('.').next().unwrap_or_default();
            if name.starts_with("compose") || name == "line" || unit::KINDS.contains(&ending) {
                files.push((name, fs::read_to_string(path).unwrap()));
            }
        }
        files.sort();
        let output = converted(&Given::Files(files), &folder, &[]);
        let output = output.unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
        let remarks: String = output.remarks.iter().map(|r| format!("{r}\n")).collect();
        let yaml = whole(&output);
        for (name, actual) in [("expected.yaml", yaml), ("expected.remarks", remarks)] {
            let path = folder.join(name);
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                fs::write(&path, &actual).unwrap();
            }
            let expected = fs::read_to_string(&path).unwrap_or_default();
            if expected != actual {
                differences += &format!("--- {}\n{actual}\n", path.display());
            }
        }
        count += 1;
    }
    assert!(count >= 10, "only {count} projects");
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn what_compose_refuses_is_refused() {
    for (text, expected) in [
        ("", "it has no `services`"),
        ("services: {}", "it has no `services`"),
        ("services: [a]", "it has no `services`"),
        ("a: b", "it has no `services`"),
        (
            "services:\n  a: {image: '${X:?needed}'}",
            "`X` is not set: needed",
        ),
        ("services:\n  a: {image: '${X'}", "without `}`"),
        (
            "services:\n  a: {extends: b}\n  b: {extends: a}",
            "without an end",
        ),
        ("services:\n  a: {extends: b}", "`b` does not exist"),
        ("services:\n\ta: b", "a tab"),
        (
            "services:\n  a: {restart: always}",
            "`a` has neither `image` nor `build`",
        ),
        (
            "services:\n  a: {image: 'x:${TAG}'}",
            "image `x:` of `a`: `` is no tag; not set are `$TAG`: set them in the environment, `.env` or --env-file",
        ),
        ("include: [gone.yaml]", "`gone.yaml`: not there"),
        (
            "services: {a: {image: x, command: 'echo (b)'}}",
            "command of `a`: `echo (b)`: compose can split it only if",
        ),
        (
            "services: {a: {image: x, pre_stop: [{command: 'echo \"b'}]}}",
            "pre_stop of `a`: `echo \"b`",
        ),
        (
            "services:\n  a: {image: x}\n  a: {image: y}",
            "compose.yaml:3:3: the key `a` is given more than once",
        ),
        (
            "services:\n  a:\n    image: x\n    ports: ['1:1']\n    ports: ['2:2']",
            ":5:5: the key `ports` is given more than once",
        ),
        (
            "services: {a: {image: x}}\nservices: {b: {image: y}}",
            ":2:1: the key `services` is given more than once",
        ),
        (
            "services: {a: {image: x, environment: {A: 1, A: 2}}}",
            "the key `A` is given more than once",
        ),
    ] {
        let error = compose(text).err().unwrap_or_else(|| panic!("{text}"));
        assert!(error.contains(expected), "{text}: {error}");
    }
    let many: String = (0..201)
        .map(|n| format!("  s{n}: {{image: x}}\n"))
        .collect();
    let error = compose(&format!("services:\n{many}")).err();
    assert_eq!(error.as_deref(), Some("more than 200 services"));
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let before = format!("*a{}, ", n - 1).repeat(10);
        bomb += &format!("a{n}: &a{n} [{before}]\n");
    }
    assert!(
        compose(&format!(
            "{bomb}services: {{a: {{image: x, command: *a11}}}}"
        ))
        .is_err()
    );
}

#[test]
fn services_of_any_shape_end_in_manifests_or_in_an_error() {
    let keys = "image command entrypoint environment env_file ports expose volumes tmpfs shm_size secrets configs \
                healthcheck depends_on restart deploy mem_limit cpus devices cap_add user group_add sysctls hostname \
                extra_hosts dns network_mode networks labels stop_signal stop_grace_period init profiles extends build \
                links security_opt pid ipc post_start pull_policy working_dir container_name";
    let values = [
        "null",
        "''",
        "' '",
        "x",
        "-1",
        "1.5",
        "true",
        "[]",
        "{}",
        "[null]",
        "[[]]",
        "[{}]",
        "{a: b}",
        "{a: null}",
        "{a: {b: c}}",
        "[a]",
        "['a:b']",
        "['a:b:c:d']",
        "[':']",
        "['/']",
        "['/:/']",
        "['=']",
        "[a, a]",
        "'a\tb'",
        "[\"a\\nb: c\"]",
        "\"\\x01\"",
        "ü",
        "99999999999999999999",
        "{test: x, interval: -1}",
        "{source: /a, target: b}",
        "[{source: a, target: /b}]",
        "['65535-65536:1']",
        "['1-65535:1-65535']",
        "{condition: x}",
        "service:a",
        "'a: b'",
    ];
    for key in keys.split_whitespace() {
        for value in values {
            let text = format!("services:\n  a:\n    image: x\n    {key}: {value}\n").replace(
                if key == "image" {
                    "    image: x\n"
                } else {
                    "\0"
                },
                "",
            );
            if let Ok(output) = compose(&text) {
                let texts = output.texts();
                let texts: Vec<&str> = texts.iter().map(|(_, text)| &**text).collect();
                let whole = texts.join("---\n");
                let parsed = crate::spec::parse::parse(&whole);
                assert!(parsed.is_ok(), "{text}\n{whole}\n{parsed:?}");
            }
        }
    }
}

#[test]
fn a_command_becomes_a_pod() {
    let pod =
        line("docker run -dit -p 80:80 --name=web -e 'A=$(x)' --gpus all nginx:1 sh -c 'a $$ b'")
            .unwrap();
    let expected = r##"apiVersion: v1
kind: Pod
metadata:
  name: web
  labels:
    app: web
spec:
  restartPolicy: Never
  # no `restart` is set, so it runs once after each boot; Always keeps it running
  securityContext:
    sysctls:
    # docker lets programs of any user listen below port 1024
    - name: net.ipv4.ip_unprivileged_port_start
      value: "0"
  containers:
  - name: web
    image: nginx:1
    args:
    - sh
    - -c
    - "a $$$ b"
    env:
    - name: A
      value: "$$(x)"
    ports:
    - containerPort: 80
      hostPort: 80
    tty: true
    stdin: true
    # run: web: not carried over: gpus: name the device by CDI (coracle help devices)
"##;
    assert_eq!(pod, expected);
    for (words, expected) in [
        ("docker run", "names no image"),
        ("docker run -d", "names no image"),
        ("docker run -p", "`-p` needs a value"),
        ("docker run --new x", "unknown option `--new`"),
        ("docker ps", "there is nothing"),
    ] {
        let error = line(words).err().unwrap_or_else(|| panic!("{words}"));
        assert!(error.contains(expected), "{words}: {error}");
    }
}

#[test]
fn files_override_each_other_as_in_compose() {
    let files = [
        (
            "compose.yaml",
            "services: {a: {image: x, ports: ['80:80'], environment: [A=1, B=1], command: [a], volumes: ['/a:/data']}}",
        ),
        (
            "compose.override.yaml",
            "services: {a: {image: y, ports: ['81:81'], environment: {B: 2}, command: [b], volumes: ['/b:/data']}}",
        ),
    ];
    let files = files
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .to_vec();
    let output = converted(&Given::Files(files), &fixtures().join("none"), &[]).unwrap();
    let text = whole(&output);
    for part in [
        "image: \"y\"",
        "hostPort: 80",
        "hostPort: 81",
        "name: A\n      value: \"1\"",
        "name: B\n      value: \"2\"",
        "- b\n",
        "path: /b\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(
        !text.contains("path: /a\n") && !text.contains("- a\n"),
        "{text}"
    );
}

#[test]
fn what_is_included_is_read_from_its_folder_and_only_once() {
    let read = |path: &str| match path {
        "a/compose.yaml" | "./b/compose.yaml" => {
            Ok(b"services: {x: {image: x, user: 010, volumes: ['./d:/d']}}".to_vec())
        }
        "round.yaml" => Ok(b"include: [round.yaml]".to_vec()),
        other => Err(format!("`{other}`: not there")),
    };
    let source = Source {
        read: &read,
        variable: &|_| None,
        folder: "/srv/p",
        profiles: &[],
        missing: &[],
    };
    let made = |text: &str| {
        let files = vec![("compose.yaml".to_owned(), text.to_owned())];
        convert(&Given::Files(files), &source, None, None)
    };
    let one = made("include: [a/compose.yaml]").unwrap();
    assert!(
        whole(&one).contains("path: /srv/p/a/d\n"),
        "{}",
        whole(&one)
    );
    assert!(
        one.remarks[0].contains("`010`: it stays"),
        "{:?}",
        one.remarks
    );
    let moved = made("include: [{path: [a/compose.yaml], project_directory: /opt}]").unwrap();
    assert!(
        whole(&moved).contains("path: /opt/d\n"),
        "{}",
        whole(&moved)
    );
    for (text, expected) in [
        (
            "include: [a/compose.yaml, ./b/compose.yaml]",
            "`x` of `services` is in `./b/compose.yaml`",
        ),
        (
            "include: [round.yaml]",
            "more than 100 files are included: `round.yaml`",
        ),
    ] {
        let error = made(text).err().unwrap_or_else(|| panic!("{text}"));
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn the_first_form_of_compose_files_is_read() {
    let text =
        yaml("web:\n  image: acme/web:1\n  net: host\n  links: [db]\ndb:\n  image: acme/db:1\n");
    assert!(
        text.contains("hostNetwork: true") && text.contains("image: acme/db:1"),
        "{text}"
    );
}

#[test]
fn profiles_choose_services() {
    let text = "services: {a: {image: x}, b: {image: z, profiles: [debug]}}";
    let files = || vec![("compose.yaml".to_owned(), text.to_owned())];
    assert!(!yaml(text).contains("image: z"));
    let none = compose("services: {b: {image: z, profiles: [debug]}}").err();
    assert!(none.is_some_and(|why| why.contains("`--profile debug`")));
    let provided = compose("services: {b: {provider: {type: model}}}").err();
    assert!(provided.is_some_and(|why| why.contains("b: a program that compose calls")));
    assert!(yaml(&text.replace("[debug]", "['', debug]")).contains("image: z"));
    for profile in ["debug", "*"] {
        let output = converted(
            &Given::Files(files()),
            &fixtures().join("none"),
            &[profile.to_owned()],
        );
        assert!(whole(&output.unwrap()).contains("image: z"));
    }
}

#[test]
fn options_of_mounts_that_are_not_carried_over_are_named() {
    let made =
        line("docker run --mount type=volume,src=a,dst=/x,volume-opt=type=nfs,z nginx:1").unwrap();
    assert!(made.contains("volume /x: the option volume-opt"), "{made}");
    let made = yaml(
        "services:\n  a:\n    image: nginx:1\n    volumes:\n    - {type: tmpfs, target: /x, tmpfs: {size: 1m, mode: \
         493}}\n    - {type: bind, source: /a, target: /b, bind: {create_host_path: false, recursive: disabled}}\n",
    );
    assert!(made.contains("tmpfs /x: the option tmpfs.mode"), "{made}");
    assert!(
        made.contains("bind /b: the option bind.recursive"),
        "{made}"
    );
    assert!(
        made.contains("bind /b: create_host_path: false: a path that is missing is made"),
        "{made}"
    );
}

#[test]
fn the_nodes_init_reaps_what_shares_its_processes() {
    let made = yaml("services:\n  a:\n    image: nginx:1\n    init: true\n    pid: host\n");
    assert!(made.contains("hostPID: true") && !made.contains("shareProcessNamespace"));
}

#[test]
fn commands_without_a_name_are_numbered_and_a_name_is_there_only_once() {
    let lines = |text: &str| {
        let files = vec![("lines".to_owned(), text.to_owned())];
        converted(&Given::Files(files), &fixtures().join("none"), &[])
    };
    let made = lines("docker run nginx:1\ndocker run nginx:2\n").unwrap();
    let names: Vec<_> = made.files.iter().map(|file| &*file.name).collect();
    assert_eq!(names, ["nginx", "nginx-2"]);
    let twice = "docker run --name a nginx:1\ndocker run --name a nginx:2\n";
    let Err(why) = lines(twice) else {
        panic!("two containers have one name")
    };
    assert!(why.contains("two containers are called `a`"), "{why}");
}

#[test]
fn keys_for_systemd_are_named() {
    let unit = "[Unit]\nDescription=x\nConditionPathExists=/dev/ttyUSB0\nRequires=broker.service\nAfter=broker.service\n\
                [Container]\nImage=nginx:1\n[Service]\nRestart=always\nRestartSec=10\nTimeoutSec=70\nMemoryMax=100M\n\
                [Install]\nWantedBy=multi-user.target\n";
    let files = vec![("a.container".to_owned(), unit.to_owned())];
    let made = converted(&Given::Files(files), &fixtures().join("none"), &[]).unwrap();
    assert!(whole(&made).contains("terminationGracePeriodSeconds: 70"));
    assert_eq!(
        made.remarks,
        [
            "quadlet: not carried over: a.container: ConditionPathExists",
            "quadlet: not carried over: a: After=broker.service: `coracle.dev/after` takes `unit:broker.service`",
            "quadlet: a: not carried over: [Service] RestartSec",
            "quadlet: a: not carried over: [Service] MemoryMax",
        ]
    );
}

#[test]
fn what_only_a_shell_can_do_is_refused_and_a_comment_is_left_out() {
    let file = |text: &str| {
        let files = vec![("line".to_owned(), text.to_owned())];
        converted(&Given::Files(files), &fixtures().join("none"), &[])
    };
    for (text, what) in [
        ("docker run -v $(pwd)/data:/data nginx", "`$(pwd)`"),
        ("docker run -v \"$PWD\":/data nginx", "`$PWD`"),
        ("docker run -e A=${B} nginx", "`${B}`"),
        ("docker run -e A=`id` nginx", "the shell's"),
        ("docker run -e A=$'a\\nb' nginx", "`$'…'`"),
        ("docker run -e A=`#x nginx", "`…`"),
        ("docker run nginx && echo done", "`&`"),
        ("docker run nginx | tee log", "`|`"),
        ("docker run nginx > log", "`>`"),
    ] {
        let why = file(text)
            .err()
            .unwrap_or_else(|| panic!("{text} is converted"));
        assert!(why.contains(what) && why.contains("shell"), "{text}: {why}");
    }
    let text =
        whole(&file("docker run -e 'A=$x && y' -e B=a#b --name web nginx # the site").unwrap());
    for part in ["value: \"$x && y\"", "value: \"a#b\"", "name: web"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("the site"), "{text}");
    let noted = "docker run -e A=1 `#optional` \\\n -v /c:/d `#what it is, too` --name web nginx `#x` run # end\n";
    let text = whole(&file(noted).unwrap());
    for part in [
        "value: \"1\"",
        "path: /c",
        "image: nginx",
        "args:\n    - run\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        !text.contains("optional") && !text.contains("what it is") && !text.contains("end"),
        "{text}"
    );
}

#[test]
fn what_docker_would_refuse_or_cannot_be_carried_over_is_said() {
    for (text, part) in [
        (
            "services:\n  a: {image: x, network_mode: 'container:vpn'}",
            "not carried over: network_mode: container:vpn: nothing of that name",
        ),
        (
            "services:\n  a: {image: x, restart: alway}",
            "not carried over: restart: alway: there is no such policy",
        ),
    ] {
        let text = yaml(text);
        assert!(text.contains(part), "{text}");
    }
    let text = yaml("services:\n  foo_bar: {image: a}\n  foo-bar: {image: b}");
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(at("name: foo-bar-2\n") < at("image: a\n"), "{text}");
    let text = line("docker run --entrypoint '' busybox echo hi").unwrap();
    assert!(
        text.contains("command:") && !text.contains("\"\""),
        "{text}"
    );
}

#[test]
fn variables_of_docker_run_are_taken_as_they_stand() {
    let found = interpolate::raw_env_file("# no\nQ=\"a\"\nP=a$b # c\n\nH\nN\n", &|name| {
        (name == "H").then(|| "here".to_owned())
    });
    let found: Vec<String> = found
        .pairs
        .into_iter()
        .map(|(n, v)| format!("{n}={v}"))
        .collect();
    assert_eq!(found, ["Q=\"a\"", "P=a$b # c", "H=here"]);
}
