//! Reads: objects of the store, lists, watches and tables of them, and documents of discovery.

use hyper::body::Bytes;
use hyper::header::ACCEPT;
use hyper::{Method, Request, Response, StatusCode};

use super::error::ApiError;
use super::files::Files;
use super::list_options::ListOptions;
use super::object::Object;
use super::query::Query;
use super::resource::{self, Place, Resource};
use super::selector::Selector;
use super::server::{Body, Context, json as json_reply, json_of, reply, streamed};
use super::store::Kind;
use super::table::{self, Include};
use super::watch::Watch;
use super::{discovery, node};
use crate::types::InOrder;

/// Answers a read, or refuses another method. `known`: there is an action at this path.
pub(super) async fn read(
    request: &Request<Bytes>,
    context: &Context,
    query: &Query,
    segments: &[&str],
    known: bool,
) -> Result<Response<Body>, ApiError> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return match get(context, query, segments, Form::Whole, known) {
            Ok(_) if resource::find(segments).is_some() => Err(ApiError::object_not_changed()),
            Ok(_) => Err(ApiError::method_not_allowed()),
            Err(error) => Err(error),
        };
    }
    if let ["api", "v1", "nodes", ..] = segments {
        node::look(context).await;
    }
    let accept = request.headers().get(ACCEPT);
    let accept = accept.and_then(|value| value.to_str().ok());
    let form = Form::of(accept.unwrap_or_default(), query)?;
    get(context, query, segments, form, known)
}

/// The form in which a client asks for objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they are.
    Whole,
    /// As `PartialObjectMetadata`.
    Metadata,
    /// As Tables, whose rows include so much of their objects.
    Table(Include),
}

impl Form {
    /// The first form of this header `Accept` that is known.
    fn of(accept: &str, query: &Query) -> Result<Self, ApiError> {
        for choice in accept.split(',') {
            let words: Vec<&str> = choice.split(';').map(str::trim).collect();
            let says = |word: &str| words.contains(&word);
            if !says("g=meta.k8s.io") {
                continue;
            }
            if says("as=Table") {
                return Ok(Self::Table(Include::of(query)?));
            }
            let partial = ["as=PartialObjectMetadata", "as=PartialObjectMetadataList"];
            if says("application/json") && says("v=v1") && partial.into_iter().any(says) {
                return Ok(Self::Metadata);
            }
        }
        Ok(Self::Whole)
    }
}

fn get(
    context: &Context,
    query: &Query,
    segments: &[&str],
    form: Form,
    known: bool,
) -> Result<Response<Body>, ApiError> {
    match segments {
        ["healthz" | "livez" | "readyz"] => Ok(reply(StatusCode::OK, "text/plain", "ok")),
        ["coracle", "v1", "files"] => {
            let files = context.store.files();
            json_of(&Files {
                read: files.is_some(),
                items: files.unwrap_or_default(),
            })
        }
        _ => match (resource::find(segments), discovery::document(segments)) {
            (Some((resource, Place::All(ns))), _) => list(context, query, resource.kind, ns, form),
            (Some((resource, Place::One(ns, name))), _) => {
                one(context, resource.kind, ns, name, form)
            }
            (None, Some(document)) => Ok(json_reply(document.to_string())),
            (None, None) if known => Err(ApiError::method_not_allowed()),
            (None, None) => Err(ApiError::no_such_path(segments)),
        },
    }
}

fn list(
    context: &Context,
    query: &Query,
    kind: Kind,
    namespace: Option<&str>,
    form: Form,
) -> Result<Response<Body>, ApiError> {
    let selector = Selector::from_query(query, kind, namespace)?;
    let options = ListOptions::of(query)?;
    if options.watch {
        let watch = Watch::new(context.store.clone(), kind, &options, selector, form);
        let lines = smol::stream::unfold(watch, |mut watch| async move {
            let chunk = watch.next().await?;
            Some((Ok(chunk), watch))
        });
        return Ok(streamed("application/json", lines));
    }
    let (version, objects) = context.store.list(kind);
    options.check_version(version)?;
    let mut chosen: Vec<_> = objects
        .into_iter()
        .filter(|object| selector.matches(object))
        .collect();
    if kind == Kind::Events {
        chosen.order_by_key(|event| event.version);
    }
    if let Form::Table(include) = form {
        let chosen = chosen.iter().map(|object| &**object);
        return Ok(json_reply(table::of(kind, version, include, chosen)));
    }
    let Resource { object, group, .. } = resource::of(kind);
    let (one, group) = match form {
        Form::Metadata => (table::PARTIAL, table::META),
        _ => (object, group),
    };
    let mut body = format!(
        "{{\"kind\":\"{one}List\",\"apiVersion\":\"{group}\",\"metadata\":{{\"resourceVersion\":\"{version}\"}},\"items\":["
    )
    .into_bytes();
    for (index, object) in chosen.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&in_form(kind, object, form));
    }
    body.extend_from_slice(b"]}");
    Ok(json_reply(body))
}

fn one(
    context: &Context,
    kind: Kind,
    namespace: &str,
    name: &str,
    form: Form,
) -> Result<Response<Body>, ApiError> {
    let key = (namespace.into(), name.into());
    let object = context
        .store
        .get(kind, &key)
        .ok_or_else(|| ApiError::not_found_in(&resource::of(kind), name))?;
    Ok(json_reply(in_form(kind, &object, form)))
}

/// Returns an object as it is now in the form that a client asks for.
pub(crate) fn in_form(kind: Kind, object: &Object, form: Form) -> Bytes {
    match form {
        Form::Whole => shown(kind, object),
        Form::Metadata => {
            let whole = serde_json::from_slice(&shown(kind, object)).unwrap_or_default();
            table::partial(&whole).to_string().into()
        }
        Form::Table(include) => table::of(kind, object.version, include, [object]).into(),
    }
}

/// Returns the JSON of an object as it is now.
pub(crate) fn shown(kind: Kind, object: &Object) -> Bytes {
    match kind {
        Kind::Nodes => node::alive(&object.json()),
        _ => object.json(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_known_form_counts() {
        let query = Query::parse(None);
        let table = Form::Table(Include::Metadata);
        let proto =
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        for (accept, form) in [
            ("", Form::Whole),
            ("application/json", Form::Whole),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                table,
            ),
            (
                &format!("{proto},{partial},application/json"),
                Form::Metadata,
            ),
            (
                "application/json; as=PartialObjectMetadataList; g=meta.k8s.io; v=v1",
                Form::Metadata,
            ),
            (proto, Form::Whole),
            ("application/json;as=Table", Form::Whole),
        ] {
            assert_eq!(Form::of(accept, &query).unwrap(), form, "{accept}");
        }
    }
}
