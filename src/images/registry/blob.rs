//! The download of one blob into its partial file: continued where it was left, in this worker or an earlier one.

use super::super::error::{ImageError, io as io_error};
use super::super::space::Space;
use super::error::FetchError;
use super::folder::PullFolder;
use super::http::Answer;
use super::partial::Partial;
use super::session::{Session, Wanted};
use super::throttle::Throttle;

/// Requests in a row that bring (nearly) nothing.
const MAX_IDLE: usize = 3;

/// A request that brings less counts as one that brings nothing: a peer that ends after each byte would never end.
const MIN_GAIN_BYTES: u64 = 16 << 10;

/// The bytes read at once.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// Counts requests in a row that bring nothing new. What is sent once more after a restart is not new: else a peer could
/// make a download begin again and again.
pub(super) struct Idle {
    best: u64,
    requests: usize,
}

impl Idle {
    /// This many bytes are there.
    pub(super) fn new(len: u64) -> Self {
        Self {
            best: len,
            requests: 0,
        }
    }

    /// After a request that did not bring everything: the bytes that are there now, and why it ended. Fails with that if
    /// it was one too many.
    pub(super) fn count(&mut self, len: u64, why: FetchError) -> Result<(), FetchError> {
        self.requests = match len >= self.best.saturating_add(MIN_GAIN_BYTES) {
            true => 0,
            false => self.requests + 1,
        };
        self.best = self.best.max(len);
        match self.requests >= MAX_IDLE {
            true => Err(why),
            false => Ok(()),
        }
    }
}

/// A blob of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) digest: String,
    /// Its exact length.
    pub(super) size: u64,
    /// `layer`, `config`.
    pub(super) kind: &'static str,
}

/// What watches and limits a download.
pub(super) struct Watch<'a> {
    pub(super) throttle: &'a Throttle,
    /// The disk's space.
    pub(super) space: &'a mut Space,
    /// Receives the number of bytes that are there.
    pub(super) tick: &'a mut dyn FnMut(u64),
}

/// Downloads a blob, unless it is there. The connection may break as often as it likes, while something arrives.
pub(super) fn download(
    session: &Session,
    folder: &PullFolder,
    blob: &Blob,
    watch: &mut Watch<'_>,
) -> Result<(), FetchError> {
    if folder.blob(&blob.digest).exists() {
        (watch.tick)(blob.size);
        return Ok(());
    }
    let mut partial = Partial::open(folder, &blob.digest, blob.size)?;
    let mut again = false;
    loop {
        let taken_up = partial.len() > 0;
        watch.space.reserve(blob.size - partial.len())?;
        let pieced = fill(session, blob, &mut partial, watch)? || taken_up;
        let actual = partial.digest();
        if actual == blob.digest {
            return Ok(partial.finish(folder, &blob.digest)?);
        }
        partial.restart("", None)?;
        if !pieced || again {
            return Err(FetchError::Image(ImageError::Digest {
                what: format!("{} {}", blob.kind, blob.digest),
                expected: blob.digest.clone(),
                actual,
            }));
        }
        // Pieces that do not fit: once more from the start.
        again = true;
    }
}

/// Asks until the blob has its length; returns whether it took several requests.
fn fill(
    session: &Session,
    blob: &Blob,
    partial: &mut Partial,
    watch: &mut Watch<'_>,
) -> Result<bool, FetchError> {
    let (mut idle, mut requests) = (Idle::new(partial.len()), 0);
    while partial.len() < blob.size {
        (watch.tick)(partial.len());
        requests += 1;
        let ended = go_on(session, blob, partial, watch);
        if partial.len() >= blob.size {
            break;
        }
        let why = match ended {
            Ok(why) => why,
            Err(why) if why.is_interruption() => why,
            Err(why) => return Err(why),
        };
        idle.count(partial.len(), why)?;
    }
    (watch.tick)(partial.len());
    Ok(requests > 1)
}

/// One request. Returns why it did not bring everything.
fn go_on(
    session: &Session,
    blob: &Blob,
    partial: &mut Partial,
    watch: &mut Watch<'_>,
) -> Result<FetchError, FetchError> {
    let from = partial.len();
    let origin = session.origin();
    let answer = session.ask(&wanted(blob, partial, &origin))?;
    let url = answer.url.to_string();
    let bad = |why: String| FetchError::Answer {
        url: url.clone(),
        why,
    };
    let ended = || FetchError::Connection {
        url: url.clone(),
        why: "the connection ended too early".to_owned(),
        hint: None,
    };
    let validator = validator(&answer);
    // Bytes of the answer that are there already: servers may ignore ranges.
    let mut skipped = 0;
    let announced = match answer.status {
        206 => {
            let range = answer.header("Content-Range").and_then(range);
            if from == 0 || range.is_none_or(|(start, total)| start != from || total != blob.size) {
                partial.restart("", None)?;
                return Ok(bad(format!(
                    "a part was sent that was not asked for, or the {} has another size than its manifest says",
                    blob.kind
                )));
            }
            blob.size - from
        }
        416 => {
            partial.restart("", None)?;
            return Ok(bad(format!(
                "the {} is shorter than its manifest says",
                blob.kind
            )));
        }
        _ => {
            let named = partial.validator(&origin);
            match named == validator.as_deref() || named.is_none() || validator.is_none() {
                true => skipped = from,
                false => partial.restart(&origin, validator.clone())?,
            }
            blob.size
        }
    };
    if let Some(length) = answer.length().filter(|length| *length != announced) {
        return Err(bad(format!(
            "{} {} is announced with {length} bytes, expected {announced}",
            blob.kind, blob.digest
        )));
    }
    partial.name(&origin, validator)?;
    let mut pieces = answer.body(&session.patience());
    let mut buffer = vec![0; watch.throttle.piece(BUFFER_BYTES)];
    while partial.len() < blob.size {
        let n = pieces.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        watch.throttle.pass(n);
        let old = skipped.min(n as u64);
        skipped -= old;
        let new = &buffer[usize::try_from(old).unwrap_or(n)..n];
        let left = usize::try_from(blob.size - partial.len()).unwrap_or(usize::MAX);
        let new = &new[..new.len().min(left)];
        if new.is_empty() {
            continue;
        }
        watch.space.take(new.len() as u64)?;
        partial.append(new).map_err(|why| {
            let error = |why| io_error("write", partial.path())(why);
            FetchError::Image(watch.space.write_error(why, error))
        })?;
        (watch.tick)(partial.len());
    }
    Ok(ended())
}

fn wanted(blob: &Blob, partial: &Partial, origin: &str) -> Wanted {
    let mut headers = vec![("Accept", "*/*".to_owned())];
    let from = partial.len();
    if from > 0 {
        headers.push(("Range", format!("bytes={from}-")));
        // From another registry it is the same data, too: its digest names it.
        headers.extend(
            partial
                .validator(origin)
                .map(|v| ("If-Range", v.to_owned())),
        );
    }
    Wanted {
        head: false,
        target: format!("blobs/{}", blob.digest),
        headers,
        what: format!("{} {}", blob.kind, blob.digest),
        range: from > 0,
    }
}

/// What identifies the data of an answer: only a strong `ETag` may continue a download (RFC 9110, section 13.1.5).
pub(super) fn validator(answer: &Answer) -> Option<String> {
    let etag = answer.header("ETag").filter(|etag| etag.starts_with('"'));
    let found = etag.or(answer.header("Last-Modified"))?;
    (found.len() <= 1024).then(|| found.to_owned())
}

/// Start and total of `bytes START-END/TOTAL`.
pub(super) fn range(header: &str) -> Option<(u64, u64)> {
    let (part, total) = header.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = part.split_once('-')?;
    let (start, end, total): (u64, u64, u64) = (
        start.trim().parse().ok()?,
        end.trim().parse().ok()?,
        total.trim().parse().ok()?,
    );
    (start <= end && end.checked_add(1)? == total).then_some((start, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_must_reach_to_the_end() {
        for (header, expected) in [
            ("bytes 5-9/10", Some((5, 10))),
            ("bytes 0-9/10", Some((0, 10))),
            ("bytes 5-8/10", None),
            ("bytes 5-9/*", None),
            ("bytes */10", None),
            ("5-9/10", None),
            ("bytes 9-5/6", None),
            ("bytes 5-18446744073709551615/0", None),
        ] {
            assert_eq!(range(header), expected, "{header}");
        }
    }
}
