//! What the store adds to objects, and what it leaves out.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::store::{Kind, Store};
use crate::spec::configuration::Object as Document;
use crate::spec::convert::{self, ConvertContext};

#[test]
fn each_object_has_a_uid_that_stays_and_a_secret_is_shown_without_its_values() {
    let documents = || {
        let text = concat!(
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: own, uid: given}}\n---\n",
            "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c}, spec: {accessModes: [ReadWriteOnce], ",
            "resources: {requests: {storage: 1Gi}}}}\n---\n",
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  annotations:\n",
            "    kubectl.kubernetes.io/last-applied-configuration: '{\"stringData\":{\"a\":\"hunter2\"}}'\n",
            "stringData: {a: hunter2}\n",
        );
        let found = convert::documents(text.as_bytes(), "f", &ConvertContext::of("n"));
        let found = found.expect("valid").configuration;
        let since = Time(Timestamp::UNIX_EPOCH);
        let all = found.iter();
        all.map(|(_, object)| (Arc::clone(object), Some(since.clone())))
            .chain([(Arc::new(Document::namespace("default")), None)])
            .collect::<Vec<_>>()
    };
    let meta = json!({ "metadata": { "name": "web", "namespace": "default" } });
    let shown = |kind| {
        let store = Store::new();
        store.set_configuration(&documents());
        store.set_services(&[serde_json::from_value(meta.clone()).unwrap()]);
        store.set_endpoints(&[serde_json::from_value(meta.clone()).unwrap()]);
        let class = json!({ "metadata": { "name": "p" }, "value": 1 });
        store.set_priority_classes(&[serde_json::from_value(class).unwrap()]);
        let (_, all) = store.list(kind);
        let object = Arc::clone(&all[0]);
        let shown: Value = serde_json::from_slice(&object.json()).unwrap();
        assert_eq!(shown["metadata"]["uid"], &*object.uid);
        shown
    };
    let mut seen = BTreeSet::new();
    for kind in [
        Kind::Services,
        Kind::Endpoints,
        Kind::PriorityClasses,
        Kind::ConfigMaps,
        Kind::Secrets,
        Kind::Namespaces,
        Kind::Claims,
    ] {
        let uid = shown(kind)["metadata"]["uid"].to_string();
        assert_eq!(shown(kind)["metadata"]["uid"].to_string(), uid, "{kind:?}");
        assert!(uid.len() > 2 && seen.insert(uid), "{kind:?}");
    }
    assert_eq!(shown(Kind::ConfigMaps)["metadata"]["uid"], "given");
    for kind in [Kind::PriorityClasses, Kind::Namespaces] {
        assert!(shown(kind)["metadata"]["creationTimestamp"].is_string());
    }
    let secret = shown(Kind::Secrets);
    assert_eq!(secret["data"]["a"], "KioqKioqKg==");
    assert_eq!(secret["metadata"]["annotations"], Value::Null);
}

#[test]
fn an_edit_leaves_the_creation_of_an_object_as_it_is() {
    let store = Store::new();
    let created = |value: &str, second: i64, is_there: bool| {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{a: {value}}}\n"
        );
        let found = convert::documents(text.as_bytes(), "f", &ConvertContext::of("n"));
        let found = found.expect("valid").configuration;
        let time = Time(Timestamp::from_second(second).unwrap());
        let documents = found.iter().filter(|_| is_there);
        let documents: Vec<_> = documents
            .map(|(_, object)| (Arc::clone(object), Some(time.clone())))
            .collect();
        store.set_configuration(&documents);
        let service = json!({ "metadata": { "name": "web", "creationTimestamp": time }, "spec": { "type": value } });
        let services: Vec<_> = is_there
            .then(|| serde_json::from_value(service).unwrap())
            .into_iter()
            .collect();
        store.set_services(&services);
        [Kind::ConfigMaps, Kind::Services].map(|kind| {
            let shown: Option<Value> = (store.list(kind).1.first())
                .map(|object| serde_json::from_slice(&object.json()).unwrap());
            shown.map(|shown| {
                assert!(shown.to_string().contains(value), "{shown}");
                shown["metadata"]["creationTimestamp"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
        })
    };
    let at = |second: &str| [(); 2].map(|()| Some(format!("1970-01-01T00:00:{second}Z")));
    assert_eq!(created("one", 1, true), at("01"));
    assert_eq!(created("two", 2, true), at("01"), "edited");
    assert_eq!(created("two", 2, false), [None, None]);
    assert_eq!(created("three", 3, true), at("03"), "another one");
}
