//! TLS for connections to registries. As ureq's own, but what proves who a registry is, is decided here.

use std::io::{Read, Write};
use std::sync::Arc;

use futures_rustls::rustls::{self, ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport,
    TransportAdapter,
};

use super::error::FetchError;
use crate::sys::accept_all::AcceptAll;

/// Settings for a registry that has to prove who it is to these authorities. `client` is this node's own certificate.
pub(super) fn checked(
    authorities: Vec<CertificateDer<'static>>,
    client: Option<CertifiedKey>,
) -> Result<Arc<ClientConfig>, FetchError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities.iter().cloned());
    let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
    config(
        Arc::new(Verifier {
            // Without an authority there is nothing to check against.
            chains: builder.build().ok(),
            authorities,
        }),
        client,
    )
}

/// Settings for a registry that may have any certificate.
pub(super) fn unchecked() -> Result<Arc<ClientConfig>, FetchError> {
    config(Arc::new(AcceptAll), None)
}

fn config(
    verifier: Arc<dyn ServerCertVerifier>,
    client: Option<CertifiedKey>,
) -> Result<Arc<ClientConfig>, FetchError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|why| FetchError::Setup(format!("TLS: {why}")))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    Ok(Arc::new(match client {
        Some(client) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(client))),
        None => builder.with_no_client_auth(),
    }))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A certificate of this node with its key, which must fit. Certificates of a form that only the peer can judge, such as
/// version 1, are not compared.
pub(super) fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, rustls::Error> {
    let key = provider().key_provider.load_private_key(key)?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Err(why @ rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(why)
        }
        _ => Ok(certified),
    }
}

/// Accepts what an authority has signed, and a certificate that is itself among the authorities, as Go does: that of a
/// private registry is often self-signed and says that it is an authority.
#[derive(Debug)]
struct Verifier {
    chains: Option<Arc<WebPkiServerVerifier>>,
    authorities: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn chains(&self) -> Result<&WebPkiServerVerifier, rustls::Error> {
        let unknown = CertificateError::UnknownIssuer;
        self.chains.as_deref().ok_or_else(|| unknown.into())
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let chains = self.chains()?;
        match chains.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            // It is found after the dates have been checked.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(why)))
                if why.to_string() == "CaUsedAsEndEntity"
                    && self.authorities.iter().any(|own| own == end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains()?
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains()?
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Speaks TLS on connections that need it.
#[derive(Debug)]
pub(super) struct TlsConnector(pub(super) Option<Arc<ClientConfig>>);

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = Either<In, Encrypted>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else {
            return Ok(None);
        };
        if !details.needs_tls() || transport.is_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let config = self.0.as_ref();
        let config = config.ok_or(ureq::Error::Tls("it is not meant to be spoken here"))?;
        let host = details.uri.host().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| ureq::Error::Tls("the host's name cannot be in a certificate"))?;
        let mut conn =
            ClientConnection::new(Arc::clone(config), name).map_err(ureq::Error::Rustls)?;
        let mut sock = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        sock.set_timeout(details.timeout);
        conn.complete_io(&mut sock)?;
        Ok(Some(Either::B(Encrypted {
            buffers: LazyBuffers::new(
                details.config.input_buffer_size(),
                details.config.output_buffer_size(),
            ),
            stream: StreamOwned { conn, sock },
        })))
    }
}

/// A connection with TLS.
pub(super) struct Encrypted {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl std::fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encrypted")
    }
}

impl Transport for Encrypted {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let output = &self.buffers.output()[..amount];
        Ok(self.stream.write_all(output)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
