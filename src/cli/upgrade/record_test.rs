//! What a power cut leaves of an upgrade that has no record yet.

use super::*;

/// The steps of `begin`, in order; each is on disk before the next.
type Begin = fn(&State, &Path) -> io::Result<()>;
const STEPS: &[(&str, Begin)] = &[
    ("the note", |state, program| {
        state.begin(program).unwrap();
        Ok(())
    }),
    ("a part of the new program", |_, program| {
        fs::write(program.with_file_name(".coracle.new.tmp"), "ne")
    }),
    ("the new program", |_, program| {
        put_program(&new_of(program), b"new")
    }),
    ("a link to the older program", |_, program| {
        fs::hard_link(former_of(program), beside(&older_of(program), ".link"))
    }),
    ("the older program", |_, program| {
        same_file(&former_of(program), &older_of(program))
    }),
    ("a link to the present program", |_, program| {
        fs::hard_link(program, beside(&former_of(program), ".link"))
    }),
    ("the present program, as the former one", |_, program| {
        same_file(program, &former_of(program))
    }),
];

/// The steps of a rollback: the new program is the former one itself, under another name.
const BACK: [(&str, Begin); 2] = [
    ("a link to the former program", |_, program| {
        fs::hard_link(former_of(program), beside(&new_of(program), ".link"))
    }),
    ("the former program, as the new one", |_, program| {
        same_file(&former_of(program), &new_of(program))
    }),
];

#[test]
fn what_was_cut_off_before_the_record_is_undone() {
    is_undone("upgrade", STEPS);
    let rest = STEPS[3..].iter();
    let back: Vec<_> = STEPS[..1]
        .iter()
        .chain(&BACK)
        .chain(rest)
        .copied()
        .collect();
    is_undone("rollback", &back);
}

/// Cuts off an upgrade after each of its steps.
fn is_undone(name: &str, steps: &[(&str, Begin)]) {
    let dir = std::env::temp_dir().join(format!("coracle-undo-{name}-{}", std::process::id()));
    for cut in 0..=steps.len() {
        let _ = fs::remove_dir_all(&dir);
        let (state, program) = (State(dir.join("upgrade")), dir.join("bin/coracle"));
        state.make().unwrap();
        file::make_dirs(program.parent().unwrap(), 0o700).unwrap();
        fs::write(&program, "present").unwrap();
        fs::write(former_of(&program), "former").unwrap();
        for (_, step) in &steps[..cut] {
            step(&state, &program).unwrap();
        }
        let what = cut.checked_sub(1).map_or("nothing", |last| steps[last].0);
        // While another process is at it, it stays.
        let lock = state.lock().unwrap();
        let before = fs::read_dir(dir.join("bin")).unwrap().count();
        state.undo_if_cut_off().unwrap();
        let after = fs::read_dir(dir.join("bin")).unwrap().count();
        assert_eq!(before, after, "{what}");
        drop(lock);
        state.undo_if_cut_off().unwrap();
        assert_eq!(fs::read_to_string(&program).unwrap(), "present", "{what}");
        let former = fs::read_to_string(former_of(&program)).unwrap();
        assert_eq!(former, "former", "{what}");
        let beside = fs::read_dir(dir.join("bin")).unwrap().count();
        assert_eq!(beside, 2, "after {what} something is left");
        assert!(!state.begun().exists(), "{what}");
    }
    fs::remove_dir_all(dir).unwrap();
}
