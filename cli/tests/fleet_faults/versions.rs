//! Workers and ranks of other releases: both sides report both versions.

use crate::data::Data;
use crate::identities::refusal;
use crate::raw::{FakeWorker, MAGIC, PROTOCOL, Raw, hello};
use crate::run::{Run, quiet};
use crate::worker::Start;
use feedstock::ops::OPS_VERSION;
use feedstock::{ErrorKind, Workers};
use serde_json::{Value, json};

/// Another protocol version.
const NEXT: u32 = PROTOCOL + 1;

/// Returns the greeting of a worker with the next protocol, which leaves the rejection to the rank.
fn newer() -> Value {
    json!({ "protocol": NEXT, "release": "9.9.9", "instance": "newer" })
}

#[test]
fn a_worker_of_another_protocol_is_named_with_both_versions() {
    let data = Data::pictures(1);
    let refusing = json!({
        "protocol": NEXT, "release": "9.9.9", "instance": "newer",
        "refused": {
            "kind": "bad_config",
            "message": format!("the worker has protocol {NEXT} (feedstock 9.9.9), the rank has protocol {PROTOCOL}"),
        }
    });
    for welcome in [newer(), refusing] {
        let fake = FakeWorker::saying(&welcome);
        let error = refusal(&data, Workers::at(fake.address()).unwrap());
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        for part in [&*format!("protocol {PROTOCOL}"), &*format!("protocol {NEXT}"), "9.9.9", fake.address()]
        {
            assert!(error.to_string().contains(part), "'{part}' is missing: {error}");
        }
    }
}

#[test]
fn other_workers_serve_if_one_has_another_protocol() {
    let data = Data::pictures(2);
    let quiet = quiet(&data, 2);
    let (fake, real) = (FakeWorker::saying(&newer()), Start::new(&data).start());
    let fleet = Workers::at(&format!("{},{}", fake.address(), real.address())).unwrap();
    Run::start(&data, fleet, 2).end_like(&quiet);
    assert!(fake.asked() > 0, "the other worker received no greeting");
}

#[test]
fn a_rank_of_another_protocol_is_refused_with_both_versions() {
    let data = Data::pictures(1);
    let worker = Start::new(&data).start();
    let mut rank = Raw::connect(worker.address());
    rank.say(MAGIC);
    rank.greeting(&hello(NEXT));
    let welcome = rank.welcome().unwrap();
    let message = welcome["refused"]["message"].as_str().unwrap_or_else(|| panic!("{welcome}"));
    for part in
        [&*format!("protocol {PROTOCOL}"), &*format!("protocol {NEXT}"), "9.9.9", env!("CARGO_PKG_VERSION")]
    {
        assert!(message.contains(part), "'{part}' is missing: {message}");
    }
    assert_eq!(welcome["refused"]["kind"], "bad_config");
    assert_eq!(welcome["unix"], Value::Null, "a rejected client receives no socket path");
    assert!(rank.rest().is_empty());
}

/// Returns versions of the ops that are not this release's. A peer that sends none has version 1.
fn other_ops() -> [(Option<u32>, String); 2] {
    [(None, "ops version 1".to_owned()), (Some(OPS_VERSION + 1), format!("ops version {}", OPS_VERSION + 1))]
}

fn with_ops(mut message: Value, version: Option<u32>) -> Value {
    match version {
        Some(version) => message["ops_version"] = version.into(),
        None => drop(message.as_object_mut().unwrap().remove("ops_version")),
    }
    message
}

#[test]
fn a_worker_with_other_ops_is_named_with_both_versions() {
    let data = Data::pictures(1);
    for (version, named) in other_ops() {
        let welcome = json!({ "protocol": PROTOCOL, "release": "9.9.9", "instance": "other" });
        let fake = FakeWorker::saying(&with_ops(welcome, version));
        let error = refusal(&data, Workers::at(fake.address()).unwrap());
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        for part in [&*format!("ops version {OPS_VERSION}"), &*named, "9.9.9", fake.address()] {
            assert!(error.to_string().contains(part), "'{part}' is missing: {error}");
        }
    }
}

#[test]
fn a_rank_with_other_ops_is_refused_with_both_versions() {
    let data = Data::pictures(1);
    let worker = Start::new(&data).start();
    for (version, named) in other_ops() {
        let mut rank = Raw::connect(worker.address());
        rank.say(MAGIC);
        rank.greeting(&with_ops(hello(PROTOCOL), version));
        let welcome = rank.welcome().unwrap();
        let message = welcome["refused"]["message"].as_str().unwrap_or_else(|| panic!("{welcome}"));
        for part in [&*format!("ops version {OPS_VERSION}"), &*named, "9.9.9", env!("CARGO_PKG_VERSION")] {
            assert!(message.contains(part), "'{part}' is missing: {message}");
        }
        assert_eq!(welcome["refused"]["kind"], "bad_config");
        assert!(rank.rest().is_empty());
    }
}
