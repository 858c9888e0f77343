//! The table behind `coracle explain` and what is read: every field of every type, its type, and whether it is refused.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use coracle::manual::fields::{self as table, Field, Section, Support};
use coracle::spec;
use k8s_openapi::api::{
    apps::v1 as apps, batch::v1 as batch, core::v1 as core, scheduling::v1 as scheduling,
};
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::*;

/// The types that a document is read into: fields with their types, by type.
type Schema = BTreeMap<&'static str, BTreeMap<&'static str, String>>;

/// A document of each kind, as small as can be.
const SMALLEST: &[(&str, &str)] = &[
    ("Pod", "{containers: [{name: c, image: i}]}"),
    (
        "Deployment",
        "{selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}",
    ),
    (
        "StatefulSet",
        "{selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}",
    ),
    (
        "DaemonSet",
        "{selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}",
    ),
    (
        "ReplicaSet",
        "{selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}",
    ),
    (
        "ReplicationController",
        "{template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}",
    ),
    (
        "Job",
        "{template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}",
    ),
    (
        "CronJob",
        "{schedule: '@daily', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}",
    ),
    ("Service", "{selector: {a: b}, ports: [{port: 80}]}"),
    (
        "PersistentVolumeClaim",
        "{accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}",
    ),
    (
        "PersistentVolume",
        "{accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, local: {path: /d}}",
    ),
];

/// Values of fields that are refused or ignored only with these.
const SAMPLES: &[(&str, &str)] = &[
    ("seLinuxChangePolicy", "Recursive"),
    ("nodeName", "elsewhere"),
    ("schedulerName", "mine"),
    ("serviceAccountName", "robot"),
    ("serviceAccount", "robot"),
    ("encryptedData", "x"),
    ("runtimeClassName", "runc"),
    ("dnsPolicy", "ClusterFirst"),
    ("procMount", "Default"),
    ("volumeMode", "Filesystem"),
    ("persistentVolumeReclaimPolicy", "Retain"),
    ("whenDeleted", "Retain"),
    ("whenScaled", "Retain"),
    ("seLinuxOptions", "{level: 's0:c1'}"),
    ("sessionAffinityConfig", "{clientIP: {timeoutSeconds: 60}}"),
    (
        "topologySpreadConstraints",
        "[{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]",
    ),
];

/// Fields that another has to go with, or that count only beside others.
const BESIDE: &[(&str, &str)] = &[
    ("allocateLoadBalancerNodePorts", "{type: LoadBalancer}"),
    ("healthCheckNodePort", "{type: LoadBalancer}"),
    ("loadBalancerClass", "{type: LoadBalancer}"),
    ("loadBalancerIP", "{type: LoadBalancer}"),
    ("loadBalancerSourceRanges", "{type: LoadBalancer}"),
    ("sessionAffinityConfig", "{sessionAffinity: ClientIP}"),
    ("externalTrafficPolicy", "{type: NodePort}"),
];

#[test]
fn the_table_has_every_field_that_is_read_with_its_type_and_no_other() {
    let sections = table::all();
    let mut schema = Schema::new();
    read::<core::Pod>(&mut schema);
    read::<apps::Deployment>(&mut schema);
    read::<apps::StatefulSet>(&mut schema);
    read::<apps::DaemonSet>(&mut schema);
    read::<apps::ReplicaSet>(&mut schema);
    read::<core::ReplicationController>(&mut schema);
    read::<batch::Job>(&mut schema);
    read::<batch::CronJob>(&mut schema);
    read::<core::Service>(&mut schema);
    read::<core::ConfigMap>(&mut schema);
    read::<core::Secret>(&mut schema);
    read::<core::PersistentVolumeClaim>(&mut schema);
    read::<core::PersistentVolume>(&mut schema);
    read::<scheduling::PriorityClass>(&mut schema);
    read::<core::Namespace>(&mut schema);
    read::<core::ServiceAccount>(&mut schema);
    // A field of coracle's own.
    schema
        .get_mut("Secret")
        .unwrap()
        .insert("encryptedData", "string".to_owned());
    let mut wrong = Vec::new();
    for section in described(&sections) {
        let Some(there) = schema.get(section.name.as_str()) else {
            wrong.push(format!("there is no type {}", section.name));
            continue;
        };
        let listed: BTreeMap<&str, &str> = section
            .fields
            .iter()
            .map(|f| (f.name.as_str(), f.kind.as_str()))
            .collect();
        for (field, kind) in there {
            if listed.get(field) != Some(&kind.as_str()) {
                wrong.push(format!(
                    "{}.{field} is {kind}, not {:?}",
                    section.name,
                    listed.get(field)
                ));
            }
        }
        for field in listed.keys().filter(|field| !there.contains_key(*field)) {
            wrong.push(format!("{}.{field} is not there", section.name));
        }
        for field in section
            .fields
            .iter()
            .filter(|field| field.support == Support::Works)
        {
            let kind = bare(&field.kind);
            let missing = schema.contains_key(kind) && !sections.iter().any(|s| s.name == kind);
            if missing {
                wrong.push(format!(
                    "{}.{}: {kind} is not in the table",
                    section.name, field.name
                ));
            }
        }
        let mut texts = section.fields.iter().map(|field| &field.text);
        assert!(texts.all(|text| !text.is_empty()), "{}", section.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_has_every_kind_that_is_read() {
    let sections = table::all();
    let kinds = sections.iter().filter(|section| section.version.is_some());
    let kinds: BTreeSet<&str> = kinds.map(|section| section.name.as_str()).collect();
    for kind in spec::READ_KINDS
        .iter()
        .filter(|kind| !kind.ends_with("List"))
    {
        assert!(kinds.contains(kind), "{kind} is not in the table");
    }
    let refused: Vec<&str> = spec::refused_kinds()
        .flat_map(|(kinds, _)| kinds)
        .copied()
        .collect();
    for kind in kinds {
        let known = spec::READ_KINDS.contains(&kind) || refused.contains(&kind);
        assert!(known, "{kind} is not read");
    }
}

#[test]
fn each_field_is_accepted_or_refused_as_the_table_says() {
    let sections = table::all();
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    let kinds = sections.iter().filter(|section| section.version.is_some());
    for kind in kinds.filter(|kind| spec::READ_KINDS.contains(&kind.name.as_str())) {
        // Each type where it is met first.
        let mut next = vec![(kind, Vec::new())];
        while let Some((section, path)) = next.pop() {
            for field in &section.fields {
                let mut path: Vec<&Field> = path.clone();
                path.push(field);
                if let Err(problem) = judged(&sections, kind, &path) {
                    wrong.push(problem);
                }
                let below = sections.iter().find(|s| s.name == bare(&field.kind));
                if let Some(below) = below.filter(|_| field.support == Support::Works)
                    && seen.insert(&below.name)
                {
                    next.insert(0, (below, path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_annotations_are_those_that_are_known() {
    let sections = table::all();
    let annotations = sections
        .iter()
        .find(|s| s.name == table::ANNOTATIONS)
        .unwrap();
    for field in &annotations.fields {
        let name = field.name.replace("CONTAINER", "c");
        let of = |kind: &str, spec: serde_json::Value| {
            json!({
                "apiVersion": "v1", "kind": kind, "spec": spec,
                "metadata": { "name": "p", "annotations": { name.clone(): "?" } },
            })
        };
        let pod = of(
            "Pod",
            json!({ "containers": [{ "name": "c", "image": "i" }] }),
        );
        let service = of("Service", json!({ "ports": [{ "port": 80 }] }));
        let known = [pod, service].into_iter().any(|document| {
            match convert::documents(document.to_string().as_bytes(), "f", &CONTEXT) {
                Ok(found) => {
                    let mut warnings = found.all_warnings().into_iter();
                    !warnings.any(|warning| warning.contains("unknown to coracle"))
                }
                Err(_) => true,
            }
        });
        assert!(known, "{name}");
    }
}

/// The sections of types; not those of annotations and settings, which are lists of names.
fn described(sections: &[Section]) -> impl Iterator<Item = &Section> {
    let lists = [table::ANNOTATIONS, table::SETTINGS];
    sections
        .iter()
        .filter(move |section| !lists.contains(&section.name.as_str()))
}

fn bare(kind: &str) -> &str {
    kind.trim_start_matches("map[string]")
        .trim_start_matches("[]")
}

/// Converts a document with this field, and compares what becomes of it with the table.
fn judged(sections: &[Section], kind: &Section, path: &[&Field]) -> Result<(), String> {
    let names: Vec<&str> = path.iter().map(|field| field.name.as_str()).collect();
    let name = format!("{}.{}", kind.name, names.join("."));
    let last = path.last().unwrap();
    let mut document =
        json!({ "apiVersion": kind.version, "kind": kind.name, "metadata": { "name": "x" } });
    if let Some((_, spec)) = SMALLEST.iter().find(|(of, _)| *of == kind.name) {
        document["spec"] = serde_yaml::from_str(spec).unwrap();
    }
    let value = &mut document;
    put(sections, value, path);
    let text = document.to_string();
    let (errors, warnings) = match convert::documents(text.as_bytes(), "f", &CONTEXT) {
        Ok(found) => {
            let pods = found.pods.iter().flat_map(|pod| pod.warnings.clone());
            let services = found
                .services
                .iter()
                .flat_map(|service| service.spec.warnings.clone());
            (
                Vec::new(),
                pods.chain(services)
                    .chain(found.warnings)
                    .collect::<Vec<_>>(),
            )
        }
        Err(errors) => (errors, Vec::new()),
    };
    // Rules about fields that go together have no advice.
    let rule = |error: &FieldError| last.support == Support::Works && error.hint.is_none();
    let refusal = |error: &FieldError| {
        let own = error.path.split(['.', '[']);
        let own: Vec<&str> = own.filter(|part| !part.ends_with(']')).collect();
        let forbidden = error.message.contains("Forbidden") && !rule(error);
        own == names && (forbidden || error.message.contains("not supported"))
            || error.message.contains("unknown field") && error.path.ends_with(&last.name)
    };
    let refused = errors.iter().find(|error| refusal(error));
    let warned = || {
        warnings
            .iter()
            .any(|warning| warning.contains(&last.name) && warning.contains("accepted, but"))
    };
    match (last.support, refused) {
        (Support::Refused, Some(_)) => Ok(()),
        (Support::Refused, None) => Err(format!("{name} is not refused: {text}: {errors:?}")),
        (_, Some(error)) => Err(format!("{name} is refused: {error}")),
        (Support::Ignored, None) if errors.is_empty() && warned() => Ok(()),
        (Support::Ignored, None) => Err(format!(
            "{name}: no warning: {text}: {errors:?} {warnings:?}"
        )),
        (Support::Works | Support::Dropped, None) => Ok(()),
    }
}

/// Sets the field at the end of a path, with what has to be around it.
fn put(sections: &[Section], value: &mut Value, path: &[&Field]) {
    let (first, rest) = path.split_first().unwrap();
    let own = &mut value[&first.name];
    if rest.is_empty() {
        let beside = BESIDE.iter().find(|(of, _)| *of == first.name);
        *own = sample(sections, first, 0);
        if let Some((_, beside)) = beside {
            let beside: Value = serde_yaml::from_str(beside).unwrap();
            for (key, other) in beside.as_object().unwrap() {
                value[key] = other.clone();
            }
        }
        return;
    }
    if own.is_null() {
        *own = sample(sections, first, 0);
    }
    let inner = match own {
        Value::Array(items) => &mut items[0],
        other => other,
    };
    put(sections, inner, rest);
}

/// A value for a field: the first one that it may have, or what its type must have.
fn sample(sections: &[Section], field: &Field, depth: usize) -> Value {
    if let Some((_, value)) = SAMPLES.iter().find(|(name, _)| *name == field.name) {
        return serde_yaml::from_str(value).unwrap();
    }
    let one = match (field.values.first(), bare(&field.kind)) {
        (Some(value), _) => json!(value),
        (None, "string") => json!("x"),
        (None, "boolean") => json!(true),
        (None, "integer" | "IntOrString") => json!(1),
        (None, "Quantity") => json!("1"),
        (None, "ByteString") => json!("eA=="),
        (None, "Time") => json!("2026-01-01T00:00:00Z"),
        (None, name) => {
            let mut object = json!({});
            let section = sections.iter().find(|section| section.name == name);
            for field in section.iter().flat_map(|section| &section.fields) {
                if field.required && depth < 6 {
                    object[&field.name] = sample(sections, field, depth + 1);
                }
            }
            object
        }
    };
    match field.kind.as_str() {
        kind if kind.starts_with("[]") => json!([one]),
        kind if kind.starts_with("map[string]") => json!({ "x": one }),
        _ => one,
    }
}

/// Notes the types that `T` is read from.
fn read<T: serde::Deserialize<'static>>(schema: &mut Schema) {
    let notes = RefCell::new(std::mem::take(schema));
    let kind = RefCell::new(String::new());
    let walk = Walk {
        notes: &notes,
        kind: &kind,
    };
    T::deserialize(walk).map(drop).unwrap();
    *schema = notes.into_inner();
}

/// A deserializer that gives each field of each object a value, and notes what was asked for.
#[derive(Clone, Copy)]
struct Walk<'n> {
    notes: &'n RefCell<Schema>,
    /// The type of what was read last.
    kind: &'n RefCell<String>,
}

impl Walk<'_> {
    fn is(&self, kind: &str) {
        kind.clone_into(&mut self.kind.borrow_mut());
    }
}

#[derive(Debug)]
struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

impl serde::de::Error for Failed {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

impl<'de> Deserializer<'de> for Walk<'_> {
    type Error = Failed;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failed> {
        self.is("IntOrString");
        visitor.visit_i32(1)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failed> {
        visitor.visit_some(self)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failed> {
        self.is("boolean");
        visitor.visit_bool(true)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failed> {
        self.is("integer");
        visitor.visit_i32(1)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failed> {
        self.is("integer");
        visitor.visit_i64(1)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failed> {
        // The only type that asks for a borrowed string.
        self.is("ByteString");
        visitor.visit_str("eA==")
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failed> {
        self.is("string");
        visitor.visit_str("x")
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failed> {
        let text: StrDeserializer<'_, Failed> = "2026-01-01T00:00:00Z".into_deserializer();
        let value = match name {
            "Time" => visitor.visit_newtype_struct(text),
            "FieldsV1" => {
                let empty: BTreeMap<String, String> = BTreeMap::new();
                visitor
                    .visit_newtype_struct(serde::de::value::MapDeserializer::new(empty.into_iter()))
            }
            _ => visitor.visit_newtype_struct(self),
        };
        self.is(name);
        value
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failed> {
        let value = visitor.visit_seq(Once(self, true));
        let inner = format!("[]{}", self.kind.borrow());
        self.is(&inner);
        value
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failed> {
        let value = visitor.visit_map(Once(self, true));
        let inner = format!("map[string]{}", self.kind.borrow());
        self.is(&inner);
        value
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failed> {
        let documents = ["apiVersion", "kind"];
        let is_document =
            documents.iter().all(|field| fields.contains(field)) && fields.contains(&"metadata");
        let fields = fields
            .iter()
            .filter(|field| !is_document || !documents.contains(field));
        let fields: Vec<&'static str> = fields.copied().collect();
        self.notes.borrow_mut().entry(name).or_default();
        let value = visitor.visit_map(Fields {
            walk: self,
            name,
            fields: fields.into_iter(),
            now: "",
        });
        self.is(name);
        value
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit
        unit_struct tuple tuple_struct enum identifier ignored_any
    }
}

/// One item, or one entry.
struct Once<'n>(Walk<'n>, bool);

impl<'de> SeqAccess<'de> for Once<'_> {
    type Error = Failed;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failed> {
        match std::mem::take(&mut self.1) {
            true => seed.deserialize(self.0).map(Some),
            false => Ok(None),
        }
    }
}

impl<'de> MapAccess<'de> for Once<'_> {
    type Error = Failed;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Failed> {
        match std::mem::take(&mut self.1) {
            true => seed.deserialize("x".into_deserializer()).map(Some),
            false => Ok(None),
        }
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Failed> {
        seed.deserialize(self.0)
    }
}

/// The fields of an object.
struct Fields<'n> {
    walk: Walk<'n>,
    name: &'static str,
    fields: std::vec::IntoIter<&'static str>,
    now: &'static str,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Failed;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Failed> {
        let Some(field) = self.fields.next() else {
            return Ok(None);
        };
        self.now = field;
        seed.deserialize(field.into_deserializer()).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Failed> {
        let value = seed.deserialize(self.walk)?;
        let kind = self.walk.kind.borrow().clone();
        let mut notes = self.walk.notes.borrow_mut();
        notes.entry(self.name).or_default().insert(self.now, kind);
        Ok(value)
    }
}
