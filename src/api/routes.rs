//! The routes: a table of what the API does beside reads of the store, with one line for each. `read.rs` answers the
//! reads; everything else is 404, or 405 on a known path.

use std::sync::Arc;

use hyper::body::Bytes;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde_json::json;
use smol::channel::{Sender, bounded};

use super::command::{Command, CommandError, PlannedFile, Rollout, RolloutRequest};
use super::door::Cost;
use super::error::ApiError;
use super::metrics::render;
use super::query::{Query, decode};
use super::read::read;
use super::server::{Body, Context, Items, Spawner, json as json_reply, reply};
use super::{
    attach, bundles, cordon, delete, ephemeral, eviction, exec, images, logs, port_forward, pull,
    shutdown, status_patch, stop, volumes,
};
use crate::spec::WorkloadKind;

/// The content type of Prometheus' text format.
const EXPOSITION: &str = "text/plain; version=0.0.4";

/// Limit of the body of `plan`, in bytes: somewhat more than the largest manifest.
const MAX_PLAN: usize = 16 << 20;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    DeletePod,
    EvictPod,
    SetEphemeral,
    SetStatus,
    Attach,
    Exec,
    Forward,
    Copy,
    ReadLog,
    PatchNode,
    Retry,
    Rollout,
    Restart,
    Stop,
    Start,
    ShowCgroups,
    Plan,
    ReadManifests,
    Drain,
    ShowBoot,
    ShowShutdown,
    BeginShutdown,
    CancelShutdown,
    ListImages,
    RemoveImage,
    PruneImages,
    ImportImage,
    TagImage,
    InspectImage,
    SaveImages,
    PullImage,
    ApplyBundle,
    ListBundles,
    RollBackBundle,
    RemoveBundle,
    ListVolumes,
    RemoveVolume,
    Metrics(Metrics),
    Summary,
    Settings,
}

/// A page of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Metrics {
    Agent,
    Cadvisor,
    Resource,
    Probes,
}

/// A line of the table.
#[derive(Debug)]
struct Route {
    /// None: any.
    methods: &'static [Method],
    /// `*` stands for any segment; they are the parameters of the action.
    path: &'static str,
    action: Action,
    cost: Cost,
    /// The limit of the body, if it is larger than usual.
    max_body: Option<usize>,
    /// Whether it can be a dry run.
    dry_run: bool,
}

const GET: &[Method] = &[Method::GET, Method::HEAD];
const POST: &[Method] = &[Method::POST];
const PATCH: &[Method] = &[Method::PATCH];
const DELETE: &[Method] = &[Method::DELETE];

/// The table.
const ROUTES: &[Route] = &[
    route(DELETE, "api/v1/namespaces/*/pods/*", Action::DeletePod).can_be_dry(),
    route(
        POST,
        "api/v1/namespaces/*/pods/*/eviction",
        Action::EvictPod,
    )
    .can_be_dry(),
    route(
        &[Method::PATCH, Method::PUT],
        "api/v1/namespaces/*/pods/*/ephemeralcontainers",
        Action::SetEphemeral,
    )
    .can_be_dry(),
    route(
        PATCH,
        "api/v1/namespaces/*/pods/*/status",
        Action::SetStatus,
    )
    .can_be_dry(),
    route(&[], "api/v1/namespaces/*/pods/*/attach", Action::Attach).costs(Cost::Session),
    route(&[], "api/v1/namespaces/*/pods/*/exec", Action::Exec).costs(Cost::Session),
    route(
        &[],
        "api/v1/namespaces/*/pods/*/portforward",
        Action::Forward,
    )
    .costs(Cost::Forward),
    route(POST, "coracle/v1/namespaces/*/pods/*/copy", Action::Copy).costs(Cost::Session),
    route(
        &[Method::GET],
        "api/v1/namespaces/*/pods/*/log",
        Action::ReadLog,
    )
    .costs(Cost::Log),
    route(PATCH, "api/v1/nodes/*", Action::PatchNode).can_be_dry(),
    route(POST, "coracle/v1/namespaces/*/pods/*/retry", Action::Retry),
    route(
        POST,
        "coracle/v1/namespaces/*/pods/*/restart",
        Action::Restart,
    ),
    route(POST, "coracle/v1/namespaces/*/stop", Action::Stop),
    route(POST, "coracle/v1/namespaces/*/start", Action::Start),
    route(
        GET,
        "coracle/v1/namespaces/*/pods/*/cgroups",
        Action::ShowCgroups,
    ),
    route(
        &[Method::GET, Method::POST],
        "coracle/v1/namespaces/*/rollouts/*/*",
        Action::Rollout,
    ),
    Route {
        max_body: Some(MAX_PLAN),
        ..route(POST, "coracle/v1/plan", Action::Plan)
    }
    .costs(Cost::Plan)
    .can_be_dry(),
    route(GET, "coracle/v1/manifests/settled", Action::ReadManifests),
    route(POST, "coracle/v1/drain", Action::Drain)
        .costs(Cost::Progress)
        .can_be_dry(),
    route(GET, "coracle/v1/boot", Action::ShowBoot),
    route(GET, "coracle/v1/shutdown", Action::ShowShutdown),
    route(POST, "coracle/v1/shutdown", Action::BeginShutdown).costs(Cost::Progress),
    route(DELETE, "coracle/v1/shutdown", Action::CancelShutdown),
    route(GET, "coracle/v1/images", Action::ListImages),
    route(DELETE, "coracle/v1/images", Action::RemoveImage),
    route(POST, "coracle/v1/images/prune", Action::PruneImages),
    route(POST, "coracle/v1/images/import", Action::ImportImage).costs(Cost::Progress),
    route(POST, "coracle/v1/images/tag", Action::TagImage),
    route(GET, "coracle/v1/images/inspect", Action::InspectImage),
    route(GET, "coracle/v1/images/save", Action::SaveImages).costs(Cost::Progress),
    route(POST, "coracle/v1/images/pull", Action::PullImage).costs(Cost::Progress),
    route(GET, "coracle/v1/bundles", Action::ListBundles),
    route(DELETE, "coracle/v1/bundles", Action::RemoveBundle),
    route(POST, "coracle/v1/bundles/apply", Action::ApplyBundle).costs(Cost::Progress),
    route(POST, "coracle/v1/bundles/rollback", Action::RollBackBundle),
    route(GET, "coracle/v1/volumes", Action::ListVolumes),
    route(DELETE, "coracle/v1/volumes", Action::RemoveVolume),
    route(GET, "metrics", Action::Metrics(Metrics::Agent)),
    route(GET, "metrics/cadvisor", Action::Metrics(Metrics::Cadvisor)),
    route(GET, "metrics/resource", Action::Metrics(Metrics::Resource)),
    route(GET, "metrics/probes", Action::Metrics(Metrics::Probes)),
    route(GET, "stats/summary", Action::Summary),
    route(GET, "configz", Action::Settings),
];

const fn route(methods: &'static [Method], path: &'static str, action: Action) -> Route {
    Route {
        methods,
        path,
        action,
        cost: Cost::Short,
        max_body: None,
        dry_run: false,
    }
}

impl Route {
    const fn costs(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    const fn can_be_dry(self) -> Self {
        Self {
            dry_run: true,
            ..self
        }
    }

    /// The parameters in this path, if it is the route's.
    fn parameters<'s>(&self, segments: &[&'s str]) -> Option<Vec<&'s str>> {
        let mut pattern = self.path.split('/');
        let mut parameters = Vec::new();
        for &segment in segments {
            match pattern.next()? {
                "*" => parameters.push(segment),
                fixed if fixed == segment => {}
                _ => return None,
            }
        }
        pattern.next().is_none().then_some(parameters)
    }
}

/// The route of a request and the parameters in its path. Without a route: whether another method has one here.
fn find<'s>(method: &Method, segments: &[&'s str]) -> Result<(&'static Route, Vec<&'s str>), bool> {
    let here = ROUTES
        .iter()
        .filter_map(|route| Some((route, route.parameters(segments)?)));
    let here: Vec<_> = here.collect();
    let known = !here.is_empty();
    let allows = |route: &Route| route.methods.is_empty() || route.methods.contains(method);
    let mut here = here.into_iter();
    here.find(|(route, _)| allows(route)).ok_or(known)
}

/// Returns the cost of a request, and the limit of its body if that is larger than usual.
pub(crate) fn cost(request: &Parts) -> (Cost, Option<usize>) {
    let segments = segments(&request.uri);
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let watches = || Query::parse(request.uri.query()).flag("watch");
    match find(&request.method, &segments) {
        Ok((route, _)) => (route.cost, route.max_body),
        Err(_) if request.method == Method::GET && watches().unwrap_or(false) => {
            (Cost::Watch, None)
        }
        Err(_) => (Cost::Short, None),
    }
}

fn segments(uri: &Uri) -> Vec<String> {
    let path = uri.path().trim_matches('/');
    path.split('/').map(decode).collect()
}

/// Whether a request is a dry run. Refuses `dryRun` where it is not possible.
fn is_dry_run(
    method: &Method,
    segments: &[&str],
    route: Option<&Route>,
    query: &Query,
) -> Result<bool, ApiError> {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    let can = match route.map(|route| (route.action, route.dry_run)) {
        // Coracle's drain also takes `dryRun=true`.
        Some((Action::Drain, _)) if query.all("dryRun") != ["All"] => return query.flag("dryRun"),
        Some((Action::Exec | Action::Attach | Action::Forward, _)) => false,
        _ if reads => return Ok(false),
        Some((_, can)) => can,
        // These refuse the method or the path.
        None => matches!(segments, ["api" | "apis", ..]),
    };
    let dry_run = query.dry_run(method)?;
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
    let found = find(request.method(), &segments);
    let route = found.as_ref().ok().map(|(route, _)| *route);
    let dry_run = is_dry_run(request.method(), &segments, route, &query)?;
    match found {
        Ok((route, parameters)) => {
            let call = Call {
                request,
                context,
                spawner,
                query,
                dry_run,
            };
            act(route.action, &parameters, call).await
        }
        Err(known) => read(&request, &context, &query, &segments, known).await,
    }
}

/// A request and its context.
struct Call {
    request: Request<Bytes>,
    context: Arc<Context>,
    spawner: Spawner,
    query: Query,
    dry_run: bool,
}

/// Carries out an action. `parameters`: what stands for `*` in its path, such as namespace and name.
async fn act(action: Action, parameters: &[&str], call: Call) -> Result<Response<Body>, ApiError> {
    let Call {
        request,
        context,
        spawner,
        query,
        dry_run,
    } = call;
    let pod = match *parameters {
        [namespace, name] => (namespace, name),
        [name] => ("", name),
        _ => ("", ""),
    };
    match action {
        Action::DeletePod => delete::pod(request, &context, &query, pod).await,
        Action::EvictPod => eviction::answer(&request, &context, &query, pod).await,
        Action::SetEphemeral => ephemeral::answer(request, &context, pod, dry_run).await,
        Action::SetStatus => status_patch::answer(request, &context, pod, dry_run).await,
        Action::Attach => attach::answer(request, context, spawner, &query, pod).await,
        Action::Exec => exec::answer(request, context, spawner, &query, pod).await,
        Action::Forward => port_forward::answer(request, &context, &spawner, &query, pod).await,
        Action::Copy => exec::copy(request, context, spawner, &query, pod).await,
        Action::ReadLog => logs::answer(&context, &query, pod.0, pod.1).await,
        Action::PatchNode => cordon::patch_node(request, &context, pod.1, dry_run).await,
        Action::Restart => stop::restart(&context, &query, pod).await,
        Action::Stop => stop::stop_or_start(&context, &query, pod.1, true).await,
        Action::Start => stop::stop_or_start(&context, &query, pod.1, false).await,
        Action::Retry => retry(&context, &query, pod.0, pod.1).await,
        Action::Rollout => rollout(&context, request.method(), &query, parameters).await,
        Action::ShowCgroups => cgroups(&context, pod.0, pod.1).await,
        Action::Plan => plan(&context, request.body()).await,
        Action::ReadManifests => {
            ask(&context, |reply| Command::ReadManifests { reply }).await?;
            Ok(json_reply(json!({}).to_string()))
        }
        Action::Drain => cordon::drain(&context, &query, dry_run).await,
        Action::ShowBoot => boot(&context).await,
        Action::ShowShutdown => shutdown::show(&context).await,
        Action::BeginShutdown => shutdown::begin(&context).await,
        Action::CancelShutdown => shutdown::cancel(&context).await,
        Action::ListImages => images::list(&context).await,
        Action::RemoveImage => images::remove(&context, &query).await,
        Action::PruneImages => images::prune(request, &context).await,
        Action::ImportImage => images::import_file(request, &context).await,
        Action::TagImage => images::tag(request, &context).await,
        Action::InspectImage => images::inspect(&context, &query).await,
        Action::SaveImages => images::save(&context, &query).await,
        Action::PullImage => pull::answer(request, &context).await,
        Action::ApplyBundle => bundles::apply(request, &context).await,
        Action::ListBundles => bundles::list(&context).await,
        Action::RollBackBundle => bundles::roll_back(request, &context).await,
        Action::RemoveBundle => bundles::remove(&context, &query).await,
        Action::ListVolumes => volumes::list(&context).await,
        Action::RemoveVolume => volumes::remove(&context, &query).await,
        Action::Metrics(page) => metrics(&context, page).await,
        Action::Summary => {
            let brief = query.flag("only_cpu_and_memory")?;
            let summary = ask(&context, |reply| Command::Summarize { brief, reply }).await?;
            Ok(json_reply(summary.to_string()))
        }
        Action::Settings => {
            let settings = ask(&context, |reply| Command::ShowSettings { reply }).await?;
            Ok(json_reply(settings.to_string()))
        }
    }
}

async fn metrics(context: &Context, page: Metrics) -> Result<Response<Body>, ApiError> {
    let measure = match page {
        Metrics::Agent => |reply| Command::Count { reply },
        Metrics::Cadvisor => |reply| Command::MeasurePods { reply },
        Metrics::Resource => |reply| Command::MeasureResources { reply },
        Metrics::Probes => |reply| Command::CountProbes { reply },
    };
    let metrics = ask(context, measure).await?;
    Ok(reply(StatusCode::OK, EXPOSITION, render(&metrics)))
}

async fn cgroups(
    context: &Context,
    namespace: &str,
    name: &str,
) -> Result<Response<Body>, ApiError> {
    let values = ask(context, |reply| Command::ShowCgroups {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        reply,
    });
    Ok(json_reply(values.await?.to_string()))
}

async fn plan(context: &Context, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let files = serde_json::from_slice::<Items<PlannedFile>>(body)
        .map_err(|error| ApiError::bad_request(format!("invalid request body: {error}")))?;
    let files = files.items;
    let planned = ask(context, |reply| Command::Preview { files, reply }).await?;
    Ok(json_reply(planned.to_string()))
}

async fn boot(context: &Context) -> Result<Response<Body>, ApiError> {
    let shown = ask(context, |reply| Command::ShowBoot { reply }).await?;
    Ok(json_reply(shown.to_string()))
}

async fn retry(
    context: &Context,
    query: &Query,
    namespace: &str,
    name: &str,
) -> Result<Response<Body>, ApiError> {
    let message = ask(context, |reply| Command::Retry {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        container: query.get("container").map(str::to_owned),
        reply,
    })
    .await?;
    let done = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                       "message": message });
    Ok(json_reply(done.to_string()))
}

/// `GET`: the revisions. `POST`: `?restart` or `?undo[=REVISION]`.
async fn rollout(
    context: &Context,
    method: &Method,
    query: &Query,
    parameters: &[&str],
) -> Result<Response<Body>, ApiError> {
    let [namespace, kind, name] = *parameters else {
        return Err(ApiError::bad_request(
            "what is to be rolled out?".to_owned(),
        ));
    };
    let known = WorkloadKind::of(kind);
    if known.is_none() && kind != "Pod" {
        return Err(ApiError::bad_request(format!("a {kind} has no rollouts")));
    }
    let revision = match query.get("undo") {
        None | Some("") => Ok(None),
        Some(number) => number.parse().map(Some),
    };
    let revision = revision.map_err(|_| ApiError::bad_request("invalid revision".to_owned()))?;
    let rollout = match query.get("undo") {
        _ if *method == Method::GET => Rollout::History,
        Some(_) => Rollout::Undo(revision),
        None => Rollout::Restart,
    };
    let request = RolloutRequest {
        kind: known,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        rollout,
    };
    let shown = ask(context, |reply| Command::Rollout { request, reply }).await?;
    Ok(json_reply(shown.to_string()))
}

/// Sends a command with a channel for its answer, and waits for the answer.
pub(crate) async fn ask<T>(
    context: &Context,
    command: impl FnOnce(Sender<Result<T, CommandError>>) -> Command,
) -> Result<T, ApiError> {
    let (reply, answer) = bounded(1);
    let sent = context.commands.send(command(reply)).await;
    sent.map_err(|_| ApiError::unavailable())?;
    let answer = answer.recv().await.map_err(|_| ApiError::unavailable())?;
    Ok(answer?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_its_route() {
        use Action::*;
        let pod = "api/v1/namespaces/a/pods/b";
        for (method, path, expected) in [
            (Method::DELETE, pod.to_owned(), Ok(DeletePod)),
            (Method::GET, pod.to_owned(), Err(true)),
            (Method::GET, format!("{pod}/log"), Ok(ReadLog)),
            (Method::POST, format!("{pod}/log"), Err(true)),
            (Method::POST, format!("{pod}/exec"), Ok(Exec)),
            (Method::GET, format!("{pod}/exec"), Ok(Exec)),
            (Method::GET, format!("{pod}/eviction"), Err(true)),
            (Method::GET, format!("{pod}/nothing"), Err(false)),
            (
                Method::HEAD,
                "metrics".to_owned(),
                Ok(Metrics(super::Metrics::Agent)),
            ),
            (Method::GET, "metrics/nothing".to_owned(), Err(false)),
            (Method::PUT, "coracle/v1/images".to_owned(), Err(true)),
            (
                Method::GET,
                "coracle/v1/images/import".to_owned(),
                Err(true),
            ),
            (
                Method::POST,
                "coracle/v1/images/import".to_owned(),
                Ok(ImportImage),
            ),
            (
                Method::POST,
                "coracle/v1/images/pull".to_owned(),
                Ok(PullImage),
            ),
            (Method::GET, "coracle/v1/images/pull".to_owned(), Err(true)),
            (
                Method::GET,
                "coracle/v1/manifests/settled".to_owned(),
                Ok(ReadManifests),
            ),
            (Method::GET, "api/v1/pods".to_owned(), Err(false)),
        ] {
            let segments: Vec<&str> = path.split('/').collect();
            let found = find(&method, &segments).map(|(route, _)| route.action);
            assert_eq!(found, expected, "{method} {path}");
        }
    }

    #[test]
    fn no_two_routes_answer_the_same_request() {
        for (at, route) in ROUTES.iter().enumerate() {
            for other in &ROUTES[at + 1..] {
                let path: Vec<&str> = other.path.split('/').collect();
                let shared = route.methods.iter().any(|m| other.methods.contains(m));
                assert!(
                    route.parameters(&path).is_none() || !shared,
                    "{route:?}, {other:?}"
                );
            }
        }
    }
}
