//! New pods that find no room beside the old ones.

use super::*;
use crate::plan::resize::Capacity;

/// A document whose pods have this port of the node, and request so much cpu.
fn document_of(name: &str, letter: char, port: Option<u16>, cpu_milli: u64) -> String {
    let port = port.map_or(String::new(), |port| {
        format!("ports: [{{containerPort: 80, hostPort: {port}}}], ")
    });
    let text = document("Deployment", letter, 1, "");
    let text = text.replace("{name: web}", &format!("{{name: {name}}}"));
    text.replace(
        "{name: main,",
        &format!("{{name: main, {port}resources: {{requests: {{cpu: {cpu_milli}m}}}},"),
    )
}

#[test]
fn where_old_and_new_cannot_stand_side_by_side_the_old_one_goes_first() {
    let port = |letter| {
        let text = document("Deployment", letter, 1, "");
        text.replace(
            "{name: main,",
            "{name: main, ports: [{containerPort: 80, hostPort: 80}],",
        )
    };
    let mut world = World::new();
    world.read(&port('a'));
    world.set_ready('a', true);
    world.read(&port('b'));
    assert_eq!(world.shown(), "a- b?");
    world.gone();
    assert_eq!(world.shown(), "B");
}

#[test]
fn an_old_pod_goes_first_only_if_its_room_is_what_the_new_one_waits_for() {
    for (what, old, new, other, shown) in [
        (
            "its own port",
            (Some(80), 1),
            (Some(80), 1),
            (None, 1),
            "a- b? o",
        ),
        (
            "another's port",
            (None, 1),
            (Some(80), 1),
            (Some(80), 1),
            "a b? o",
        ),
        ("its cpu", (None, 600), (None, 800), (None, 100), "a- b? o"),
        (
            "another's cpu",
            (None, 100),
            (None, 800),
            (None, 600),
            "a b? o",
        ),
        (
            "more cpu than there is",
            (None, 100),
            (None, 2_000),
            (None, 100),
            "a b? o",
        ),
    ] {
        let mut world = World::new();
        world.state.settings.capacity = Some(Capacity {
            pods: 10,
            cpu_milli: 1_000,
            ..Capacity::default()
        });
        let text = |letter, (port, cpu)| document_of("web", letter, port, cpu);
        let other = document_of("other", 'o', other.0, other.1);
        world.read(&other);
        world.read(&format!("{other}---\n{}", text('a', old)));
        for letter in ['o', 'a'] {
            world.set_ready(letter, true);
        }
        world.read(&format!("{other}---\n{}", text('b', new)));
        assert_eq!(world.shown(), shown, "{what}");
    }
}
