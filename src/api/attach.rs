//! Attach: a running container's output and input, over the frames of exec ([`super::exec`]). The container outlives
//! the client.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use hyper::body::Bytes;
use hyper::{Request, Response};
use k8s_openapi::api::core::v1::Pod;

use super::error::ApiError;
use super::exec::{running_container, shim_socket, switch};
use super::exec_frame as frame;
use super::log_files;
use super::log_line::Record;
use super::logs::status_of;
use super::query::Query;
use super::server::{Body, Context, Spawner};
use crate::effects::exec::Program;
use crate::layout::log_file;
use crate::shim::protocol::AttachRequest;
use crate::spec::PodUid;
use crate::sys::pty;

/// How much of the log a client that attaches gets, in bytes.
const MOST_EARLIER: u64 = 1 << 20;

pub(crate) async fn answer(
    request: Request<Bytes>,
    context: Arc<Context>,
    spawner: Spawner,
    query: &Query,
    (namespace, name): (&str, &str),
) -> Result<Response<Body>, ApiError> {
    let (pod, container) = running_container(&request, &context, query, (namespace, name))?;
    let stdin = query.flag("stdin")?;
    let size: Option<(u16, u16)> = query.number("cols")?.zip(query.number("rows")?);
    // Opened before the attach: the log up to that moment is the earlier output.
    let log = match query.flag("logs")? {
        true => log_files::open(&log_path(&context, &pod, &container)).ok(),
        false => None,
    };
    let asked = AttachRequest { container, stdin };
    let session = Program::attach(&shim_socket(&context, &pod), asked).await;
    let (session, log_bytes) = session.map_err(|error| {
        ApiError::bad_request(format!("could not attach to pod {name}: {error}"))
    })?;
    if let (Some(terminal), Some((columns, rows))) = (&session.terminal, size) {
        // Two sizes in a row, so that the size changes in any case and programs redraw.
        let _ = pty::set_size(terminal, columns.saturating_add(1), rows);
        let _ = pty::set_size(terminal, columns, rows);
    }
    let earlier = log.map_or_else(Vec::new, |log| earlier_output(log, log_bytes));
    Ok(switch(request, &spawner, session, earlier))
}

/// Returns the path of the log of the container's current run.
fn log_path(context: &Context, pod: &Pod, container: &str) -> PathBuf {
    let metadata = &pod.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let uid = PodUid::from(text(&metadata.uid).as_str());
    let (namespace, name) = (text(&metadata.namespace), text(&metadata.name));
    let folder = context
        .layout
        .container_logs(&namespace, &name, &uid, container);
    let attempt = status_of(pod, container).map_or(0, |status| status.restart_count);
    log_file(&folder, u32::try_from(attempt).unwrap_or(0))
}

/// Returns the end of the first `length` bytes of a log as frames.
fn earlier_output(mut log: File, length: u64) -> Vec<u8> {
    let begin = length.saturating_sub(MOST_EARLIER);
    let mut bytes = Vec::new();
    let read = log
        .seek(SeekFrom::Start(begin))
        .and_then(|_| log.take(length - begin).read_to_end(&mut bytes));
    if read.is_err() {
        return Vec::new();
    }
    let mut lines = bytes.split(|byte| *byte == b'\n');
    if begin > 0 {
        // The first line is incomplete.
        lines.next();
    }
    let mut frames = Vec::new();
    for record in lines.filter_map(Record::parse) {
        let mut content = record.content.to_vec();
        if !record.partial {
            content.push(b'\n');
        }
        let channel = match record.stderr {
            true => frame::STDERR,
            false => frame::STDOUT,
        };
        frames.extend(frame::header(channel, &content));
        frames.extend(content);
    }
    frames
}
