//! Advice for a known field at a wrong level of the manifest.

use std::fmt;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, HTTPGetAction, PodSecurityContext, PodSpec, ResourceRequirements,
    SecurityContext, ServicePort, ServiceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::{Deserialize, Deserializer, Visitor};

/// An object's fields, its name in the object above, and the advice.
type Place = (fn() -> Fields, &'static str, &'static str);

type Fields = &'static [&'static str];

const META: Place = (
    fields::<ObjectMeta>,
    "metadata",
    "it belongs below `metadata`",
);
const SPEC: Place = (fields::<PodSpec>, "spec", "it belongs below `spec`");
const CONTAINERS: Place = (
    fields::<Container>,
    "containers",
    "it belongs to a container: below `containers`",
);

/// Fields for the name of another object: each kind of volume has its own word. The object, the wrong word, the right one.
const RENAMED: [(&str, &str, &str); 6] = [
    ("SecretVolumeSource", "name", "secretName"),
    ("SecretVolumeSource", "configMapName", "secretName"),
    ("ConfigMapVolumeSource", "configMapName", "name"),
    ("ConfigMapVolumeSource", "secretName", "name"),
    ("PersistentVolumeClaimVolumeSource", "name", "claimName"),
    ("PersistentVolumeClaimVolumeSource", "pvcName", "claimName"),
];

/// Finds where a field that `object` does not have would be valid: the field of `object` that would hold it, if it has
/// one, and the advice.
pub(super) fn elsewhere(object: &str, key: &str) -> Option<(&'static str, String)> {
    let renamed = RENAMED
        .iter()
        .find(|(of, from, _)| (*of, *from) == (object, key));
    if let Some((_, _, field)) = renamed {
        return Some((field, format!("did you mean `{field}`?")));
    }
    let places: &[Place] = match object {
        "Pod" => &[SPEC, META],
        "PodSpec" => &[
            (
                fields::<PodSecurityContext>,
                "securityContext",
                "it belongs below `securityContext`",
            ),
            CONTAINERS,
            META,
        ],
        "Container" | "EphemeralContainer" => &[
            (
                fields::<SecurityContext>,
                "securityContext",
                "it belongs below `securityContext`",
            ),
            (
                fields::<ResourceRequirements>,
                "resources",
                "it belongs below `resources`",
            ),
            (
                fields::<ContainerPort>,
                "ports",
                "it belongs to an item of `ports`",
            ),
            (fields::<PodSpec>, "", "it belongs to the pod: below `spec`"),
        ],
        "ResourceRequirements" => &[(
            || &["cpu", "memory", "ephemeral-storage"],
            "limits",
            "it belongs below `limits` or `requests`",
        )],
        "Probe" => &[(
            fields::<HTTPGetAction>,
            "httpGet",
            "it belongs below `httpGet`",
        )],
        "Service" => &[
            (fields::<ServiceSpec>, "spec", "it belongs below `spec`"),
            META,
        ],
        "ServiceSpec" => &[
            (
                fields::<ServicePort>,
                "ports",
                "it belongs to an item of `ports`",
            ),
            META,
        ],
        _ => return None,
    };
    let (_, field, advice) = places.iter().find(|(fields, ..)| fields().contains(&key))?;
    Some((field, (*advice).to_owned()))
}

/// Returns the names of an object's fields, from the generated types themselves.
pub(super) fn fields<T: Deserialize<'static>>() -> Fields {
    match T::deserialize(Ask) {
        Ok(_) => &[],
        Err(Answer(fields)) => fields,
    }
}

/// A deserializer that only collects the field names which an object announces before it reads anything.
struct Ask;

#[derive(Debug)]
struct Answer(Fields);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for Answer {}

impl serde::de::Error for Answer {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }
}

impl<'de> Deserializer<'de> for Ask {
    type Error = Answer;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
        Err(Answer(&[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: Fields,
        _: V,
    ) -> Result<V::Value, Answer> {
        Err(Answer(fields))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_at_a_wrong_level_gets_advice() {
        for (object, key, expected) in [
            ("Pod", "containers", Some("it belongs below `spec`")),
            ("Pod", "name", Some("it belongs below `metadata`")),
            (
                "PodSpec",
                "image",
                Some("it belongs to a container: below `containers`"),
            ),
            (
                "PodSpec",
                "fsGroup",
                Some("it belongs below `securityContext`"),
            ),
            ("PodSpec", "labels", Some("it belongs below `metadata`")),
            (
                "Container",
                "volumes",
                Some("it belongs to the pod: below `spec`"),
            ),
            (
                "Container",
                "privileged",
                Some("it belongs below `securityContext`"),
            ),
            ("Container", "limits", Some("it belongs below `resources`")),
            (
                "Container",
                "containerPort",
                Some("it belongs to an item of `ports`"),
            ),
            (
                "ResourceRequirements",
                "cpu",
                Some("it belongs below `limits` or `requests`"),
            ),
            ("Probe", "path", Some("it belongs below `httpGet`")),
            (
                "SecretVolumeSource",
                "name",
                Some("did you mean `secretName`?"),
            ),
            ("ConfigMapVolumeSource", "items", None),
            ("Service", "selector", Some("it belongs below `spec`")),
            (
                "ServiceSpec",
                "targetPort",
                Some("it belongs to an item of `ports`"),
            ),
            ("Container", "imag", None),
            ("Volume", "image", None),
        ] {
            let found = elsewhere(object, key).map(|(_, advice)| advice);
            assert_eq!(found.as_deref(), expected, "{object} {key}");
        }
    }
}
