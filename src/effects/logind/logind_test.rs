//! The D-Bus client of logind, against a bus of the test.

use std::io::Read;
use std::os::unix::net::UnixStream;

use super::*;
use crate::effects::bus::fake::Bus as Fake;

#[test]
fn a_bus_is_greeted_and_asked_and_its_signals_arrive() {
    let fake = Fake::serve("bus", 30, true);
    smol::block_on(async {
        let mut logind = Logind::connect(&fake.socket()).await.unwrap();
        let waits = logind.delay_max().await.unwrap();
        assert_eq!(waits, Duration::from_secs(30));
        assert!(logind.preparing().await.unwrap());
        let lock = logind.inhibit("test", "why").await.unwrap();
        // The end of a pipe whose other end is closed.
        let mut lock = UnixStream::from(lock);
        assert_eq!(lock.read(&mut [0]).unwrap(), 0);
        // The signal came while another answer was awaited.
        assert_eq!(logind.next().await.unwrap(), Notification::Preparing(true));
    });
}

#[test]
fn logind_is_asked_each_time_and_waits_long_enough_only_with_a_second_to_spare() {
    let fake = Fake::serve("asked", 31, false);
    let ask = || smol::block_on(delay_max(&fake.socket())).unwrap();
    let total = Duration::from_secs(30);
    assert!(enough(ask(), total));
    for seconds in [30, 5] {
        fake.set_delay(seconds);
        assert_eq!(ask(), Duration::from_secs(seconds));
        assert!(!enough(ask(), total));
    }
    assert!(!enough(Duration::from_millis(30_999), total));
    assert!(enough(Duration::from_micros(u64::MAX), total));
}

#[test]
fn without_a_bus_that_is_said() {
    let error = smol::block_on(Logind::connect(Path::new("/nowhere/bus"))).unwrap_err();
    assert!(matches!(
        error,
        LogindError::Bus(BusError::Silent {
            what: "connecting",
            ..
        })
    ));
}

#[test]
fn the_override_is_what_logind_reads() {
    let folder = std::env::temp_dir().join(format!("coracle-logind-{}", std::process::id()));
    let path = folder.join("logind.conf.d/99-coracle.conf");
    write_override(&path, 30).unwrap();
    write_override(&path, 370).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.ends_with("\n[Login]\nInhibitDelayMaxSec=370\n"),
        "{text}"
    );
    fs::remove_dir_all(folder).unwrap();
}
