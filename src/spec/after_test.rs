//! The annotation's syntax, and circles.

use super::*;

/// The items as text, each with its options.
fn read(text: &str) -> Result<Vec<String>, String> {
    let items = parse(text, "own").map_err(|(item, problem)| match item {
        Some((number, _)) => format!("{number}: {problem}"),
        None => problem,
    })?;
    let shown = items.iter().map(|item| {
        let mut text = item.need.to_string();
        if let Some(ms) = item.timeout_ms {
            text += &format!(" {ms}ms {}", if item.start { "start" } else { "wait" });
        }
        text + if item.again { " again" } else { "" }
    });
    Ok(shown.collect())
}

#[test]
fn each_item_names_one_thing_and_what_happens_without_it() {
    for (text, expected) in [
        ("db", &["own/db"][..]),
        ("db:ready", &["own/db:ready"]),
        ("init:complete", &["own/init:complete"]),
        (" a , other/b:ready ", &["own/a", "other/b:ready"]),
        ("db?timeout=30s", &["own/db 30000ms wait"]),
        ("db?timeout=30s&then=wait", &["own/db 30000ms wait"]),
        (
            "db:ready?then=start&timeout=1m",
            &["own/db:ready 60000ms start"],
        ),
        ("db?again", &["own/db again"]),
        (
            "db?again&timeout=1h&then=start",
            &["own/db 3600000ms start again"],
        ),
        ("device:/dev/ttyUSB0", &["device:/dev/ttyUSB0"]),
        ("mount:/data,file:/run/x", &["mount:/data", "file:/run/x"]),
        ("mount:/", &["mount:/"]),
        ("unit:a@b\\x2d.service", &["unit:a@b\\x2d.service"]),
        ("time-sync?timeout=100ms", &["time-sync 100ms wait"]),
        ("x/time-sync", &["x/time-sync"]),
        ("x/device:ready", &["x/device:ready"]),
    ] {
        let expected: Vec<String> = expected.iter().map(|s| (*s).to_owned()).collect();
        assert_eq!(read(text), Ok(expected), "{text}");
    }
}

#[test]
fn a_mistake_is_named_with_its_item() {
    for (text, expected) in [
        ("", "1: it is empty"),
        ("db,", "2: it is empty"),
        ("db, db", "2: `own/db` is named twice"),
        ("db, own/db", "2: `own/db` is named twice"),
        ("Db", "1: `Db` is no name of a pod"),
        ("a/b/c", "1: `a/b/c` is no name of a pod"),
        ("db:redy", "1: did you mean `db:ready`?"),
        ("db:completed", "1: did you mean `db:complete`?"),
        (
            "db:up",
            "1: after the name of a pod there may be `:ready` or `:complete`",
        ),
        (
            "devise:/dev/x",
            "1: `devise:` is not known; did you mean `device:/dev/x`?",
        ),
        ("file:x", "1: a path begins with `/`"),
        ("device:ready", "1: a path begins with `/`"),
        ("file:/a/../b", "1: write the path without"),
        ("mount:/data/", "1: write the path without"),
        ("unit:foo", "1: a unit is named in full"),
        ("unit:.service", "1: a unit is named in full"),
        ("unit:a b.service", "1: this is no name of a systemd unit"),
        ("db?timeout", "1: `timeout` needs a time"),
        ("db?timeout=soon", "1: `soon` is not a duration"),
        ("db?timeout=0", "1: `0` must be between 100ms and 24h"),
        ("db?timeout=25h", "1: `25h` must be between 100ms and 24h"),
        ("db?timeout=1s&timeout=2s", "1: `timeout` is given twice"),
        ("db?then=start", "1: `then` needs a time-out"),
        (
            "db?timeout=1s&then=stop",
            "1: `then` is `then=start` or `then=wait`",
        ),
        ("db?again=yes", "1: `again` takes no value"),
        ("db?again&again", "1: `again` is given twice"),
        (
            "db?timout=1s",
            "1: there is no option `timout`; did you mean `timeout`?",
        ),
        ("db?", "1: its options are"),
    ] {
        let error = read(text).expect_err(text);
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    let many = vec!["a"; MAX_ITEMS + 1].join(",");
    assert_eq!(
        read(&many),
        Err("there may be at most 16 items, not 17".to_owned())
    );
    let long = format!("file:/{}", "x".repeat(MAX_PATH));
    assert!(read(&long).is_err_and(|error| error.contains("at most 1024 bytes")));
}

/// Which of the numbered nodes are in circles together.
fn circular(edges: &[(usize, usize)], count: usize) -> Vec<Vec<usize>> {
    let mut next = vec![Vec::new(); count];
    edges.iter().for_each(|(from, to)| next[*from].push(*to));
    let mut found = groups(&next);
    found.retain(|g| g.len() > 1 || next[g[0]].contains(&g[0]));
    found.iter_mut().for_each(|group| group.sort_unstable());
    found.sort();
    found
}

#[test]
fn circles_are_found_and_what_leads_to_them_is_not_in_them() {
    assert_eq!(circular(&[(0, 1), (1, 2), (0, 2)], 3), [[0; 0]; 0]);
    assert_eq!(circular(&[(0, 0)], 1), [[0]]);
    assert_eq!(circular(&[(0, 1), (1, 0)], 2), [[0, 1]]);
    // 0 waits for a circle, and 3 is between two.
    let edges = [(0, 1), (1, 2), (2, 1), (2, 3), (3, 4), (4, 5), (5, 4)];
    assert_eq!(circular(&edges, 6), [[1, 2], [4, 5]]);
    // Two circles through one pod.
    assert_eq!(circular(&[(0, 1), (1, 0), (1, 2), (2, 1)], 3), [[0, 1, 2]]);
    let chain: Vec<_> = (0..50_000)
        .map(|i| (i, i + 1))
        .chain([(50_000, 0)])
        .collect();
    assert_eq!(circular(&chain, 50_001).len(), 1);
    assert_eq!(around(&[0, 1, 2], &[vec![1], vec![0, 2], vec![1]]), [0, 1]);
}
