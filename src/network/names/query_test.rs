//! Tests of `Query` through `answer`: invalid queries, and arbitrary bytes.

use domain::base::Message;
use domain::base::iana::{Rcode, Rtype};
use proptest::prelude::*;

use super::answer::Outcome;
use super::answer_test::{outcome, question, reply, with_edns};
use super::query::{Query, Transport};

#[test]
fn what_is_no_sound_question_is_refused_or_ignored() {
    let good = question("web.default.svc.cluster.local", Rtype::A);
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    let cases: [(&str, Vec<u8>, Option<Rcode>); 12] = [
        ("half a header", good[..11].to_vec(), None),
        ("an answer", changed(|b| b[2] |= 0x80), None),
        (
            "a broken answer",
            changed(|b| (b[2], b[5]) = (0x80, 9)),
            None,
        ),
        (
            "an update",
            changed(|b| b[2] |= 5 << 3),
            Some(Rcode::NOTIMP),
        ),
        ("no question", changed(|b| b[5] = 0), Some(Rcode::FORMERR)),
        ("two questions", changed(|b| b[5] = 2), Some(Rcode::FORMERR)),
        ("half a question", good[..20].to_vec(), Some(Rcode::FORMERR)),
        (
            "an answer in a question",
            changed(|b| b[7] = 1),
            Some(Rcode::FORMERR),
        ),
        (
            "a name that points at itself",
            changed(|b| (b[12], b[13]) = (0xc0, 12)),
            Some(Rcode::FORMERR),
        ),
        (
            "another class",
            changed(|b| *b.last_mut().unwrap() = 3),
            Some(Rcode::REFUSED),
        ),
        (
            "a transfer",
            question("cluster.local", Rtype::AXFR),
            Some(Rcode::REFUSED),
        ),
        (
            "two OPT records",
            with_edns(&with_edns(&good, 512, 0), 512, 0),
            Some(Rcode::FORMERR),
        ),
    ];
    for (what, bytes, expected) in cases {
        match (outcome(&bytes, Transport::Udp, 0), expected) {
            (Outcome::Ignore, None) => {}
            (Outcome::Answer(reply), Some(code)) => {
                let header = Message::from_slice(&reply).unwrap().header();
                assert_eq!((header.rcode(), header.id()), (code, 0x1234), "{what}");
            }
            (other, _) => panic!("{what}: {other:?}"),
        }
    }
    let reply = reply(&with_edns(&good, 512, 1), Transport::Udp);
    let message = Message::from_slice(&reply).unwrap();
    assert_eq!(
        message.opt_rcode().to_int(),
        16,
        "a version that is not there yet"
    );
}

/// A query with some octets changed, or arbitrary bytes.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let names = prop_oneof![
        Just("web.default.svc.cluster.local"),
        Just("ext.default.svc.cluster.local"),
        Just("2.0.88.10.in-addr.arpa"),
        Just("example.com"),
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let near = (names, any::<u16>(), changes, any::<bool>(), 0..200_usize).prop_map(
        |(name, rtype, changes, edns, cut)| {
            let mut bytes = question(name, Rtype::from_int(rtype));
            if edns {
                bytes = with_edns(&bytes, rtype, 0);
            }
            for (at, octet) in changes {
                let at = at.index(bytes.len());
                bytes[at] = octet;
            }
            bytes.truncate(bytes.len().max(cut) - cut / 4);
            bytes
        },
    );
    prop_oneof![near, prop::collection::vec(any::<u8>(), 0..600)]
}

proptest! {
    #[test]
    fn any_bytes_get_a_short_answer_with_their_number_or_none(bytes in bytes(), tcp: bool, turn: usize) {
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        let is_answer = bytes.get(2).is_some_and(|flags| flags & 0x80 != 0);
        match outcome(&bytes, transport, turn) {
            Outcome::Ignore => prop_assert!(is_answer || bytes.len() < 12),
            Outcome::Answer(reply) => {
                prop_assert!(!is_answer);
                prop_assert_eq!(&reply[..2], &bytes[..2]);
                prop_assert_eq!(reply[2] & 0x80, 0x80);
                prop_assert!(reply.len() <= 1232 || tcp);
            }
            Outcome::Forward => prop_assert!(!is_answer),
            Outcome::Follow(links) => {
                prop_assert!(!is_answer);
                let query = Query::read(&bytes, transport).unwrap();
                let said = Message::from_slice(&bytes).ok();
                let reply = links.finish(&query, said);
                prop_assert!(reply.len() <= 1232 || tcp);
            }
        }
    }
}
