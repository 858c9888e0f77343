//! The id ranges of pods with user namespaces. The records of pods are the only memory of them: a pod keeps its range as
//! long as it has a folder, whatever happens to agents, and gives it back with its folder.

use std::sync::{Arc, Mutex, PoisonError};

use crate::config::Config;
use crate::effects::user_namespace::{self, UserNamespaceError};
use crate::plan::user_namespace::free_range;
use crate::spec::{IdRange, PodSpec};

/// Gives ranges to pods; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct UserNamespaces {
    config: Arc<Config>,
    /// One pod at a time, or two would choose the same range.
    choosing: Arc<Mutex<()>>,
}

impl UserNamespaces {
    pub(super) fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            choosing: Arc::default(),
        }
    }

    /// Blocking. The range of a pod with a user namespace: the one it has, or a new one, which is recorded.
    pub(super) fn range(&self, pod: &PodSpec) -> Result<Option<IdRange>, UserNamespaceError> {
        if !pod.own_users {
            return Ok(None);
        }
        let layout = &self.config.layout;
        let _one = self.choosing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(range) = user_namespace::of_pod(layout, &pod.uid)? {
            return Ok(Some(range));
        }
        let taken = user_namespace::taken(layout)?;
        let count = u32::try_from(self.config.user_ids_per_pod).unwrap_or(u32::MAX);
        let range = free_range(&taken, count).ok_or(UserNamespaceError::NoneLeft { count })?;
        user_namespace::record(layout, &pod.uid, range)?;
        Ok(Some(range))
    }
}
