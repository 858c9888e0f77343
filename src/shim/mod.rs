//! Who holds the pod? One single-threaded process a pod, re-executed from the same binary: the parent of its
//! containers, the reader of their output, and the only code that calls libcontainer.

pub mod protocol;
