//! DNS queries in the wire format. Clients are not trusted: every invalid query is refused or ignored here, before
//! any lookup. Reads and writes bytes, nothing else.

use domain::base::iana::{Class, Opcode, OptRcode, Rcode, Rtype};
use domain::base::message_builder::{AdditionalBuilder, AnswerBuilder, MessageBuilder};
use domain::base::{Message, StaticCompressor, ToName};

use super::zone::Name;

/// The maximum length by UDP, and of any query: a name of 255 octets and some options fit.
pub(super) const UDP_LIMIT_BYTES: usize = 4096;
/// The maximum datagram if the client states none.
const PLAIN_UDP_BYTES: usize = 512;
/// The maximum datagram in any case: it passes every IPv6 link in one piece.
const UDP_MAX: u16 = 1232;
/// Size of the server's OPT record.
const OPT_BYTES: usize = 11;

/// The transport of a query and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// A valid query.
#[derive(Debug)]
pub(super) struct Query<'a> {
    message: &'a Message<[u8]>,
    /// The name as written: capital letters must come back as they were.
    pub(super) name: Name,
    pub(super) rtype: Rtype,
    /// Whether the client uses EDNS.
    edns: bool,
    /// The maximum datagram that the client states.
    asked_bytes: usize,
    transport: Transport,
}

/// An invalid query, with the reply, if any.
pub(super) type Refusal = Option<Vec<u8>>;

pub(super) type Builder = StaticCompressor<Vec<u8>>;

impl<'a> Query<'a> {
    pub(super) fn read(bytes: &'a [u8], transport: Transport) -> Result<Self, Refusal> {
        let message = Message::from_slice(bytes).map_err(|_| None)?;
        let header = message.header();
        if header.qr() {
            // Two servers that answer each other's answers would never stop.
            return Err(None);
        }
        if header.opcode() != Opcode::QUERY {
            return Err(refuse(bytes, Rcode::NOTIMP));
        }
        let counts = message.header_counts();
        if bytes.len() > UDP_LIMIT_BYTES || counts.ancount() != 0 || counts.nscount() != 0 {
            return Err(refuse(bytes, Rcode::FORMERR));
        }
        let question = message
            .sole_question()
            .map_err(|_| refuse(bytes, Rcode::FORMERR))?;
        let edns = read_edns(message).ok_or_else(|| refuse(bytes, Rcode::FORMERR))?;
        let query = Self {
            message,
            name: question.qname().to_vec(),
            rtype: question.qtype(),
            edns: edns.is_some(),
            asked_bytes: edns.map_or(PLAIN_UDP_BYTES, |edns| usize::from(edns.bytes)),
            transport,
        };
        if edns.is_some_and(|edns| edns.version != 0) {
            return Err(Some(query.error(OptRcode::BADVERS)));
        }
        let transfer = matches!(query.rtype, Rtype::AXFR | Rtype::IXFR);
        if question.qclass() != Class::IN || transfer {
            return Err(Some(query.error(OptRcode::REFUSED)));
        }
        Ok(query)
    }

    /// The maximum length of an answer to the client.
    pub(super) fn limit_bytes(&self) -> usize {
        match self.transport {
            Transport::Udp => self.asked_bytes.clamp(PLAIN_UDP_BYTES, UDP_LIMIT_BYTES),
            Transport::Tcp => usize::from(u16::MAX),
        }
    }

    /// Starts an answer that leaves room for what `finish` adds.
    pub(super) fn start(&self, rcode: Rcode) -> AnswerBuilder<Builder> {
        let mut builder = empty();
        let limit = match self.transport {
            Transport::Udp => self.limit_bytes().min(usize::from(UDP_MAX)),
            Transport::Tcp => self.limit_bytes(),
        };
        builder.set_push_limit(limit - OPT_BYTES);
        let mut builder = builder.start_error(self.message, rcode);
        builder.header_mut().set_ra(true);
        builder
    }

    /// The end of an answer.
    pub(super) fn finish(&self, builder: AdditionalBuilder<Builder>) -> Vec<u8> {
        let code = builder.header().rcode().into();
        self.finish_with(builder, code)
    }

    /// An answer without records.
    pub(super) fn error(&self, code: OptRcode) -> Vec<u8> {
        let builder = self.start(code.rcode()).additional();
        self.finish_with(builder, code)
    }

    /// An answer that asks the client to try again by TCP.
    pub(super) fn truncated(&self) -> Vec<u8> {
        let mut builder = self.start(Rcode::NOERROR);
        builder.header_mut().set_tc(true);
        self.finish(builder.additional())
    }

    /// Setting the OPT record's part of the code sets the header's as well.
    fn finish_with(&self, mut builder: AdditionalBuilder<Builder>, code: OptRcode) -> Vec<u8> {
        builder.clear_push_limit();
        if self.edns {
            let added = builder.opt(|opt| {
                opt.set_udp_payload_size(UDP_MAX);
                opt.set_rcode(code);
                Ok(())
            });
            debug_assert!(added.is_ok(), "memory has no limit");
        }
        builder.finish().into_target()
    }
}

/// The client's EDNS data.
#[derive(Debug, Clone, Copy)]
struct Edns {
    bytes: u16,
    version: u8,
}

/// `None`: the message is broken. At most one such record is allowed.
fn read_edns(message: &Message<[u8]>) -> Option<Option<Edns>> {
    let mut found = None;
    for record in message.additional().ok()? {
        let record = record.ok()?;
        if record.rtype() != Rtype::OPT {
            continue;
        }
        let version = u8::try_from(record.ttl().as_secs() >> 16 & 0xff).ok()?;
        let bytes = record.class().to_int();
        if found.replace(Edns { bytes, version }).is_some() {
            return None;
        }
    }
    Some(found)
}

/// A query to another server, still without an id.
pub(super) fn compose(name: &Name, rtype: Rtype) -> Vec<u8> {
    let mut builder = empty();
    builder.header_mut().set_rd(true);
    let mut question = builder.question();
    let mut pushed = question.push((name, rtype)).is_ok();
    let mut builder = question.additional();
    pushed &= builder
        .opt(|opt| {
            opt.set_udp_payload_size(UDP_MAX);
            Ok(())
        })
        .is_ok();
    debug_assert!(pushed, "memory has no limit");
    builder.finish().into_target()
}

/// Refuses an invalid query without repeating any of it.
pub(super) fn refuse(bytes: &[u8], rcode: Rcode) -> Refusal {
    let asked = Message::from_slice(bytes).ok()?.header();
    if asked.qr() {
        return None;
    }
    let mut builder = empty();
    let header = builder.header_mut();
    header.set_id(asked.id());
    header.set_qr(true);
    header.set_opcode(asked.opcode());
    header.set_rd(asked.rd());
    header.set_rcode(rcode);
    Some(builder.finish().into_target())
}

fn empty() -> MessageBuilder<Builder> {
    let target = StaticCompressor::new(Vec::with_capacity(PLAIN_UDP_BYTES));
    MessageBuilder::from_target(target).expect("memory has no limit")
}
