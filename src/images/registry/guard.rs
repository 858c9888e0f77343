//! A guard below TLS and HTTP: what a peer may send until the reader of a body gets data. Lengths and extensions of
//! chunks, trailers and records of TLS are no data; without it a peer could send them, fast or slowly, without end.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ureq::Timeout;
use ureq::unversioned::transport::{
    Buffers, ConnectProxyConnector, ConnectionDetails, Connector, NextTimeout, TcpConnector,
    Transport, time,
};

use super::forward::{Forward, Forwarding};
use super::tls::TlsConnector;
use crate::sys::clock;

/// Bytes that may arrive before a read has its data: its buffer, those of the connection, and some more.
const MAX_BYTES: u64 = 1 << 20;

/// What a read may still take.
#[derive(Debug, Clone, Copy)]
struct Limit {
    until: Instant,
    bytes: u64,
}

thread_local! {
    /// Of the read that this thread is in. ureq reads in the thread of its caller.
    static LIMIT: Cell<Option<Limit>> = const { Cell::new(None) };
}

/// Reads with a limit on all that arrives meanwhile.
pub(super) fn within<T>(patience: Duration, read: impl FnOnce() -> T) -> T {
    let until = clock::now().checked_add(patience);
    LIMIT.set(until.map(|until| Limit {
        until,
        bytes: MAX_BYTES,
    }));
    let done = read();
    LIMIT.set(None);
    done
}

/// ureq's own connector, with the guard at the socket, and below it what a proxy needs.
pub(super) fn connector(forward: Option<Arc<Forward>>, tls: TlsConnector) -> impl Connector {
    Connector::<()>::chain((), ConnectProxyConnector::default())
        .chain(TcpConnector::default())
        .chain(Forwarding(forward))
        .chain(Guard)
        .chain(tls)
}

#[derive(Debug)]
struct Guard;

impl<In: Transport> Connector<In> for Guard {
    type Out = Guarded<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        Ok(chained.map(Guarded))
    }
}

#[derive(Debug)]
struct Guarded<T>(T);

impl<T: Transport> Transport for Guarded<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.0.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, mut timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let Some(limit) = LIMIT.get() else {
            return self.0.await_input(timeout);
        };
        let left = limit.until.saturating_duration_since(clock::now());
        if left.is_zero() {
            return Err(ureq::Error::Timeout(Timeout::RecvBody));
        }
        if left < *timeout.after {
            timeout.after = time::Duration::Exact(left);
            timeout.reason = Timeout::RecvBody;
        }
        let before = self.0.buffers().input().len();
        let more = self.0.await_input(timeout)?;
        let arrived = self.0.buffers().input().len().saturating_sub(before);
        let bytes = limit.bytes.checked_sub(arrived as u64).ok_or_else(|| {
            let why = "too much arrives that is no data";
            io::Error::new(io::ErrorKind::InvalidData, why)
        })?;
        LIMIT.set(Some(Limit { bytes, ..limit }));
        Ok(more)
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }

    fn is_tls(&self) -> bool {
        self.0.is_tls()
    }
}
