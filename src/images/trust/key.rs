//! Keys in PEM, as `openssl` and `cosign` write them: ECDSA on P-256 with SHA-256, and ed25519.
//!
//! A key of these kinds has one possible encoding in DER, so that it is known by its first bytes and its length.

use std::fmt;
use std::path::{Path, PathBuf};

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair, UnparsedPublicKey, VerificationAlgorithm,
};

use serde::{Deserialize, Serialize};

use super::super::digest;
use super::{decode_base64, encode_base64};
use crate::sys::file::read_bounded;

/// The longest file with a key.
const MAX_BYTES: u64 = 64 << 10;

/// What a SubjectPublicKeyInfo has before the point of a P-256 key (RFC 5480), which takes 65 bytes.
const P256_INFO: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The same before an ed25519 key (RFC 8410) of 32 bytes.
const ED25519_INFO: &[u8] = &[
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// What an ECPrivateKey (RFC 5915) has before its number of 32 bytes.
const EC_PRIVATE: &[u8] = &[0x30, 0x77, 0x02, 0x01, 0x01, 0x04, 0x20];

/// And between the number and the point of its public key: the curve is P-256.
const EC_PUBLIC: &[u8] = &[
    0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0xa1, 0x44, 0x03, 0x42,
    0x00,
];

/// The identifier of RSA keys, `rsaEncryption`.
const RSA: &[u8] = &[
    0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01,
];

/// A key that cannot be used. No message has any of its bytes.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It could not be read.
    #[error("could not read the key `{}`", path.display())]
    Read {
        /// Its file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It is not understood.
    #[error("the key `{}` cannot be used: {source}", path.display())]
    File {
        /// Its file.
        path: PathBuf,
        /// Why not.
        source: Box<KeyError>,
    },
    /// There is no PEM block.
    #[error("it is not in PEM (`-----BEGIN …`)")]
    NotPem,
    /// A block of another kind.
    #[error("it is a `{label}`, not a {wanted} key")]
    Kind {
        /// What the block says.
        label: String,
        /// `public` or `private`.
        wanted: &'static str,
        /// What to do about it.
        hint: &'static str,
    },
    /// An algorithm that is not supported.
    #[error("it is {0}; supported are ECDSA on P-256 and ed25519")]
    Algorithm(&'static str),
    /// Broken base64 or DER.
    #[error("its data is damaged")]
    Damaged,
}

impl KeyError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::File { source, .. } => source.hint(),
            Self::Kind { hint, .. } => Some(hint),
            Self::Algorithm(_) => Some(
                "make one by `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem` and \
                 `openssl pkey -in key.pem -pubout -out key.pub`",
            ),
            Self::Read { .. } | Self::NotPem | Self::Damaged => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    P256,
    Ed25519,
}

/// A key that verifies signatures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey {
    algorithm: Algorithm,
    /// As ring wants it.
    bytes: Vec<u8>,
}

impl PublicKey {
    /// Reads a key from a file in PEM.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let bytes = read(path)?;
        Self::parse(&bytes).map_err(in_file(path))
    }

    /// Reads a key in PEM: `PUBLIC KEY` (SubjectPublicKeyInfo).
    pub fn parse(pem: &[u8]) -> Result<Self, KeyError> {
        let (label, der) = block(pem)?;
        if label != "PUBLIC KEY" {
            return Err(KeyError::Kind {
                hint: match label.contains("PRIVATE KEY") {
                    true => "write its public part by `openssl pkey -in KEY -pubout`",
                    false => "a public key is written by `openssl pkey -in KEY -pubout`",
                },
                label,
                wanted: "public",
            });
        }
        Self::from_info(&der)
    }

    /// Reads a SubjectPublicKeyInfo.
    fn from_info(der: &[u8]) -> Result<Self, KeyError> {
        let after = |info: &[u8], length: usize| {
            let rest = der.strip_prefix(info);
            rest.filter(|rest| rest.len() == length).map(<[u8]>::to_vec)
        };
        // A point that is not compressed starts with 4.
        let p256 = after(P256_INFO, 65).filter(|point| point.first() == Some(&4));
        if let Some(bytes) = p256 {
            return Ok(Self::new(Algorithm::P256, bytes));
        }
        match after(ED25519_INFO, 32) {
            Some(bytes) => Ok(Self::new(Algorithm::Ed25519, bytes)),
            None => Err(unknown(der)),
        }
    }

    fn new(algorithm: Algorithm, bytes: Vec<u8>) -> Self {
        Self { algorithm, bytes }
    }

    /// `sha256:<hex>` of its SubjectPublicKeyInfo, by which a key is known.
    pub fn fingerprint(&self) -> String {
        digest::of(&self.info())
    }

    fn info(&self) -> Vec<u8> {
        let info = match self.algorithm {
            Algorithm::P256 => P256_INFO,
            Algorithm::Ed25519 => ED25519_INFO,
        };
        [info, &self.bytes].concat()
    }

    /// Whether this is the key's signature of a message: in ASN.1 over SHA-256 for ECDSA, else 64 bytes.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &'static dyn VerificationAlgorithm = match self.algorithm {
            Algorithm::P256 => &ECDSA_P256_SHA256_ASN1,
            Algorithm::Ed25519 => &ED25519,
        };
        UnparsedPublicKey::new(algorithm, &self.bytes)
            .verify(message, signature)
            .is_ok()
    }
}

/// A key in one line: the base64 of its PEM.
impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        encode_base64(&key.info())
    }
}

impl TryFrom<String> for PublicKey {
    type Error = KeyError;

    fn try_from(line: String) -> Result<Self, KeyError> {
        let der = decode_base64(&line).ok_or(KeyError::Damaged)?;
        Self::from_info(&der)
    }
}

/// A key that makes signatures. It is never shown.
pub struct PrivateKey(Pair);

enum Pair {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(…)")
    }
}

impl PrivateKey {
    /// Reads a key from a file in PEM.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let bytes = read(path)?;
        Self::parse(&bytes).map_err(in_file(path))
    }

    /// Reads a key in PEM: `PRIVATE KEY` (PKCS #8), or `EC PRIVATE KEY`.
    pub fn parse(pem: &[u8]) -> Result<Self, KeyError> {
        let (label, der) = block(pem)?;
        match label.as_str() {
            "PRIVATE KEY" => pkcs8(&der),
            "EC PRIVATE KEY" => ec_private(&der),
            _ => Err(KeyError::Kind {
                hint: not_private(&label),
                label,
                wanted: "private",
            }),
        }
    }

    /// A new key.
    #[cfg(test)]
    pub(crate) fn generate() -> Self {
        let random = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
        pkcs8(der.as_ref()).unwrap()
    }

    /// Its public part.
    pub fn public(&self) -> PublicKey {
        match &self.0 {
            Pair::P256(pair) => PublicKey::new(Algorithm::P256, pair.public_key().as_ref().into()),
            Pair::Ed25519(pair) => {
                PublicKey::new(Algorithm::Ed25519, pair.public_key().as_ref().into())
            }
        }
    }

    /// Signs a message, as [`PublicKey::verifies`] wants it.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn sign(&self, message: &[u8]) -> std::io::Result<Vec<u8>> {
        match &self.0 {
            Pair::P256(pair) => match pair.sign(&SystemRandom::new(), message) {
                Ok(signature) => Ok(signature.as_ref().to_vec()),
                Err(_) => Err(std::io::Error::other("no random numbers for a signature")),
            },
            Pair::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
        }
    }
}

fn pkcs8(der: &[u8]) -> Result<PrivateKey, KeyError> {
    // `openssl` leaves the public part of an ed25519 key out.
    if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
        return Ok(PrivateKey(Pair::Ed25519(pair)));
    }
    let random = SystemRandom::new();
    match EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &random) {
        Ok(pair) => Ok(PrivateKey(Pair::P256(pair))),
        Err(_) => Err(unknown(der)),
    }
}

fn ec_private(der: &[u8]) -> Result<PrivateKey, KeyError> {
    let parts = || {
        let (number, rest) = der.strip_prefix(EC_PRIVATE)?.split_at_checked(32)?;
        Some((number, rest.strip_prefix(EC_PUBLIC)?))
    };
    let (number, point) = parts().ok_or_else(|| unknown(der))?;
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    EcdsaKeyPair::from_private_key_and_public_key(algorithm, number, point, &random)
        .map(|pair| PrivateKey(Pair::P256(pair)))
        .map_err(|_| KeyError::Damaged)
}

fn not_private(label: &str) -> &'static str {
    match label {
        "ENCRYPTED SIGSTORE PRIVATE KEY" | "ENCRYPTED COSIGN PRIVATE KEY" => {
            "cosign does not give its keys away: make one by `openssl genpkey -algorithm EC -pkeyopt \
             ec_paramgen_curve:P-256 -out key.pem`, which cosign takes by `cosign import-key-pair --key key.pem`"
        }
        "ENCRYPTED PRIVATE KEY" => {
            "remove its password by `openssl pkcs8 -in KEY -out key.pem`, and keep that file safe"
        }
        _ => {
            "make one by `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem`"
        }
    }
}

/// What is wrong with a key of none of the known forms.
fn unknown(der: &[u8]) -> KeyError {
    let has = |part: &[u8]| der.windows(part.len()).any(|window| window == part);
    if has(RSA) {
        return KeyError::Algorithm("an RSA key");
    }
    // `id-ecPublicKey`, or a curve's parameters in an EC key.
    let (ec, p256) = (&P256_INFO[4..13], &P256_INFO[13..23]);
    match (has(ec), has(p256)) {
        (true, false) => KeyError::Algorithm("a key on another curve"),
        (false, false) if !has(&ED25519_INFO[4..9]) => KeyError::Algorithm("another kind of key"),
        _ => KeyError::Damaged,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, KeyError> {
    read_bounded(path, MAX_BYTES).map_err(|source| KeyError::Read {
        path: path.to_owned(),
        source,
    })
}

fn in_file(path: &Path) -> impl FnOnce(KeyError) -> KeyError {
    let path = path.to_owned();
    move |why| KeyError::File {
        path,
        source: Box::new(why),
    }
}

/// The first block of PEM that is not the parameters of a curve: its label and data.
fn block(pem: &[u8]) -> Result<(String, Vec<u8>), KeyError> {
    let mut rest = std::str::from_utf8(pem).map_err(|_| KeyError::NotPem)?;
    loop {
        let (_, after) = rest.split_once("-----BEGIN ").ok_or(KeyError::NotPem)?;
        let (label, after) = after.split_once("-----").ok_or(KeyError::NotPem)?;
        if label.len() > 64 || label.bytes().any(|b| b.is_ascii_control()) {
            return Err(KeyError::NotPem);
        }
        let end = format!("-----END {label}-----");
        let (body, after) = after.split_once(&end).ok_or(KeyError::NotPem)?;
        if label == "EC PARAMETERS" {
            rest = after;
            continue;
        }
        // Keys with a password have headers, and cosign's are documents in base64: their label says what to do.
        let data = decode_base64(body);
        return match (label, data) {
            ("PUBLIC KEY" | "PRIVATE KEY" | "EC PRIVATE KEY", None) => {
                match body.contains("ENCRYPTED") {
                    true => Ok(("ENCRYPTED PRIVATE KEY".to_owned(), Vec::new())),
                    false => Err(KeyError::Damaged),
                }
            }
            (_, data) => Ok((label.to_owned(), data.unwrap_or_default())),
        };
    }
}

#[cfg(test)]
#[path = "key_test.rs"]
mod tests;
