//! The states of units, from a bus of the test.

use super::*;

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
