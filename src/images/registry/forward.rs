//! Plain HTTP by way of a proxy, in the form that proxies expect of it: `GET http://host/path` (RFC 9112, section
//! 3.2.2). ureq asks proxies for tunnels only, which many refuse to ports that are not those of TLS.

use std::fmt;
use std::io;
use std::sync::Arc;

use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};
use ureq::{Error, Proxy};

use super::request::Credentials;
use super::url::Origin;

/// The parts that a proxy needs in each request for an origin.
#[derive(Clone)]
pub(super) struct Forward {
    /// Goes before the path.
    origin: String,
    /// A header in a line, or nothing.
    authorization: String,
}

impl fmt::Debug for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Forward(…)")
    }
}

impl Forward {
    pub(super) fn new(origin: &Origin, proxy: &Proxy) -> Self {
        let credentials = proxy.username().map(|username| Credentials {
            username: username.to_owned(),
            password: proxy.password().unwrap_or_default().to_owned(),
        });
        let header = |it: Credentials| format!("Proxy-Authorization: {}\r\n", it.basic());
        Self {
            origin: origin.to_string(),
            authorization: credentials.map(header).unwrap_or_default(),
        }
    }

    /// Rewrites the beginning of a request; returns its new length, or nothing if it does not fit.
    fn rewrite(&self, output: &mut [u8], amount: usize) -> Option<usize> {
        let request = output.get(..amount)?;
        // ureq writes the first line of a request at the beginning of a buffer. No header begins like that.
        if !request.starts_with(b"GET /") && !request.starts_with(b"HEAD /") {
            return Some(amount);
        }
        let path = request.iter().position(|byte| *byte == b'/')?;
        let line = request.windows(2).position(|pair| pair == b"\r\n")? + 2;
        let parts = [
            &request[..path],
            self.origin.as_bytes(),
            &request[path..line],
            self.authorization.as_bytes(),
            &request[line..],
        ];
        let whole = parts.concat();
        output.get_mut(..whole.len())?.copy_from_slice(&whole);
        Some(whole.len())
    }
}

/// Rewrites what goes over a connection to a proxy; without one it changes nothing.
#[derive(Debug)]
pub(super) struct Forwarding(pub(super) Option<Arc<Forward>>);

impl<In: Transport> Connector<In> for Forwarding {
    type Out = Forwarded<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, Error> {
        Ok(chained.map(|below| Forwarded {
            below,
            forward: self.0.clone(),
        }))
    }
}

#[derive(Debug)]
pub(super) struct Forwarded<T> {
    below: T,
    forward: Option<Arc<Forward>>,
}

impl<T: Transport> Transport for Forwarded<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.below.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let amount = match &self.forward {
            Some(forward) => forward
                .rewrite(self.below.buffers().output(), amount)
                .ok_or_else(|| io::Error::other("the request is too long"))?,
            None => amount,
        };
        self.below.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.below.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.below.is_open()
    }

    fn is_tls(&self) -> bool {
        self.below.is_tls()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_request_is_rewritten_for_a_proxy() {
        let origin = Origin::of(false, "r.example:5000").unwrap();
        let open = Proxy::new("http://p:3128").unwrap();
        let closed = Proxy::new("http://me:a%40b@p:3128").unwrap();
        let login = "Proxy-Authorization: Basic bWU6YUBi\r\n";
        let head = "Host: r.example:5000\r\n\r\n";
        for (proxy, written, expected) in [
            (
                &open,
                format!("GET /v2/ HTTP/1.1\r\n{head}"),
                format!("GET http://r.example:5000/v2/ HTTP/1.1\r\n{head}"),
            ),
            (
                &closed,
                format!("HEAD /v2/ HTTP/1.1\r\n{head}"),
                format!("HEAD http://r.example:5000/v2/ HTTP/1.1\r\n{login}{head}"),
            ),
            (&closed, head.to_owned(), head.to_owned()),
        ] {
            let forward = Forward::new(&origin, proxy);
            let mut output = [0; 200];
            output[..written.len()].copy_from_slice(written.as_bytes());
            let amount = forward.rewrite(&mut output, written.len()).unwrap();
            assert_eq!(output[..amount], *expected.as_bytes(), "{written}");
        }
        let mut short = *b"GET / HTTP/1.1\r\n\r\n";
        let amount = short.len();
        assert_eq!(
            Forward::new(&origin, &open).rewrite(&mut short, amount),
            None
        );
    }
}
