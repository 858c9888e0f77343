//! The configuration documents in force, as effects read them.

use std::sync::{Arc, PoisonError, RwLock};

use crate::spec::Configuration;

/// The documents in force; all clones see changes.
#[derive(Debug, Clone, Default)]
pub struct CurrentConfiguration(Arc<RwLock<Arc<Configuration>>>);

impl CurrentConfiguration {
    /// Returns the documents in force now.
    pub fn now(&self) -> Arc<Configuration> {
        let current = self.0.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the documents.
    pub fn replace(&self, configuration: Arc<Configuration>) {
        let current = self.0.write();
        *current.unwrap_or_else(PoisonError::into_inner) = configuration;
    }
}
