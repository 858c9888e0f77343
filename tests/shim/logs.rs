//! Logs of containers, and terminals.

use super::*;

#[test]
fn unterminated_and_long_lines_become_partial_records() {
    let mut world = World::new();
    let script = "printf tail; head -c 40000 /dev/zero >&2; echo >&2";
    let request = world.request("c", 0, &["sh", "-c", script], |_| {});
    world.run(request);
    let log = world.log("c");
    assert!(log.contains(&"stdout P tail".to_owned()));
    let lengths: Vec<_> = log
        .iter()
        .filter_map(|line| line.strip_prefix("stderr "))
        .map(|line| (line.chars().next().unwrap(), line.len() - 2))
        .collect();
    assert_eq!(lengths, [('P', 16384), ('P', 16384), ('F', 7232)]);
}

#[test]
fn a_flood_of_output_does_not_starve_another_container() {
    let mut world = World::new();
    let mut request = world.request(
        "c",
        0,
        &["yes", "a line of a rather chatty program"],
        |_| {},
    );
    request.log_max_bytes = 4 << 20;
    request.log_max_files = 2;
    world.begin(request);
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; done";
    let request = world.request("d", 0, &["sh", "-c", script], |_| {});
    assert_eq!(world.run(request).code, 0);
    assert_eq!(world.log("d").len(), 10);
    world.signal("c", StopSignal::Kill);
    assert_eq!(world.exit().code, 137);
}

#[test]
fn logs_rotate_by_size_only_and_old_ones_are_compressed() {
    let mut world = World::new();
    let mut request = world.request("c", 0, &["seq", "1", "100000"], |_| {});
    let size = 128 * 1024;
    request.log_max_bytes = size;
    request.log_max_files = 4;
    assert_eq!(world.run(request).code, 0);
    let logs = world.dir.join("c/logs");
    let names = until("all but the newest are compressed", || {
        let mut names: Vec<String> = fs::read_dir(&logs)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let plain = names.iter().filter(|name| !name.ends_with(".gz"));
        let plain: u64 = plain
            .filter_map(|name| fs::metadata(logs.join(name)).ok())
            .map(|found| found.len())
            .sum();
        // A slow compressor may leave one more file uncompressed.
        assert!(plain <= 5 * size, "{plain} bytes in {names:?}");
        // The current log sorts first, but is the newest.
        names.sort_by_key(|name| (name == "0.log", name.trim_end_matches(".gz").to_owned()));
        let gz = |name: &String| name.ends_with(".gz");
        let done = names.len() == 4 && names.iter().map(gz).eq([true, true, false, false]);
        done.then_some(names)
    });
    let mut text = String::new();
    for name in &names {
        let mut file = fs::File::open(logs.join(name)).unwrap();
        let read = match name.ends_with(".gz") {
            true => flate2::read::GzDecoder::new(file).read_to_string(&mut text),
            false => file.read_to_string(&mut text),
        };
        read.unwrap();
    }
    let numbers: Vec<u32> = text
        .lines()
        .map(|line| line.split_once(" stdout F ").unwrap().1.parse().unwrap())
        .collect();
    let first = numbers[0];
    assert!(numbers.iter().copied().eq(first..=100_000), "{names:?}");
}

#[test]
fn on_a_full_disk_output_is_lost_and_reported_and_the_container_goes_on() {
    let mut world = World::new();
    // Output is lost again and again: what is said of it may go when room is made.
    let script = "seq 1 20000; while true; do seq 1 500; echo tick; sleep 0.01; done";
    let request = world.request("c", 0, &["sh", "-c", script], |_| {});
    std::os::unix::fs::symlink(world.dir.join("small"), &request.log_dir).unwrap();
    let log = request.log_dir.join("0.log");
    world.begin(request);
    until("the loss is noticed", || {
        world.shim_log().contains("dropping output").then_some(())
    });
    // Room is made repeatedly: the rest of the first lines may use it up.
    until("the loss and later lines are logged", || {
        let lines = world.log("c").join("\n");
        let noted = lines.contains("bytes of output were lost: No space left on device");
        if noted && lines.contains("stdout F tick") {
            return Some(());
        }
        if fs::metadata(&log).unwrap().len() > 60_000 {
            let file = fs::File::options().write(true).open(&log).unwrap();
            file.set_len(0).unwrap();
        }
        None
    });
}

#[test]
fn a_container_with_a_terminal_logs_what_the_terminal_shows() {
    let mut world = World::new();
    let request = world.request("c", 0, &["sh", "-c", "tty; exit 5"], |config| {
        config["process"]["terminal"] = json!(true);
    });
    assert_eq!(world.run(request).code, 5);
    let log = world.log("c").join("\n");
    assert!(
        log.contains("/dev/pts/0") || log.contains("/dev/console"),
        "{log}"
    );
}

#[test]
fn a_terminal_belongs_to_the_containers_user() {
    let mut world = World::new();
    let script = "echo by name > /dev/stdout && echo to tty > /dev/tty";
    let request = world.request("c", 0, &["sh", "-c", script], |config| {
        config["process"]["terminal"] = json!(true);
        config["process"]["user"] = json!({ "uid": 1000, "gid": 1000 });
    });
    let exit = world.run(request);
    let log = world.log("c").join("\n");
    assert_eq!(exit.code, 0, "{log}");
    assert!(log.contains("by name") && log.contains("to tty"), "{log}");
}
