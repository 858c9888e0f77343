//! The timer of the loop: one kernel timer, on the clock that moments are counted by. It keeps running while the
//! machine sleeps, and is set again only when the next wake changes.

use std::io;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use smol::Async;
use smol::channel::Receiver;

use crate::types::Time;

/// The loop's only timer.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: Async<TimerFd>,
    rings: Option<Time>,
}

impl Alarm {
    /// A timer that is not set.
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        Ok(Self {
            timer: Async::new_nonblocking(timer)?,
            rings: None,
        })
    }

    /// The next input, or `None` if none arrives until then.
    pub(super) async fn wait<T>(&mut self, inputs: &Receiver<T>, until: Option<Time>) -> Option<T> {
        let input = async { inputs.recv().await.ok() };
        let Some(until) = until else {
            return input.await;
        };
        if self.rings != Some(until) && self.set(until).is_ok() {
            self.rings = Some(until);
        }
        let rang = async {
            // A moment that the timer cannot wait for counts as over: the loop checks by itself.
            let _ = self.timer.readable().await;
            None
        };
        smol::future::or(input, rang).await
    }

    fn set(&self, until: Time) -> io::Result<()> {
        // All zeros would switch it off.
        let at = TimeSpec::from_duration(Duration::from_millis(until.0.max(1)));
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
        let timer: &TimerFd = self.timer.as_ref();
        Ok(timer.set(Expiration::OneShot(at), flags)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;

    #[test]
    fn it_rings_each_time_not_too_soon_and_inputs_come_first() {
        let after = |ms| Some(Time(clock::boot_ms() + ms));
        let late = after(3_600_000);
        let (sender, inputs) = smol::channel::unbounded();
        let mut alarm = Alarm::new().unwrap();
        smol::block_on(async {
            for until in [after(5), after(5), Some(Time(0)), Some(Time(0))] {
                assert_eq!(alarm.wait(&inputs, until).await, None);
                assert!(clock::boot_ms() >= until.unwrap().0);
            }
            for until in [late, late, after(5), None] {
                sender.try_send(7).unwrap();
                assert_eq!(alarm.wait(&inputs, until).await, Some(7));
            }
            // A timer set to much later does not delay an earlier deadline.
            sender.try_send(7).unwrap();
            assert_eq!(alarm.wait(&inputs, late).await, Some(7));
            assert_eq!(alarm.wait(&inputs, after(5)).await, None);
        });
    }
}
