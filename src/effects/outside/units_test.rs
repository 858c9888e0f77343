//! The states of units, from a bus of the test.

use super::*;
use crate::effects::bus::fake::Bus as Fake;

#[test]
fn the_path_of_a_unit_is_escaped_as_systemd_does_it() {
    for (name, path) in [
        ("ssh.service", "ssh_2eservice"),
        ("a-b@c.mount", "a_2db_40c_2emount"),
        ("3g_x.service", "_33g_5fx_2eservice"),
    ] {
        assert_eq!(
            object(name),
            format!("/org/freedesktop/systemd1/unit/{path}")
        );
    }
}

#[test]
fn states_are_asked_for_and_changes_arrive() {
    let fake = Fake::serve("units", 1, false);
    smol::block_on(async {
        let names = vec!["a.service".to_owned(), "b.mount".to_owned()];
        let mut units = Units::connect(&fake.socket(), names).await.unwrap();
        assert_eq!(units.states().await.unwrap(), [UnitState::NotFound; 2]);
        for (state, expected) in [
            ("activating", UnitState::Inactive),
            ("active", UnitState::Active),
            ("reloading", UnitState::Active),
            ("failed", UnitState::Inactive),
        ] {
            fake.set_units(state);
            units.changed().await.unwrap();
            assert_eq!(units.states().await.unwrap(), [expected; 2], "{state}");
        }
    });
}

#[test]
fn without_a_bus_that_is_an_error() {
    let names = vec!["a.service".to_owned()];
    let error = smol::block_on(Units::connect(Path::new("/nowhere/bus"), names)).unwrap_err();
    assert!(matches!(
        error,
        BusError::Silent {
            what: "connecting",
            ..
        }
    ));
}
