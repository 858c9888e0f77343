//! What has the same width on every architecture: times that do not end in 2038, and sizes of files above 2 GB. A program
//! that would get these wrong does not compile.

const _: () = assert!(
    size_of::<libc::time_t>() == 8
        && size_of::<libc::off_t>() == 8
        && size_of::<libc::rlim_t>() == 8,
    "times and file sizes need 64 bits: build with `--cfg libc_unstable_gnu_time_bits=\"64\"` (.cargo/config.toml)"
);

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Seek, SeekFrom, Write};
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, UNIX_EPOCH};

    use nix::sys::stat::{UtimensatFlags, fstat, utimensat};
    use nix::sys::time::TimeSpec;

    /// Five seconds into the year 2100.
    const LATE: i64 = 4_102_444_805;
    /// More than an unsigned number of 32 bits can count.
    const FAR: u64 = 5 << 30;

    #[test]
    fn files_are_large_and_times_late() {
        let path = std::env::temp_dir().join(format!("coracle-widths-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        file.seek(SeekFrom::Start(FAR)).unwrap();
        file.write_all(b"x").unwrap();
        let late = TimeSpec::new(LATE, 7);
        let here = nix::fcntl::AT_FDCWD;
        utimensat(here, &path, &late, &late, UtimensatFlags::FollowSymlink).unwrap();
        let found = fstat(&file).unwrap();
        assert_eq!((found.st_mtime, found.st_size), (LATE, 5_368_709_121));
        let seen = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!(
            (seen.mtime(), seen.mtime_nsec(), seen.len()),
            (LATE, 7, FAR + 1)
        );
        let later = UNIX_EPOCH + Duration::new(4_102_444_805, 7);
        assert_eq!(seen.modified().unwrap(), later);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn clocks_and_limits_agree_with_those_of_the_standard_library() {
        let wall = u64::try_from(crate::sys::clock::wall_us()).unwrap() / 1_000_000;
        let seconds = std::time::SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap();
        assert!(seconds.as_secs() - wall <= 60, "{seconds:?} and {wall}");
        let (soft, hard) =
            nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
        assert!(soft <= hard, "{soft} and {hard}");
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap();
        assert_eq!(
            page.map(|size| u64::try_from(size).unwrap()),
            Some(procfs::page_size())
        );
    }
}
