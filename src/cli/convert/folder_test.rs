//! Folders of units: what units name, and what lies beside them.

use std::fs;

use super::convert_test::{converted, fixtures, whole};
use super::files::{contents, with_units};
use super::meaning_test::check;
use super::*;

fn files(files: &[(&str, &str)]) -> Given {
    let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    Given::Files(files.iter().map(owned).collect())
}

fn made(given: &[(&str, &str)]) -> std::result::Result<Output, String> {
    converted(&files(given), &fixtures().join("none"), &[])
}

#[test]
fn units_that_others_name_are_asked_for() {
    let unit = "[Container]\nImage=i\nVolume=data.volume:/d:Z\nMount=type=volume,source=more.volume,dst=/m\n\
                Network=front.network:ip=10.0.0.1\nVolume=/srv/x.volume:/x\n";
    let text = whole(&made(&[("a.container", unit)]).unwrap());
    check(
        unit,
        &text,
        &[
            "a.container: data.volume: give that unit, too",
            "a.container: more.volume: give that unit, too",
            "a.container: front.network: give that unit, too",
        ],
        &["x.volume: give"],
    );
    let bound = "[Volume]\nType=none\nOptions=bind\nDevice=/srv/data\n";
    let given = [("a.container", unit), ("data.volume", bound)];
    check(
        unit,
        &whole(&made(&given).unwrap()),
        &["path: /srv/data\n"],
        &["data.volume: give"],
    );
    let built = "[Container]\nImage=y.build\n";
    let given = [("a.container", built)];
    let wanted = ["a.container: y.build: give that unit, too"];
    check(built, &whole(&made(&given).unwrap()), &wanted, &[]);
}

#[test]
fn an_image_that_is_mounted_may_have_a_unit() {
    let unit = "[Container]\nImage=i\nMount=type=image,source=foo.image,destination=/f\n";
    let image = "[Image]\nImage=docker.io/acme/foo:1\n";
    let text = whole(&made(&[("a.container", unit), ("foo.image", image)]).unwrap());
    check(unit, &text, &["reference: docker.io/acme/foo:1\n"], &[]);
    let why = made(&[("a.container", unit)]).err().unwrap_or_default();
    assert!(
        why.contains("a.container: Mount=foo.image: give that unit, too"),
        "{why}"
    );
}

#[test]
fn units_beside_one_are_read_if_it_names_them_and_others_are_not() {
    let folder = std::env::temp_dir().join(format!("coracle-units-{}", std::process::id()));
    fs::create_dir_all(folder.join("web.container.d")).unwrap();
    for (name, text) in [
        ("web.container", "[Container]\nImage=web.build\nPod=p.pod\n"),
        (
            "web.container.d/10.conf",
            "[Container]\nVolume=b.volume:/b\n",
        ),
        ("web.build", "[Build]\nImageTag=x\n"),
        ("p.pod", "[Pod]\nVolume=a.volume:/a\nNetwork=gone.network\n"),
        ("a.volume", "[Volume]\n"),
        ("b.volume", "[Volume]\nDriver=image\nImage=b.image\n"),
        ("b.image", "[Image]\nImage=x\n"),
        ("other.volume", "[Volume]\n"),
        ("other.container", "[Container]\nImage=x\n"),
        ("icon.png", ""),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    fs::write(folder.join("icon.png"), [0x89, 0xff]).unwrap();
    let found = with_units(&folder.join("web.container")).unwrap();
    let names = found.iter().map(|path| path.strip_prefix(&folder).unwrap());
    let mut names: Vec<_> = names.map(|path| path.to_string_lossy()).collect();
    names.sort_unstable();
    let expected = [
        "a.volume",
        "b.image",
        "b.volume",
        "p.pod",
        "web.build",
        "web.container",
        "web.container.d/10.conf",
    ];
    assert_eq!(names, expected);
    // Folders, and files without a text, are passed over beside units only.
    let odd = [folder.join("icon.png"), folder.clone()];
    let beside = [folder.join("web.container"), odd[0].clone(), odd[1].clone()];
    let (texts, remarks) = contents(&beside).unwrap();
    let alone = contents(&odd[..1]).is_err();
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(texts.len(), 1);
    assert!(alone && remarks.len() == 2, "{remarks:?}");
    assert!(
        remarks[0].contains("icon.png: it is no unit, manifest or compose file"),
        "{remarks:?}"
    );
}

#[test]
fn a_whole_folder_of_units_is_converted_as_its_units_are() {
    let folder = fixtures().join("quadlet");
    let mut given = Vec::new();
    for file in fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("expected.") {
            given.push((name, fs::read_to_string(path).unwrap()));
        }
    }
    given.sort();
    let output = converted(&Given::Files(given), &folder, &[]).unwrap();
    let expected = fs::read_to_string(folder.join("expected.yaml")).unwrap();
    assert_eq!(whole(&output), expected);
}

#[test]
fn what_is_nothing_to_convert_is_passed_over_beside_units() {
    let unit = ("a.container", "[Container]\nImage=a:1\n");
    let others = [
        unit,
        ("README.md", "Run it:\n\n    docker run b:1\n"),
        ("app.env", "A=b\n"),
        ("nginx.conf", "server { listen 80; }\n"),
        ("grafana.ini", "[server]\nport = 3000\n"),
        ("prometheus.yml", "global: {scrape_interval: 15s}\n"),
    ];
    let output = made(&others).unwrap();
    let said = output.remarks.join("\n");
    for (name, _) in &others[1..] {
        let what = format!("quadlet: not carried over: {name}: it is no unit");
        assert!(said.contains(&what), "no `{what}` in\n{said}");
    }
    assert!(!whole(&output).contains("b:1"), "{said}");
    // A compose file is none of these.
    let both = [unit, ("c.yaml", "services: {c: {image: 'c:1'}}")];
    assert!(whole(&made(&both).unwrap()).contains("image: c:1"));
}

#[test]
fn of_several_files_the_one_that_failed_is_named() {
    let unit = ("a.container", "[Container]\nImage=a:1\n");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n";
    for (first, name, text) in [
        (unit, "b.yaml", "services: {}\n"),
        (unit, "c.container", "[Container]\nExec=x\n"),
        (unit, "line", "docker run\n"),
        (
            ("a.yaml", pod),
            "b.yaml",
            "apiVersion: v1\nkind: Pod\n\tmetadata: {}\n",
        ),
    ] {
        let why = made(&[first, (name, text)]).err();
        let why = why.unwrap_or_else(|| panic!("{name} is converted"));
        assert!(why.starts_with(name), "{name}: {why}");
    }
}

#[test]
fn the_home_of_a_users_units_is_the_users() {
    let unit = "[Container]\nImage=i\nVolume=%h/data:/d\nVolume=%t/podman:/p\nVolume=%t/x:/x\n";
    for (file, wanted, unwanted) in [
        (
            "/home/pi/.config/containers/systemd/a.container",
            &[
                "path: /home/pi/data\n",
                "path: /run/podman\n",
                "a.container: %t: it is the system's /run here",
            ][..],
            &[][..],
        ),
        (
            "/home/pi/.config/containers/systemd/apps/a.container",
            &["path: /home/pi/data\n"],
            &[],
        ),
        (
            "/etc/containers/systemd/a.container",
            &["path: /root/data\n"],
            &["%t"],
        ),
    ] {
        let output = made(&[(file, unit)]).unwrap();
        assert!(output.remarks.len() < 2, "{:?}", output.remarks);
        check(file, &whole(&output), wanted, unwanted);
    }
}

#[test]
fn name_servers_that_are_none_and_several_names_of_an_address_are_taken() {
    let unit = "[Container]\nImage=i\nDNS=none\nDNS=192.0.2.1\nAddHost=a;b:10.0.0.1\n";
    check(
        unit,
        &whole(&made(&[("a.container", unit)]).unwrap()),
        &[
            "dns: none: it is no address of a server",
            "nameservers:\n    - 192.0.2.1\n",
            "- ip: 10.0.0.1\n    hostnames:\n    - a\n    - b\n",
        ],
        &["- none"],
    );
}

#[test]
fn a_script_may_do_more_than_run_containers() {
    let script = "#!/bin/bash\nset -e\ncd \"$(dirname \"$0\")\"\nmkdir -p /srv/web\ndocker rm -f \
                  web 2>/dev/null || true\nsudo docker run -d --name web \\\n  \
                  -p 80:80 nginx:1\n";
    let text = whole(&made(&[("install.sh", script)]).unwrap());
    check(
        script,
        &text,
        &[
            "image: nginx:1",
            "hostPort: 80",
            "not carried over: `mkdir -p /srv/web`",
        ],
        &[],
    );
    let why = made(&[(
        "a.sh",
        "set -e\ncd /x && docker run nginx:1\ndocker run b:1\n",
    )]);
    assert!(
        why.err()
            .is_some_and(|why| why.contains("`&` is the shell's"))
    );
}
