//! DNS answers. Pure: the zone and the bytes of a query give the bytes of an answer, or the decision to forward the
//! query.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use domain::base::iana::{OptRcode, Rcode, Rtype};
use domain::base::message_builder::{AnswerBuilder, PushError, RecordSectionBuilder};
use domain::base::{CharStr, Message, Serial, ToName, Ttl};
use domain::rdata::{A, Aaaa, Cname, Ns, Ptr, Soa, Srv, Txt};
use ipnet::IpNet;

use super::query::{Builder, Query, Transport};
use super::zone::{Data, Name, Zone};

/// Seconds for which an answer may be cached, also a negative one.
const TTL_SECS: u32 = 5;
/// An `ExternalName` may lead to another service; this many in a row count as a loop.
const MAX_LINKS: usize = 8;
/// The maximum number of records taken from another server's answer.
const MAX_FOLLOWED: usize = 64;

/// What to do with a query.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Do not answer.
    Ignore,
    Answer(Vec<u8>),
    /// Forward the query.
    Forward,
    /// The name is an alias of one that must be asked of another server.
    Follow(Links),
}

/// A chain of aliases, each with its target; never empty.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Links(Vec<(Name, Name)>);

/// The inputs of an answer, beside the query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Knowledge<'a> {
    pub(super) zone: &'a Zone,
    /// Reverse names of addresses in these ranges are never forwarded.
    pub(super) ranges: &'a [IpNet],
    /// Whether the zone has all names: until the manifests are read after an agent restart, it lacks those of Services.
    pub(super) complete: bool,
    /// Where to begin among several addresses: a different number each time.
    pub(super) turn: usize,
}

/// Answers one query.
pub(super) fn answer(known: Knowledge<'_>, bytes: &[u8], transport: Transport) -> Outcome {
    match Query::read(bytes, transport) {
        Ok(query) if known.is_ours(&query.name) => known.answer(&query),
        Ok(_) => Outcome::Forward,
        Err(Some(refusal)) => Outcome::Answer(refusal),
        Err(None) => Outcome::Ignore,
    }
}

impl Links {
    /// The name to ask another server for.
    pub(super) fn target(&self) -> &Name {
        &self.0[self.0.len() - 1].1
    }

    /// The answer with another server's records of the target; without them, the client gets only the aliases.
    pub(super) fn finish(&self, query: &Query<'_>, said: Option<&Message<[u8]>>) -> Vec<u8> {
        let mut builder = query.start(Rcode::NOERROR);
        // The client would relate any other code to its own query.
        let said =
            said.filter(|said| matches!(said.header().rcode(), Rcode::NOERROR | Rcode::NXDOMAIN));
        if let Some(said) = said {
            let header = said.header();
            builder.header_mut().set_rcode(header.rcode());
            builder.header_mut().set_tc(header.tc());
        }
        let pushed = self.push(&mut builder).and_then(|()| match said {
            Some(said) => push_addresses(&mut builder, said),
            None => Ok(()),
        });
        let builder = match pushed {
            Ok(()) => builder,
            Err(_) => builder.tc_rewind_into(),
        };
        query.finish(builder.additional())
    }

    fn push(&self, builder: &mut AnswerBuilder<Builder>) -> Result<(), PushError> {
        self.0
            .iter()
            .try_for_each(|(owner, target)| builder.push((owner, TTL_SECS, Cname::new(target))))
    }
}

impl<'a> Knowledge<'a> {
    /// Whether the name is never forwarded.
    fn is_ours(&self, name: &Name) -> bool {
        let below_apex = |(apex, _, _): (&Name, &Name, &Name)| name.ends_with(apex);
        self.zone.authority().is_some_and(below_apex)
            || self.zone.get(&key(name)).is_some()
            || reversed(name).is_some_and(|ip| self.ranges.iter().any(|net| net.contains(&ip)))
    }

    fn answer(&self, query: &Query<'_>) -> Outcome {
        let mut links = Links(Vec::new());
        let mut owner = query.name.clone();
        loop {
            let Some(records) = self.zone.get(&key(&owner)) else {
                return Outcome::Answer(self.finish(query, &links, &owner, None));
            };
            let Some(target) = linked(records, query.rtype) else {
                return Outcome::Answer(self.finish(query, &links, &owner, Some(records)));
            };
            links.0.push((owner, target.clone()));
            if links.0.len() > MAX_LINKS {
                return Outcome::Answer(query.error(OptRcode::SERVFAIL));
            }
            if !self.is_ours(target) {
                return match query.rtype {
                    Rtype::A | Rtype::AAAA => Outcome::Follow(links),
                    _ => Outcome::Answer(links.finish(query, None)),
                };
            }
            owner = target.clone();
        }
    }

    /// `records` are those of `owner`; `None`: the name does not exist.
    fn finish(
        &self,
        query: &Query<'_>,
        links: &Links,
        owner: &Name,
        records: Option<&'a [Data]>,
    ) -> Vec<u8> {
        let code = match records {
            Some(_) => Rcode::NOERROR,
            None if !self.complete => {
                return query.finish(query.start(Rcode::SERVFAIL).additional());
            }
            None => Rcode::NXDOMAIN,
        };
        let mut builder = query.start(code);
        builder.header_mut().set_aa(true);
        let wanted = |data: &&Data| query.rtype == Rtype::ANY || rtype(data) == query.rtype;
        let found: Vec<&Data> = records.unwrap_or_default().iter().filter(wanted).collect();
        let (late, soon) = found.split_at(self.turn % found.len().max(1));
        let pushed = links.push(&mut builder).and_then(|()| {
            soon.iter()
                .chain(late)
                .try_for_each(|data| self.push(&mut builder, owner, data))
        });
        if pushed.is_err() {
            return query.finish(builder.tc_rewind_into().additional());
        }
        let mut builder = builder.authority();
        if found.is_empty() {
            // Clients cache a negative answer only with this record, which says for how long. There is room for it:
            // the answer is empty.
            let zone = self.negative_zone(owner);
            let _ = self.push_soa(&mut builder, &zone);
        }
        let mut builder = builder.additional();
        for data in found {
            if let Data::Srv { target, .. } = data {
                let addresses = self.zone.get(&key(target)).unwrap_or_default();
                let addresses = addresses
                    .iter()
                    .filter(|data| matches!(data, Data::A(_) | Data::Aaaa(_)));
                // As many as fit: they only spare the client a query.
                for data in addresses {
                    let _ = self.push(&mut builder, target, data);
                }
            }
        }
        query.finish(builder)
    }

    /// The zone with the authority for a negative answer.
    fn negative_zone(&self, owner: &Name) -> Name {
        match self.zone.authority() {
            Some((apex, _, _)) if owner.ends_with(apex) => apex.clone(),
            // `in-addr.arpa` or `ip6.arpa`, as in CoreDNS.
            Some(_) | None => {
                let skip = owner.label_count().saturating_sub(3);
                let mut labels = owner.iter_suffixes().skip(skip);
                labels
                    .next()
                    .map_or_else(Name::root_vec, |zone| zone.to_vec())
            }
        }
    }

    fn push_soa(
        &self,
        builder: &mut impl RecordSectionBuilder<Builder>,
        zone: &Name,
    ) -> Result<(), PushError> {
        let Some((_, server, mailbox)) = self.zone.authority() else {
            return Ok(());
        };
        let secs = Ttl::from_secs;
        // There are no secondary servers, so the serial has no meaning.
        let (serial, negative) = (Serial(1), secs(TTL_SECS));
        let soa = Soa::new(
            server,
            mailbox,
            serial,
            secs(7200),
            secs(1800),
            secs(86400),
            negative,
        );
        builder.push((zone, TTL_SECS, soa))
    }

    fn push(
        &self,
        builder: &mut impl RecordSectionBuilder<Builder>,
        owner: &Name,
        data: &Data,
    ) -> Result<(), PushError> {
        match data {
            Data::A(ip) => builder.push((owner, TTL_SECS, A::new(*ip))),
            Data::Aaaa(ip) => builder.push((owner, TTL_SECS, Aaaa::new(*ip))),
            Data::Cname(target) => builder.push((owner, TTL_SECS, Cname::new(target))),
            Data::Ptr(target) => builder.push((owner, TTL_SECS, Ptr::new(target))),
            Data::Srv {
                weight,
                port,
                target,
            } => builder.push((owner, TTL_SECS, Srv::new(0, *weight, *port, target))),
            Data::Txt(text) => {
                let text = CharStr::from_slice(text.as_bytes()).expect("at most 255 octets");
                let mut octets = Vec::new();
                text.compose(&mut octets).expect("memory has no limit");
                let txt = Txt::from_octets(octets).expect("one string");
                builder.push((owner, TTL_SECS, txt))
            }
            Data::Soa => self.push_soa(builder, owner),
            Data::Ns => match self.zone.authority() {
                Some((_, server, _)) => builder.push((owner, TTL_SECS, Ns::new(server))),
                None => Ok(()),
            },
        }
    }
}

/// The target of an alias; `None` if the client asks for the alias itself.
fn linked(records: &[Data], asked: Rtype) -> Option<&Name> {
    if matches!(asked, Rtype::CNAME | Rtype::ANY) {
        return None;
    }
    records.iter().find_map(|data| match data {
        Data::Cname(target) => Some(target),
        Data::A(_)
        | Data::Aaaa(_)
        | Data::Ptr(_)
        | Data::Srv { .. }
        | Data::Txt(_)
        | Data::Soa
        | Data::Ns => None,
    })
}

/// Copies addresses and aliases; other records make no sense in an address query.
fn push_addresses(
    builder: &mut AnswerBuilder<Builder>,
    said: &Message<[u8]>,
) -> Result<(), PushError> {
    let Ok(section) = said.answer() else {
        return Ok(());
    };
    for record in section.flatten().take(MAX_FOLLOWED) {
        let (owner, ttl) = (record.owner(), record.ttl());
        if let Ok(Some(found)) = record.to_record::<A>() {
            builder.push((owner, ttl, found.data().clone()))?;
        } else if let Ok(Some(found)) = record.to_record::<Aaaa>() {
            builder.push((owner, ttl, found.data().clone()))?;
        } else if let Ok(Some(found)) = record.to_record::<Cname<_>>() {
            builder.push((owner, ttl, Cname::new(found.data().cname())))?;
        }
    }
    Ok(())
}

fn rtype(data: &Data) -> Rtype {
    match data {
        Data::A(_) => Rtype::A,
        Data::Aaaa(_) => Rtype::AAAA,
        Data::Cname(_) => Rtype::CNAME,
        Data::Ptr(_) => Rtype::PTR,
        Data::Srv { .. } => Rtype::SRV,
        Data::Txt(_) => Rtype::TXT,
        Data::Soa => Rtype::SOA,
        Data::Ns => Rtype::NS,
    }
}

fn key(name: &Name) -> Vec<u8> {
    name.as_slice().to_ascii_lowercase()
}

/// The address of a reverse name.
fn reversed(name: &Name) -> Option<IpAddr> {
    let labels: Vec<&[u8]> = name.iter().map(|label| label.as_slice()).collect();
    let [parts @ .., family, arpa, _root] = labels.as_slice() else {
        return None;
    };
    if !arpa.eq_ignore_ascii_case(b"arpa") {
        return None;
    }
    if family.eq_ignore_ascii_case(b"in-addr") && parts.len() == 4 {
        let mut octets = [0; 4];
        for (octet, part) in octets.iter_mut().rev().zip(parts) {
            *octet = str::from_utf8(part).ok()?.parse().ok()?;
        }
        return Some(Ipv4Addr::from(octets).into());
    }
    if family.eq_ignore_ascii_case(b"ip6") && parts.len() == 32 {
        let mut bits = 0_u128;
        for part in parts.iter().rev() {
            let digit = u128::from_str_radix(str::from_utf8(part).ok()?, 16).ok()?;
            if part.len() != 1 {
                return None;
            }
            bits = bits << 4 | digit;
        }
        return Some(Ipv6Addr::from(bits).into());
    }
    None
}
