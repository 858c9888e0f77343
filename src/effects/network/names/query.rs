//! What does a client ask? Questions in the wire format, which may be anything: clients are not trusted. Whatever is no
//! sound question is refused or ignored here, before anything is looked up. Reads and writes bytes, nothing else.

use domain::base::iana::{Class, Opcode, OptRcode, Rcode, Rtype};
use domain::base::message_builder::{AdditionalBuilder, AnswerBuilder, MessageBuilder};
use domain::base::{Message, StaticCompressor, ToName};

use super::zone::Name;

/// Nothing longer goes by UDP, and no longer question is taken: a question with a name of 255 octets and some options has room in it.
pub(super) const UDP_LIMIT_BYTES: usize = 4096;
/// What a datagram holds if the client says nothing else.
const PLAIN_UDP_BYTES: usize = 512;
/// What a datagram holds at most: passes any link with IPv6 in one piece.
const UDP_MAX: u16 = 1232;
/// Size of our OPT record.
const OPT_BYTES: usize = 11;

/// How a question came, and its answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// A sound question.
#[derive(Debug)]
pub(super) struct Query<'a> {
    message: &'a Message<[u8]>,
    /// As written: capital letters must come back as they were.
    pub(super) name: Name,
    pub(super) rtype: Rtype,
    /// The client speaks EDNS.
    edns: bool,
    /// What a datagram may hold, as the client says.
    asked_bytes: usize,
    transport: Transport,
}

/// Bytes that are no question to be answered, with what to say to it, if anything.
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

    /// The most that may be sent to the client at once.
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

    /// An answer that says: ask again by TCP.
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

/// What the client says about itself.
#[derive(Debug, Clone, Copy)]
struct Edns {
    bytes: u16,
    version: u8,
}

/// `None`: the message is broken. There may be one such record at most.
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

/// A question of our own for another server, to be given a number.
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

/// Says no to something that is no sound question, without repeating any of it.
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
