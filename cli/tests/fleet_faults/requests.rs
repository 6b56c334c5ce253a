//! Requests of unknown or broken clients to a worker's port: they cost the worker nothing, and ranks notice nothing.

use crate::data::Data;
use crate::link::Chance;
use crate::raw::{MAGIC, PROTOCOL, Raw, checked, head_of, hello};
use crate::relay::Relay;
use crate::run::{Batches, Run, eventually, quiet};
use crate::say;
use crate::trust::Trust;
use crate::worker::{Start, Worker};
use feedstock::Workers;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Number of simultaneous connections.
const CROWD: usize = 200;

/// Memory growth that the allocator and the kernel's pages may cause.
const GROWTH_BYTES: u64 = 24 << 20;

/// Maximum time for a single request.
const SOON: Duration = Duration::from_secs(5);

/// The bytes to send, whether the worker must close the connection at once, and whether the sender ends its side.
struct Nonsense {
    name: &'static str,
    bytes: Vec<u8>,
    refused: bool,
    ends: bool,
}

fn nonsense() -> Vec<Nonsense> {
    let mut chance = Chance::new(3);
    let mut random = || (0..8).fold(0u8, |byte, _| byte << 1 | u8::from(chance.happens(0.5)));
    let noise: Vec<u8> = (0..4096).map(|_| random()).collect();
    let greeting = |length: u32, part: &str| [MAGIC, &length.to_le_bytes(), part.as_bytes()].concat();
    let half = hello(PROTOCOL).to_string()[..20].to_owned();
    let one = |name, bytes, refused| Nonsense { name, bytes, refused, ends: false };
    vec![
        one("random bytes", noise.clone(), true),
        one("a hello of 4 GiB", greeting(u32::MAX, "{\"protocol\""), true),
        one("HTTP/1", b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n".to_vec(), true),
        one("a hello that is not JSON", greeting(20, "nonsense nonsense no"), true),
        Nonsense { name: "a truncated hello", bytes: greeting(100, &half), refused: true, ends: true },
        Nonsense { name: "two letters", bytes: b"PR".to_vec(), refused: false, ends: true },
        one("half a hello, then silence", greeting(100, &half), false),
        one("half a magic, then silence", MAGIC[..4].to_vec(), false),
        one("half of HTTP/2's first word, then silence", b"PR".to_vec(), false),
        one("HTTP/2, then noise", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &noise].concat(), false),
        one("nothing", Vec::new(), false),
    ]
}

/// Runs a worker and a rank that is served while something happens to the worker.
fn beside<T>(data: &Data, quiet: &Batches, worker: &Worker, fleet: Workers, act: impl FnOnce() -> T) -> T {
    let served = |fleet: &Workers| {
        let begun = Instant::now();
        Run::start(data, fleet.clone(), 2).end_like(quiet);
        begun.elapsed()
    };
    served(&fleet); // until memory use is constant
    let (before, calm) = (worker.memory_bytes(), served(&fleet));
    let done = act();
    let busy = served(&fleet);
    let grown = worker.memory_bytes().saturating_sub(before);
    say!("the rank took {busy:.1?} instead of {calm:.1?}; the worker grew by {} KiB", grown >> 10);
    assert!(grown < GROWTH_BYTES, "the worker grew by {} MiB", grown >> 20);
    assert!(busy < calm * 4 + Duration::from_secs(5), "{busy:?} instead of {calm:?}");
    done
}

#[test]
fn two_hundred_nonsensical_connections_at_once() {
    let data = Data::pictures(2);
    let quiet = quiet(&data, 2);
    let (plain, trust) = (Start::new(&data).start(), Trust::new());
    let secure = trust.worker(Start::new(&data)).start();
    let at = |worker: &Worker| Workers::at(worker.address()).unwrap();
    for (worker, fleet) in [(&plain, at(&plain)), (&secure, trust.rank(at(&secure)))] {
        let kinds = nonsense();
        let crowd = beside(&data, &quiet, worker, fleet, || {
            let said = (0..CROWD).map(|nth| {
                let kind = &kinds[nth % kinds.len()];
                let mut raw = Raw::connect(worker.address());
                raw.say(&kind.bytes);
                if kind.ends {
                    raw.ends();
                }
                (kind, raw)
            });
            said.collect::<Vec<_>>()
        });
        // Over TLS none of these is a valid beginning; by then, all but silence is rejected.
        for (kind, mut raw) in crowd.into_iter().filter(|(kind, _)| kind.refused) {
            let begun = Instant::now();
            let answer = raw.rest();
            assert!(begun.elapsed() < SOON, "{}: closed late", kind.name);
            assert!(answer.len() < 10, "{}: answered {} bytes", kind.name, answer.len());
        }
    }
}

/// Unknown clients may send as much as a greeting needs, but not more.
#[test]
fn two_hundred_greetings_of_a_mebibyte() {
    let data = Data::pictures(2);
    let quiet = quiet(&data, 2);
    let worker = Start::new(&data).start();
    let fleet = Workers::at(worker.address()).unwrap();
    let greeting = [MAGIC, &(1u32 << 20).to_le_bytes(), &vec![b' '; (1 << 20) - 1]].concat();
    let crowd = beside(&data, &quiet, &worker, fleet, || {
        let one = |_| {
            let mut raw = Raw::connect(worker.address());
            raw.say(&greeting);
            raw
        };
        (0..CROWD).map(one).collect::<Vec<Raw>>()
    });
    crowd.into_iter().for_each(|mut raw| assert!(raw.rest().is_empty()));
}

#[test]
fn oversize_and_senseless_messages_of_ranks() {
    let data = Data::pictures(2);
    let quiet = quiet(&data, 2);
    let worker = Start::new(&data).start();
    let fleet = Workers::at(worker.address()).unwrap();
    let describe = checked(b"\"describe\"");
    let deep = "[".repeat(100_000);
    let mut damaged = checked(b"\"status\"");
    damaged[10] ^= 1;
    let messages: Vec<(&str, Vec<u8>)> = vec![
        ("a request of 4 GiB", head_of(u32::MAX)),
        ("a request of 2 MiB", head_of(2 << 20)),
        ("a length without its checksum", [0; 8].to_vec()),
        ("a description of 4 GiB", [describe.clone(), head_of(u32::MAX)].concat()),
        ("a description of 17 MiB", [describe.clone(), head_of(17 << 20)].concat()),
        ("a description that is not valid", [describe, checked(b"{}")].concat()),
        ("nesting without end", checked(deep.as_bytes())),
        ("an unknown message", checked(b"\"hello\"")),
        ("a damaged message", damaged),
        ("no text", checked(&[0xff; 4])),
    ];
    beside(&data, &quiet, &worker, fleet, || {
        for (name, bytes) in &messages {
            for _ in 0..CROWD / messages.len() {
                let mut raw = Raw::greeted(worker.address());
                raw.say(bytes);
                let begun = Instant::now();
                assert!(raw.rest().is_empty(), "{name} was answered");
                assert!(begun.elapsed() < SOON, "{name}: closed late");
            }
        }
    });
}

/// Authorized clients cannot make a worker loop for ever, or promise resources that it lacks.
#[test]
fn requests_with_absurd_numbers() {
    let data = Data::pictures(2);
    let quiet = quiet(&data, 2);
    let worker = Start::new(&data).without_socket().start();
    let relay = Relay::start(worker.address()).unwrap();
    let heard = Workers::at(&relay.address()).unwrap();
    Run::start(&data, heard, 2).end_like(&quiet);
    let good = request(&relay.said());
    let changes: Vec<(&str, Value)> = vec![
        ("/open/shape/size", json!({ "rows": u64::MAX })),
        ("/open/shape/size", json!({ "rows": 1u64 << 40 })),
        ("/open/shape/size", json!({ "rows": 0 })),
        ("/open/shape/size", json!({ "total": { "total": "1e300", "max_rows": u64::MAX } })),
        ("/open/shape/rank/world_size", json!(0)),
        ("/open/shape/rank/world_size", json!(u32::MAX)),
        ("/open/shape/rank/rank", json!(u32::MAX)),
        ("/open/strands", json!([u32::MAX])),
        ("/open/strands", json!([])),
        ("/open/strands", json!([7])),
        ("/open/strands", json!([16_384])),
        ("/open/budget_bytes", json!(u64::MAX)),
        ("/open/budget_bytes", json!(0)),
        ("/open/most_bytes", json!(u64::MAX)),
        ("/open/places", json!(0)),
        ("/open/places", json!(u32::MAX)),
        ("/open/overdue", json!(u32::MAX)),
        ("/open/cursor/epoch", json!(u64::MAX)),
        ("/open/cursor/position", json!(u64::MAX)),
        ("/open/end_epoch", json!(u64::MAX)),
        ("/open/end_epoch", json!(0)),
        ("/open/plan", json!("0".repeat(32))),
    ];
    let fleet = Workers::at(worker.address()).unwrap();
    let asked = beside(&data, &quiet, &worker, fleet, || {
        let ask = |(path, value): &(&str, Value)| {
            let mut request = good.clone();
            *request.pointer_mut(path).unwrap_or_else(|| panic!("no {path} in {good}")) = value.clone();
            let mut raw = Raw::greeted(worker.address());
            raw.message(&request);
            let begun = Instant::now();
            let answer = raw.answer().unwrap_or_else(|e| panic!("{path} = {value}: {e}"));
            say!("{path} = {value}: {:.150}", answer.to_string());
            assert!(begun.elapsed() < SOON, "{path} = {value}: answered after {:?}", begun.elapsed());
            raw
        };
        changes.iter().map(ask).collect::<Vec<Raw>>()
    });
    drop(asked);
    // Streams that were dropped take a moment to end.
    eventually("without ranks it is idle", || worker.busy(Duration::from_secs(1)) < 0.3);
}

/// Returns the last request for rows in the bytes that ranks sent.
fn request(said: &[u8]) -> Value {
    let at = said.windows(8).rposition(|window| window == b"{\"open\":").expect("a request");
    serde_json::Deserializer::from_slice(&said[at..]).into_iter().next().unwrap().unwrap()
}
