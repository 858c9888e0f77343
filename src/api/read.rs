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
        return match get(context, query, segments, None, known) {
            Ok(_) => Err(ApiError::method_not_allowed()),
            Err(error) => Err(error),
        };
    }
    if let ["api", "v1", "nodes", ..] = segments {
        node::look(context).await;
    }
    let accept = request.headers().get(ACCEPT);
    let wants_table = accept
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| v.contains("as=Table") && v.contains("g=meta.k8s.io"));
    let table = match wants_table {
        true => Some(Include::of(query)?),
        false => None,
    };
    get(context, query, segments, table, known)
}

fn get(
    context: &Context,
    query: &Query,
    segments: &[&str],
    table: Option<Include>,
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
            (Some((resource, Place::All(ns))), _) => list(context, query, resource.kind, ns, table),
            (Some((resource, Place::One(ns, name))), _) => {
                one(context, resource.kind, ns, name, table)
            }
            (None, Some(document)) => Ok(json_reply(document.to_string())),
            (None, None) if known => Err(ApiError::method_not_allowed()),
            (None, None) => Err(ApiError::no_such_path()),
        },
    }
}

fn list(
    context: &Context,
    query: &Query,
    kind: Kind,
    namespace: Option<&str>,
    table: Option<Include>,
) -> Result<Response<Body>, ApiError> {
    let selector = Selector::from_query(query, kind, namespace)?;
    let options = ListOptions::of(query)?;
    if options.watch {
        let watch = Watch::new(context.store.clone(), kind, &options, selector, table);
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
    if let Some(include) = table {
        let chosen = chosen.iter().map(|object| &**object);
        return Ok(json_reply(table::of(kind, version, include, chosen)));
    }
    let Resource {
        object: one, group, ..
    } = resource::of(kind);
    let mut body = format!(
        "{{\"kind\":\"{one}List\",\"apiVersion\":\"{group}\",\"metadata\":{{\"resourceVersion\":\"{version}\"}},\"items\":["
    )
    .into_bytes();
    for (index, object) in chosen.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&shown(kind, object));
    }
    body.extend_from_slice(b"]}");
    Ok(json_reply(body))
}

fn one(
    context: &Context,
    kind: Kind,
    namespace: &str,
    name: &str,
    table: Option<Include>,
) -> Result<Response<Body>, ApiError> {
    let key = (namespace.into(), name.into());
    let object = context
        .store
        .get(kind, &key)
        .ok_or_else(|| ApiError::not_found_in(&resource::of(kind), name))?;
    Ok(json_reply(match table {
        Some(include) => Bytes::from(table::of(kind, object.version, include, [&*object])),
        None => shown(kind, &object),
    }))
}

/// Returns the JSON of an object as it is now.
pub(crate) fn shown(kind: Kind, object: &Object) -> Bytes {
    match kind {
        Kind::Nodes => node::alive(&object.json()),
        _ => object.json(),
    }
}
