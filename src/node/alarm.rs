//! How does the loop wait no longer than until the next wake? With one timer that lasts while that moment stays the same:
//! each new one interrupts the thread that waits for the kernel, and most turns leave the next wake where it was.

use std::time::{Duration, Instant};

use smol::Timer;
use smol::channel::Receiver;

/// As exact as the agent's clock is.
const EXACTNESS: Duration = Duration::from_millis(1);

/// The loop's only timer.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<(Instant, Timer)>);

impl Alarm {
    /// The next input, or `None` if none comes in time. The time is compared anew each time, as the node may have slept.
    pub(super) async fn wait<T>(
        &mut self,
        inputs: &Receiver<T>,
        time: Option<Duration>,
    ) -> Option<T> {
        let Some(time) = time else {
            self.0 = None;
            return inputs.recv().await.ok();
        };
        let rings = Instant::now() + time;
        let as_before =
            |(old, _): &(Instant, Timer)| rings.max(*old) - rings.min(*old) <= EXACTNESS;
        if !self.0.as_ref().is_some_and(as_before) {
            self.0 = Some((rings, Timer::at(rings)));
        }
        let timer = self.0.as_mut().map(|(_, timer)| timer)?;
        let rang = async {
            timer.await;
            None
        };
        let input = smol::future::or(async { inputs.recv().await.ok() }, rang).await;
        if input.is_none() {
            self.0 = None;
        }
        input
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rings_each_time_and_inputs_come_first() {
        const SOON: Option<Duration> = Some(Duration::from_millis(5));
        const LATE: Option<Duration> = Some(Duration::from_secs(3600));
        let (sender, inputs) = smol::channel::unbounded();
        let mut alarm = Alarm::default();
        smol::block_on(async {
            for _ in 0..2 {
                assert_eq!(alarm.wait(&inputs, SOON).await, None);
            }
            for time in [LATE, LATE, SOON, None] {
                sender.try_send(7).unwrap();
                assert_eq!(alarm.wait(&inputs, time).await, Some(7));
            }
            // One that was to ring much later does not hold up what is due before.
            sender.try_send(7).unwrap();
            assert_eq!(alarm.wait(&inputs, LATE).await, Some(7));
            assert_eq!(alarm.wait(&inputs, SOON).await, None);
        });
    }
}
