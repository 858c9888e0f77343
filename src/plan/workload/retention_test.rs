//! Claims that end with their StatefulSet, as tables.

use super::*;
use crate::plan::event::Desired;
use crate::plan::workload::tests::{World, document};
use crate::plan::{Event, NodeFact};
use crate::types::Gather;

fn set(replicas: usize, policy: &str) -> String {
    let claims = "  volumeClaimTemplates:\n  - metadata: {name: data}\n    spec: {accessModes: [ReadWriteOnce], resources: \
                  {requests: {storage: 1Mi}}}\n";
    let policy = format!("  persistentVolumeClaimRetentionPolicy: {policy}\n");
    document("StatefulSet", 'a', replicas, &format!("{claims}{policy}"))
}

fn claim(ordinal: usize) -> PodKey {
    PodKey::new("default", format!("data-web-{ordinal}"))
}

/// The claims of the file, all of which are bound.
struct Files {
    world: World,
    bound: Vec<(PodKey, Option<Owner>)>,
    documents: BTreeSet<PodKey>,
    on_trial: bool,
}

impl Files {
    fn new() -> Self {
        Self {
            world: World::new(),
            bound: Vec::new(),
            documents: BTreeSet::new(),
            on_trial: false,
        }
    }

    fn read(&mut self, replicas: usize, policy: &str) {
        self.world.read_all(&set(replicas, policy));
        self.documents = (0..replicas).map(claim).gather();
        for key in &self.documents {
            if !self.bound.iter().any(|(bound, _)| bound == key) {
                self.bound.push((key.clone(), None));
            }
        }
    }

    fn no_file(&mut self) {
        let complete = Desired {
            complete: true,
            ..Desired::default()
        };
        self.world
            .tell(Event::Node(NodeFact::DesiredChanged(complete)));
        self.documents.clear();
    }

    /// Does what is to be done; returns the numbers of the claims that were removed.
    fn settle(&mut self) -> Vec<usize> {
        let all = fates(
            &self.world.state,
            &self.bound,
            &self.documents,
            self.on_trial,
        );
        let mut removed = Vec::new();
        for (key, fate) in all {
            let at = self
                .bound
                .iter()
                .position(|(bound, _)| *bound == key)
                .unwrap();
            match fate {
                Fate::Owned(owner) => self.bound[at].1 = owner,
                Fate::Removed => {
                    self.bound.remove(at);
                    removed.extend((0..9).find(|ordinal| claim(*ordinal) == key));
                }
            }
        }
        removed
    }

    /// All pods on their way out are gone.
    fn gone(&mut self) -> Vec<usize> {
        while self
            .world
            .state
            .pods
            .values()
            .any(|pod| pod.stopping().is_some())
        {
            self.world.gone();
        }
        self.settle()
    }
}

const NONE: [usize; 0] = [];

#[test]
fn claims_end_as_the_policy_says_and_once_no_pod_uses_them() {
    for (policy, scaled, deleted) in [
        ("{}", vec![], vec![]),
        ("{whenDeleted: Retain, whenScaled: Retain}", vec![], vec![]),
        ("{whenDeleted: Delete}", vec![], vec![0, 1, 2]),
        ("{whenScaled: Delete}", vec![1, 2], vec![]),
        (
            "{whenDeleted: Delete, whenScaled: Delete}",
            vec![1, 2],
            vec![0],
        ),
    ] {
        let mut files = Files::new();
        files.read(3, policy);
        for _ in 0..3 {
            files.world.set_ready('a', true);
        }
        assert_eq!(files.settle(), NONE, "{policy}");
        assert_eq!(files.world.live(), 3);
        files.read(1, policy);
        assert_eq!(files.settle(), NONE, "while pods use them: {policy}");
        let mut ended = files.gone();
        ended.extend(files.gone());
        ended.sort_unstable();
        assert_eq!(ended, scaled, "{policy}");
        files.no_file();
        let mut ended = files.settle();
        assert!(!ended.contains(&0), "while a pod uses it: {policy}");
        ended.extend(files.gone());
        ended.sort_unstable();
        assert_eq!(ended, deleted, "{policy}");
    }
}

#[test]
fn all_doubts_keep_a_claim() {
    let policy = "{whenDeleted: Delete, whenScaled: Delete}";
    let deleted = |prepare: &dyn Fn(&mut Files)| {
        let mut files = Files::new();
        files.read(1, policy);
        files.settle();
        files.no_file();
        prepare(&mut files);
        files.gone()
    };
    assert_eq!(deleted(&|_| {}), [0]);
    let unread = |files: &mut Files| {
        files
            .world
            .tell(Event::Node(NodeFact::DesiredChanged(Desired::default())));
    };
    assert_eq!(deleted(&unread), NONE, "not all files are known");
    assert_eq!(deleted(&|files| files.on_trial = true), NONE);
    let own = |files: &mut Files| files.documents = [claim(0)].into_iter().gather();
    assert_eq!(deleted(&own), NONE, "a file of its own asks for it");
    let other = |files: &mut Files| files.bound[0].1 = None;
    assert_eq!(deleted(&other), NONE, "nothing says that it ends");

    // The policy of now does not reach pods that were too many before.
    let mut files = Files::new();
    files.read(2, "{whenDeleted: Delete}");
    files.settle();
    files.read(1, "{whenDeleted: Delete}");
    files.gone();
    files.read(1, policy);
    files.settle();
    assert_eq!(files.settle(), NONE);

    // Another template of claims leaves those of pods that are wanted, until they are removed by hand.
    let mut files = Files::new();
    files.read(2, policy);
    files.settle();
    let renamed = set(2, policy).replace("name: data}", "name: other}");
    files.world.read_all(&renamed);
    files.documents.clear();
    assert_eq!(files.gone(), NONE);
    files
        .world
        .read_all(&renamed.replace("replicas: 2", "replicas: 1"));
    assert_eq!(files.gone(), NONE);

    // The policy of before counts only if the set has gone.
    let mut files = Files::new();
    files.read(2, policy);
    files.settle();
    files.read(1, "{whenDeleted: Delete}");
    assert_eq!(files.gone(), NONE);
    files.read(2, "{}");
    files.settle();
    files.no_file();
    assert_eq!(files.gone(), NONE);
}
