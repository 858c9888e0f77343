//! Frames: of the shim's protocol in both directions, of exec sessions, and fields of protobuf messages in them.

use std::time::Duration;

use coracle::api::exec_frame;
use coracle::shim::frame;
use coracle::shim::protocol::{ContainerRecord, Message, Request};

use super::mutate::{self, Random};
use super::{Entrance, fuzz};

const SEEDS: [&str; 6] = [
    r#"{"type":"hello","version":1,"subscribe":true}"#,
    r#"{"type":"signal","container":"c","attempt":3,"signal":"stop"}"#,
    r#"{"type":"exec","container":"c","argv":["sh","-c","x"],"env":["A=b"],"tty":true,"size":[80,24]}"#,
    r#"{"type":"exited","container":"c","attempt":0,"exit":{"code":1,"signal":null,"oom_killed":false,"message":"m","started":{"time":1,"wall":2},"finished":{"time":3,"wall":4}}}"#,
    r#"{"Hello":{"pid":1,"containers":{}}}"#,
    r#"{"container":"c","attempt":1,"image_id":"i","pid":2,"pid_start":3,"started":{"time":1,"wall":2}}"#,
];

fn make(random: &mut Random) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..=random.below(3) {
        let seed = random.choose(&SEEDS);
        let body = match serde_json::from_str(seed) {
            Ok(tree) if random.once_in(2) => {
                let tree = mutate::tree(random, &tree);
                serde_json::to_vec(&tree).expect("JSON")
            }
            _ => mutate::bytes(random, seed.as_bytes(), &[]),
        };
        let length = match random.once_in(6) {
            true => random.below(1 << 32),
            false => body.len(),
        };
        stream.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        stream.extend(body);
    }
    stream
}

/// Reads all frames, as connections do.
fn drain<T: serde::de::DeserializeOwned>(input: &[u8]) {
    let mut bytes = input.to_vec();
    let mut left = bytes.len() + 1;
    while let Ok(Some(_)) = frame::decode::<T>(&mut bytes) {
        assert!(bytes.len() < left, "each frame takes some bytes");
        left = bytes.len();
    }
}

#[test]
fn frames() {
    let entrance = Entrance {
        name: "frames",
        share: 50,
        most_bytes: 16 << 20,
        most_time: Duration::from_secs(2),
    };
    fuzz(entrance, make, |input| {
        drain::<Request>(input);
        drain::<Message>(input);
        let _ = serde_json::from_slice::<ContainerRecord>(input.get(4..).unwrap_or_default());
        for header in input.windows(5) {
            let header = header.try_into().expect("five bytes");
            let _ = exec_frame::parse_header(header);
        }
    });
}
