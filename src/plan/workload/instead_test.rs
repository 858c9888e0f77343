//! What clients put in force: former revisions, and restarts.

use super::*;

#[test]
fn clients_undo_and_restart() {
    let plain = |letter, more: &str| document("Deployment", letter, 2, more);
    let mut node = Machine::new(&plain('a', ""));
    assert_eq!(
        node.undo(None),
        Err("no rollout history found for deployment default/web".into())
    );
    node.settle('a');
    for letter in ['b', 'c'] {
        node.save(&plain(letter, ""));
        node.settle(letter);
    }
    assert_eq!(node.numbers(), "1 2 3*!");
    assert_eq!(
        node.undo(Some(7)),
        Err("unable to find specified revision 7 in history".into())
    );
    let same = "skipped rollback (current template already matches revision 3)";
    assert_eq!(node.undo(Some(3)), Err(same.into()));
    assert_eq!(node.undo(Some(1)), Ok(1));
    node.settle('a');
    assert_eq!(
        (node.world.shown(), node.numbers()),
        ("a a".into(), "2 3! 4*".into())
    );
    let note = |number| {
        format!(
            "revision 3 was undone by a client; revision {number} is in force until the document changes"
        )
    };
    assert_eq!(node.note(), note(4));
    // A restart keeps that in force.
    node.restart_pods("now");
    node.settle('a');
    assert_eq!((node.world.shown(), node.note()), ("a a".into(), note(5)));
    assert_eq!(node.numbers(), "2 3! 4 5*");
    node.reboot();
    node.settle('a');
    assert_eq!(
        (node.world.shown(), node.numbers()),
        ("a a".into(), "2 3! 4 5*".into())
    );
    // Back to what the file says.
    assert_eq!(node.undo(Some(3)), Ok(3));
    node.settle('c');
    assert_eq!(
        (node.world.shown(), node.note()),
        ("c c".into(), String::new())
    );
    assert_eq!(node.numbers(), "2 4 5 6*!");
    // A restart of that lasts as long as the template, whatever else the file says.
    let former = node.world.uids('c');
    node.restart_pods("later");
    node.settle('c');
    assert_eq!(node.numbers(), "2 4 5 6! 7*");
    let restarted = node.world.uids('c');
    assert!(restarted.iter().all(|uid| !former.contains(uid)));
    node.save(&plain('c', "  minReadySeconds: 0\n"));
    assert_eq!(node.world.uids('c'), restarted);
    node.save(&plain('d', ""));
    node.settle('d');
    assert_eq!(
        (node.world.shown(), node.history().instead.clone()),
        ("d d".into(), None)
    );
}

#[test]
fn a_revision_that_comes_back_brings_its_cause_along() {
    let because = |letter, cause: &str| {
        let text = document("Deployment", letter, 1, "");
        let annotations = format!("{{name: web, annotations: {{{CHANGE_CAUSE}: {cause}}}}}");
        text.replacen("{name: web}", &annotations, 1)
    };
    let causes = |node: &Machine| {
        let all = node.history().revisions.iter();
        let all = all.map(|r| r.cause.clone().unwrap_or_default());
        all.collect::<Vec<_>>().join(" ")
    };
    let mut node = Machine::new(&because('a', "first"));
    node.settle('a');
    node.save(&because('b', "second"));
    node.settle('b');
    assert_eq!(causes(&node), "first second");
    node.undo(None).unwrap();
    node.settle('a');
    assert_eq!(causes(&node), "second first");
    node.restart_pods("now");
    node.settle('a');
    assert_eq!(causes(&node), "second first first");
    node.undo(Some(2)).unwrap();
    node.settle('b');
    assert_eq!(causes(&node), "first first second");
    // The file says why again.
    node.save(&because('a', "third"));
    node.settle('a');
    assert_eq!(causes(&node), "first second third");
}

#[test]
fn a_restart_replaces_pods_that_keep_their_names() {
    let mut node = Machine::new(&document("StatefulSet", 'a', 2, ""));
    node.settle('a');
    let former = node.world.uids('a');
    node.restart_pods("now");
    assert_eq!(node.world.shown(), "a a-");
    node.settle('a');
    let now = node.world.uids('a');
    assert!(now.len() == 2 && now.iter().all(|uid| !former.contains(uid)));
}

#[test]
fn notes_name_revisions_by_the_numbers_that_they_have_now() {
    // So many revisions are kept beside the one in force.
    for (limit, replaced) in [(10, "revision 2"), (0, "what the document says")] {
        let more = format!("  revisionHistoryLimit: {limit}\n");
        let mut node = Machine::new(&document("Deployment", 'a', 1, &more));
        node.settle('a');
        node.save(&document("Deployment", 'b', 1, &more));
        node.undo(Some(1)).unwrap();
        let note = |replaced: &str, number: u64| {
            format!(
                "{replaced} was undone by a client; revision {number} is in force until the document changes"
            )
        };
        // The file has the same note.
        let at_file = |node: &Machine| {
            let mut all = node
                .world
                .state
                .workloads
                .histories
                .overrides()
                .into_values();
            all.next().and_then(|instead| instead.note).unwrap()
        };
        assert_eq!(
            (node.note(), at_file(&node)),
            (note(replaced, 3), node.note())
        );
        node.settle('a');
        node.restart_pods("now");
        node.settle('a');
        assert_eq!(
            (node.note(), at_file(&node)),
            (note(replaced, 4), node.note())
        );
        if limit > 0 {
            // Another revision that is in no file, undone as well.
            node.undo(Some(3)).unwrap();
            node.settle('a');
            let shown = node.note();
            assert_eq!(shown, note("revision 4", 5));
        }
    }
}

/// How a client has another template rolled out, and what it is.
type RollOut = (&'static str, fn(&mut Machine), char);

const ROLLOUTS: [RollOut; 4] = [
    ("undo", |node| assert_eq!(node.undo(Some(1)), Ok(1)), 'a'),
    ("restart", |node| node.restart_pods("now"), 'b'),
    (UNDONE, |node| node.restart_pods("later"), 'b'),
    (TAKEN_BACK, |node| node.restart_pods("later"), 'b'),
];

const UNDONE: &str = "restart of what was undone to";
const TAKEN_BACK: &str = "restart of what was taken back to";

/// A node whose pods all have the template `b`.
fn rolled_out(kind: &str, more: &str, how: &str) -> Machine {
    let of = |letter| annotated(&document(kind, letter, 3, more), "");
    let mut node = Machine::new(&of('a'));
    node.settle('a');
    node.save(&of('b'));
    node.settle('b');
    if how == UNDONE {
        node.save(&of('c'));
        node.settle('c');
        node.undo(Some(2)).unwrap();
        node.settle('b');
    }
    if how == TAKEN_BACK {
        let last = node.world.uids('b').pop().unwrap();
        node.world.set_pod_ready(&last, false);
        node.save(&of('c'));
        node.pass(DEADLINE_MS);
        assert!(node.note().contains("was not ready"));
        node.settle('b');
    }
    let good = node.history().good.as_ref();
    assert_eq!(good, node.history().revisions.last().map(|last| &last.hash));
    node
}

fn uids(node: &Machine) -> Vec<String> {
    let pods = node.world.state.pods.values();
    pods.map(|pod| pod.spec.key.name.to_string()).collect()
}

#[test]
fn what_clients_roll_out_goes_on_after_a_power_cut() {
    for (how, roll_out, letter) in ROLLOUTS {
        let mut node = rolled_out("Deployment", "", how);
        let former = uids(&node);
        roll_out(&mut node);
        let first = node.world.live();
        assert_eq!(first, 4, "{how}");
        let numbers = node.numbers();
        for _ in 0..2 {
            node.reboot();
            let is_former = |name: &String| former.contains(name);
            // Those of the good template come back, beside one of the new.
            let here = uids(&node);
            assert_eq!(
                here.iter().filter(|name| is_former(name)).count(),
                3,
                "{how}"
            );
            assert_eq!(here.len(), 4, "{how}");
            assert_eq!(node.numbers(), numbers, "{how}");
        }
        node.settle('b');
        node.settle(letter);
        let shown = vec![letter.to_string(); 3].join(" ");
        assert_eq!(node.world.shown(), shown, "{how}");
        assert!(
            uids(&node).iter().all(|name| !former.contains(name)),
            "{how}"
        );
        // Nothing of that is left once it is good.
        node.reboot();
        assert_eq!(node.world.shown(), shown.to_uppercase(), "{how}");
        assert!(
            uids(&node).iter().all(|name| !former.contains(name)),
            "{how}"
        );
    }
}

/// The machine goes down when what a client asked for is on disk, and the file has not been read since.
#[test]
fn what_clients_roll_out_may_have_had_no_time_to_take_effect() {
    for (how, roll_out, letter) in ROLLOUTS {
        let mut node = rolled_out("Deployment", "", how);
        let former = uids(&node);
        let before = stored(&node.world);
        roll_out(&mut node);
        let after = node.history().instead.clone();
        let mut kept = before;
        kept[0].1.instead = after;
        node.world.state.workloads.histories = Histories::recovered(kept, String::new());
        assert!(node.history().is_pending(), "{how}");
        node.reboot();
        let here = uids(&node);
        assert!(former.iter().all(|name| here.contains(name)), "{how}");
        assert_eq!(here.len(), 4, "{how}");
        node.settle('b');
        node.settle(letter);
        let shown = vec![letter.to_string(); 3].join(" ");
        assert_eq!(node.world.shown(), shown, "{how}");
        assert!(
            uids(&node).iter().all(|name| !former.contains(name)),
            "{how}"
        );
    }
}

#[test]
fn each_pod_of_a_stateful_set_starts_with_what_a_client_gave_it() {
    for order in ["OrderedReady", "Parallel"] {
        let more = format!("  podManagementPolicy: {order}\n");
        for (how, roll_out, letter) in ROLLOUTS {
            let mut node = rolled_out("StatefulSet", &more, how);
            let good = node.history().good.clone();
            // It says itself when it is ready again.
            let last = node.world.uids('b').pop().unwrap();
            node.world.set_pod_ready(&last, false);
            roll_out(&mut node);
            node.world.gone();
            let names = |node: &Machine| -> Vec<String> {
                let pods = node.world.state.pods.values();
                let new = pods.filter(|pod| pod.wanted().revision() != good.as_deref());
                new.map(|pod| pod.spec.key.name.to_string()).collect()
            };
            assert_eq!(names(&node), ["web-2"], "{how} {order}");
            node.reboot();
            for _ in 0..4 {
                assert!(
                    names(&node).iter().all(|name| name == "web-2"),
                    "{how} {order}"
                );
                let unready = node.world.state.pods.values();
                let unready = unready.filter(|pod| pod.wanted().revision() == good.as_deref());
                for uid in unready.map(|pod| pod.spec.uid.clone()).collect::<Vec<_>>() {
                    node.world.set_pod_ready(&uid, true);
                }
                node.pass(0);
            }
            assert_eq!(names(&node), ["web-2"], "{how} {order}");
            assert_eq!(node.world.live(), 3);
            node.settle('b');
            node.settle(letter);
            assert_eq!(names(&node).len(), 3, "{how} {order}");
            assert_eq!(node.world.ready(), 3, "{how} {order}");
        }
    }
}

#[test]
fn an_edit_while_pods_come_back_ends_what_a_client_undid() {
    let more = "  minReadySeconds: 0\n";
    for restart in [false, true] {
        let mut node = rolled_out("Deployment", "", "");
        match restart {
            true => node.restart_pods("now"),
            false => assert_eq!(node.undo(None), Ok(1)),
        }
        node.boots += 1;
        let histories = Histories::recovered(stored(&node.world), "1".to_owned());
        node.world = World::new();
        node.world.state.workloads.histories = histories.resumed(|_| false);
        let overrides = node.world.state.workloads.histories.overrides();
        node.read(&overrides);
        assert_eq!(node.world.shown(), "B B B");
        node.save(&annotated(&document("Deployment", 'b', 3, more), ""));
        assert_eq!(node.history().instead.is_some(), restart);
        node.settle('b');
        assert_eq!(node.world.shown(), "b b b");
        assert_eq!(
            node.history().good.as_ref(),
            node.history().revisions.last().map(|r| &r.hash)
        );
        assert!(node.world.state.workloads.histories.resumed.is_empty());
    }
}

#[test]
fn two_restarts_in_one_second_are_one() {
    let mut node = Machine::new(&document("Deployment", 'a', 1, ""));
    node.settle('a');
    node.restart_pods("now");
    node.restart_pods("now");
    assert!(!node.history().is_pending());
    assert_eq!(node.numbers(), "1*! 2");
    node.settle('a');
    assert_eq!(node.numbers(), "1! 2*");
}

/// Pods may move between a request and the next read of the file.
#[test]
fn a_client_may_ask_again_during_a_rollout() {
    for restart in [true, false] {
        let mut node = Machine::new(&deployment('a', 2, ""));
        node.settle('a');
        node.save(&deployment('b', 2, ""));
        node.settle('b');
        node.undo(None).unwrap();
        let subject = node.subject();
        let histories = &node.world.state.workloads.histories;
        let again = match restart {
            true => histories.restart(&subject, "later").unwrap(),
            false => histories.undo(&subject, Some(2)).unwrap().1,
        };
        let asked = Event::Node(NodeFact::PutInstead(subject, again.clone()));
        node.world.tell(asked);
        node.world.set_ready('a', true);
        node.world.tell(Event::Node(NodeFact::WorkloadTurn));
        let instead = node.history().instead.as_deref().cloned();
        assert_eq!((instead, restart), (again.clone(), again.is_some()));
        let progressing = &node.world.status()["conditions"][1];
        assert_ne!(progressing["reason"], "ProgressDeadlineExceeded");
        node.look();
        let letter = if restart { 'a' } else { 'b' };
        node.settle(letter);
        assert_eq!(node.world.shown(), format!("{letter} {letter}"));
    }
}

/// The machine goes down when that is on disk, and the file has not been read since.
#[test]
fn a_file_whose_own_content_comes_back_has_the_pods_of_the_good_one_first() {
    let mut node = Machine::new(&deployment('a', 2, ""));
    node.settle('a');
    node.save(&deployment('b', 2, ""));
    node.settle('b');
    node.undo(None).unwrap();
    node.settle('a');
    let before = stored(&node.world);
    node.undo(Some(2)).unwrap();
    let mut kept = before;
    kept[0].1.instead = node.history().instead.clone();
    assert_eq!(kept[0].1.instead, None);
    node.world.state.workloads.histories = Histories::recovered(kept, String::new());
    node.reboot();
    assert!(
        node.world.shown().starts_with("A A"),
        "{}",
        node.world.shown()
    );
    node.settle('a');
    node.settle('b');
    assert_eq!(node.world.shown(), "b b");
}

#[test]
fn what_a_former_version_had_undone_is_in_force_for_all_pods_after_a_reboot() {
    let mut node = rolled_out("StatefulSet", "", "");
    node.undo(None).unwrap();
    node.world.gone();
    // Its records do not say which pods had it.
    let mut kept = stored(&node.world);
    let instead = kept[0].1.instead.as_mut().unwrap();
    (instead.after, instead.replaced) = (None, None);
    kept[0].1.updated.clear();
    node.world.state.workloads.histories = Histories::recovered(kept, String::new());
    node.reboot();
    assert!(node.world.state.workloads.histories.resumed.is_empty());
}
