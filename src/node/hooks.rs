//! The execution of hooks. Each runs as a task of its own beside the loop and ends in one `HookDone`, unless its
//! run ends first. A run has two at most, so there is no further limit.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use smol::Task;

use super::Input;
use super::execute::Tools;
use crate::effects::probe::run_hook;
use crate::plan::event::{HookOrder, HookOutcome, Instance};
use crate::plan::state::PodState;
use crate::shim::protocol::Purpose;
use crate::spec::{HookKind, PodSpec, PodUid};

type Tasks = BTreeMap<(Instance, HookKind), Task<()>>;

/// All running hooks of the node.
#[derive(Debug)]
pub(super) struct Hooks {
    tools: Tools,
    tasks: Rc<RefCell<Tasks>>,
}

impl Hooks {
    pub(super) fn new(tools: Tools) -> Self {
        Self {
            tools,
            tasks: Rc::default(),
        }
    }

    /// Begins a hook.
    pub(super) fn start(&self, order: HookOrder, spec: Arc<PodSpec>) {
        let key = (order.instance.clone(), order.hook);
        let task = super::task(carry_out(
            self.tools.clone(),
            order,
            spec,
            self.tasks.clone(),
        ));
        self.tasks.borrow_mut().insert(key, task);
    }

    /// Ends the hooks of runs that are over: their results have no use any more.
    pub(super) fn keep(&self, pod: &PodState) {
        self.end(&pod.spec.uid, |instance| {
            let container = pod.container(&instance.container);
            container
                .is_some_and(|c| c.run.is_running() && c.run.attempt() == Some(instance.attempt))
        });
    }

    /// Ends all hooks of a removed pod.
    pub(super) fn forget(&self, pod: &PodUid) {
        self.end(pod, |_| false);
    }

    fn end(&self, pod: &PodUid, goes_on: impl Fn(&Instance) -> bool) {
        let ended: Vec<Task<()>> = {
            let mut tasks = self.tasks.borrow_mut();
            let over =
                |(instance, _): &&(Instance, HookKind)| instance.pod == *pod && !goes_on(instance);
            let over: Vec<_> = tasks.keys().filter(over).cloned().collect();
            over.iter().filter_map(|key| tasks.remove(key)).collect()
        };
        // Outside of the borrow: dropping a task may run code of its own.
        drop(ended);
    }
}

/// Runs a hook, or fetches its result from the shim; `None` if the manifest has no such hook (any more).
pub(super) async fn result(
    tools: &Tools,
    spec: &PodSpec,
    instance: &Instance,
    kind: HookKind,
) -> Option<HookOutcome> {
    let hook = spec.container(&instance.container)?.lifecycle.hook(kind)?;
    let target = tools.target(instance, spec, Purpose::Hook(kind));
    let result = run_hook(hook, &target, spec).await;
    Some(HookOutcome {
        failure: result.failure,
        fell_back: result.fell_back,
        at: result.at,
    })
}

async fn carry_out(tools: Tools, order: HookOrder, spec: Arc<PodSpec>, tasks: Rc<RefCell<Tasks>>) {
    let outcome = result(&tools, &spec, &order.instance, order.hook).await;
    let outcome = outcome.unwrap_or_else(|| HookOutcome {
        failure: Some("the container has no such hook".to_owned()),
        ..HookOutcome::default()
    });
    // This task itself: all that is left is to report its result.
    let own = tasks
        .borrow_mut()
        .remove(&(order.instance.clone(), order.hook));
    if let Some(own) = own {
        own.detach();
    }
    let done = order.done(outcome);
    let _ = tools.inputs.send(Input::Event(done)).await;
}
