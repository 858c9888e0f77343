//! What services have at present: their addresses, and their routes in force.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::allocation::{self, Choice};
use super::error::NetworkError;
use super::firewall::ServiceRoute;
use super::ground::{Ground, read};
use super::node::{Inner, lock};
use super::{services, snapshot};
use crate::spec::PodKey;
use crate::spec::cluster::{Refusal, ServiceEntry};
use crate::sys::netlink::Netlink;
use crate::types::Gather;

/// The state of the services.
#[derive(Debug, Default)]
pub(super) struct Services {
    /// `None` until this agent knows the services.
    pub(super) view: Option<Vec<ServiceEntry>>,
    /// Whether the last update was incomplete.
    pub(super) failed: bool,
    pub(super) addresses: BTreeMap<PodKey, Vec<IpAddr>>,
    /// What they ask for and do not have.
    pub(super) refused: Vec<Refusal>,
    /// The routes in force.
    pub(super) routes: Vec<ServiceRoute>,
}

impl Inner {
    /// Allocates addresses of services and puts their routes in force.
    pub(super) fn serve(
        &self,
        services: &mut Services,
        ground: &Ground,
    ) -> Result<(), NetworkError> {
        let layout = &self.settings.layout;
        let former = Choice::load(layout).filter(|choice| choice.ranges == ground.ranges);
        let mut choice = former.unwrap_or_else(|| self.choice(ground.ranges.clone()));
        let before = choice.services.clone();
        let view = services.view.as_deref().unwrap_or_default();
        let node = if services::any_given(view) {
            let found = Netlink::open().and_then(|mut netlink| snapshot::addresses(&mut netlink));
            let own = read("the addresses", found)?.into_iter();
            own.map(|address| address.net.addr()).gather()
        } else {
            BTreeSet::new()
        };
        let assigned = services::assign(view, &ground.ranges, &node, &mut choice.services);
        let saved = if choice.services == before {
            Ok(())
        } else {
            choice.save(layout)
        };
        let mut routes = services::routes(view, &assigned.addresses);
        let ports = lock(&self.pods).claims.take_node_ports(&mut routes);
        let errors: Vec<_> = assigned.errors.into_iter().chain(ports).collect();
        services.refused = errors
            .iter()
            .map(|(service, error)| services::refused(service, error))
            .collect();
        services.addresses = assigned.addresses;
        *lock(&self.links) = view
            .iter()
            .filter_map(|entry| {
                let addresses = services.addresses.get(&entry.spec.key)?;
                Some((Arc::clone(&entry.spec), *addresses.first()?))
            })
            .collect();
        let mut kept = Ok(());
        if routes != services.routes {
            kept = allocation::save_routes(layout, &routes);
            self.firewall.update(|set| {
                self.base(set, &ground.ranges);
                set.services.clone_from(&routes);
            })?;
            // Until they are in force and on disk, the next try has them to do.
            if kept.is_ok() {
                services.routes = routes;
            }
        }
        kept?;
        saved?;
        let mut errors = errors.into_iter().map(|(_, error)| error);
        errors.find(NetworkError::may_pass).map_or(Ok(()), Err)
    }
}
