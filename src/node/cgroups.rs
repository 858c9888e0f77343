//! The effective limits of a pod: the values of its cgroups, read on request.

use serde_json::{Value, json};
use smol::channel::Sender;

use super::Node;
use crate::api::CommandError;
use crate::effects::cgroup::Values;
use crate::plan::state::Sandbox;

impl Node {
    /// Answers beside the loop.
    pub(super) fn show_cgroups(
        &self,
        (namespace, name): (&str, &str),
        reply: Sender<Result<Value, CommandError>>,
    ) {
        let pod = match self.find(namespace, name) {
            Ok(pod) => pod,
            Err(error) => {
                let _ = reply.try_send(Err(error));
                return;
            }
        };
        let there = matches!(pod.sandbox, Sandbox::Ready { .. });
        let (spec, given) = (pod.spec.clone(), pod.resizing.actuated);
        let each = spec.all_containers().zip(&pod.containers);
        let running = each.filter_map(|(spec, state)| {
            let run = state.run.running()?;
            Some((spec.name.clone(), run.pid, state.figures(spec)))
        });
        let containers: Vec<_> = running.collect();
        let cgroups = self.tools.sandboxes.cgroups.clone();
        super::spawn(async move {
            let read = super::unblock(move || {
                let mut all = Vec::new();
                if there {
                    all.push(cgroups.pod_values(&spec, given));
                    let values = containers.iter();
                    let values = values.filter_map(|(name, pid, of_container)| {
                        cgroups.container_values(&spec, (name, *pid), (*of_container, given))
                    });
                    all.extend(values);
                }
                all
            });
            let items: Vec<Value> = read.await.iter().map(shown).collect();
            let _ = reply.try_send(Ok(json!({ "items": items })));
        });
    }
}

fn shown(values: &Values) -> Value {
    let mut item = json!(values);
    for (value, shown) in values
        .values
        .iter()
        .zip(item["values"].as_array_mut().into_iter().flatten())
    {
        shown["holds"] = value.holds().into();
    }
    item
}
