//! When a run ends because of what workers answer, and when it waits for one that does not answer.

use super::*;
use crate::ErrorKind;

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, format!("{kind:?}"))
}

fn rows() -> RowsOfStrands {
    (0..8).map(|strand| (strand, 3)).collect()
}

fn after(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Runs of two workers that were asked for the first step: the state, and each worker's stream.
fn asked() -> (Dispatch, StreamId, StreamId) {
    let mut dispatch = Dispatch::new(0..8, Local::Never);
    dispatch.members(after(0), &["a:1".to_owned(), "b:1".to_owned()]);
    let actions = dispatch.step(after(0), 0, rows());
    let stream_of = |name: &str| {
        let opened = actions.iter().find_map(|action| match action {
            Action::Open { stream, member, .. } if member == name => Some(*stream),
            _ => None,
        });
        opened.expect("both have strands")
    };
    let streams = (stream_of("a:1"), stream_of("b:1"));
    (dispatch, streams.0, streams.1)
}

/// Of what it does, the last stream that it opens at `name`.
fn opened(actions: &[Action], name: &str) -> StreamId {
    let opened = actions.iter().rev().find_map(|action| match action {
        Action::Open { stream, member, .. } if member == name => Some(*stream),
        _ => None,
    });
    opened.expect("it is asked")
}

fn hopeless(dispatch: &Dispatch) -> Option<ErrorKind> {
    dispatch.hopeless().map(Error::kind)
}

fn probes(actions: &[Action], name: &str) -> bool {
    actions.contains(&Action::Probe { member: name.to_owned() })
}

#[test]
fn a_refusal_counts_at_once_where_the_other_worker_is_down() {
    for kind in [ErrorKind::Gone, ErrorKind::BadSample, ErrorKind::Denied, ErrorKind::BadConfig] {
        let (mut dispatch, a, b) = asked();
        let actions = dispatch.lost(after(10), b, error(ErrorKind::Retryable));
        assert_eq!(hopeless(&dispatch), None, "a serves");
        dispatch.lost(after(100), opened(&actions, "a:1"), error(kind));
        dispatch.lost(after(101), a, error(kind));
        assert_eq!(hopeless(&dispatch), None, "whether b is still down is not known");
        let actions = dispatch.tick(after(150), &BTreeMap::new());
        assert!(probes(&actions, "b:1"), "it is asked without waiting for its turn: {actions:?}");
        dispatch.probed(after(151), "b:1", Err(error(ErrorKind::Retryable)));
        assert_eq!(hopeless(&dispatch), Some(kind));
    }
}

#[test]
fn the_worker_that_is_there_again_is_asked_first() {
    let (mut dispatch, a, b) = asked();
    let actions = dispatch.lost(after(10), b, error(ErrorKind::Retryable));
    for stream in [opened(&actions, "a:1"), a] {
        dispatch.lost(after(100), stream, error(ErrorKind::Gone));
    }
    dispatch.tick(after(150), &BTreeMap::new());
    let actions = dispatch.probed(after(151), "b:1", Ok(Reported::default()));
    assert_eq!(hopeless(&dispatch), None);
    dispatch.lost(after(300), opened(&actions, "b:1"), error(ErrorKind::Gone));
    assert_eq!(hopeless(&dispatch), Some(ErrorKind::Gone));
}

#[test]
fn a_worker_that_served_is_waited_for_where_those_that_refuse_never_did() {
    let (mut dispatch, a, b) = asked();
    dispatch.received(after(5), b, 0);
    let actions = dispatch.lost(after(10), a, error(ErrorKind::Denied));
    let other = opened(&actions, "b:1");
    dispatch.received(after(20), other, 0);
    dispatch.finished(0);
    dispatch.step(after(21), 1, rows());
    for stream in [b, other] {
        dispatch.lost(after(30), stream, error(ErrorKind::Retryable));
    }
    dispatch.tick(after(2000), &BTreeMap::new());
    dispatch.probed(after(2001), "b:1", Err(error(ErrorKind::Retryable)));
    assert_eq!(hopeless(&dispatch), None, "the credentials of a are wrong, and b may be starting again");
}

#[test]
fn a_refusal_by_one_that_served_counts_though_the_other_served_too() {
    let (mut dispatch, a, b) = asked();
    dispatch.received(after(5), a, 0);
    dispatch.received(after(5), b, 0);
    dispatch.finished(0);
    dispatch.step(after(6), 1, rows());
    let actions = dispatch.lost(after(10), b, error(ErrorKind::Retryable));
    dispatch.lost(after(20), opened(&actions, "a:1"), error(ErrorKind::Gone));
    dispatch.tick(after(70), &BTreeMap::new());
    dispatch.probed(after(71), "b:1", Err(error(ErrorKind::Retryable)));
    assert_eq!(hopeless(&dispatch), None, "rows of a are on their way");
    // What it had been asked for before does not take its refusal back.
    dispatch.received(after(72), a, 1);
    assert_eq!(hopeless(&dispatch), Some(ErrorKind::Gone));
}

#[test]
fn without_a_refusal_workers_that_are_down_are_waited_for() {
    let (mut dispatch, a, b) = asked();
    dispatch.lost(after(10), a, error(ErrorKind::Retryable));
    dispatch.lost(after(10), b, error(ErrorKind::Retryable));
    dispatch.tick(after(600), &BTreeMap::new());
    for name in ["a:1", "b:1"] {
        dispatch.probed(after(601), name, Err(error(ErrorKind::Retryable)));
    }
    assert_eq!(hopeless(&dispatch), None);
}
