//! The names by which services find each other, and what is said of those that change.

use super::convert_test::{compose, yaml};
use super::meaning_test::{check, says};

#[test]
fn names_that_kubernetes_does_not_allow_are_aliases() {
    says(
        "  app_db: {image: 'a:1'}\n  app-db: {image: 'b:1'}\n  Web: {image: 'c:1', container_name: my.web, networks: {n: {aliases: \
         [shop_1, 'no name']}}}\n  two: {image: 'd:1', networks: {n: {aliases: [shop_1]}}}\n",
        &[
            "  name: app-db-2\n  annotations:\n    coracle.dev/aliases: app_db\n",
            "  name: web\n  annotations:\n    coracle.dev/aliases: my.web\n",
            "  name: shop-1\n  annotations:\n    coracle.dev/aliases: shop_1\n",
            "    alias-shop-1: \"true\"\n",
            "  name: no-name\n",
        ],
        &["name: my-web"],
    );
}

#[test]
fn a_name_that_was_changed_takes_no_name_of_others() {
    let made = yaml(
        "services:\n  app_db: {image: 'a:1'}\n  x: {image: 'b:1', networks: {n: {aliases: [app-db]}}}\n  y: {image: 'c:1', networks: {default: , n: \
         {aliases: [app_db]}}}\n",
    );
    let of_x = "  name: app-db\nspec:\n  clusterIP: None\n  publishNotReadyAddresses: true\n  selector:\n    app: x\n";
    let of_both = "  name: app-db-2\n  annotations:\n    coracle.dev/aliases: app_db\n";
    check(
        "a changed name",
        &made,
        &[of_x, of_both],
        &["not carried over"],
    );
}

#[test]
fn services_with_one_name_have_one_service() {
    let text = "  a: {image: 'a:1', networks: {n: {aliases: [backend]}}}\n  b: {image: 'b:1', hostname: backend}\n";
    let label = "alias-backend: \"true\"";
    says(text, &[label, "  name: backend\n"], &[]);
    let whole = yaml(&format!("services:\n{text}"));
    assert_eq!(whole.matches(label).count(), 3, "{whole}");
    assert_eq!(whole.matches("  name: backend\n").count(), 1, "{whole}");
    let taken =
        compose("services:\n  a: {image: 'a:1', hostname: b}\n  b: {image: 'b:1'}\n").unwrap();
    assert!(
        taken
            .remarks
            .iter()
            .any(|r| r.ends_with("the name b: the service `b` has it")),
        "{:?}",
        taken.remarks
    );
    let apart = |networks: &str| {
        let text = format!(
            "services:\n  a: {{image: 'a:1', networks: {{m: {{aliases: [db]}}}}}}\n  b: {{image: 'b:1', networks: {networks}}}\n"
        );
        compose(&text).unwrap().remarks
    };
    let said = "compose: b: not carried over: the name db: `a` has it in another network; here it means both";
    assert_eq!(apart("{n: {aliases: [db]}}"), [said]);
    assert_eq!(apart("{n: {aliases: [db]}, m: }"), [""; 0]);
    let dots = compose(
        "services:\n  a: {image: 'a:1', networks: {m: {aliases: [xmpp.meet.jitsi]}}}\n  b: {image: 'b:1'}\n",
    );
    let dots = dots.unwrap();
    assert_eq!(dots.remarks, [""; 0]);
}

#[test]
fn a_single_service_has_its_name_in_networks_of_others_only() {
    let service = "  name: db\nspec:\n  clusterIP: None";
    for (service_keys, networks, is_named) in [
        ("networks: [proxy]", "{proxy: {external: true}}", true),
        (
            "networks: {proxy: }",
            "{proxy: {external: {name: web}}}",
            true,
        ),
        ("networks: [lan]", "{lan: {name: lan}}", true),
        ("restart: always", "{default: {name: lan}}", true),
        ("ports: ['80:80']", "{proxy: {external: true}}", false),
        ("networks: [back]", "{back: {driver: bridge}}", false),
        ("network_mode: host", "{default: {name: lan}}", false),
        ("container_name: my-db", "{}", false),
    ] {
        let text =
            format!("services: {{db: {{image: 'a:1', {service_keys}}}}}\nnetworks: {networks}\n");
        let made = yaml(&text);
        assert_eq!(made.contains(service), is_named, "{text}{made}");
    }
    let made = yaml(
        "services: {db: {image: 'a:1', container_name: my_db, networks: [n]}}\nnetworks: {n: {external: true}}\n",
    );
    check("names", &made, &["coracle.dev/aliases: my_db\n"], &[]);
}
