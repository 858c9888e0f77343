//! ConfigMaps (Kubernetes docs: ConfigMaps).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;

use super::{MAX_BYTES, Object, content, keys, metadata};
use crate::spec::decode::decode;
use crate::spec::error::{Path, Report};
use crate::spec::value::Value;
use crate::types::Gather;

/// Advice about a value that is no base64.
const PLAIN: &str = "encode it by `base64 -w0`, or write plain text into `data`";

/// Decodes and checks a ConfigMap.
pub(super) fn of(value: &mut Value, path: &Path<'_>, report: &Report) -> Option<Object> {
    let bytes = content::bytes(value, "binaryData", PLAIN, path, report);
    let mut map: ConfigMap = decode(value, path, report)?;
    let bytes: BTreeMap<_, _> = bytes.into_iter().gather();
    map.binary_data = (!bytes.is_empty()).then_some(bytes);
    metadata(&mut map, path, report);
    let (data, binary) = (path.field("data"), path.field("binaryData"));
    keys::check(map.data.iter().flat_map(|data| data.keys()), &data, report);
    keys::check(
        map.binary_data.iter().flat_map(|data| data.keys()),
        &binary,
        report,
    );
    let texts = map.data.as_ref();
    for key in map.binary_data.iter().flat_map(|data| data.keys()) {
        if texts.is_some_and(|texts| texts.contains_key(key)) {
            let detail = "duplicate of key present in data";
            report.invalid(&binary.field(key), key, detail);
        }
    }
    let object = Object::ConfigMap(map);
    let size: usize = object.data().iter().map(|(k, v)| k.len() + v.len()).sum();
    if size > MAX_BYTES {
        let message = format_args!("Too long: may not be more than {MAX_BYTES} bytes");
        report.error(path, message);
    }
    Some(object)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn binary_data_is_content_but_no_text() {
        let object = Object::ConfigMap(ConfigMap {
            data: Some([("b".to_owned(), "text".to_owned())].into()),
            binary_data: Some([("a".to_owned(), ByteString(b"bytes".to_vec()))].into()),
            ..ConfigMap::default()
        });
        let (a, b) = (("a", b"bytes".as_slice()), ("b", b"text".as_slice()));
        assert_eq!((object.data(), object.texts()), (vec![a, b], vec![b]));
        assert_eq!((object.value("a"), object.text("a")), (Some(a.1), None));
        assert_eq!(
            (object.value("b"), object.text("b")),
            (Some(b.1), Some(b.1))
        );
    }
}
