//! Who hears the kernel say that memory gets short? One task, which waits for nothing else.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use smol::Async;
use smol::channel::{Receiver, Sender};

use super::super::{Input, unblock};
use crate::effects::cgroup::{Alarm, Cgroups};
use crate::plan::Event;

enum Heard {
    Kernel,
    Level(Option<u64>),
    End,
}

/// Tells the loop whenever the kernel calls; `levels` says of which use of memory it is to be called. Without this there
/// are still the looks from time to time.
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
            tracing::warn!("{error}, looking at memory from time to time only");
            return;
        }
    };
    let mut told = false;
    loop {
        let kernel = async {
            match readable.readable().await {
                Ok(()) => Heard::Kernel,
                Err(_) => Heard::End,
            }
        };
        let level = async { levels.recv().await.map_or(Heard::End, Heard::Level) };
        let level = match smol::future::or(kernel, level).await {
            Heard::End => return,
            Heard::Level(level) => level,
            Heard::Kernel => {
                if alarm.heard() && inputs.send(Input::Event(Event::Alarmed)).await.is_err() {
                    return;
                }
                continue;
            }
        };
        // The kernel may look for memory to take back before it answers: nobody else waits for that.
        let (tree, mut held) = (cgroups.clone(), alarm);
        let task = unblock(move || {
            let set = tree.set_alarm(&mut held, level);
            (held, set)
        });
        let set;
        (alarm, set) = task.await;
        if let Err(error) = set
            && !std::mem::replace(&mut told, true)
        {
            let error = crate::chain(&error);
            tracing::warn!("{error}, looking at memory from time to time only");
        }
    }
}

/// The descriptor that says so, for the executor.
fn readable(alarm: &Alarm) -> std::io::Result<Async<OwnedFd>> {
    Async::new_nonblocking(alarm.as_fd().try_clone_to_owned()?)
}
