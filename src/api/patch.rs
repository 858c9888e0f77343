//! Patches of the three kinds that clients send. Each resource can be changed in one field at most; a patch of any
//! other field is refused by name instead of ignored.

use hyper::Request;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use super::error::ApiError;

/// Kind of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchKind {
    /// RFC 7386: a list is replaced.
    Merge,
    /// Kubernetes' own: lists are merged by their items' keys.
    Strategic,
    /// RFC 6902: a list of operations.
    Json,
}

impl PatchKind {
    /// Returns the kind by the request's content type.
    pub(crate) fn of(request: &Request<Bytes>) -> Result<Self, ApiError> {
        let kind = request.headers().get(CONTENT_TYPE);
        Self::named(kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default())
    }

    pub(super) fn named(content_type: &str) -> Result<Self, ApiError> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            "application/json-patch+json" => Ok(Self::Json),
            _ => Err(ApiError::unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json, \
                 application/strategic-merge-patch+json",
            )),
        }
    }
}

/// Parses a patch as JSON.
pub(crate) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("the patch is not JSON: {error}")))
}

/// The one field of a resource that a patch may change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changeable(pub(crate) &'static [&'static str]);

impl Changeable {
    fn path(self) -> String {
        self.0.join(".")
    }

    fn refuse(self, path: &str) -> ApiError {
        let only = self.path();
        ApiError::invalid(format!("{path}: Forbidden: only {only} can be patched"))
    }

    /// Returns what a merge patch sets the field to. Refuses a patch that changes any other field.
    pub(crate) fn given<'p>(
        self,
        object: &Value,
        patch: &'p Value,
    ) -> Result<Option<&'p Value>, ApiError> {
        let fields = patch
            .as_object()
            .ok_or_else(|| ApiError::bad_request("the patch must be a JSON object"))?;
        if let Some(metadata) = fields.get("metadata") {
            meant(object, metadata)?;
        }
        self.others_stay(object, fields, &mut Vec::new())?;
        Ok(self.0.iter().try_fold(patch, |at, name| at.get(name)))
    }

    fn others_stay(
        self,
        object: &Value,
        patch: &Map<String, Value>,
        path: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        for (name, wanted) in patch {
            path.push(name.clone());
            let is = &object[name.as_str()];
            let inside =
                self.0.len() > path.len() && self.0.iter().zip(&*path).all(|(a, b)| a == b);
            let order = name.strip_prefix("$setElementOrder/").is_some();
            match wanted {
                // The order of a list is a directive, not a value.
                _ if order || *path == self.0 => {}
                Value::Object(fields) => self.others_stay(is, fields, path)?,
                Value::Null if inside => return Err(self.refuse(&path.join("."))),
                other if other == is => {}
                _ => return Err(self.refuse(&path.join("."))),
            }
            path.pop();
        }
        Ok(())
    }

    /// Applies a JSON patch, which must leave all other fields as they are.
    pub(crate) fn operated(self, object: &Value, patch: &Value) -> Result<Value, ApiError> {
        let changed = operate(object, patch)?;
        meant(object, &changed["metadata"])?;
        match first_difference(object, &changed, &mut Vec::new(), self.0) {
            None => Ok(changed),
            Some(path) => Err(self.refuse(&path)),
        }
    }
}

/// Checks the UID and resource version in a patch, if there are any.
pub(crate) fn meant(object: &Value, metadata: &Value) -> Result<(), ApiError> {
    for field in ["uid", "resourceVersion", "name", "namespace"] {
        let (wanted, is) = (&metadata[field], &object["metadata"][field]);
        if !wanted.is_null() && wanted != is {
            return Err(ApiError::conflict(format!(
                "Precondition failed: {field} in the patch: {wanted}, of the object: {is}"
            )));
        }
    }
    Ok(())
}

/// Returns the first difference of two objects outside the field `except`.
fn first_difference(
    a: &Value,
    b: &Value,
    path: &mut Vec<String>,
    except: &[&str],
) -> Option<String> {
    if *path == except || a == b {
        return None;
    }
    let (Value::Object(first), Value::Object(second)) = (a, b) else {
        return Some(path.join("."));
    };
    for name in first.keys().chain(second.keys()) {
        path.push(name.clone());
        let found = first_difference(&a[name.as_str()], &b[name.as_str()], path, except);
        path.pop();
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Applies the operations of a JSON patch.
fn operate(object: &Value, patch: &Value) -> Result<Value, ApiError> {
    let operations = patch
        .as_array()
        .ok_or_else(|| ApiError::bad_request("a JSON patch is a list of operations"))?;
    let mut changed = object.clone();
    for (index, operation) in operations.iter().enumerate() {
        let failed = |what: &str| {
            let shown = operation["path"].as_str().unwrap_or_default();
            ApiError::invalid(format!("operation {index} on \"{shown}\": {what}"))
        };
        let path = operation["path"]
            .as_str()
            .ok_or_else(|| failed("it has no path"))?;
        let value = operation.get("value").cloned();
        let given = || value.clone().ok_or_else(|| failed("it has no value"));
        match operation["op"].as_str() {
            Some("test") => {
                if changed.pointer(path) != Some(&given()?) {
                    return Err(failed("the test failed"));
                }
            }
            Some("replace") => {
                let target = changed.pointer_mut(path);
                *target.ok_or_else(|| failed("there is nothing there"))? = given()?;
            }
            Some(op @ ("add" | "remove")) => {
                let (parent, key) = path
                    .rsplit_once('/')
                    .ok_or_else(|| failed("no such path"))?;
                let key = key.replace("~1", "/").replace("~0", "~");
                let done = match (changed.pointer_mut(parent), op) {
                    (Some(Value::Array(list)), "add") => insert(list, &key, given()?),
                    (Some(Value::Object(fields)), "add") => {
                        fields.insert(key, given()?);
                        Some(())
                    }
                    (Some(Value::Array(list)), _) => {
                        let at = key.parse().ok().filter(|at| *at < list.len());
                        at.map(|at: usize| drop(list.remove(at)))
                    }
                    (Some(Value::Object(fields)), _) => fields.remove(&key).map(drop),
                    _ => None,
                };
                done.ok_or_else(|| failed("no such path"))?;
            }
            _ => return Err(failed("op must be one of add, remove, replace, test")),
        }
    }
    Ok(changed)
}

fn insert(list: &mut Vec<Value>, key: &str, value: Value) -> Option<()> {
    let at = match key {
        "-" => list.len(),
        index => index.parse().ok().filter(|at| *at <= list.len())?,
    };
    list.insert(at, value);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FIELD: Changeable = Changeable(&["spec", "unschedulable"]);

    #[test]
    fn a_patch_of_other_fields_is_refused_by_name_unless_they_are_unchanged() {
        let object = json!({ "kind": "Node", "metadata": { "name": "n", "labels": { "a": "b" } },
            "spec": { "taints": [{ "key": "k" }] } });
        let fine = [
            json!({}),
            json!({ "metadata": { "labels": { "a": "b", "gone": null } } }),
            json!({ "kind": "Node", "spec": { "taints": [{ "key": "k" }] } }),
            json!({ "spec": { "unschedulable": true, "$setElementOrder/taints": [] } }),
        ];
        for patch in fine {
            let given = FIELD.given(&object, &patch).expect("as it is");
            assert_eq!(given, patch["spec"].get("unschedulable"), "{patch}");
        }
        for (patch, path) in [
            (
                json!({ "metadata": { "labels": { "a": "c" } } }),
                "metadata.labels.a",
            ),
            (
                json!({ "metadata": { "labels": { "a": null } } }),
                "metadata.labels.a",
            ),
            (json!({ "metadata": { "labels": null } }), "metadata.labels"),
            (
                json!({ "metadata": { "annotations": { "x/y": "1" } } }),
                "metadata.annotations.x/y",
            ),
            (json!({ "spec": { "taints": [] } }), "spec.taints"),
            (json!({ "spec": null }), "spec"),
            (json!({ "spec": { "$patch": "replace" } }), "spec.$patch"),
            (json!({ "spec": 3 }), "spec"),
            (json!({ "kind": "Pod" }), "kind"),
            (json!({ "status": { "x": 1 } }), "status.x"),
        ] {
            let error = FIELD.given(&object, &patch).expect_err("refused");
            let text = format!("{path}: Forbidden: only spec.unschedulable can be patched");
            assert_eq!(error.message, text, "{patch}");
        }
        let of_another = json!({ "metadata": { "name": "m" } });
        let error = FIELD.given(&object, &of_another).expect_err("refused");
        assert_eq!(error.code.as_u16(), 409);
    }

    #[test]
    fn operations_change_the_field_and_are_refused_by_name_elsewhere() {
        let object = json!({ "metadata": { "labels": { "a": "b" } }, "spec": {} });
        let add = |path: &str| json!([{ "op": "add", "path": path, "value": true }]);
        let changed = FIELD.operated(&object, &add("/spec/unschedulable"));
        assert_eq!(changed.expect("fine")["spec"]["unschedulable"], true);
        for (patch, path) in [
            (add("/metadata/labels/x~1y"), "metadata.labels.x/y"),
            (
                json!([{ "op": "remove", "path": "/metadata/labels" }]),
                "metadata.labels",
            ),
            (json!([{ "op": "replace", "path": "", "value": 1 }]), ""),
        ] {
            let error = FIELD.operated(&object, &patch).expect_err("refused");
            let text = format!("{path}: Forbidden: only spec.unschedulable can be patched");
            assert_eq!(error.message, text, "{patch}");
        }
        for op in ["move", "copy"] {
            let patch = json!([{ "op": op, "from": "/spec", "path": "/metadata" }]);
            assert!(FIELD.operated(&object, &patch).is_err(), "{op}");
        }
    }
}
