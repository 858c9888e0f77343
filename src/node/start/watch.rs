//! The watch over the manifests: it reads them at the start and whenever they change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use smol::channel::{Receiver, Sender, bounded};

use crate::node::commands::Reply;
use crate::node::execute::Tools;
use crate::node::manifests::Manifests;
use crate::node::watch::Watch;
use crate::node::{Input, bundles, manifest_url, sources};
use crate::spec::convert::ConvertContext;
use crate::spec::{PodSpec, PodUid};
use crate::sys::clock;
use crate::types::Gather;

/// How long a client waits at most for a file that may not be complete yet, in milliseconds.
const MAX_WAIT_MS: u64 = 1_000;

/// Clients that want to see what was written before they asked; cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::node) struct Readers {
    asks: Sender<Reply<()>>,
    asked: Receiver<Reply<()>>,
}

impl Default for Readers {
    fn default() -> Self {
        // As many requests as the API lets in.
        let (asks, asked) = bounded(64);
        Self { asks, asked }
    }
}

impl Readers {
    /// Has the manifests read, then the client answered.
    pub(in crate::node) fn ask(&self, reply: Reply<()>) {
        // A dropped reply is an answer, too.
        let _ = self.asks.try_send(reply);
    }

    /// The next client, and until when it waits.
    async fn next(&self) -> Option<(u64, Reply<()>)> {
        let reply = self.asked.recv().await.ok()?;
        Some((clock::boot_ms() + MAX_WAIT_MS, reply))
    }
}

/// Begins to fetch manifests from a web server if the settings say so. Receives a message for each new document.
fn begin_url(tools: &Tools) -> Receiver<()> {
    let (changed, changes) = bounded(1);
    let wanted = &tools.config.manifest_url;
    if let Err(error) = manifest_url::begin(&tools.config.layout.manifest_url(), wanted.as_ref()) {
        tracing::warn!("could not remove the manifests of a former `staticPodURL`: {error}");
    }
    if let Some(wanted) = wanted.clone() {
        crate::node::spawn(manifest_url::poll(tools.clone(), wanted, changed));
    }
    changes
}

/// Reads the manifests now and whenever they change. `recovered` are the pods that run already.
pub(super) async fn watch(tools: Tools, recovered: Vec<Arc<PodSpec>>) {
    let config = &tools.config;
    let mut watch = Watch::new(&config.manifests);
    // Files do not know which incarnation of a pod runs.
    let mut running: BTreeSet<PodUid> = recovered
        .iter()
        .flat_map(|spec| [spec.uid.clone(), spec.template.clone()])
        .gather();
    let context = ConvertContext {
        pod_security: config.pod_security,
        ..ConvertContext::of(&config.node_name)
    };
    let inherited = sources::inherited(&config.layout, recovered, &context);
    let mut manifests = Manifests::new(
        config.manifests.clone(),
        config.node_name.clone(),
        inherited,
    )
    .under(config.pod_security)
    .with_claims_of(&config.layout)
    .with_bundles(config.layout.manifest_bundles())
    .with_fetched(manifest_url::manifests(&config.layout.manifest_url()));
    let fetched = begin_url(&tools);
    let (mut closed, mut first) = (BTreeSet::new(), true);
    // Clients that wait, and until when.
    let mut readers: Vec<(u64, Reply<()>)> = Vec::new();
    loop {
        let scan;
        let (instead, layout) = (tools.instead.now(), config.layout.clone());
        let written = watch.written().clone();
        (manifests, (scan, running)) = crate::node::unblock(move || {
            let mut manifests = manifests;
            manifests.set_instead(instead);
            manifests.set_written(written);
            let scan = manifests.scan(clock::boot_ms(), &closed, first, &running);
            if scan.changed || first {
                sources::write(&layout, &manifests);
            }
            (manifests, (scan, running))
        })
        .await;
        if let Some(error) = manifests.unreadable.as_ref().filter(|_| scan.changed) {
            tracing::warn!(
                "could not read `{}`: {error}, looking again",
                config.manifests.display()
            );
        }
        if scan.changed || first {
            let documents = manifests.documents();
            running = documents.desired.pods.keys().cloned().gather();
            let input = Input::Manifests {
                documents: Box::new(documents),
                freed_bytes: scan.freed_bytes,
            };
            let _ = tools.inputs.send(input).await;
        }
        if first && !config.bundle_poll.source.is_empty() {
            // What a bundle's manifests may conflict with is known from now on.
            let wanted = config.bundle_poll.clone();
            crate::node::spawn(bundles::poll(tools.clone(), wanted));
        }
        first = false;
        let now = clock::boot_ms();
        let settles = scan.again_in_ms.is_some_and(|again| again < MAX_WAIT_MS);
        let read = readers.extract_if(.., |(until, _)| !settles || *until <= now);
        let read: Vec<_> = read.map(|(_, reply)| reply).collect();
        if !read.is_empty() {
            let _ = tools.inputs.send(Input::Read(read)).await;
        }
        watch.ensure();
        let usual = tools.sandboxes.settings.now().file_check_frequency_ms;
        let patience = scan.again_in_ms.map_or(usual, |again| again.min(usual));
        let files = watch.next(Duration::from_millis(patience));
        let bundles = async {
            // The sender lives as long as the agent.
            let _ = tools.bundles.changes.recv().await;
            BTreeSet::new()
        };
        let document = async {
            if fetched.recv().await.is_err() {
                // There is no such setting.
                std::future::pending::<()>().await;
            }
            BTreeSet::new()
        };
        let asked = async {
            readers.extend(tools.readers.next().await);
            BTreeSet::new()
        };
        let others = smol::future::or(bundles, document);
        closed = smol::future::or(files, smol::future::or(asked, others)).await;
        if !readers.is_empty() {
            // What was written before they asked is among it.
            closed.extend(watch.noticed());
        }
        if !closed.is_empty() {
            // Most likely a pod is about to start: while its file is read the kernel can get ready.
            let cgroups = tools.sandboxes.cgroups.clone();
            crate::node::spawn(crate::node::unblock(move || cgroups.warm_up()));
        }
    }
}
