//! Which pod is it? The UID of a pod whose manifest gives none: a hash of what cannot change without a new pod.
//!
//! Formatting, spelled-out defaults, labels, annotations, probes and the grace period leave it as it is.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

/// The UID of a defaulted pod: FNV-1a, 128 bits, as 32 hex digits.
pub(crate) fn of(pod: &Pod) -> String {
    let mut text = String::new();
    for part in [&pod.metadata.namespace, &pod.metadata.name] {
        text.push_str(part.as_deref().unwrap_or_default());
        // Cannot occur in a name, so that two parts never read like two others.
        text.push('\0');
    }
    // Serializing these types to a value cannot fail: all keys are strings.
    let mut spec = serde_json::to_value(&pod.spec).unwrap_or_default();
    remove_changeable(&mut spec);
    canonical(&spec, &mut text);
    format!("{:032x}", fnv1a(text.as_bytes()))
}

/// Drops what may change while the pod runs, and the node's name, which the manifest does not decide.
fn remove_changeable(spec: &mut Value) {
    let Value::Object(fields) = spec else { return };
    fields.remove("terminationGracePeriodSeconds");
    fields.remove("nodeName");
    for list in ["initContainers", "containers"] {
        let containers = fields.get_mut(list).and_then(Value::as_array_mut);
        let containers = containers.into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
                container.remove(probe);
            }
        }
    }
}

/// JSON with sorted keys and no spaces; sorted here, because serde_json keeps insertion order if any crate asks it to.
fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().filter(|(k, v)| !is_absent(k, v)).collect();
            fields.sort_by_key(|(key, _)| key.as_str());
            text.push('{');
            for (key, value) in fields {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                canonical(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                canonical(item, text);
                text.push(',');
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

/// Whether a field says what leaving it out says too.
fn is_absent(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value && FALSE_BY_DEFAULT.contains(&key),
        Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.iter().all(|(k, v)| is_absent(k, v)),
    }
}

/// Fields for which `false` is the default; for others, such as `allowPrivilegeEscalation`, it is not.
const FALSE_BY_DEFAULT: [&str; 11] = [
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "privileged",
    "readOnly",
    "readOnlyRootFilesystem",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "stdin",
    "stdinOnce",
    "tty",
];

fn fnv1a(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_hash_is_fnv_1a_with_128_bits() {
        for (text, hash) in [
            ("", "6c62272e07bb014262b821756295c58d"),
            ("a", "d228cb696f1a8caf78912b704e4a8964"),
            ("foobar", "343e1662793c64bf6f0d3597ba446f18"),
        ] {
            assert_eq!(format!("{:032x}", super::fnv1a(text.as_bytes())), hash);
        }
    }
}
