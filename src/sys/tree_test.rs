use std::fs;
use std::os::unix::fs::symlink;

use super::*;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("coracle-tree-{name}-{}", std::process::id()));
        remove(&dir).unwrap();
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn tree(&self) -> PathBuf {
        self.0.join("tree")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = remove(&self.0);
    }
}

/// `mkdir d; cd d`, with `beside` done in each folder.
fn make_deep(top: &Path, depth: usize, beside: impl Fn(BorrowedFd<'_>, usize)) {
    fs::create_dir_all(top).unwrap();
    let mut at = open_root(AT_FDCWD, top).unwrap();
    for level in 0..depth {
        beside(at.as_fd(), level);
        nix::sys::stat::mkdirat(&at, "d", Mode::from_bits_truncate(0o755)).unwrap();
        at = open_folder(at.as_fd(), OsStr::new("d")).unwrap();
    }
}

fn make_file(folder: BorrowedFd<'_>, name: &OsStr) {
    let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    nix::fcntl::openat(folder, name, flags, Mode::from_bits_truncate(0o644)).unwrap();
}

fn on_small_stack(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    thread.spawn(work).unwrap().join().unwrap();
}

fn open_files() -> usize {
    fs::read_dir("/proc/thread-self/fd").unwrap().count()
}

#[test]
fn a_very_deep_tree_goes_on_a_small_stack() {
    let scratch = Scratch::new("deep");
    let tree = scratch.tree();
    make_deep(&tree, 8_000, |_, _| {});
    let gone = tree.clone();
    on_small_stack(move || remove(&gone).unwrap());
    assert!(fs::symlink_metadata(&tree).is_err());
}

#[test]
fn long_names_files_and_names_like_our_own_at_every_depth_go() {
    let scratch = Scratch::new("mixed");
    let tree = scratch.tree();
    let odd = OsString::from(OsStr::from_bytes(&[b'\xff'; 255]));
    make_deep(&tree, 300, |folder, level| {
        make_file(folder, &odd);
        nix::unistd::symlinkat("/", folder, "link").unwrap();
        nix::unistd::mkfifo(
            &PathBuf::from(format!("/proc/self/fd/{}/fifo", folder.as_raw_fd())),
            Mode::from_bits_truncate(0o600),
        )
        .unwrap();
        let deep = format!("{}/e/f/g", folder.as_raw_fd());
        fs::create_dir_all(Path::new("/proc/self/fd").join(deep)).unwrap();
        let ours = fresh_name(level as u64);
        if level % 2 == 0 {
            make_file(folder, &ours);
        }
    });
    for number in 0..20 {
        let ours = tree.join(fresh_name(number));
        let _ = fs::remove_file(&ours);
        fs::create_dir_all(ours.join("full")).unwrap();
    }
    remove(&tree).unwrap();
    assert!(fs::symlink_metadata(&tree).is_err());
}

#[test]
fn a_wide_tree_goes_with_few_open_files() {
    let scratch = Scratch::new("wide");
    let tree = scratch.tree();
    make_deep(&tree, MAX_OPEN + 2, |folder, level| {
        let count = if level == MAX_OPEN + 1 { 3000 } else { 20 };
        for number in 0..count {
            let name = format!("{}/w{number}/x", folder.as_raw_fd());
            fs::create_dir_all(Path::new("/proc/self/fd").join(name)).unwrap();
        }
    });
    let before = open_files();
    remove(&tree).unwrap();
    assert!(fs::symlink_metadata(&tree).is_err());
    assert!(open_files() <= before + 64);
}

#[test]
fn symlinks_go_and_what_they_lead_to_stays() {
    let scratch = Scratch::new("links");
    let (tree, kept) = (scratch.tree(), scratch.0.join("kept"));
    fs::create_dir_all(&kept).unwrap();
    fs::write(kept.join("file"), "x").unwrap();
    fs::create_dir_all(tree.join("a")).unwrap();
    symlink(&kept, tree.join("a/folder")).unwrap();
    symlink("../../kept", tree.join("dots")).unwrap();
    remove(&tree).unwrap();
    assert!(fs::symlink_metadata(&tree).is_err());
    symlink(&kept, &tree).unwrap();
    remove(&tree).unwrap();
    assert!(fs::symlink_metadata(&tree).is_err());
    assert_eq!(fs::read_to_string(kept.join("file")).unwrap(), "x");
}

#[test]
fn an_absent_tree_is_fine_and_a_file_goes() {
    let scratch = Scratch::new("absent");
    remove(&scratch.tree()).unwrap();
    fs::write(scratch.tree(), "x").unwrap();
    remove(&scratch.tree()).unwrap();
    remove(&scratch.tree()).unwrap();
    // No file has a name as long as this, so it is absent.
    remove(&scratch.tree().with_file_name("x".repeat(256))).unwrap();
}

#[test]
fn two_may_remove_one_tree() {
    let scratch = Scratch::new("two");
    let tree = scratch.tree();
    make_deep(&tree, 2000, |folder, _| make_file(folder, OsStr::new("f")));
    let other = tree.clone();
    let thread = std::thread::spawn(move || remove(&other));
    let here = remove(&tree);
    let there = thread.join().unwrap();
    assert!(here.is_ok() || there.is_ok(), "{here:?} {there:?}");
    assert!(fs::symlink_metadata(&tree).is_err());
}

#[test]
fn a_mount_point_stays_is_named_and_the_rest_goes() {
    use nix::mount::{MsFlags, mount, umount};
    assert!(nix::unistd::geteuid().is_root(), "run this test as root");
    let scratch = Scratch::new("mount");
    let tree = scratch.tree();
    let mounted = tree.join("a/mounted");
    fs::create_dir_all(&mounted).unwrap();
    fs::create_dir_all(tree.join("b/c")).unwrap();
    let tmpfs = Some("tmpfs");
    mount(tmpfs, &mounted, tmpfs, MsFlags::empty(), None::<&str>).unwrap();
    fs::write(mounted.join("file"), "x").unwrap();
    let result = remove(&tree);
    let kept = fs::read_to_string(mounted.join("file"));
    umount(&mounted).unwrap();
    let error = result.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{error}");
    assert!(error.to_string().contains("tree/a/mounted"), "{error}");
    assert_eq!(kept.unwrap(), "x");
    assert!(!tree.join("b").exists());
}
