//! What is kept of bundles on disk, and which of them are judged.

use super::*;

#[test]
fn a_bundle_that_cannot_be_read_keeps_no_leftovers_of_others() {
    let dir = std::env::temp_dir().join(format!("coracle-leftovers-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join("a")).unwrap();
    std::fs::write(dir.join("a/state.json"), "{").unwrap();
    std::fs::create_dir_all(dir.join("b/.new")).unwrap();
    remove_leftovers(&dir);
    assert!(dir.join("a").is_dir() && !dir.join("b").exists());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn only_a_bundle_that_has_changed_is_judged_again_at_once() {
    let known = |current| Known {
        state: State {
            current,
            ..State::default()
        },
        current: Record::default(),
        previous: None,
        before_previous: None,
    };
    let all = |of: &[(&str, u64)]| -> All {
        let of = of.iter();
        of.map(|(name, current)| ((*name).to_owned(), known(*current)))
            .collect()
    };
    let mut bundles = Bundles {
        all: all(&[("full", 2), ("passed", 2), ("removed", 2)]),
        busy: ["full", "passed", "removed"]
            .map(|name| (name.to_owned(), Time(10)))
            .into(),
        ..Bundles::default()
    };
    bundles.take(all(&[("full", 2), ("passed", 3)]));
    assert_eq!(bundles.busy.keys().collect::<Vec<_>>(), ["full"]);
}

/// What is written for a generation on trial, step by step.
type Write = Box<dyn Fn(&Folder)>;

/// A generation with an image and a file of its own.
fn write(folder: &Folder, number: u64) {
    let record = Record {
        images: vec![disk::Pinned {
            id: format!("sha256:{number}"),
            names: Vec::new(),
        }],
        files: vec!["a.yaml".to_owned()],
        ..Record::default()
    };
    let file = crate::images::BundleFile {
        name: "a.yaml".to_owned(),
        text: number.to_string(),
    };
    assert_eq!(folder.write(None, &record, &[file]).unwrap(), number);
}

#[test]
fn a_power_cut_during_a_trial_leaves_each_generation_that_is_kept_and_its_images() {
    let dir = std::env::temp_dir().join(format!("coracle-trial-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let images = ImageStore::open(&dir.join("images")).unwrap();
    let bundles = dir.join("bundles");
    let folder = Folder::of(&bundles, "site");
    let before = State {
        current: 2,
        previous: Some(1),
        ..State::default()
    };
    let trial = crate::plan::bundle::Trial::new(1000, "boot", Time(0));
    let applied = State::applied(Some(before.clone()), 3, Some(trial));
    let failed = applied.clone().failed(disk::Failed {
        generation: 3,
        digest: String::new(),
        why: String::new(),
    });
    let commit = |state: &State| -> Write {
        let state = state.clone();
        Box::new(move |folder| folder.commit(&state).unwrap())
    };
    let clean = |state: &State| -> Write {
        let state = state.clone();
        Box::new(move |folder| folder.clean(&state).unwrap())
    };
    // Removal is no single step: a part of the directory may be left.
    let half = |gone: u64| -> Write {
        Box::new(move |folder| {
            std::fs::remove_dir_all(folder.manifests(gone)).unwrap();
        })
    };
    for (end, gone, kept) in [
        (applied.clone().passed(), 1, vec![3, 2]),
        (failed, 3, vec![2, 1]),
    ] {
        let steps: [(Write, &[u64]); 8] = [
            (Box::new(|_| {}), &[2, 1]),
            (Box::new(|folder| write(folder, 3)), &[2, 1]),
            (commit(&applied), &[3, 2, 1]),
            (clean(&applied), &[3, 2, 1]),
            // What has been spent of its time.
            (commit(&applied), &[3, 2, 1]),
            (commit(&end), &kept),
            (half(gone), &kept),
            (clean(&end), &kept),
        ];
        for cut in 0..steps.len() {
            let _ = std::fs::remove_dir_all(&bundles);
            write(&folder, 1);
            write(&folder, 2);
            folder.commit(&before).unwrap();
            for (step, _) in &steps[..=cut] {
                step(&folder);
            }
            // The next start.
            remove_leftovers(&bundles);
            let all = load(&bundles, &images);
            let state = &all["site"].state;
            let expected = steps[cut].1;
            assert_eq!(state.kept().collect::<Vec<_>>(), expected, "{cut}");
            for number in 1..=3 {
                assert_eq!(folder.has(number), expected.contains(&number), "{cut}");
            }
            for number in expected {
                assert_eq!(folder.files(*number).unwrap()[0].text, number.to_string());
            }
            let known = Bundles {
                all,
                ..Bundles::default()
            };
            let ids = expected.iter().map(|number| format!("sha256:{number}"));
            assert_eq!(known.images().collect::<Vec<_>>(), ids.collect::<Vec<_>>());
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
