//! Which images the owner of the node trusts: a [`Policy`] says what is demanded of an image, a [`Demand`] whether its
//! signatures, as cosign makes them, satisfy it.
//!
//! Keys are the owner's and are read anywhere. Signatures come from registries and archives: only workers parse them.

mod demand;
mod identity;
mod key;
mod policy;
mod signature;

pub use demand::{Demand, TrustError};
pub use key::{KeyError, PrivateKey, PublicKey};
pub(crate) use policy::Origin;
pub use policy::{Policy, PolicyError};
pub(crate) use signature::MAX_LIST_BYTES;
pub use signature::{
    MAX_PAYLOAD_BYTES, MAX_SIGNATURES, Payload, Signature, SignatureError, SignatureLayer,
    signature_layers, signature_list, signature_manifest, signature_tag, signatures_of,
};

use k8s_openapi::ByteString;

/// Decodes base64; line breaks and spaces mean nothing.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let clean = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    // The decoder of Kubernetes' types.
    let bytes: Option<ByteString> = serde_json::from_value(serde_json::Value::String(clean)).ok();
    bytes.map(|bytes| bytes.0)
}

/// Encodes bytes in base64, in one line.
pub fn encode_base64(bytes: &[u8]) -> String {
    match serde_json::to_value(ByteString(bytes.to_vec())) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(_) | Err(_) => String::new(),
    }
}
