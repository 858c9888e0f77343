//! What is the address of that name? A small name server for pods: it knows pods and services, and asks the node's
//! resolvers for everything else.
//!
//! ```text
//! datagram or connection ─► server ─► query ─► answer(zone) ─┬─► reply
//!                                                            └─► upstream (resolv_conf) ─► reply
//! ```
//! Only `server` and `upstream` wait, on the agent's own thread and without a timer while nobody asks. Nothing here is kept:
//! a new agent starts with the zone it is given.

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

/// Questions that other servers are being asked: in all, and for one client.
const QUESTIONS: (usize, usize) = (256, 64);
/// Open connections: in all, and of one client.
const CONNECTIONS: (usize, usize) = (64, 16);

/// Who may ask, and what nobody else is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// Addresses the server listens on. They may ask, and are never asked although the node's resolv.conf names them.
    pub own: Vec<IpAddr>,
    /// Ranges of pods and services: they may ask, and nobody else knows the names of their addresses.
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
    reach: Reach,
}

impl Names {
    /// Knows nobody yet. An empty `resolv_conf` stands for a node without resolvers.
    pub fn new(cluster_domain: &str, resolv_conf: PathBuf, reach: Reach) -> Arc<Self> {
        let zone = Zone::new(cluster_domain, &ClusterView::default(), &BTreeMap::new());
        let names = Self {
            known: RwLock::new(Arc::new(Known {
                zone: Zone::default(),
                reach,
            })),
            upstream: Upstream::new(resolv_conf),
            questions: Slots::new(QUESTIONS.0, QUESTIONS.1),
            connections: Slots::new(CONNECTIONS.0, CONNECTIONS.1),
            turn: AtomicUsize::new(0),
        };
        names.set_zone(zone);
        Arc::new(names)
    }

    /// From now on these are the names.
    pub fn set_zone(&self, mut zone: Zone) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        zone.set_name_servers(&known.reach.own);
        let reach = known.reach.clone();
        *known = Arc::new(Known { zone, reach });
    }

    /// From now on these may ask.
    pub fn set_reach(&self, reach: Reach) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut zone = known.zone.clone();
        zone.set_name_servers(&reach.own);
        *known = Arc::new(Known { zone, reach });
    }

    fn known(&self) -> Arc<Known> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }
}

impl Known {
    /// Who is not on this node must not use it to ask others, or to flood them with answers.
    fn may_ask(&self, client: IpAddr) -> bool {
        client.is_loopback()
            || self.reach.own.contains(&client)
            || self.reach.ranges.iter().any(|net| net.contains(&client))
    }
}

/// The bytes that a client gets to its question, where every other server says `said`; `None`: nothing. Without sockets, for
/// those who want to know what any bytes lead to.
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
