//! Log reading against real files.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::log_reader::{Liveness, LogOptions, LogReader};

/// A directory that is removed after the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("coracle-log-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    fn append(&self, name: &str, text: &str) {
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.0.join(name))
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn gzip(&self, name: &str, text: &str) {
        let file = fs::File::create(self.0.join(name)).unwrap();
        let mut gz = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        gz.write_all(text.as_bytes()).unwrap();
        gz.finish().unwrap();
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn options(dir: &Path) -> LogOptions {
    LogOptions {
        dir: dir.to_owned(),
        attempt: 0,
        follow: false,
        tail_lines: None,
        since: None,
        timestamps: false,
        limit_bytes: None,
    }
}

fn read(options: LogOptions) -> String {
    smol::block_on(async {
        let mut reader = smol::block_on(LogReader::open(options, None)).unwrap();
        let mut all = Vec::new();
        while let Some(chunk) = reader.next().await.unwrap() {
            all.extend(chunk);
        }
        String::from_utf8(all).unwrap()
    })
}

/// Returns `n` lines from `first` on, one second apart.
fn lines(first: u32, n: u32) -> String {
    (first..first + n)
        .map(|i| {
            format!(
                "2026-01-01T00:{:02}:{:02}Z stdout F line {i}\n",
                i / 60,
                i % 60
            )
        })
        .collect()
}

fn shown(first: u32, n: u32) -> String {
    (first..first + n).map(|i| format!("line {i}\n")).collect()
}

fn rotated(name: &str) -> Dir {
    let dir = Dir::new(name);
    dir.gzip("0.log.20260101-000010.gz", &lines(0, 10));
    dir.write("0.log.20260101-000020", &lines(10, 10));
    dir.write("0.log", &lines(20, 10));
    dir.write("1.log", &lines(500, 1));
    dir.write("0.log.20260101-000020.tmp", "half");
    dir
}

#[test]
fn rotated_and_compressed_files_come_in_order() {
    let dir = rotated("order");
    assert_eq!(read(options(&dir.0)), shown(0, 30));
}

#[test]
fn several_files_of_one_second_come_in_order() {
    let dir = Dir::new("second");
    dir.gzip("0.log.20260101-000010.gz", &lines(0, 10));
    dir.gzip("0.log.20260101-000010-0001.gz", &lines(10, 10));
    dir.write("0.log.20260101-000010-0002", &lines(20, 10));
    dir.write("0.log.20260101-000011", &lines(30, 10));
    dir.write("0.log", &lines(40, 10));
    assert_eq!(read(options(&dir.0)), shown(0, 50));
}

#[test]
fn damaged_files_are_skipped_and_named_and_what_can_be_read_is() {
    for (sentence, spoil) in [
        ("empty", (|gz| gz.clear()) as fn(&mut Vec<u8>)),
        ("zeroes", |gz| gz.fill(0)),
        ("cut off", |gz| gz.truncate(30)),
        ("flipped", |gz| {
            gz.iter_mut().skip(20).take(2).for_each(|b| *b ^= 0xff)
        }),
    ] {
        let dir = Dir::new("damaged");
        dir.gzip("0.log.20260101-000010.gz", &lines(0, 10));
        dir.gzip("0.log.20260101-000020.gz", &lines(10, 10));
        dir.gzip("0.log.20260101-000030.gz", &lines(20, 10));
        let path = dir.0.join("0.log.20260101-000020.gz");
        let mut gz = fs::read(&path).unwrap();
        spoil(&mut gz);
        fs::write(&path, gz).unwrap();
        dir.write("0.log", &lines(30, 10));
        for tail_lines in [None, Some(15), Some(99)] {
            let options = LogOptions {
                tail_lines,
                ..options(&dir.0)
            };
            let reader = smol::block_on(LogReader::open(options.clone(), None)).unwrap();
            let named = reader.damaged().contains(&path);
            let obvious = ["empty", "zeroes"].contains(&sentence);
            let expected = tail_lines.map_or(obvious, |lines| lines > 20);
            assert_eq!(named, expected, "{sentence} {tail_lines:?}");
            let all = read(options);
            let (first, last) = match tail_lines {
                Some(15) => (String::new(), shown(25, 15)),
                _ => (shown(0, 10), shown(20, 20)),
            };
            assert!(
                all.starts_with(&first) && all.ends_with(&last),
                "{sentence}: {all}"
            );
        }
    }
}

#[test]
fn lines_before_the_damage_are_read_and_a_torn_line_ends() {
    let dir = Dir::new("torn");
    let mut state = 7_u32;
    let mut noise = || {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        state >> 8
    };
    let part = |i: u32, word: u32| format!("2026-01-01T00:00:00.{i:06}Z stdout P {word:08x} ");
    let text: String = (0..4000).map(|i| part(i, noise()) + "\n").collect();
    dir.gzip("0.log.20260101-000010.gz", &text);
    dir.write("0.log", &lines(1, 2));
    let whole = read(options(&dir.0));
    let path = dir.0.join("0.log.20260101-000010.gz");
    let gz = fs::read(&path).unwrap();
    fs::write(&path, &gz[..gz.len() / 2]).unwrap();
    let half = read(options(&dir.0));
    assert!(
        half.ends_with(" \nline 1\nline 2\n"),
        "{}",
        &half[half.len() - 99..]
    );
    let (most, least) = (whole.len() * 6 / 10, whole.len() * 4 / 10);
    assert!(
        (least..most).contains(&half.len()),
        "{} of {}",
        half.len(),
        whole.len()
    );
}

#[test]
fn of_a_plain_file_and_its_compressed_one_the_longer_one_counts() {
    let dir = rotated("twins");
    dir.write("0.log.20260101-000020.gz", "");
    assert_eq!(read(options(&dir.0)), shown(0, 30));
    dir.gzip("0.log.20260101-000020.gz", &lines(10, 10));
    assert_eq!(read(options(&dir.0)), shown(0, 30));
    // The plain one after a power cut.
    dir.write("0.log.20260101-000020", &lines(10, 3));
    assert_eq!(read(options(&dir.0)), shown(0, 30));
}

#[test]
fn a_tail_begins_in_the_right_file() {
    let dir = rotated("tail");
    for n in [0, 1, 9, 10, 11, 20, 25, 29, 30, 99] {
        let tail = LogOptions {
            tail_lines: Some(u64::from(n)),
            ..options(&dir.0)
        };
        let n = n.min(30);
        assert_eq!(read(tail), shown(30 - n, n), "tail {n}");
    }
}

#[test]
fn a_tail_crosses_block_borders() {
    let dir = Dir::new("blocks");
    dir.write("0.log", &lines(0, 3000));
    for n in [1, 800, 2999, 3000] {
        let tail = LogOptions {
            tail_lines: Some(u64::from(n)),
            ..options(&dir.0)
        };
        assert_eq!(read(tail), shown(3000 - n, n));
    }
}

#[test]
fn partial_records_are_joined_by_stream() {
    let dir = Dir::new("parts");
    dir.write(
        "0.log",
        "2026-01-01T00:00:00Z stdout P a\n2026-01-01T00:00:00Z stderr F e\n\
         2026-01-01T00:00:01Z stdout F b\ntorn\n2026-01-01T00:00:02Z stdout P end",
    );
    dir.append("0.log", "\n");
    assert_eq!(read(options(&dir.0)), "e\nab\nend");
    let timed = LogOptions {
        timestamps: true,
        tail_lines: Some(2),
        ..options(&dir.0)
    };
    assert_eq!(
        read(timed),
        "2026-01-01T00:00:01Z b\n2026-01-01T00:00:02Z end"
    );
}

#[test]
fn since_and_limit_cut_at_both_ends() {
    let dir = rotated("since");
    let late = LogOptions {
        since: Some("2026-01-01T00:00:18Z".parse().unwrap()),
        limit_bytes: Some(12),
        ..options(&dir.0)
    };
    assert_eq!(read(late), "line 18\nline");
}

/// Follows the log of a container that lives until `happens` returns that it has ended. `happens` is called after each
/// chunk with the number of lines so far.
fn followed(dir: &Dir, mut happens: impl FnMut(usize) -> bool) -> String {
    let ended = Arc::new(AtomicBool::new(false));
    let (changed, receiver) = smol::channel::bounded(1);
    let flag = ended.clone();
    let liveness = Liveness {
        alive: Box::new(move || !flag.load(Ordering::SeqCst)),
        changed: receiver,
    };
    let follow = LogOptions {
        follow: true,
        ..options(&dir.0)
    };
    smol::block_on(async {
        let mut reader = smol::block_on(LogReader::open(follow, Some(liveness))).unwrap();
        let mut all = String::new();
        while let Some(chunk) = reader.next().await.unwrap() {
            all.push_str(std::str::from_utf8(&chunk).unwrap());
            if happens(all.lines().count()) {
                ended.store(true, Ordering::SeqCst);
                changed.try_send(()).unwrap();
            }
        }
        all
    })
}

#[test]
fn following_crosses_rotation_and_restart_and_ends_with_the_container() {
    let dir = Dir::new("follow");
    dir.write("0.log", &lines(0, 2));
    let mut steps = 0;
    let all = followed(&dir, |so_far| {
        match (steps, so_far) {
            (0, 2) => dir.append("0.log", &lines(2, 1)),
            (1, 3) => {
                // Rotated and compressed, twice, before the reader looks.
                dir.append("0.log", &lines(3, 1));
                fs::rename(dir.0.join("0.log"), dir.0.join("0.log.20260101-000100")).unwrap();
                dir.write("0.log", &lines(4, 1));
                fs::rename(dir.0.join("0.log"), dir.0.join("0.log.20260101-000101")).unwrap();
                fs::remove_file(dir.0.join("0.log.20260101-000100")).unwrap();
                dir.gzip("0.log.20260101-000100.gz", &lines(0, 4));
                dir.write("0.log", &lines(5, 1));
            }
            (2, 6) => dir.write("1.log", &lines(6, 1)),
            (3, 7) => {}
            _ => return false,
        }
        steps += 1;
        steps == 4
    });
    assert_eq!(all, shown(0, 7));
}

#[test]
fn following_misses_nothing_when_the_clock_is_set_back() {
    let dir = Dir::new("clock");
    let line =
        |year: u32, text: &str| format!("{year}-01-01T00:00:00.000000001Z stdout F {text}\n");
    dir.write("0.log", &(line(2035, "one") + &line(2036, "two")));
    let all = followed(&dir, |so_far| {
        match so_far {
            2 => {
                // Rotated and compressed before the reader looks; the later lines have earlier times.
                fs::remove_file(dir.0.join("0.log")).unwrap();
                let old = line(2035, "one") + &line(2036, "two") + &line(2026, "three");
                dir.gzip("0.log.20360101-000001.gz", &old);
                dir.write("0.log", &line(2026, "four"));
            }
            4 => dir.append("0.log", &line(2025, "five")),
            _ => {}
        }
        so_far == 5
    });
    assert_eq!(all, "one\ntwo\nthree\nfour\nfive\n");
}

#[test]
fn a_tail_of_endless_lines_is_bounded_in_bytes() {
    let dir = Dir::new("tail-bytes");
    let piece = format!("2026-01-01T00:00:00Z stdout P {}\n", "x".repeat(16_000));
    let size = usize::try_from(super::log_files::MAX_TAIL).unwrap();
    let pieces = piece.repeat(size / piece.len() + 1);
    let end = "2026-01-01T00:00:01Z stdout F end\n";
    for compressed in [false, true] {
        // Older files are not read at all.
        dir.write(
            "0.log.20260101-000000",
            "2026-01-01T00:00:00Z stdout F first\n",
        );
        match compressed {
            true => {
                dir.gzip("0.log.20260102-000000.gz", &pieces);
                dir.write("0.log", end);
            }
            false => dir.write("0.log", &format!("{pieces}{pieces}{end}")),
        }
        let tail = LogOptions {
            tail_lines: Some(5),
            ..options(&dir.0)
        };
        let mut reader = smol::block_on(LogReader::open(tail, None)).unwrap();
        let (mut all, mut last) = (0, Vec::new());
        while let Some(chunk) = smol::block_on(reader.next()).unwrap() {
            assert!(chunk.len() <= 512 << 10, "{}", chunk.len());
            all += chunk.len();
            last = chunk;
        }
        assert!(all <= size && all > size / 2, "{all}");
        assert!(last.ends_with(b"end\n"));
    }
}

#[test]
fn skipping_records_yields_to_other_tasks() {
    let dir = Dir::new("turns");
    let old = "2026-01-01T00:00:00Z stdout F old\n".repeat(100_000);
    dir.write(
        "0.log",
        &format!("{old}2026-01-03T00:00:00Z stdout F new\n"),
    );
    let since = LogOptions {
        since: Some("2026-01-02T00:00:00Z".parse().unwrap()),
        ..options(&dir.0)
    };
    smol::block_on(async {
        let mut reader = LogReader::open(since, None).await.unwrap();
        let turns = std::cell::Cell::new(0);
        let others = async {
            loop {
                turns.set(turns.get() + 1);
                smol::future::yield_now().await;
            }
        };
        let chunk = smol::future::or(reader.next(), others).await.unwrap();
        assert_eq!(chunk.as_deref(), Some(&b"new\n"[..]));
        assert!(turns.get() >= 10, "{}", turns.get());
    });
}
