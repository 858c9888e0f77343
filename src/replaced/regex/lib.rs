//! `regex-lite` by the name of `regex`. libcontainer and oci-spec match three short patterns of ASCII; the engine that they
//! ask for is 0.8 MB of the release binary.

pub use regex_lite::*;
