//! Notices that the wall clock was set: the times at which CronJobs are due have moved. Until then nothing wakes.

use std::io;

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use smol::Async;
use smol::channel::Sender;

use super::Input;
use crate::plan::{Event, NodeFact};

/// A time that no clock reaches, in seconds since 1970.
const NEVER_S: i64 = 1 << 33;

/// Reports each time that the clock was set.
pub(super) async fn watch(inputs: Sender<Input>) {
    let timer = match timer() {
        Ok(timer) => timer,
        Err(error) => {
            tracing::warn!(
                "could not watch the wall clock: {error}; CronJobs notice late that it was set"
            );
            return;
        }
    };
    loop {
        if timer.readable().await.is_err() {
            return;
        }
        match read(timer.as_ref()) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(Errno::ECANCELED) => {
                let set = Event::Node(NodeFact::ClockSet);
                if inputs.send(Input::Event(set)).await.is_err() {
                    return;
                }
            }
            Ok(()) | Err(_) => return,
        }
    }
}

fn read(timer: &TimerFd) -> Result<(), Errno> {
    let mut count = [0; 8];
    nix::unistd::read(timer, &mut count).map(|_| ())
}

fn timer() -> io::Result<Async<TimerFd>> {
    let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
    let timer = TimerFd::new(ClockId::CLOCK_REALTIME, flags)?;
    let at = Expiration::OneShot(TimeSpec::new(NEVER_S, 0));
    let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
    timer.set(at, flags)?;
    Async::new_nonblocking(timer)
}
