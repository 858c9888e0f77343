//! Which path means what? One match over method and path segments; everything else is 404, or 405 on a known path.

use std::sync::Arc;

use hyper::body::Bytes;
use hyper::header::ACCEPT;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde_json::{Value, json};

use super::command::{Command, PlannedFile};
use super::door::Cost;
use super::error::ApiError;
use super::list_options::ListOptions;
use super::metrics::render;
use super::object::Object;
use super::patch::PatchKind;
use super::query::{Query, decode};
use super::selector::Selector;
use super::server::{Body, Context, Items, Spawner, json as json_reply, json_of, reply, streamed};
use super::store::Kind;
use super::table::{self, Include};
use super::watch::Watch;
use super::{
    attach, cordon, delete, ephemeral, eviction, exec, images, logs, node, shutdown, status_patch,
};

/// The content type of Prometheus' text format.
const EXPOSITION: &str = "text/plain; version=0.0.4";

/// Of manifests to be planned with: somewhat more than the largest one.
const MAX_PLAN: usize = 16 << 20;

/// What it costs to answer a request, and how long its body may be, if that is more than usual.
pub(crate) fn cost(request: &Parts) -> (Cost, Option<usize>) {
    let segments = segments(&request.uri);
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let query = Query::parse(request.uri.query());
    match (&request.method, &segments[..]) {
        (_, ["api", "v1", "namespaces", _, "pods", _, "exec" | "attach"]) => (Cost::Session, None),
        (&Method::GET, ["api", "v1", "namespaces", _, "pods", _, "log"]) => (Cost::Log, None),
        (&Method::POST, ["coracle", "v1", "plan"]) => (Cost::Plan, Some(MAX_PLAN)),
        (
            &Method::POST,
            ["coracle", "v1", "drain" | "shutdown"] | ["coracle", "v1", "images", "import"],
        ) => (Cost::Progress, None),
        (&Method::GET, _) if query.flag("watch").unwrap_or(false) => (Cost::Watch, None),
        _ => (Cost::Short, None),
    }
}

fn segments(uri: &Uri) -> Vec<String> {
    let path = uri.path().trim_matches('/');
    path.split('/').map(decode).collect()
}

/// Whether a request only asks what would come of it. One that cannot be answered without doing it is refused.
fn rehearsal(method: &Method, segments: &[&str], query: &Query) -> Result<bool, ApiError> {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    match (method, segments) {
        // It had the option before it was Kubernetes'.
        (&Method::POST, ["coracle", "v1", "drain"]) if query.all("dryRun") != ["All"] => {
            return query.flag("dryRun");
        }
        (_, ["api", "v1", "namespaces", _, "pods", _, "exec" | "attach"]) => {}
        _ if reads => return Ok(false),
        _ => {}
    }
    let dry_run = query.dry_run(method)?;
    let can = match (method, segments) {
        (&Method::DELETE, ["api", "v1", "namespaces", _, "pods", _])
        | (&Method::POST, ["api", "v1", "namespaces", _, "pods", _, "eviction"])
        | (
            &Method::PATCH | &Method::PUT,
            ["api", "v1", "namespaces", _, "pods", _, "ephemeralcontainers"],
        )
        | (&Method::PATCH, ["api", "v1", "namespaces", _, "pods", _, "status"])
        | (&Method::PATCH, ["api", "v1", "nodes", _])
        // Which is a rehearsal by itself.
        | (&Method::POST, ["coracle", "v1", "plan" | "drain"]) => true,
        // All else below these is refused for its method or path, or only reads.
        (_, ["api" | "apis", ..]) => !matches!(segments, [.., "exec" | "attach"]),
        _ => false,
    };
    match dry_run && !can {
        true => Err(ApiError::bad_request(format!(
            "the dryRun option is not supported here: what {method} /{} does cannot be rehearsed",
            segments.join("/")
        ))),
        false => Ok(dry_run),
    }
}

/// Answers one request.
pub(crate) async fn answer(
    request: Request<Bytes>,
    context: Arc<Context>,
    spawner: Spawner,
) -> Result<Response<Body>, ApiError> {
    let segments = segments(request.uri());
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let query = Query::parse(request.uri().query());
    let dry_run = rehearsal(request.method(), &segments, &query)?;
    match (request.method().clone(), &segments[..]) {
        (Method::DELETE, ["api", "v1", "namespaces", ns, "pods", name]) => {
            delete::pod(request, &context, &query, (ns, name)).await
        }
        (Method::POST, ["api", "v1", "namespaces", ns, "pods", name, "eviction"]) => {
            eviction::answer(&request, &context, &query, (ns, name)).await
        }
        (
            Method::PATCH | Method::PUT,
            [
                "api",
                "v1",
                "namespaces",
                ns,
                "pods",
                name,
                "ephemeralcontainers",
            ],
        ) => ephemeral::answer(request, &context, (ns, name), dry_run).await,
        (_, ["api", "v1", "namespaces", ns, "pods", name, "attach"]) => {
            attach::answer(request, context.clone(), spawner, &query, (ns, name)).await
        }
        (Method::PATCH, ["api", "v1", "namespaces", ns, "pods", name, "status"]) => {
            patch_status(request, &context, (ns, name), dry_run).await
        }
        (Method::POST, ["coracle", "v1", "namespaces", ns, "pods", name, "retry"]) => {
            retry(&context, &query, ns, name).await
        }
        (_, ["api", "v1", "namespaces", ns, "pods", name, "exec"]) => {
            exec::answer(request, context.clone(), spawner, &query, (ns, name)).await
        }
        (Method::GET, ["api", "v1", "namespaces", ns, "pods", name, "log"]) => {
            logs::answer(&context, &query, ns, name).await
        }
        (Method::GET | Method::HEAD, ["metrics", which @ ..]) => {
            let (reply_to, answer) = smol::channel::bounded(1);
            let command = match which {
                [] => Command::Count { reply: reply_to },
                ["cadvisor"] => Command::MeasurePods { reply: reply_to },
                ["resource"] => Command::MeasureResources { reply: reply_to },
                ["probes"] => Command::CountProbes { reply: reply_to },
                _ => return Err(ApiError::no_such_path()),
            };
            let metrics = ask(&context, command, answer).await?;
            Ok(reply(StatusCode::OK, EXPOSITION, render(&metrics)))
        }
        (_, ["metrics", ..]) => Err(ApiError::method_not_allowed()),
        (Method::GET | Method::HEAD, ["stats", "summary"]) => {
            let brief = query.flag("only_cpu_and_memory")?;
            let (reply, answer) = smol::channel::bounded(1);
            let command = Command::Summarize { brief, reply };
            let summary = ask(&context, command, answer).await?;
            Ok(json_reply(summary.to_string()))
        }
        (Method::GET, ["coracle", "v1", "namespaces", ns, "pods", name, "cgroups"]) => {
            let (reply, answer) = smol::channel::bounded(1);
            let (namespace, name) = ((*ns).to_owned(), (*name).to_owned());
            let command = Command::ShowCgroups {
                namespace,
                name,
                reply,
            };
            let values = ask(&context, command, answer).await?;
            Ok(json_reply(values.to_string()))
        }
        (Method::GET | Method::HEAD, ["configz"]) => {
            let (reply_to, answer) = smol::channel::bounded(1);
            let command = Command::ShowSettings { reply: reply_to };
            let settings = ask(&context, command, answer).await?;
            Ok(json_reply(settings.to_string()))
        }
        (Method::POST, ["coracle", "v1", "plan"]) => {
            let body = request.into_body();
            let files = serde_json::from_slice::<Items<PlannedFile>>(&body)
                .map_err(|error| ApiError::bad_request(format!("invalid request body: {error}")))?;
            let (reply, answer) = smol::channel::bounded(1);
            let files = files.items;
            let command = Command::Preview { files, reply };
            let planned = ask(&context, command, answer).await?;
            Ok(json_reply(planned.to_string()))
        }
        (_, ["coracle", "v1", "plan"]) => Err(ApiError::method_not_allowed()),
        (Method::PATCH, ["api", "v1", "nodes", name]) => {
            cordon::patch_node(request, &context, name, dry_run).await
        }
        (Method::POST, ["coracle", "v1", "drain"]) => {
            cordon::drain(&context, &query, dry_run).await
        }
        (_, ["coracle", "v1", "drain"]) => Err(ApiError::method_not_allowed()),
        (method, ["coracle", "v1", "shutdown"]) => shutdown::answer(method, &context).await,
        (method, ["coracle", "v1", "images", rest @ ..]) => {
            images::answer(method, rest, request, &context, &query).await
        }
        (Method::GET | Method::HEAD, segments) => {
            if let ["api", "v1", "nodes", ..] = segments {
                node::look(&context).await;
            }
            let wants_table = request
                .headers()
                .get(ACCEPT)
                .and_then(|v| v.to_str().ok())
                .is_some_and(|v| v.contains("as=Table") && v.contains("g=meta.k8s.io"));
            let table = match wants_table {
                true => Some(Include::of(&query)?),
                false => None,
            };
            get(&context, &query, segments, table)
        }
        (_, segments) => match get(&context, &query, segments, None) {
            Ok(_) => Err(ApiError::method_not_allowed()),
            Err(error) => Err(error),
        },
    }
}

fn get(
    context: &Context,
    query: &Query,
    segments: &[&str],
    table: Option<Include>,
) -> Result<Response<Body>, ApiError> {
    match segments {
        ["healthz" | "livez" | "readyz"] => Ok(reply(StatusCode::OK, "text/plain", "ok")),
        ["version"] => Ok(json_reply(version().to_string())),
        ["api"] => Ok(json_reply(
            json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] })
                .to_string(),
        )),
        ["apis"] => Ok(json_reply(
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [policy(), scheduling()] })
                .to_string(),
        )),
        ["apis", name @ ("policy" | "scheduling.k8s.io")] => {
            let mut group = match *name {
                "policy" => policy(),
                _ => scheduling(),
            };
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            Ok(json_reply(group.to_string()))
        }
        ["apis", "policy", "v1"] => {
            let list = json!({ "kind": "APIResourceList", "apiVersion": "v1",
                               "groupVersion": "policy/v1", "resources": [] });
            Ok(json_reply(list.to_string()))
        }
        ["apis", "scheduling.k8s.io", "v1"] => {
            let read = ["get", "list", "watch"];
            let of = resource(
                "priorityclasses",
                "priorityclass",
                "PriorityClass",
                false,
                &read,
                &["pc"],
            );
            let list = json!({ "kind": "APIResourceList", "apiVersion": "v1",
                               "groupVersion": "scheduling.k8s.io/v1", "resources": [of] });
            Ok(json_reply(list.to_string()))
        }
        ["apis", "scheduling.k8s.io", "v1", "priorityclasses"] => {
            list(context, query, Kind::PriorityClasses, None, table)
        }
        ["apis", "scheduling.k8s.io", "v1", "priorityclasses", name] => {
            one(context, Kind::PriorityClasses, "", name, table)
        }
        ["api", "v1"] => Ok(json_reply(resources().to_string())),
        ["api", "v1", "namespaces"] => Ok(json_reply(namespaces(context).to_string())),
        ["api", "v1", "namespaces", name] => namespace(context, name),
        ["api", "v1", "pods"] => list(context, query, Kind::Pods, None, table),
        ["api", "v1", "nodes"] => list(context, query, Kind::Nodes, None, table),
        ["api", "v1", "events"] => list(context, query, Kind::Events, None, table),
        ["api", "v1", "nodes", name] => one(context, Kind::Nodes, "", name, table),
        ["api", "v1", "namespaces", ns, "pods"] => {
            list(context, query, Kind::Pods, Some(ns), table)
        }
        ["api", "v1", "namespaces", ns, "events"] => {
            list(context, query, Kind::Events, Some(ns), table)
        }
        ["api", "v1", "namespaces", ns, "pods", name] => one(context, Kind::Pods, ns, name, table),
        [
            "api",
            "v1",
            "namespaces",
            ns,
            "pods",
            name,
            "status" | "ephemeralcontainers",
        ] => one(context, Kind::Pods, ns, name, table),
        ["api", "v1", "namespaces", ns, "events", name] => {
            one(context, Kind::Events, ns, name, table)
        }
        ["api", "v1", "services"] => list(context, query, Kind::Services, None, table),
        ["api", "v1", "endpoints"] => list(context, query, Kind::Endpoints, None, table),
        ["api", "v1", "namespaces", ns, "services"] => {
            list(context, query, Kind::Services, Some(ns), table)
        }
        ["api", "v1", "namespaces", ns, "endpoints"] => {
            list(context, query, Kind::Endpoints, Some(ns), table)
        }
        ["api", "v1", "namespaces", ns, "services", name] => {
            one(context, Kind::Services, ns, name, table)
        }
        ["api", "v1", "namespaces", ns, "endpoints", name] => {
            one(context, Kind::Endpoints, ns, name, table)
        }
        ["coracle", "v1", "files"] => json_of(&Items {
            items: context.store.files(),
        }),
        _ => Err(ApiError::no_such_path()),
    }
}

/// The resource in paths and messages.
fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Pods => "pods",
        Kind::Nodes => "nodes",
        Kind::Events => "events",
        Kind::Services => "services",
        Kind::Endpoints => "endpoints",
        Kind::PriorityClasses => "priorityclasses",
    }
}

/// `kind` and `apiVersion` of an object.
pub(crate) fn kind_and_group(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Pods => ("Pod", "v1"),
        Kind::Nodes => ("Node", "v1"),
        Kind::Events => ("Event", "v1"),
        Kind::Services => ("Service", "v1"),
        Kind::Endpoints => ("Endpoints", "v1"),
        Kind::PriorityClasses => ("PriorityClass", "scheduling.k8s.io/v1"),
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
        chosen.sort_by_key(|event| event.version);
    }
    if let Some(include) = table {
        let chosen = chosen.iter().map(|object| &**object);
        return Ok(json_reply(table::of(kind, version, include, chosen)));
    }
    let (one, group) = kind_and_group(kind);
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
    let key = (namespace.to_owned(), name.to_owned());
    let object = context
        .store
        .get(kind, &key)
        .ok_or_else(|| ApiError::not_found(plural(kind), name))?;
    Ok(json_reply(match table {
        Some(include) => Bytes::from(table::of(kind, object.version, include, [&*object])),
        None => shown(kind, &object),
    }))
}

/// An object as it is now.
pub(crate) fn shown(kind: Kind, object: &Object) -> Bytes {
    match kind {
        Kind::Nodes => node::alive(&object.json),
        Kind::Pods | Kind::Events | Kind::Services | Kind::Endpoints | Kind::PriorityClasses => {
            object.json.clone()
        }
    }
}

async fn patch_status(
    request: Request<Bytes>,
    context: &Context,
    (namespace, name): (&str, &str),
    dry_run: bool,
) -> Result<Response<Body>, ApiError> {
    let kind = PatchKind::of(&request)?;
    let key = (namespace.to_owned(), name.to_owned());
    let shown = || {
        let found = context.store.get(Kind::Pods, &key);
        found.ok_or_else(|| ApiError::not_found("pods", name))
    };
    let mut pod = serde_json::from_slice(&shown()?.json).unwrap_or_default();
    let changes = status_patch::changes(&pod, kind, request.body())?;
    if dry_run {
        status_patch::rehearsed(&mut pod, &changes);
        return Ok(json_reply(pod.to_string()));
    }
    let (reply, answer) = smol::channel::bounded(1);
    let command = Command::SetConditions {
        namespace: key.0.clone(),
        name: key.1.clone(),
        changes,
        reply,
    };
    ask(context, command, answer).await?;
    Ok(json_reply(shown()?.json.clone()))
}

async fn retry(
    context: &Context,
    query: &Query,
    namespace: &str,
    name: &str,
) -> Result<Response<Body>, ApiError> {
    let (reply, answer) = smol::channel::bounded(1);
    let command = Command::Retry {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        container: query.get("container").map(str::to_owned),
        reply,
    };
    let message = ask(context, command, answer).await?;
    let done = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                       "message": message });
    Ok(json_reply(done.to_string()))
}

/// Sends a command and waits for its answer.
pub(crate) async fn ask<T>(
    context: &Context,
    command: Command,
    answer: smol::channel::Receiver<Result<T, super::command::CommandError>>,
) -> Result<T, ApiError> {
    context
        .commands
        .send(command)
        .await
        .map_err(|_| ApiError::unavailable())?;
    let answer = answer.recv().await.map_err(|_| ApiError::unavailable())?;
    Ok(answer?)
}

fn version() -> Value {
    let arch = node::architecture();
    json!({ "major": "1", "minor": "36", "gitVersion": node::version(),
            "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
            "platform": format!("linux/{arch}"), "coracleVersion": env!("CARGO_PKG_VERSION") })
}

/// The group that priority classes are in.
fn scheduling() -> Value {
    let version = json!({ "groupVersion": "scheduling.k8s.io/v1", "version": "v1" });
    json!({ "name": "scheduling.k8s.io", "versions": [version], "preferredVersion": version })
}

/// The group that evictions are of. kubectl looks for it before it evicts.
fn policy() -> Value {
    let version = json!({ "groupVersion": "policy/v1", "version": "v1" });
    json!({ "name": "policy", "versions": [version], "preferredVersion": version })
}

/// The subresource by which pods are evicted.
fn pods_eviction() -> Value {
    let mut eviction = resource("pods/eviction", "", "Eviction", true, &["create"], &[]);
    eviction["group"] = "policy".into();
    eviction["version"] = "v1".into();
    eviction
}

fn resource(
    name: &str,
    one: &str,
    kind: &str,
    namespaced: bool,
    verbs: &[&str],
    short: &[&str],
) -> Value {
    json!({ "name": name, "singularName": one, "kind": kind, "namespaced": namespaced, "verbs": verbs, "shortNames": short })
}

fn resources() -> Value {
    let read = ["get", "list", "watch"];
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [
        resource("endpoints", "endpoints", "Endpoints", true, &read, &["ep"]),
        resource("events", "event", "Event", true, &read, &["ev"]),
        resource("namespaces", "namespace", "Namespace", false, &["get", "list"], &["ns"]),
        resource("nodes", "node", "Node", false, &["get", "list", "patch", "watch"], &["no"]),
        resource("pods", "pod", "Pod", true, &["delete", "get", "list", "watch"], &["po"]),
        resource("pods/ephemeralcontainers", "", "Pod", true, &["get", "patch", "update"], &[]),
        pods_eviction(),
        resource("pods/log", "", "Pod", true, &["get"], &[]),
        resource("pods/status", "", "Pod", true, &["get", "patch"], &[]),
        resource("services", "service", "Service", true, &read, &["svc"]),
    ] })
}

fn namespace_names(context: &Context) -> Vec<String> {
    let (_, pods) = context.store.list(Kind::Pods);
    let (_, services) = context.store.list(Kind::Services);
    let all = pods.iter().chain(&services);
    let mut names: Vec<String> = all.map(|object| object.key.0.clone()).collect();
    names.push("default".to_owned());
    names.sort();
    names.dedup();
    names
}

fn namespace_object(name: &str) -> Value {
    json!({ "kind": "Namespace", "apiVersion": "v1",
            "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } },
            "spec": { "finalizers": [] }, "status": { "phase": "Active" } })
}

fn namespaces(context: &Context) -> Value {
    let items: Vec<Value> = namespace_names(context)
        .iter()
        .map(|name| namespace_object(name))
        .collect();
    let version = context.store.list(Kind::Nodes).0.to_string();
    json!({ "kind": "NamespaceList", "apiVersion": "v1", "metadata": { "resourceVersion": version }, "items": items })
}

fn namespace(context: &Context, name: &str) -> Result<Response<Body>, ApiError> {
    match namespace_names(context).iter().any(|known| known == name) {
        true => Ok(json_reply(namespace_object(name).to_string())),
        false => Err(ApiError::not_found("namespaces", name)),
    }
}
