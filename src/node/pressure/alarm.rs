//! The task that receives the kernel's memory alarm. It waits for nothing else.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use smol::Async;
use smol::channel::{Receiver, Sender};

use super::super::{Input, unblock};
use crate::effects::cgroup::{Alarm, Cgroups};
use crate::plan::{Event, NodeFact};

enum Wake {
    Kernel,
    Level(Option<u64>),
    End,
}

/// Notifies the loop whenever the kernel signals; `levels` carries the level of memory use at which it signals.
/// Without the alarm the regular inspections remain.
pub(in super::super) async fn listen(
    cgroups: Arc<Cgroups>,
    levels: Receiver<Option<u64>>,
    inputs: Sender<Input>,
) {
    let opened = cgroups.alarm().map_err(|error| crate::chain(&error));
    let opened = opened.and_then(|alarm| {
        let readable = readable(&alarm).map_err(|error| error.to_string())?;
        Ok((alarm, readable))
    });
    let (mut alarm, readable) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            tracing::warn!("{error}, checking memory at intervals only");
            return;
        }
    };
    let mut warned = false;
    loop {
        let kernel = async {
            match readable.readable().await {
                Ok(()) => Wake::Kernel,
                Err(_) => Wake::End,
            }
        };
        let level = async { levels.recv().await.map_or(Wake::End, Wake::Level) };
        let level = match smol::future::or(kernel, level).await {
            Wake::End => return,
            Wake::Level(level) => level,
            Wake::Kernel => {
                if alarm.fired()
                    && inputs
                        .send(Input::Event(Event::Node(NodeFact::Alarmed)))
                        .await
                        .is_err()
                {
                    return;
                }
                continue;
            }
        };
        // The kernel may reclaim memory before it answers: only this task waits for that.
        let (tree, mut held) = (cgroups.clone(), alarm);
        let task = unblock(move || {
            let set = tree.set_alarm(&mut held, level);
            (held, set)
        });
        let set;
        (alarm, set) = task.await;
        if let Err(error) = set
            && !std::mem::replace(&mut warned, true)
        {
            let error = crate::chain(&error);
            tracing::warn!("{error}, checking memory at intervals only");
        }
    }
}

/// The descriptor of the alarm, for the executor.
fn readable(alarm: &Alarm) -> std::io::Result<Async<OwnedFd>> {
    Async::new_nonblocking(alarm.as_fd().try_clone_to_owned()?)
}
