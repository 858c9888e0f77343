//! What do we know?

/// stub
#[derive(Debug, Clone, Default)]
pub struct NodeState;
