//! The signals that reach the agent's loop.

use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use smol::Async;
use smol::channel::{Receiver, Sender, bounded};
use smol::io::AsyncReadExt;

use super::{StartError, system};
use crate::node::Input;

/// Sends signals to the loop. Returns the channel for hangups.
pub(super) fn watch(sender: &Sender<Input>) -> Result<Receiver<()>, StartError> {
    let (hangups, hangup) = bounded(1);
    on(&[SIGTERM, SIGINT], {
        let inputs = sender.clone();
        async move || inputs.send(Input::Terminate).await.is_ok()
    })?;
    // One that waits to be taken stands for those that come meanwhile.
    on(&[SIGHUP], async move || {
        let _ = hangups.try_send(());
        !hangups.is_closed()
    })?;
    on(&[libc::SIGPWR], {
        let inputs = sender.clone();
        async move || inputs.send(Input::PowerFails).await.is_ok()
    })?;
    Ok(hangup)
}

/// Calls `then` once for each of these signals, until it says `false`.
fn on(signals: &[i32], mut then: impl AsyncFnMut() -> bool + 'static) -> Result<(), StartError> {
    let failed = || system("watch for signals");
    let (receiver, sender) = UnixStream::pair().map_err(failed())?;
    for signal in signals {
        let sender = sender.try_clone().map_err(failed())?;
        signal_hook::low_level::pipe::register(*signal, sender).map_err(failed())?;
    }
    let mut receiver = Async::new(receiver).map_err(failed())?;
    crate::node::spawn(async move {
        // Kept open as long as signals are waited for.
        let _sender = sender;
        let mut byte = [0];
        while receiver.read_exact(&mut byte).await.is_ok() && then().await {}
    });
    Ok(())
}
