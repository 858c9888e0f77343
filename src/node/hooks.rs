//! Who carries hooks out? Each runs as a task of its own beside the loop and ends in one `HookDone`, unless its run ends
//! first. A run has two at most, so there is no limit beyond that.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use smol::Task;

use super::Input;
use super::execute::Hands;
use crate::effects::probe::run_hook;
use crate::plan::Event;
use crate::plan::event::{HookOrder, HookOutcome, Instance};
use crate::plan::state::PodState;
use crate::spec::{HookKind, PodSpec, PodUid};

type Tasks = BTreeMap<(Instance, HookKind), Task<()>>;

/// All hooks of the node that are being carried out.
#[derive(Debug)]
pub(super) struct Hooks {
    hands: Hands,
    tasks: Rc<RefCell<Tasks>>,
}

impl Hooks {
    pub(super) fn new(hands: Hands) -> Self {
        Self {
            hands,
            tasks: Rc::default(),
        }
    }

    /// Begins one.
    pub(super) fn start(&self, order: HookOrder, spec: Arc<PodSpec>) {
        let key = (order.instance.clone(), order.hook);
        let task = super::task(carry_out(
            self.hands.clone(),
            order,
            spec,
            self.tasks.clone(),
        ));
        self.tasks.borrow_mut().insert(key, task);
    }

    /// Ends those of runs that are over: what a page takes longer for is of no use to anybody.
    pub(super) fn keep(&self, pod: &PodState) {
        self.end(&pod.spec.uid, |instance| {
            let container = pod.container(&instance.container);
            container
                .is_some_and(|c| c.run.is_running() && c.run.attempt() == Some(instance.attempt))
        });
    }

    /// Ends all hooks of a pod that is gone.
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
        // Outside of the borrow: a task that is dropped may run code of its own.
        drop(ended);
    }
}

async fn carry_out(hands: Hands, order: HookOrder, spec: Arc<PodSpec>, tasks: Rc<RefCell<Tasks>>) {
    let container = spec.container(&order.instance.container);
    let hook = container.and_then(|c| c.lifecycle.hook(order.hook));
    let outcome = match hook {
        Some(hook) => {
            let target = hands.target(&order.instance, &spec);
            let result = run_hook(hook, &target, &spec).await;
            HookOutcome {
                failure: result.failure,
                fell_back: result.fell_back,
            }
        }
        None => HookOutcome {
            failure: Some("the container has no such hook".to_owned()),
            fell_back: None,
        },
    };
    // This very task: it has only to say what came of it.
    let own = tasks
        .borrow_mut()
        .remove(&(order.instance.clone(), order.hook));
    if let Some(own) = own {
        own.detach();
    }
    let done = Event::HookDone { order, outcome };
    let _ = hands.inputs.send(Input::Event(done)).await;
}
