//! Forms of compose files whose meaning is easily lost or changed, and what they become.

use super::convert_test::{compose, converted, fixtures, whole, yaml};
use super::*;

/// What the manifests of a text must say, and must not.
pub(super) fn check(given: &str, yaml: &str, wanted: &[&str], unwanted: &[&str]) {
    for part in wanted {
        assert!(yaml.contains(part), "no `{part}`:\n{given}\n{yaml}");
    }
    for part in unwanted {
        assert!(!yaml.contains(part), "`{part}`:\n{given}\n{yaml}");
    }
}

pub(super) fn says(services: &str, wanted: &[&str], unwanted: &[&str]) {
    let text = format!("services:\n{services}");
    check(&text, &yaml(&text), wanted, unwanted);
}

#[test]
fn names_checks_and_volumes_that_differ_are_carried_over_or_named() {
    let made = yaml(
        "services:\n  mail:\n    image: mail:1\n    hostname: mail.example.com\n    volumes: [/code/node_modules, 'data:/data']\n    depends_on: {db: {condition: service_healthy}}\n    extra_hosts: ['host.docker.internal:host-gateway']\n  db: {image: db:1}\nvolumes: {data: {}}\n",
    );
    check(
        "mail",
        &made,
        &[
            "hostnameOverride: mail.example.com",
            "volume /code/node_modules: it begins empty",
            "# it begins empty: what the image has there",
            "depends_on: db: it has no `healthcheck` here",
            "coracle.dev/aliases: mail.example.com",
        ],
        &["hostname: mail", "host-gateway"],
    );
}

#[test]
fn the_node_has_a_name_and_name_servers_are_asked_after_its_own() {
    let hosts = "extra_hosts: ['host.docker.internal:host-gateway', 'box:host-gateway']";
    says(
        &format!("  a: {{image: 'a:1', {hosts}, dns: 192.0.2.1}}\n"),
        &[
            "extra_hosts: box:host-gateway: write an address of the node in its place, or use the name host.containers.internal",
        ],
        &["hostAliases", "docker.internal", "dnsPolicy: None\n"],
    );
    says(
        &format!(
            "  a: {{image: 'a:1', {hosts}, network_mode: host, dns: 192.0.2.1}}\n  b: {{image: 'b:1'}}\n"
        ),
        &[
            "- ip: 127.0.0.1\n    hostnames:\n    - host.docker.internal\n",
            "not carried over: dns: these servers are asked only if",
        ],
        &["dnsPolicy: None\n"],
    );
    // The pod is on the host's network by another of its containers.
    says(
        &format!(
            "  a: {{image: 'a:1', {hosts}, network_mode: 'service:v'}}\n  v: {{image: 'v:1', network_mode: host}}\n"
        ),
        &["- ip: 127.0.0.1\n    hostnames:\n    - host.docker.internal\n"],
        &[],
    );
}

#[test]
fn a_step_changes_nothing_of_the_pod_that_it_comes_before() {
    let after = "depends_on: {init: {condition: service_completed_successfully}}";
    let app = format!("  app: {{image: 'a:1', restart: always, hostname: app, {after}}}\n");
    says(
        &format!(
            "{app}  init: {{image: b, hostname: init, stop_grace_period: 3s, labels: {{a: b}}, healthcheck: {{test: 'true'}}, \
             stop_signal: SIGINT}}\n"
        ),
        &[
            "initContainers:\n  - name: init",
            "  hostname: app\n",
            "init: not carried over: hostname: another container",
            "init: not carried over: labels: the pod is that",
            "init: not carried over: healthcheck: it is an init container",
            "init: not carried over: stop_signal: it is an init container",
            "init: not carried over: stop_grace_period: it is an init container",
            "# an init container that fails runs again",
        ],
        &["terminationGrace", "a: b", "readinessProbe", "stopSignal"],
    );
    // What asks for more than a container of its own has stays a pod.
    for own in [
        "pid: host",
        "network_mode: host",
        "sysctls: {net.core.somaxconn: 1}",
        "extra_hosts: ['x:1.2.3.4']",
    ] {
        says(
            &format!("{app}  init: {{image: b, {own}}}\n"),
            &["coracle.dev/after: init:complete", "name: init\n  labels"],
            &["initContainers"],
        );
    }
    // So does what several wait for.
    says(
        &format!("{app}  b: {{image: 'b:1', {after}}}\n  init: {{image: b}}\n"),
        &["coracle.dev/after: init:complete"],
        &["initContainers", "not carried over"],
    );
    // In the pod of several services it runs before the one that waits for it, and after those before that.
    says(
        "  vpn: {image: 'v:1', restart: always}\n  app: {image: 'a:1', restart: always, network_mode: 'service:vpn', \
         depends_on: {vpn: {condition: service_started}, init: {condition: service_completed_successfully}}}\n  \
         init: {image: b}\n",
        &[
            "initContainers:\n  - name: vpn",
            "  - name: init\n",
            "containers:\n  - name: app",
            "init: not carried over: its network: it is an init container of the pod of `vpn`",
        ],
        &["coracle.dev/after"],
    );
    // One that fails stays as it is in a pod that does.
    says(
        &format!("  app: {{image: 'a:1', {after}}}\n  init: {{image: b}}\n"),
        &["initContainers:\n  - name: init"],
        &["runs again", "its network"],
    );
}

#[test]
fn who_waits_for_the_service_whose_network_it_has_starts_after_it() {
    says(
        "  vpn: {image: 'v:1', restart: always, healthcheck: {test: [CMD, true]}, ports: ['8080:80']}\n  app: {image: 'a:1', \
         network_mode: 'service:vpn', restart: always, depends_on: {vpn: {condition: service_healthy}}}\n",
        &[
            "initContainers:\n  - name: vpn",
            "startupProbe:",
            "restartPolicy: Always",
            "containers:\n  - name: app",
        ],
        &["livenessProbe:\n"],
    );
    // Those that wait for each other all are containers.
    says(
        "  a: {image: 'a:1', depends_on: [b]}\n  b: {image: 'b:1', network_mode: 'service:a', depends_on: [a]}\n",
        &["containers:\n  - name: a", "  - name: b"],
        &["initContainers"],
    );
    // `started` waits for nothing more.
    says(
        "  a: {image: 'a:1', healthcheck: {test: 'true'}}\n  b: {image: 'b:1', network_mode: 'service:a', depends_on: [a]}\n",
        &[
            "initContainers:\n  - name: a",
            "restart policy Never: others of its pod start after it",
        ],
        &["startupProbe"],
    );
}

#[test]
fn values_of_services_mean_what_they_mean_to_docker() {
    for (service, wanted, unwanted) in [
        (
            "entrypoint: [''], command: sh -c x",
            &["command:\n    - sh\n    - -c\n    - x"][..],
            &["args"][..],
        ),
        (
            "command: 'migrate --all && serve'",
            &[
                "args:\n    - migrate\n    - --all\n",
                "command: `&& serve`: compose ends the command before it",
            ],
            &["- serve"],
        ),
        (
            "networks: {lan: {ipv4_address: 10.0.0.3, mac_address: '02:42:ac:11:65:43', aliases: [x]}}",
            &[
                "networks.lan.ipv4_address: a fixed address",
                "networks.lan.mac_address",
            ],
            &["networks.lan.aliases"],
        ),
        (
            "tmpfs: ['/run:mode=1750,exec,size=1m,rw']",
            &[
                "tmpfs /run: the option mode=1750",
                "tmpfs /run: the option exec",
                "sizeLimit: 1Mi",
            ],
            &["option rw"],
        ),
        (
            "ports: [{target: 80, published: 8080, name: web, app_protocol: http}, {target: 81, name: Not_valid}]",
            &["name: web", "app_protocol", "the name Not_valid"],
            &["name: Not"],
        ),
        (
            "post_start: [{command: x, user: root, privileged: true}]",
            &["postStart", "post_start.user", "post_start.privileged"],
            &[],
        ),
        (
            "deploy: {labels: {a: b}, restart_policy: {condition: any, max_attempts: 3, delay: 5s, window: 1m}}",
            &[
                "deploy.labels",
                "restart_policy.max_attempts",
                "restart_policy.delay",
                "restart_policy.window",
            ],
            &[],
        ),
        (
            "pid: 'service:b'",
            &["pid: service:b: containers of one pod share it"],
            &["shareProcessNamespace"],
        ),
    ] {
        says(
            &format!("  a: {{image: 'a:1', {service}}}\n  b: {{image: 'b:1'}}\n"),
            wanted,
            unwanted,
        );
    }
    says(
        "  a: {image: 'a:1', network_mode: 'service:b', pid: 'service:b'}\n  b: {image: 'b:1'}\n",
        &["shareProcessNamespace: true"],
        &["pid: service:b"],
    );
    says(
        "  a: {image: 'a:1', dns: [172.22.1.254, 9.9.9.9]}\n  b: {image: 'b:1', networks: {n: {ipv4_address: 172.22.1.254}}}\n",
        &["dns: 172.22.1.254: the fixed address of b", "- 9.9.9.9"],
        &["- 172.22.1.254"],
    );
}

#[test]
fn volumes_that_are_no_directories_of_the_node_are_named() {
    let of = |volume: &str| {
        let text = format!(
            "services:\n  a: {{image: 'a:1', volumes: ['d:/d']}}\nvolumes: {{d: {volume}}}\nnetworks: {{lan: {{driver: macvlan}}}}\n"
        );
        yaml(&text)
    };
    let ssh = of("{driver: vieux/sshfs, driver_opts: {sshcmd: 'u@h:/p'}}");
    check(
        "sshfs",
        &ssh,
        &[
            "volume d: the driver vieux/sshfs",
            "networks.lan: the driver macvlan",
        ],
        &[],
    );
    let bound = of("{driver_opts: {type: none, o: 'bind,ro,uid=5', device: /srv/x}}");
    check(
        "bound",
        &bound,
        &["path: /srv/x", "readOnly: true", "the option uid=5"],
        &["driver local"],
    );
    let memory = "volumes: {ram: {driver_opts: {type: tmpfs, device: tmpfs}}}\n";
    let shared = "volume ram: in memory each container has its own";
    let one = yaml(&format!(
        "services: {{a: {{image: 'a:1', volumes: ['ram:/r']}}}}\n{memory}"
    ));
    check("one", &one, &["medium: Memory"], &[shared]);
    let two = yaml(&format!(
        "services: {{a: {{image: 'a:1', volumes: ['ram:/r']}}, b: {{image: 'b:1', volumes: [{{type: volume, source: ram, \
         target: /r}}]}}}}\n{memory}"
    ));
    check("two", &two, &[shared], &[]);
    let external = of("{external: {name: my-cool-volume}}");
    check(
        "external",
        &external,
        &["claimName: my-cool-volume", "was made elsewhere"],
        &[],
    );
}

#[test]
fn what_is_extended_and_merged_loses_nothing() {
    says(
        "  base: {image: 'b:1', depends_on: [db], links: [db]}\n  app: {extends: base}\n  db: {image: 'd:1'}\n",
        &["name: app\n  labels:\n    app: app\n  annotations:\n    coracle.dev/after: db"],
        &[],
    );
    let files = |first: &str, second: &str| {
        let files = [("1.yaml", first), ("2.yaml", second)];
        let files =
            files.map(|(name, text)| (name.to_owned(), format!("services:\n  a: {text}\n")));
        let output = converted(&Given::Files(files.into()), &fixtures().join("none"), &[]);
        whole(&output.unwrap())
    };
    let hosts = files(
        "{image: 'a:1', extra_hosts: ['a:1.2.3.4']}",
        "{extra_hosts: {c: 1.2.3.5}}",
    );
    check("hosts", &hosts, &["ip: 1.2.3.4", "ip: 1.2.3.5"], &[]);
    let reset = files(
        "{image: 'a:1', ports: ['80:80'], command: x, environment: {A: b, C: d}}",
        "{ports: !reset [], command: !reset null, environment: !override {E: f}}",
    );
    check("reset", &reset, &["name: E"], &["ports", "args", "name: A"]);
    let ports = files(
        "{image: 'a:1', ports: ['80:80']}",
        "{ports: !override ['81:81']}",
    );
    check("override", &ports, &["hostPort: 81"], &["hostPort: 80"]);
    says(
        "  base: {image: 'b:1', ports: ['80:80'], tty: !reset true}\n  app: {extends: base, ports: !reset []}\n",
        &["hostPort: 80"],
        &["tty"],
    );
    let nothing = files(
        "{image: 'a:1', command: [x], entrypoint: [y]}",
        "{command: , entrypoint: ~, working_dir: /w}",
    );
    check("nothing", &nothing, &["workingDir"], &["args", "command"]);
    says(
        "  base: {image: 'b:1', command: x, user: '5'}\n  app: {extends: base, command: , user: }\n",
        &["args:\n    - x\n", "runAsUser: 5"],
        &[],
    );
    let extended =
        yaml("services:\n  base: {image: 'b:1', command: x}\n  app: {extends: base, command: }\n");
    assert_eq!(extended.matches("args:").count(), 1, "{extended}");
    let other = compose("services:\n  a: {image: !env x}\n");
    let other = other.err().unwrap();
    assert!(
        other.contains("the YAML tag `!env` is not supported"),
        "{other}"
    );
}

#[test]
fn variables_have_the_values_of_their_folder_and_missing_ones_are_named() {
    let folder = std::env::temp_dir().join(format!("coracle-meaning-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("sub")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    write(
        ".env",
        "PW=pa$sword\nCOMPOSE_PROFILES=extra\nCOMPOSE_PROJECT_NAME=shop\n",
    );
    write("sub/.env", "TAG=9\nPW=theirs\n");
    write(
        "sub/compose.yaml",
        "services: {b: {image: 'b:${TAG:-1}', environment: {P: '${PW}'}}}\n",
    );
    write("a.env", "K=${unset}x\n");
    let text = "include: [sub/compose.yaml]\nservices:\n  a: {image: 'a:1', environment: {P: '${PW}'}, env_file: a.env}\n  c: \
                {image: 'c:1', profiles: [extra]}\n  d: {image: 'd:1', profiles: [other]}\n";
    let files = vec![("compose.yaml".to_owned(), text.to_owned())];
    let output = converted(&Given::Files(files), &folder, &[]).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    check(
        text,
        &whole(&output),
        &[
            "value: pa\n",
            "$sword: it is not set",
            "image: b:9",
            "image: c:1",
            "a.env: $unset: it is not set",
            "app.kubernetes.io/part-of: shop",
            "d: it starts only with a profile",
        ],
        &["theirs", "image: d:1"],
    );
}

#[test]
fn what_differs_stays_apart() {
    let text = "name: industrial-gateway-production\nservices:\n  my_app: {image: 'a:1', env_file: a.env, volumes: \
                ['timeseries-database-primary:/a', 'timeseries-database-replica:/b', 'app_data:/c', 'app-data:/d', \
                'app_data:/e']}\n  my-app: {image: 'b:1', env_file: b.env, configs: [my-app-env]}\nconfigs: {my-app-env: \
                {content: mine}}\n";
    let folder = std::env::temp_dir().join(format!("coracle-apart-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("a.env"), "USER_=bob\nA=a\n").unwrap();
    std::fs::write(folder.join("b.env"), "A=b\n").unwrap();
    let files = vec![("compose.yaml".to_owned(), text.to_owned())];
    let made = whole(&converted(&Given::Files(files), &folder, &[]).unwrap());
    assert_eq!(
        made.matches("kind: PersistentVolumeClaim").count(),
        4,
        "{made}"
    );
    assert_eq!(made.matches("kind: ConfigMap").count(), 3, "{made}");
    check(text, &made, &["A: a", "A: b", "mine"], &[]);
    // A file of variables knows those of the files before.
    std::fs::write(folder.join("b.env"), "URL=pg://${USER_}@db\n").unwrap();
    let text = "services: {a: {image: 'a:1', env_file: [a.env, b.env]}}";
    let files = vec![("compose.yaml".to_owned(), text.to_owned())];
    let made = whole(&converted(&Given::Files(files), &folder, &[]).unwrap());
    check(text, &made, &["pg://bob@db"], &["not set"]);
    // Its own lines come before those.
    std::fs::write(folder.join("b.env"), "A=own\nB=${A}\n").unwrap();
    let text = "services: {a: {image: 'a:1', env_file: [a.env, b.env], environment: [USER_]}}";
    let files = vec![("compose.yaml".to_owned(), text.to_owned())];
    let made = whole(&converted(&Given::Files(files), &folder, &[]).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    // What has no value in `environment` is not set, whatever a file says.
    let wanted = ["B: own", "environment: USER_: no value is set"];
    check(text, &made, &wanted, &["bob"]);
}

#[test]
fn later_files_say_more_of_the_same_things() {
    let files = |first: &str, second: &str| {
        let files = [("1.yaml", first), ("2.yaml", second)];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let output = converted(
            &Given::Files(files.into()),
            &fixtures().join("corners"),
            &[],
        );
        whole(&output.unwrap_or_else(|why| panic!("{why}")))
    };
    let test = files(
        "services: {test: {image: 'a:1'}}",
        "services: {test: {environment: {A: b}}}",
    );
    check("test", &test, &["image: a:1", "name: A"], &[]);
    let none = files(
        "services: {a: {image: 'a:1', environment: {FOO: x, BAR: y}}}",
        "services: {a: {environment: {FOO: !reset null}}}",
    );
    check("reset", &none, &["name: BAR"], &["FOO"]);
    let both = files(
        "services: {a: {image: 'a:1', ports: !override ['80:80']}}",
        "services: {a: {ports: ['81:81']}}",
    );
    check("both", &both, &["hostPort: 80", "hostPort: 81"], &[]);
    let included = files(
        "include: [parts/more/compose.yaml]",
        "services: {deeper: {ports: ['5432:5432']}}",
    );
    check("included", &included, &["hostPort: 5432"], &[]);
}

#[test]
fn containers_of_one_pod_share_what_each_asks_for() {
    says(
        "  a: {image: 'a:1', network_mode: 'service:b', group_add: ['20'], sysctls: {net.a: 1, net.b: 2}, labels: {x: '1'}}\n  b: \
         {image: 'b:1', group_add: ['44'], sysctls: {net.b: 3}, labels: {x: '2', y: '1'}}\n",
        &[
            "- 20",
            "- 44",
            "name: net.a",
            "name: net.b",
            "sysctls: net.b: another container",
            "label x: another container",
            "\"y\": \"1\"",
        ],
        &[],
    );
    says(
        "  vpn: {image: 'v:1', restart: always}\n  init: {image: 'i:1', network_mode: 'service:vpn', depends_on: [vpn]}\n  app: \
         {image: 'a:1', restart: always, network_mode: 'service:vpn', depends_on: {init: {condition: \
         service_completed_successfully}, vpn: {condition: service_started}}}\n  other: {image: 'o:1', depends_on: {init: \
         {condition: service_completed_successfully}}}\n",
        &[
            "  - name: init\n    image: i:1\n    # an init container that fails runs again, unlike in compose\n  containers:",
            "coracle.dev/after: vpn\n",
            "depends_on: init: it is in the pod of `vpn`",
        ],
        &[],
    );
    says(
        "  web: {image: 'w:1', links: ['db:mysql']}\n  db: {image: 'd:1', networks: {n: {ipv4_address: 172.20.0.5}}}\n  x: \
         {image: 'x:1', extra_hosts: ['db:172.20.0.5'], user: ':', read_only: 'True'}\n",
        &[
            "coracle.dev/after: db",
            "  name: mysql\n",
            "extra_hosts: db:172.20.0.5: a fixed address",
            "readOnlyRootFilesystem: true",
        ],
        &["hostAliases", "is a name"],
    );
    says(
        "  a: {image: 'a:1', ports: [{name: web, target: 80, published: 80}, {name: web, target: 443, published: 443, protocol: \
         TCP}], tmpfs: ['/run:size=50%']}\n",
        &[
            "hostPort: 443",
            "port 443: the name web",
            "the option size=50%",
        ],
        &[],
    );
}

#[test]
fn of_two_things_at_one_place_the_later_one_counts() {
    says(
        "  a: {image: 'a:1', volumes: ['./etc:/data', 'd:/data/'], secrets: [s, {source: s, mode: 0400}]}\nvolumes: {d: }\nsecrets: {s: {file: ./s}}\n",
        &[
            "mountPath: /data\n",
            "claimName: d\n",
            "mountPath: /run/secrets/s\n",
            "defaultMode: 256",
            "a: not carried over: volume /data: another is mounted there",
        ],
        &["hostPath", "name: secret-1"],
    );
}

#[test]
fn containers_of_one_pod_may_wait_for_the_same() {
    says(
        "  app: {image: 'a:1', depends_on: {db: {condition: service_started, restart: true}, \
         mig: {condition: service_completed_successfully}}}\n  mig: {image: 'm:1', depends_on: [db]}\n  db: {image: 'd:1'}\n",
        &["coracle.dev/after: \"db?again\"\n"],
        &[],
    );
    says(
        "  a: {image: 'a:1', network_mode: 'service:b', depends_on: {db: {condition: service_healthy}}}\n  \
         b: {image: 'b:1', depends_on: [db]}\n  db: {image: 'd:1', healthcheck: {test: 'true'}}\n",
        &["coracle.dev/after: db:ready\n"],
        &[],
    );
}

#[test]
fn checks_have_dollars_as_compose_gives_them() {
    says(
        "  a: {image: 'a:1', healthcheck: {test: ['CMD-SHELL', '[ \"$$PW\" = a$$$$b ] && echo $$(date)']}}\n",
        &["- \"[ \\\"$PW\\\" = a$$$b ] && echo $$(date)\"\n"],
        &[],
    );
}

#[test]
fn host_names_are_in_lower_case_and_those_that_are_none_are_named() {
    says(
        "  a: {image: 'a:1', hostname: UniFi, extra_hosts: ['yourDomain.lan:192.168.41.55', 'pi Pi.lan:192.168.41.55', \
         'my_db:192.168.1.2']}\n",
        &[
            "hostname: unifi\n",
            "hostname: UniFi: names are in lower case here",
            "    - yourdomain.lan\n",
            "    - pi\n    - pi.lan\n",
            "extra_hosts: my_db:192.168.1.2: the name my_db may have",
        ],
        &["- my_db", "192.168.1.2\n    hostnames"],
    );
}

#[test]
fn fixed_addresses_in_variables_are_named() {
    let doh = "  doh: {image: 'd:1', networks: {n: {ipv4_address: 172.20.0.2}}}\n";
    says(
        &format!(
            "{doh}  a: {{image: 'a:1', environment: {{DNS: '172.20.0.2#5054', OTHER: 172.20.0.20}}}}\n"
        ),
        &["a: not carried over: environment: DNS: the fixed address of doh"],
        &["OTHER: the fixed"],
    );
}

#[test]
fn the_nodes_shared_memory_is_not_hidden() {
    says(
        "  a: {image: 'a:1', ipc: host, shm_size: 8gb}\n",
        &["hostIPC: true", "shm_size: with `ipc: host`"],
        &["/dev/shm\n"],
    );
}
