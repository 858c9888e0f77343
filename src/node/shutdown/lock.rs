//! The delay lock of logind, which holds the machine up until the pods have stopped. A task beside the loop takes
//! the lock, raises logind's delay if the groups need more, and notifies the loop when the machine goes down. It
//! takes the lock again after logind or the bus was restarted. Without a bus it sleeps.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use serde_json::{Value, json};
use smol::channel::{Receiver, Sender, bounded};

use super::super::Input;
use crate::config::Current;
use crate::effects::logind::{
    self, Logind, LogindError, MARGIN, Notification, bus, enough, settings,
};
use crate::sys::notify::Kept;

/// First and longest wait between tries to reach logind.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How often logind is asked for its new delay; the wait doubles in between.
const LOOKS: u32 = 5;
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// The channels between the node and the task.
#[derive(Debug, Clone)]
pub(in crate::node) struct Lock {
    orders: Sender<Order>,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    /// The settings may have changed.
    LookAgain,
    /// The machine may go down.
    Release,
}

/// What is known of logind.
#[derive(Debug, Clone, PartialEq)]
enum Known {
    /// Shutdown is not graceful, so logind is not asked.
    Off,
    /// logind cannot be reached.
    Unreachable(String),
    /// The time that it waits.
    Waits(Duration),
}

/// The inputs of the task.
#[derive(Debug)]
pub(in crate::node) struct Work {
    settings: Current,
    inputs: Sender<Input>,
    orders: Receiver<Order>,
    known: Known,
    kept: Option<Kept>,
}

impl Lock {
    /// Nothing is done before [`keep`] runs.
    pub(in crate::node) fn new(
        settings: Current,
        inputs: Sender<Input>,
        kept: Option<Kept>,
    ) -> (Self, Work) {
        let (sender, orders) = bounded(8);
        let work = Work {
            settings,
            inputs,
            orders,
            known: Known::Off,
            kept,
        };
        let orders = sender;
        (Self { orders }, work)
    }

    /// The settings may have changed.
    pub(in crate::node) fn look_again(&self) {
        let _ = self.orders.try_send(Order::LookAgain);
    }

    /// The machine may go down.
    pub(in crate::node) fn release(&self) {
        let _ = self.orders.try_send(Order::Release);
    }
}

/// For people: how long logind waits, for pods that need `total` seconds. logind is asked each time: its earlier
/// answer may be outdated once its settings were read again.
pub(in crate::node) async fn ask(total: u64) -> Value {
    if total == 0 {
        return json!({ "state": "off" });
    }
    match logind::delay_max(&bus()).await {
        Err(error) => json!({ "state": "unreachable", "message": crate::chain(&error) }),
        Ok(waits) => {
            let enough = enough(waits, Duration::from_secs(total));
            let hint = match enough {
                true => None,
                false => {
                    let seconds = total + MARGIN.as_secs();
                    Some(super::super::unblock(move || settings::hint(seconds)).await)
                }
            };
            json!({ "state": "waits", "inhibitDelayMaxSeconds": waits.as_secs(), "enough": enough, "hint": hint })
        }
    }
}

/// Holds the lock as long as the agent lives.
pub(in crate::node) async fn keep(mut work: Work) {
    // The lock from before an agent restart: during a shutdown logind grants no other.
    let mut lock = work.kept.as_mut().and_then(|kept| kept.take(NAME));
    let mut wait = WAIT.0;
    loop {
        let needed = needed(&work.settings);
        if needed == 0 {
            drop_lock(&mut work, &mut lock);
            work.know(Known::Off);
            if work.orders.recv().await.is_err() {
                return;
            }
            continue;
        }
        match session(&mut work, &mut lock, needed).await {
            Ok(()) => wait = WAIT.0,
            Err(error) => {
                let why = crate::chain(&error);
                if work.know(Known::Unreachable(why.clone())) {
                    tracing::info!("no logind ({why}): machine shutdown will not be delayed");
                }
            }
        }
        let timer = async {
            smol::Timer::after(wait).await;
            None
        };
        match smol::future::or(timer, async { Some(work.orders.recv().await) }).await {
            Some(Ok(Order::Release)) => drop_lock(&mut work, &mut lock),
            Some(Ok(Order::LookAgain)) | None => {}
            Some(Err(_)) => return,
        }
        wait = (wait * 2).min(WAIT.1);
    }
}

/// The name under which the service manager keeps the lock while no agent runs.
const NAME: &str = "shutdown-lock";

/// Until logind, the bus or the settings change.
async fn session(
    work: &mut Work,
    lock: &mut Option<OwnedFd>,
    needed: u64,
) -> Result<(), LogindError> {
    let mut logind = Logind::connect(&bus()).await?;
    let waits = raise(&mut logind, needed).await?;
    if work.know(Known::Waits(waits)) && !enough(waits, Duration::from_secs(needed)) {
        let hint = super::super::unblock(move || settings::hint(needed + MARGIN.as_secs())).await;
        tracing::warn!(
            "node shutdown: logind waits {} s, but pods have {needed} s to stop, going on; {hint}",
            waits.as_secs()
        );
    }
    let preparing = logind.preparing().await?;
    if !preparing {
        take(work, lock, &mut logind).await?;
    }
    let _ = work.inputs.send(Input::Logind(preparing)).await;
    loop {
        let message = async { Wake::Logind(logind.next().await) };
        let order = async { Wake::Order(work.orders.recv().await.ok()) };
        match smol::future::or(message, order).await {
            Wake::Logind(Ok(Notification::Preparing(begins))) => {
                if !begins {
                    take(work, lock, &mut logind).await?;
                }
                let _ = work.inputs.send(Input::Logind(begins)).await;
            }
            Wake::Logind(Ok(Notification::Changed)) => return Ok(()),
            Wake::Logind(Err(error)) => return Err(error),
            Wake::Order(Some(Order::Release)) => drop_lock(work, lock),
            Wake::Order(Some(Order::LookAgain)) => {
                if self::needed(&work.settings) != needed {
                    return Ok(());
                }
            }
            Wake::Order(None) => return Ok(()),
        }
    }
}

/// What the task waits for.
enum Wake {
    Logind(Result<Notification, LogindError>),
    Order(Option<Order>),
}

/// The time of all groups in seconds, including groups without pods.
fn needed(settings: &Current) -> u64 {
    let settings = settings.now();
    settings.shutdown.iter().map(|group| group.seconds).sum()
}

/// Raises logind's delay if it permits that; returns the delay.
async fn raise(logind: &mut Logind, needed: u64) -> Result<Duration, LogindError> {
    let total = Duration::from_secs(needed);
    let mut waits = logind.delay_max().await?;
    if enough(waits, total) {
        return Ok(waits);
    }
    if let Err(error) = logind.raise_delay(needed + MARGIN.as_secs()).await {
        tracing::warn!("{}, going on", crate::chain(&error));
        return Ok(waits);
    }
    let mut pause = FIRST_LOOK;
    for _ in 0..LOOKS {
        smol::Timer::after(pause).await;
        waits = logind.delay_max().await?;
        if enough(waits, total) {
            break;
        }
        pause *= 2;
    }
    Ok(waits)
}

/// Takes a new lock, and only then releases the one before.
async fn take(
    work: &mut Work,
    lock: &mut Option<OwnedFd>,
    logind: &mut Logind,
) -> Result<(), LogindError> {
    let new = logind.inhibit("coracle", "pods need time to stop").await?;
    if let Some(kept) = &work.kept {
        let kept = kept
            .forget(NAME)
            .and_then(|()| kept.keep(NAME, new.as_fd()));
        if let Err(error) = kept {
            tracing::debug!("the service manager does not keep the lock: {error}, ignoring");
        }
    }
    *lock = Some(new);
    Ok(())
}

fn drop_lock(work: &mut Work, lock: &mut Option<OwnedFd>) {
    if lock.take().is_some()
        && let Some(kept) = &work.kept
        && let Err(error) = kept.forget(NAME)
    {
        tracing::warn!("the service manager still keeps the lock: {error}, ignoring");
    }
}

impl Work {
    /// Stores what is known; returns whether that changed.
    fn know(&mut self, news: Known) -> bool {
        let changed = self.known != news;
        self.known = news;
        changed
    }
}
