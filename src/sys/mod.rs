//! What does Linux need? Thin wrappers around system calls; all `unsafe` lives here. No policy, no Kubernetes words.

pub mod beneath;
pub mod bpf;
pub mod capability;
pub mod cgroup;
pub mod clock;
pub mod clock_sync;
pub mod dbus;
pub mod fdpass;
pub mod file;
pub mod journal;
pub mod link_check;
pub mod loopback;
pub mod mount;
pub mod netlink;
pub mod netns;
pub mod nfnetlink;
pub mod notify;
pub mod openat;
pub mod overlay_check;
pub mod own_binary;
pub mod process;
pub mod pty;
pub mod signals;
pub mod tree;
pub mod unix_socket;
pub mod xattr;
