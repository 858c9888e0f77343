//! The pods' network, tested from all sides: real agents in a small world of hosts.

#[path = "network/addresses.rs"]
mod addresses;
#[path = "network/clean_up.rs"]
mod clean_up;
mod common;
#[path = "network/host_ports.rs"]
mod host_ports;
#[path = "network/isolation.rs"]
mod isolation;
#[path = "network/names.rs"]
mod names;
#[path = "network/recovery.rs"]
mod recovery;
#[path = "network/resolving.rs"]
mod resolving;
#[path = "network/services.rs"]
mod services;
#[path = "network/start.rs"]
mod start;
#[path = "network/uplink.rs"]
mod uplink;
#[path = "network/world.rs"]
mod world;
