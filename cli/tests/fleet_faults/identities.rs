//! Wrong tokens, wrong certificates and expired ones: no client is served, and both sides report the reason at once.

use crate::data::Data;
use crate::run::{Run, quiet};
use crate::trust::{Trust, expired};
use crate::worker::Start;
use feedstock::workers::{Identity, Token};
use feedstock::{Error, ErrorKind, Rank, Workers};
use std::time::{Duration, Instant};

/// Returns the error of a rank whose workers cannot serve it. It must come long before the rank's deadline.
pub fn refusal(data: &Data, workers: Workers) -> Error {
    let pipeline = data.pipeline().workers(workers).deadline(Duration::from_secs(20));
    let begun = Instant::now();
    let error = pipeline.rank(Rank::new(0, 1)).start().unwrap().next().unwrap().unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(8), "reported after {:?}: {error}", begun.elapsed());
    error
}

fn denied(data: &Data, workers: Workers, words: &[&str]) {
    let error = refusal(data, workers);
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let message = error.to_string().to_lowercase();
    assert!(words.iter().any(|word| message.contains(word)), "{words:?}: {error}");
}

#[test]
fn a_valid_token_and_certificate_are_accepted() {
    let data = Data::pictures(1);
    let quiet = quiet(&data, 2);
    let trust = Trust::new();
    let workers = [trust.worker(Start::new(&data)).start(), trust.worker(Start::new(&data)).start()];
    let fleet = Workers::at(&format!("{},{}", workers[0].address(), workers[1].address())).unwrap();
    Run::start(&data, trust.rank(fleet), 2).end_like(&quiet);
}

#[test]
fn a_wrong_token_is_denied() {
    let data = Data::pictures(1);
    let token = Token::generate().unwrap();
    let worker = Start::new(&data).env("FEEDSTOCK_TOKEN", token.expose()).start();
    let fleet = || Workers::at(worker.address()).unwrap();
    denied(&data, fleet().token(Token::generate().unwrap()), &["the token is another one"]);
    denied(&data, fleet(), &["no token"]);
    assert_eq!(fleet().token(token).status(worker.address()).unwrap().plans, 0, "no plan was accepted");
}

#[test]
fn a_wrong_certificate_is_denied() {
    let data = Data::pictures(1);
    let (trust, other) = (Trust::new(), Trust::new());
    let worker = trust.worker(Start::new(&data)).start();
    let fleet = || Workers::at(worker.address()).unwrap();
    // The worker's certificate is by an authority that the rank does not know.
    denied(&data, other.rank(fleet()), &["unknownissuer", "certificate"]);
    // The rank's certificate is by another authority, or missing.
    let token = &trust.fleet.token;
    for identity in [Some(&other.fleet.client), None] {
        denied(&data, trust.rank_as(fleet(), identity, token), &["certificate", "decrypterror"]);
    }
    // Valid certificates, but a wrong token.
    let identity: Option<&Identity> = Some(&trust.fleet.client);
    denied(&data, trust.rank_as(fleet(), identity, &other.fleet.token), &["token"]);
    let status = trust.rank(fleet()).status(worker.address()).unwrap();
    assert_eq!((status.plans, status.samples), (0, 0), "no rank was accepted");
}

#[test]
fn an_expired_certificate_is_denied() {
    let data = Data::pictures(1);
    for (workers, ranks) in [(true, false), (false, true)] {
        let trust = Trust::of(expired(workers, ranks));
        let worker = trust.worker(Start::new(&data)).start();
        let fleet = trust.rank(Workers::at(worker.address()).unwrap());
        denied(&data, fleet, &["expired"]);
    }
    let trust = Trust::of(expired(false, false));
    let worker = trust.worker(Start::new(&data)).start();
    trust.rank(Workers::at(worker.address()).unwrap()).status(worker.address()).unwrap();
}
