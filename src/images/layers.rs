//! The layers of an import, unpacked by several threads at once: as many as there are cores, but few, because each
//! takes memory. Layers of a pull are unpacked as soon as they have arrived, while others are still being downloaded.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::archive::{Archive, Section};
use super::compress;
use super::contents::FoundLayer;
use super::digest::Hashing;
use super::error::{ImageError, io};
use super::gc;
use super::import::Report;
use super::mark;
use super::progress::Progress;
use super::recipe::Recorder;
use super::space::{MAX_UNPACKED_BYTES, Space};
use super::staging::Staging;
use super::store::{LAYER_RECORD, LayerRecord, RECIPE};
use super::tar_reader::{TarReader, broken};
use super::unpack::Unpacker;
use crate::sys::{allocator, clock};

/// The maximum of layers that are unpacked at once.
const MAX_THREADS: usize = 3;

/// Layers that take more memory than this to decompress are unpacked one after the other.
const LARGE_WINDOW_BYTES: u64 = 4 << 20;

/// The shortest interval between a layer's progress reports.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// The maximum of what is read about arrivals: a line for each layer.
const MAX_ARRIVALS_BYTES: u64 = 1 << 20;

/// The line that comes when all layers have arrived.
pub(super) const ALL_ARRIVED: &str = "all";

/// What layers are unpacked from, and where to.
pub(super) struct Workshop<'a> {
    pub(super) archive: &'a Archive,
    pub(super) staging: &'a Staging,
    pub(super) space: &'a Space,
}

/// What happens while layers are unpacked.
pub(super) enum Said {
    /// The blob with this digest is complete.
    Arrived(String),
    /// All blobs are.
    AllArrived,
    /// Who downloads them is gone.
    Lost,
    Progress(usize, Progress),
    Done(usize),
    Failed(ImageError),
}

/// Reads from standard input which blobs are complete: a digest a line, then [`ALL_ARRIVED`].
pub(super) fn listen(say: Sender<Said>) -> Result<(), ImageError> {
    let read = move || {
        let lines = io::stdin().lock().take(MAX_ARRIVALS_BYTES).lines();
        for line in lines.map_while(Result::ok) {
            let all = line == ALL_ARRIVED;
            let said = if all {
                Said::AllArrived
            } else {
                Said::Arrived(line)
            };
            if say.send(said).is_err() || all {
                return;
            }
        }
        let _ = say.send(Said::Lost);
    };
    let started = thread::Builder::new().spawn(read);
    started
        .map(drop)
        .map_err(|source| ImageError::Received { source })
}

impl Workshop<'_> {
    /// Unpacks all these layers into the staging directory. With `arriving` it waits for those that are not there.
    pub(super) fn unpack(
        &self,
        layers: &[&FoundLayer],
        arriving: bool,
        report: &mut Report<'_>,
    ) -> Result<(), ImageError> {
        // Each heap of a thread would reserve 64 MiB of the worker's address space.
        allocator::one_arena();
        let (say, heard) = channel();
        if arriving {
            listen(say.clone())?;
        }
        let (give, taken) = channel();
        let (taken, stop, large) = (Mutex::new(taken), AtomicBool::new(false), Mutex::new(()));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            // Dropped before the threads are waited for, however this ends.
            let give = give;
            let shared = Shared {
                workshop: self,
                layers,
                taken: &taken,
                stop: &stop,
                large: &large,
            };
            for _ in 0..cores.min(MAX_THREADS).min(layers.len()) {
                let say = say.clone();
                let started = thread::Builder::new().spawn_scoped(scope, move || shared.work(&say));
                started.map_err(|source| ImageError::Received { source })?;
            }
            drop(say);
            let done = self.direct(layers, arriving, &give, &heard, report);
            // The threads end: there is nothing more to take, and what they are at has no use.
            stop.store(true, Ordering::Relaxed);
            drop(give);
            done
        })
    }

    /// Gives out layers until all are unpacked.
    fn direct(
        &self,
        layers: &[&FoundLayer],
        arriving: bool,
        give: &Sender<usize>,
        heard: &Receiver<Said>,
        report: &mut Report<'_>,
    ) -> Result<(), ImageError> {
        let (mut absent, mut at_work) = (BTreeSet::new(), BTreeSet::new());
        let begin = |index: usize, at_work: &mut BTreeSet<usize>| {
            at_work.insert(index);
            // Without a thread that takes it, one has reported why.
            let _ = give.send(index);
        };
        for (index, layer) in layers.iter().enumerate() {
            match arriving && !self.archive.has(&layer.part) {
                true => drop(absent.insert(index)),
                false => begin(index, &mut at_work),
            }
        }
        let mut all_here = !arriving;
        while !(all_here && at_work.is_empty()) {
            match heard.recv().unwrap_or(Said::Lost) {
                Said::Arrived(digest) => {
                    let is_it = |index: &usize| {
                        let blob = layers[*index].blob.as_ref();
                        blob.is_some_and(|(its, _)| *its == digest)
                    };
                    let here: Vec<usize> = absent.iter().copied().filter(is_it).collect();
                    for index in here {
                        absent.remove(&index);
                        begin(index, &mut at_work);
                    }
                }
                Said::AllArrived => {
                    all_here = true;
                    for index in std::mem::take(&mut absent) {
                        begin(index, &mut at_work);
                    }
                }
                Said::Lost => return Err(ImageError::Abandoned),
                // Of layers that are unpacked at once, the first is shown until it is done.
                Said::Progress(index, progress) => {
                    let whole = progress.done_bytes == progress.total_bytes;
                    if whole || at_work.first() == Some(&index) {
                        report(progress).map_err(|_| ImageError::Abandoned)?;
                    }
                }
                Said::Done(index) => drop(at_work.remove(&index)),
                Said::Failed(why) => return Err(why),
            }
        }
        Ok(())
    }
}

/// What the threads share.
#[derive(Clone, Copy)]
struct Shared<'a> {
    workshop: &'a Workshop<'a>,
    layers: &'a [&'a FoundLayer],
    taken: &'a Mutex<Receiver<usize>>,
    stop: &'a AtomicBool,
    /// Held while a layer is unpacked that takes much memory.
    large: &'a Mutex<()>,
}

impl Shared<'_> {
    fn work(self, say: &Sender<Said>) {
        loop {
            let next = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            let Ok(index) = next.recv() else {
                return;
            };
            drop(next);
            let said = match self.layer(index, say) {
                Ok(()) => Said::Done(index),
                Err(why) => Said::Failed(why),
            };
            if say.send(said).is_err() {
                return;
            }
        }
    }

    fn layer(self, index: usize, say: &Sender<Said>) -> Result<(), ImageError> {
        let layer = self.layers[index];
        let mut progress = Progress {
            stage: "unpack".to_owned(),
            layer: index + 1,
            layers: self.layers.len(),
            done_bytes: 0,
            total_bytes: self.workshop.archive.part(&layer.part)?.len(),
            blob: None,
            pull: None,
        };
        let mut next_report = clock::now();
        let mut tell = |done_bytes: u64, last: bool| {
            if self.stop.load(Ordering::Relaxed) {
                return Err(ImageError::Abandoned);
            }
            if last || clock::now() >= next_report {
                next_report = clock::now() + REPORT_EVERY;
                progress.done_bytes = if last {
                    progress.total_bytes
                } else {
                    done_bytes
                };
                // The receiver is gone only if all is over.
                let _ = say.send(Said::Progress(index, progress.clone()));
            }
            Ok(())
        };
        let window = compress::window(&start(self.workshop.archive.part(&layer.part)?));
        let _alone = (window > LARGE_WINDOW_BYTES)
            .then(|| self.large.lock().unwrap_or_else(PoisonError::into_inner));
        let unfinished = self.workshop.staging.unfinished(index);
        self.workshop
            .layer(layer, &unfinished, &mut |done| tell(done, false))?;
        tell(0, true)
    }
}

/// The first bytes of a blob, as far as it has some.
fn start(section: Section) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What cannot be read is reported when it is unpacked.
    let _ = section.take(compress::HEADER_BYTES).read_to_end(&mut bytes);
    bytes
}

impl Workshop<'_> {
    fn layer(
        &self,
        layer: &FoundLayer,
        unfinished: &Path,
        tell: &mut dyn FnMut(u64) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let what = match &layer.blob {
            Some((digest, _)) => format!("layer {digest}"),
            None => format!("layer `{}`", layer.part),
        };
        let section = self.archive.part(&layer.part)?;
        if let Some((_, size)) = &layer.blob
            && *size != section.len()
        {
            return Err(ImageError::Size {
                what,
                expected: *size,
                actual: section.len(),
            });
        }
        let root = new_layer_dir(unfinished)?;
        let seen = Rc::new(Cell::new(0));
        let mut raw = Hashing::new(Counting {
            inner: section,
            seen: Rc::clone(&seen),
        });
        let mut space = self.space.clone();
        let recipe = unfinished.join(RECIPE);
        let mut tick = || tell(seen.get());
        let unpacked = unpack_stream(&mut raw, &what, (root, &recipe), &mut space, &mut tick);
        let verified = verify_blob(raw, layer, &what);
        // Wrong data explains why it could not be read.
        let unpacked = match unpacked {
            Err(ImageError::Malformed { .. } | ImageError::Truncated { .. })
                if verified.is_err() =>
            {
                return Err(verified.err().unwrap_or(ImageError::Missing { what }));
            }
            other => other?,
        };
        verified?;
        if unpacked.diff_id != layer.diff_id {
            return Err(ImageError::Digest {
                what: format!("the unpacked {what}"),
                expected: layer.diff_id.clone(),
                actual: unpacked.diff_id,
            });
        }
        if !unpacked.has_recipe {
            gc::remove(&recipe)?;
        }
        let record = unfinished.join(LAYER_RECORD);
        let root = unfinished.join("diff");
        let written = LayerRecord {
            tar_bytes: unpacked.tar_bytes,
            mark: Some(mark::of(&root).map_err(io("look through", &root))?),
            recipe: unpacked.has_recipe,
            implied: unpacked.implied,
        };
        let written = serde_json::to_vec(&written).expect("plain data");
        fs::write(&record, written)
            .map_err(|why| space.write_error(why, |why| io("write", &record)(why)))?;
        let target = self.staging.layer(&layer.diff_id);
        fs::rename(unfinished, &target).map_err(io("move", unfinished))
    }
}

/// What became of a layer's blob.
struct Unpacked {
    /// The digest of the tar.
    diff_id: String,
    tar_bytes: u64,
    has_recipe: bool,
    /// The directories that it only implies.
    implied: Vec<String>,
}

/// Unpacks a layer from its blob into a directory.
fn unpack_stream(
    raw: &mut dyn Read,
    what: &str,
    (root, recipe): (File, &Path),
    space: &mut Space,
    tick: &mut dyn FnMut() -> Result<(), ImageError>,
) -> Result<Unpacked, ImageError> {
    let plain = compress::decoder(raw).map_err(|e| broken(what, &e, "its start"))?;
    let capped = Capped {
        inner: plain,
        left: MAX_UNPACKED_BYTES,
    };
    let recorder = Recorder::new(Hashing::new(capped), recipe);
    let mut tar = TarReader::streaming(recorder, what.to_owned());
    let implied = Unpacker::new(root, what.to_owned(), space).run(&mut tar, tick)?;
    let ended = tar.into_inner().finish();
    let (hashing, has_recipe) = ended.map_err(|e| broken(what, &e, "its end"))?;
    let (diff_id, tar_bytes) = hashing.finish().map_err(|e| broken(what, &e, "its end"))?;
    Ok(Unpacked {
        diff_id,
        tar_bytes,
        has_recipe,
        implied,
    })
}

fn verify_blob<R: Read>(raw: Hashing<R>, layer: &FoundLayer, what: &str) -> Result<(), ImageError> {
    let (actual, size) = raw.finish().map_err(|e| broken(what, &e, "its data"))?;
    let Some((digest, expected_size)) = &layer.blob else {
        return Ok(());
    };
    if size != *expected_size {
        return Err(ImageError::Truncated {
            what: what.to_owned(),
            at: "its data".to_owned(),
        });
    }
    if actual != *digest {
        return Err(ImageError::Digest {
            what: what.to_owned(),
            expected: digest.clone(),
            actual,
        });
    }
    Ok(())
}

fn new_layer_dir(dir: &Path) -> Result<File, ImageError> {
    let root = dir.join("diff");
    fs::create_dir_all(&root).map_err(io("create directory", &root))?;
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).map_err(io("chmod", &root))?;
    File::open(&root).map_err(io("open", &root))
}

struct Counting<R> {
    inner: R,
    seen: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.seen.set(self.seen.get() + n as u64);
        Ok(n)
    }
}

/// Ends a stream that unpacks without end.
struct Capped<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Capped<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(n as u64).ok_or_else(|| {
            io::Error::other(format!(
                "it unpacks to more than {MAX_UNPACKED_BYTES} bytes"
            ))
        })?;
        Ok(n)
    }
}
