//! A small DNS server for pods: it knows pods and services, and forwards everything else to the node's resolvers.
//!
//! ```text
//! datagram or connection ─► server ─► query ─► answer(zone) ─┬─► reply
//!                                                            └─► upstream (resolv_conf) ─► reply
//! ```
//! Only `server` and `upstream` wait, on the agent's own thread and without a timer while no query is open. There
//! is no cache: a restarted agent begins with the zone that it is given.

mod answer;
#[cfg(test)]
mod answer_test;
mod query;
#[cfg(test)]
mod query_test;
mod resolv_conf;
mod server;
mod slots;
mod sockets;
mod upstream;
mod zone;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, RwLock};

use ipnet::IpNet;

use crate::spec::cluster::ClusterView;

use self::slots::Slots;
use self::upstream::Upstream;

pub use self::sockets::Sockets;
pub use self::zone::Zone;

/// The maximum of forwarded queries: in all, and for one client.
const QUESTIONS: (usize, usize) = (256, 64);
/// The maximum of open connections: in all, and of one client.
const CONNECTIONS: (usize, usize) = (64, 16);

/// The clients that may ask, and the names that are never forwarded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// Addresses of the server. They may ask, and are never asked even if the node's `resolv.conf` names them.
    pub own: Vec<IpAddr>,
    /// Ranges of pods and services: they may ask, and reverse names of their addresses are never forwarded.
    pub ranges: Vec<IpNet>,
}

/// The name server.
#[derive(Debug)]
pub struct Names {
    known: RwLock<Arc<Known>>,
    upstream: Upstream,
    questions: Arc<Slots>,
    connections: Arc<Slots>,
    turn: AtomicUsize,
}

#[derive(Debug)]
struct Known {
    zone: Zone,
    /// Whether the zone was set from what is known of pods and services.
    complete: bool,
    reach: Reach,
}

impl Names {
    /// A server without names. An empty `resolv_conf` stands for a node without resolvers.
    pub fn new(cluster_domain: &str, resolv_conf: PathBuf, reach: Reach) -> Arc<Self> {
        let mut zone = Zone::new(cluster_domain, &ClusterView::default(), &BTreeMap::new());
        zone.set_name_servers(&reach.own);
        let names = Self {
            known: RwLock::new(Arc::new(Known {
                zone,
                complete: false,
                reach,
            })),
            upstream: Upstream::new(resolv_conf),
            questions: Slots::new(QUESTIONS.0, QUESTIONS.1),
            connections: Slots::new(CONNECTIONS.0, CONNECTIONS.1),
            turn: AtomicUsize::new(0),
        };
        Arc::new(names)
    }

    /// Replaces the names.
    pub fn set_zone(&self, mut zone: Zone) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        zone.set_name_servers(&known.reach.own);
        let reach = known.reach.clone();
        *known = Arc::new(Known {
            zone,
            complete: true,
            reach,
        });
    }

    /// Replaces the permitted clients.
    pub fn set_reach(&self, reach: Reach) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut zone = known.zone.clone();
        zone.set_name_servers(&reach.own);
        let complete = known.complete;
        *known = Arc::new(Known {
            zone,
            complete,
            reach,
        });
    }

    fn known(&self) -> Arc<Known> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }
}

impl Known {
    /// Clients outside this node must not use the server to reach other servers, or to flood them with answers.
    fn may_ask(&self, client: IpAddr) -> bool {
        client.is_loopback()
            || self.reach.own.contains(&client)
            || self.reach.ranges.iter().any(|net| net.contains(&client))
    }
}

/// The answer to a client's query, where every other server answers `said`; `None`: none. Without sockets, for
/// tests of arbitrary input.
pub fn say(zone: &Zone, question: &[u8], said: &[u8], by_tcp: bool) -> Option<Vec<u8>> {
    use answer::{Knowledge, Outcome, answer};
    use query::{Query, Transport};
    let transport = match by_tcp {
        true => Transport::Tcp,
        false => Transport::Udp,
    };
    let known = Knowledge {
        zone,
        ranges: &[],
        complete: true,
        turn: question.len(),
    };
    match answer(known, question, transport) {
        Outcome::Ignore => None,
        Outcome::Answer(reply) => Some(reply),
        Outcome::Forward => Some(said.to_vec()),
        Outcome::Follow(links) => {
            let query = Query::read(question, transport).ok()?;
            let said = domain::base::Message::from_slice(said).ok();
            Some(links.finish(&query, said))
        }
    }
}
