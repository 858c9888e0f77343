//! `emptyDir`, `hostPath` and sub-paths (`common/storage/{empty_dir,host_path}.go`, `storage/subpath.go`,
//! `storage/host_path_type.go`, `storage/testsuites/subpath.go`).

use super::{Answer, Row, ask};

/// (root or non-root, mode, medium): a file gets the mode that it is given.
fn file_modes() -> Vec<Row> {
    let mut rows = Vec::new();
    for (user, uid) in [("root", 0), ("non-root", 1001)] {
        for mode in ["644", "666", "777"] {
            for (medium, written, kind) in
                [("tmpfs", "medium: Memory", "tmpfs"), ("default", "", "")]
            {
                let script = format!(
                    "echo content > /v/f; chmod {mode} /v/f; cat /v/f; stat -c '%a %u' /v/f; \
                     stat -fc %T /v | grep -o '^{kind}'"
                );
                let kind = match kind {
                    "" => String::new(),
                    kind => format!("{kind}\n"),
                };
                let said = format!("content\n{mode} {uid}\n{kind}");
                let script = format!("{script}; true");
                let row = Row::says(
                    format!("[EmptyDir] should support ({user},0{mode},{medium})"),
                    script,
                    said,
                );
                rows.push(
                    row.volume(&format!("emptyDir: {{{written}}}"))
                        .pod(format!("securityContext: {{runAsUser: {uid}}}")),
                );
            }
        }
    }
    rows
}

fn empty_dirs() -> Vec<Row> {
    let group = "securityContext: {fsGroup: 123}";
    let user = "securityContext: {runAsUser: 1001, fsGroup: 123}";
    let mode = |title: &str, said: &str| Row::says(title, "stat -c '%a %g' /v", said);
    vec![
        mode("[EmptyDir] volume on tmpfs should have the correct mode", "1777 0\n").volume("emptyDir: {medium: Memory}"),
        mode("[EmptyDir] volume on default medium should have the correct mode", "777 0\n").volume("emptyDir: {}"),
        mode(
            "[EmptyDir] volume on default medium should have the correct mode using FSGroup",
            "2777 123\n",
        )
        .volume("emptyDir: {}")
        .pod(group),
        mode("[EmptyDir] volume on tmpfs should have the correct mode using FSGroup", "3777 123\n")
            .volume("emptyDir: {medium: Memory}")
            .pod(group),
        Row::says(
            "[EmptyDir] new files should be created with FSGroup ownership when container is root",
            "touch /v/f; stat -c '%u %g' /v/f",
            "0 123\n",
        )
        .volume("emptyDir: {}")
        .pod(group),
        Row::says(
            "[EmptyDir] new files should be created with FSGroup ownership when container is non-root",
            "touch /v/f; stat -c '%u %g' /v/f; id -G",
            "1001 123\n0 123\n",
        )
        .volume("emptyDir: {}")
        .pod(user),
        Row::says(
            "[EmptyDir] files with FSGroup ownership should support (root,0644,tmpfs)",
            "umask 022; echo x > /v/f; cat /v/f; stat -c '%a %g' /v/f",
            "x\n644 123\n",
        )
        .volume("emptyDir: {medium: Memory}")
        .pod(group),
        mode(
            "[EmptyDir] nonexistent volume subPath should have the correct mode and owner using FSGroup",
            "2777 123\n",
        )
        .mounted("emptyDir: {}", "subPath: sub")
        .pod(group),
        Row::says(
            "[EmptyDir] pod should support memory backed volumes of specified size",
            "df -k /v | tail -n 1 | awk '{print $2}'",
            "10240\n",
        )
        .volume("emptyDir: {medium: Memory, sizeLimit: 10Mi}"),
        Row::says(
            "[EmptyDir] pod should support shared volumes between containers",
            "cat /v/f",
            "from the other\n",
        )
        .volume("emptyDir: {}")
        .pod(other("echo from the other > /v/f")),
    ]
}

/// An init container that sees the volume `v` as a whole and runs this script.
fn other(script: &str) -> String {
    let script = serde_json::to_string(script).expect("a string");
    format!(
        "initContainers: [{{name: other, image: 'busybox:test', command: [sh, -c, {script}], volumeMounts: [\
         {{name: v, mountPath: /v}}]}}]"
    )
}

/// Which type accepts which thing of the node.
fn host_path_types() -> Vec<Row> {
    let ok = |kind: &str, thing: &str| {
        let title =
            format!("[HostPathType] should be able to mount {thing} when the type is `{kind}`");
        Row::says(title, "[ -e /v ] && echo there", "there\n")
            .volume(&format!("hostPath: {{path: HOST/{thing}, type: '{kind}'}}"))
    };
    let fails = |kind: &str, thing: &str, expected: &str| {
        let title =
            format!("[HostPathType] should fail on mounting {thing} when the type is {kind}");
        let message = format!("\"v\" : hostPath type check failed: HOST/{thing} is not {expected}");
        Row::of(title, "true", Answer::Unmounted(message))
            .volume(&format!("hostPath: {{path: HOST/{thing}, type: {kind}}}"))
    };
    vec![
        ok("Directory", "dir"),
        ok("DirectoryOrCreate", "dir"),
        ok("DirectoryOrCreate", "made/deep"),
        ok("File", "file"),
        ok("FileOrCreate", "made-file"),
        ok("Socket", "socket"),
        ok("CharDevice", "char"),
        ok("BlockDevice", "block"),
        ok("", "dir"),
        ok("", "file"),
        ok("", "socket"),
        fails("Directory", "none-dir", "a directory"),
        fails("Directory", "file", "a directory"),
        fails("DirectoryOrCreate", "file", "a directory"),
        fails("File", "none-file", "a file"),
        fails("File", "dir", "a file"),
        fails("FileOrCreate", "dir", "a file"),
        fails("Socket", "file", "a socket file"),
        fails("Socket", "none-socket", "a socket file"),
        fails("CharDevice", "block", "a character device"),
        fails("BlockDevice", "char", "a block device"),
    ]
}

fn host_paths() -> Vec<Row> {
    vec![
        Row::says(
            "[HostPath] should give a volume the correct mode",
            "stat -c '%a %u' /v",
            "755 0\n",
        )
        .volume("hostPath: {path: HOST/new, type: DirectoryOrCreate}"),
        Row::says(
            "[HostPath] should support r/w",
            "echo x > /v/rw && cat /v/rw",
            "x\n",
        )
        .volume("hostPath: {path: HOST/dir}"),
        Row::says(
            "[HostPath] should support subPath",
            "echo x > /v/f && cat /v/f",
            "x\n",
        )
        .mounted("hostPath: {path: HOST/dir}", "subPath: sub"),
        Row::says(
            "[HostPath] is never given to a group",
            "stat -c %g /v",
            "0\n",
        )
        .volume("hostPath: {path: HOST/dir}")
        .pod("securityContext: {fsGroup: 123}"),
        Row::of(
            "[HostPath] must not have backsteps",
            "true",
            Answer::Refused("must not contain '..'".to_owned()),
        )
        .volume("hostPath: {path: HOST/../x}"),
    ]
}

/// What is mounted by its path in a volume.
fn sub_paths() -> Vec<Row> {
    let atomic = |kind: &str, source: &str, sub: &str, said: &str| {
        let title = format!("[Atomic writer volumes] should support subpaths with {kind} pod");
        Row::says(title, "cat /v", said).mounted(source, &format!("subPath: {sub}"))
    };
    let within = |title: &str, setup: &str, sub: &str, script: &str, said: &str| {
        Row::says(format!("[subPath] {title}"), script, said)
            .mounted("emptyDir: {}", sub)
            .pod(other(setup))
    };
    let outside = |title: &str, setup: &str, sub: &str| {
        let wanted = "failed to prepare subPath for volumeMount \"v\" of container \"main\"";
        let answer = Answer::Waits("CreateContainerConfigError", wanted.to_owned());
        Row::of(format!("[subPath] should fail if {title}"), "true", answer)
            .mounted("emptyDir: {}", sub)
            .pod(other(setup))
    };
    let none = "true";
    vec![
        atomic("secret", "secret: {secretName: test}", "data-1", "value-1"),
        atomic("configmap", "configMap: {name: test}", "data-1", "value-1"),
        atomic(
            "downward",
            "downwardAPI: {items: [{path: a/name, fieldRef: {fieldPath: metadata.name}}]}",
            "a/name",
            "POD",
        ),
        atomic("projected", "projected: {sources: [{configMap: {name: test}}]}", "data-2", "value-2"),
        Row::says(
            "[Atomic writer volumes] should support subpaths with configmap pod with mountPath of existing file",
            "cat /etc/passwd",
            "value-1",
        )
        .pod("volumes: [{name: v, configMap: {name: test}}]")
        .container("volumeMounts: [{name: v, mountPath: /etc/passwd, subPath: data-1}]"),
        within("should support non-existent path", none, "subPath: a/b", "echo x > /v/f; cat /v/f", "x\n"),
        within(
            "should support existing directory",
            "mkdir /v/d; echo x > /v/d/f",
            "subPath: d",
            "cat /v/f",
            "x\n",
        ),
        within("should support existing single file", "echo x > /v/f", "subPath: f", "cat /v; echo y >> /v", "x\n"),
        within(
            "should support a link that stays inside",
            "mkdir -p /v/d; echo x > /v/d/f; ln -s d /v/l",
            "subPath: l",
            "cat /v/f",
            "x\n",
        ),
        within(
            "should support readOnly file specified in the volumeMount",
            "echo x > /v/f",
            "subPath: f, readOnly: true",
            "cat /v; (echo y > /v) 2>/dev/null || echo refused",
            "x\nrefused\n",
        ),
        within(
            "should support readOnly directory specified in the volumeMount",
            "mkdir /v/d",
            "subPath: d, readOnly: true",
            "touch /v/f 2>/dev/null || echo refused",
            "refused\n",
        ),
        Row::says(
            "[subPath] should support creating multiple subpath from same volumes",
            "echo x > /v/f; echo y > /w/f; cat /all/a/f /all/b/f",
            "x\ny\n",
        )
        .pod("volumes: [{name: v, emptyDir: {}}]")
        .container(
            "volumeMounts: [{name: v, mountPath: /v, subPath: a}, {name: v, mountPath: /w, subPath: b}, \
             {name: v, mountPath: /all}]",
        ),
        outside("subpath directory is outside the volume", "ln -s /bin /v/l", "subPath: l"),
        outside("subpath file is outside the volume", "ln -s /bin/sh /v/l", "subPath: l"),
        outside("non-existent subpath is outside the volume", "ln -s /bin/none /v/l", "subPath: l"),
        outside("subpath with backstepping is outside the volume", "ln -s ../ /v/l", "subPath: l"),
        outside("a part of the subpath is outside the volume", "ln -s /bin /v/l", "subPath: l/new"),
        Row::of(
            "[subPath] must be relative",
            "true",
            Answer::Refused("must be a relative path".to_owned()),
        )
        .mounted("emptyDir: {}", "subPath: /x"),
    ]
}

#[test]
fn empty_dirs_host_paths_and_sub_paths() {
    let rows = [
        file_modes(),
        empty_dirs(),
        host_path_types(),
        host_paths(),
        sub_paths(),
    ];
    ask(&rows.into_iter().flatten().collect::<Vec<_>>());
}
