//! TLS for probes. As in the kubelet, connections are encrypted but certificates are not verified. A probe goes to
//! a configured address, and learns one bit about the server itself.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use futures_rustls::client::TlsStream;
use futures_rustls::pki_types::ServerName;
use futures_rustls::rustls::client::Resumption;
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::{ClientConfig, Error, InvalidMessage};
use futures_rustls::{TlsConnector, rustls};
use smol::io::{AsyncRead, AsyncWrite};

use super::dial::{Connection, go_text};
use crate::sys::accept_all::AcceptAll;

/// Encrypts a connection.
pub(super) async fn wrap(stream: Connection, host: &str) -> Result<Encrypted, String> {
    let config = config().clone().map_err(|error| error.to_string())?;
    // SNI: neither addresses nor invalid names are sent to the server.
    let unnamed = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let name = ServerName::try_from(host.to_owned())
        .unwrap_or_else(|_| ServerName::IpAddress(unnamed.into()));
    TlsConnector::from(config)
        .connect(name, stream)
        .await
        .map(Encrypted)
        .map_err(|error| text(&error))
}

/// An encrypted connection whose other side may close without notice: many servers do, and Go's client treats that
/// as the end as well.
pub(super) struct Encrypted(TlsStream<Connection>);

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match ready!(Pin::new(&mut self.0).poll_read(context, buffer)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(0)),
            other => Poll::Ready(other),
        }
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_close(context)
    }
}

fn config() -> &'static Result<Arc<ClientConfig>, Error> {
    static CONFIG: OnceLock<Result<Arc<ClientConfig>, Error>> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAll))
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    })
}

/// The error in Go's words where people know them.
pub(super) fn text(error: &io::Error) -> String {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            super::http::NO_TLS.to_owned()
        }
        Some(other) => format!("tls: {other}"),
        None => go_text(error),
    }
}
