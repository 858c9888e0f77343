//! Volume paths: `GET /coracle/v1/volumes`, `DELETE …?namespace=&name=`.

use hyper::Response;

use super::command::Command;
use super::error::ApiError;
use super::query::Query;
use super::routes::ask;
use super::server::{Body, Context, Items, json_of};

pub(crate) async fn list(context: &Context) -> Result<Response<Body>, ApiError> {
    let items = ask(context, |reply| Command::ListVolumes { reply }).await?;
    json_of(&Items { items })
}

pub(crate) async fn remove(context: &Context, query: &Query) -> Result<Response<Body>, ApiError> {
    let text = |name: &str| {
        let given = query.get(name).filter(|text| !text.is_empty());
        given
            .map(str::to_owned)
            .ok_or_else(|| ApiError::bad_request(format!("query parameter `{name}` is missing")))
    };
    let (namespace, name) = (text("namespace")?, text("name")?);
    let ask = ask(context, |reply| Command::RemoveVolume {
        namespace,
        name,
        reply,
    });
    json_of(&ask.await?)
}
