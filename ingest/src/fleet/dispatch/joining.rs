//! Members that have yet to open the data set: building its catalog may take minutes, for which no rank should wait while another
//! member can serve.
//!
//! ```text
//! a new member while a worker serves ─┐
//! one that is back after a failure ───┼─▶ cold: Warm, no strands ─▶ warmed: strands move to it
//! one whose streams are not yet open ─┘
//! ```
//! Without a worker that has the data set open, all are asked at once, and ranks wait for the first one that has. This machine
//! has it open, and serves meanwhile if it may.

use super::{Action, Dispatch, HERE, StreamId, StreamState};
use crate::Error;
use crate::fleet::member::Member;
use std::collections::BTreeSet;
use std::time::Duration;

/// A worker that is at work on opening a stream for so long builds a catalog, or is too busy to serve.
const COLD_AFTER: Duration = Duration::from_millis(400);

impl Dispatch {
    /// Whether a member is up and has the data set open. This machine counts once it has served.
    pub(super) fn is_served(&self) -> bool {
        self.members.values().any(|member| member.is_up() && member.has_opened())
    }

    /// Whether another member than this machine is up and has the data set open.
    fn has_warm_worker(&self) -> bool {
        self.members.iter().any(|(name, member)| name != HERE && member.is_up() && member.has_opened())
    }

    /// Whether this machine can serve.
    fn is_here_up(&self) -> bool {
        self.members.get(HERE).is_some_and(Member::is_up)
    }

    /// Gives these members nothing to do until they have the data set open.
    pub(super) fn cool(&mut self, names: &BTreeSet<String>, actions: &mut Vec<Action>) {
        for name in names {
            if let Some(member) = self.members.get_mut(name) {
                member.cools();
                actions.push(Action::Warm { member: name.clone() });
            }
        }
    }

    /// Takes strands from members whose workers are at work on opening the data set, if others have it open.
    pub(super) fn relieve(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let has_warm_worker = self.has_warm_worker();
        let is_cold = |stream: &&StreamState| {
            !stream.is_open
                && stream.counts.is_none()
                && stream.member != HERE
                && now >= stream.asked + COLD_AFTER
        };
        let opening = self.streams.values().filter(is_cold);
        let mut names: BTreeSet<String> = opening.map(|stream| stream.member.clone()).collect();
        if names.is_empty() || !has_warm_worker && !self.is_here_up() {
            return;
        }
        if !has_warm_worker {
            // What this machine serves in their place must not go to others that may have to open it, too.
            names = self.members.keys().filter(|name| *name != HERE).cloned().collect();
        }
        names.retain(|name| {
            self.members.get(name).is_some_and(|member| member.is_up() && !member.has_opened())
        });
        if names.is_empty() {
            return;
        }
        self.cool(&names, actions);
        let of_them =
            self.streams.iter().filter(|(_, stream)| !stream.is_open && names.contains(&stream.member));
        let of_them: Vec<StreamId> = of_them.map(|(id, _)| *id).collect();
        of_them.into_iter().for_each(|id| self.close(id, actions));
        self.redistribute(now, actions);
    }

    /// Cold members have the data set open, or cannot open it.
    pub(crate) fn warmed(&mut self, now: Duration, results: Vec<(String, Result<(), Error>)>) -> Vec<Action> {
        let next_stream = self.next_stream;
        for (name, result) in results {
            let Some(member) = self.members.get_mut(&name).filter(|member| member.is_cold()) else {
                continue;
            };
            match result {
                Ok(()) => member.warmed(),
                Err(error) => {
                    member.lost(now, error, next_stream);
                }
            }
        }
        let mut actions = Vec::new();
        self.redistribute(now, &mut actions);
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::fleet::dispatch::{Local, RowsOfStrands};
    use crate::fleet::progress::Progress;
    use std::collections::BTreeMap;

    const STRANDS: u32 = 16;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn rows() -> RowsOfStrands {
        (0..STRANDS).map(|strand| (strand, 2)).collect()
    }

    fn worker(number: usize) -> String {
        format!("worker-{number}:1")
    }

    fn workers(count: usize) -> Vec<String> {
        (0..count).map(worker).collect()
    }

    /// Streams that are opened, by member, and those that are closed.
    fn opened(actions: &[Action]) -> BTreeMap<String, StreamId> {
        let opened = actions.iter().filter_map(|action| match action {
            Action::Open { stream, member, .. } => Some((member.clone(), *stream)),
            _ => None,
        });
        opened.collect()
    }

    fn warmed(actions: &[Action]) -> BTreeSet<String> {
        let warmed = actions.iter().filter_map(|action| match action {
            Action::Warm { member } => Some(member.clone()),
            _ => None,
        });
        warmed.collect()
    }

    /// Who owes rows of `index`.
    fn owing(dispatch: &Dispatch, index: u64) -> BTreeSet<&str> {
        let streams = dispatch.streams.values().filter(|stream| stream.owed.contains(&index));
        streams.map(|stream| stream.member.as_str()).collect()
    }

    fn refused() -> Error {
        Error::new(ErrorKind::Gone, "removed")
    }

    #[test]
    fn a_new_worker_gets_nothing_to_do_before_it_has_the_data_set_open() {
        let mut dispatch = Dispatch::new(0..STRANDS, Local::Never);
        dispatch.members(at(0), &workers(1));
        let streams = opened(&dispatch.step(at(0), 0, rows()));
        dispatch.opened(at(5), streams[&worker(0)]);
        let actions = dispatch.members(at(1000), &workers(2));
        assert_eq!(actions, [Action::Warm { member: worker(1) }]);
        for index in 1..5 {
            assert!(opened(&dispatch.step(at(1000 + index), index, rows())).is_empty());
        }
        dispatch.warmed(at(11_000), vec![(worker(1), Ok(()))]);
        let actions = dispatch.step(at(11_001), 5, rows());
        assert!(opened(&actions).contains_key(&worker(1)));
        let both = workers(2);
        assert_eq!(owing(&dispatch, 5), both.iter().map(String::as_str).collect());
        assert_eq!(
            owing(&dispatch, 4),
            BTreeSet::from([worker(0).as_str()]),
            "what it was asked for stays its"
        );
    }

    #[test]
    fn the_first_worker_that_has_the_data_set_open_serves_for_those_that_have_not() {
        let mut dispatch = Dispatch::new(0..STRANDS, Local::Never);
        dispatch.members(at(0), &workers(3));
        let streams = opened(&dispatch.step(at(0), 0, rows()));
        assert_eq!(streams.len(), 3);
        streams.values().for_each(|stream| dispatch.opening(*stream));
        let progress = streams.values().map(|stream| (*stream, Progress::default())).collect();
        let asked: Vec<_> = (0..200).flat_map(|tick| dispatch.tick(at(100 + 50 * tick), &progress)).collect();
        assert_eq!(asked, [], "none is late, and none could help");
        dispatch.opened(at(10_100), streams[&worker(1)]);
        let actions = dispatch.tick(at(10_101), &progress);
        assert_eq!(warmed(&actions), BTreeSet::from([worker(0), worker(2)]));
        assert_eq!(owing(&dispatch, 0), BTreeSet::from([worker(1).as_str()]));
        dispatch.warmed(at(12_000), vec![(worker(0), Ok(()))]);
        assert_eq!(dispatch.warmed(at(12_000), vec![(worker(2), Err(refused()))]), []);
        dispatch.step(at(12_001), 1, rows());
        assert_eq!(owing(&dispatch, 1), BTreeSet::from([worker(0).as_str(), worker(1).as_str()]));
    }

    #[test]
    fn this_machine_serves_until_a_worker_has_the_data_set_open() {
        let mut dispatch = Dispatch::new(0..STRANDS, Local::Fallback);
        dispatch.members(at(0), &workers(24));
        let streams = opened(&dispatch.step(at(0), 0, rows()));
        assert!(!streams.contains_key(HERE));
        dispatch.opening(streams[streams.keys().next().unwrap()]);
        assert_eq!(dispatch.tick(at(350), &BTreeMap::new()), [], "it may only be busy");
        let actions = dispatch.tick(at(400), &BTreeMap::new());
        assert_eq!(warmed(&actions).len(), 24, "all of them at once");
        assert_eq!(opened(&actions).keys().collect::<Vec<_>>(), [HERE]);
        assert_eq!(owing(&dispatch, 0), BTreeSet::from([HERE]));
        dispatch.warmed(at(7_000), vec![(worker(3), Ok(()))]);
        dispatch.step(at(7_001), 1, rows());
        assert_eq!(owing(&dispatch, 1), BTreeSet::from([worker(3).as_str()]));
        assert!(dispatch.others_serve());
    }

    #[test]
    fn a_worker_that_comes_back_opens_the_data_set_again_before_it_serves() {
        let mut dispatch = Dispatch::new(0..STRANDS, Local::Never);
        dispatch.members(at(0), &workers(2));
        let streams = opened(&dispatch.step(at(0), 0, rows()));
        streams.values().for_each(|stream| dispatch.opened(at(5), *stream));
        dispatch.lost(at(10), streams[&worker(1)], Error::new(ErrorKind::Retryable, "the connection ended"));
        let probe = dispatch.tick(at(1000), &BTreeMap::new());
        assert!(probe.contains(&Action::Probe { member: worker(1) }));
        assert_eq!(dispatch.probed(at(1001), &worker(1), Ok(())), [Action::Warm { member: worker(1) }]);
        dispatch.step(at(1002), 1, rows());
        assert_eq!(owing(&dispatch, 1), BTreeSet::from([worker(0).as_str()]));
        assert!(dispatch.waiting().contains("worker-0"));
        dispatch.warmed(at(2000), vec![(worker(1), Ok(()))]);
        dispatch.step(at(2001), 2, rows());
        assert_eq!(owing(&dispatch, 2).len(), 2);
    }

    #[test]
    fn if_the_only_warm_worker_is_lost_the_next_one_to_be_warm_serves() {
        let mut dispatch = Dispatch::new(0..STRANDS, Local::Never);
        dispatch.members(at(0), &workers(1));
        let streams = opened(&dispatch.step(at(0), 0, rows()));
        dispatch.opened(at(5), streams[&worker(0)]);
        dispatch.members(at(10), &workers(2));
        dispatch.lost(at(20), streams[&worker(0)], Error::new(ErrorKind::Retryable, "the connection ended"));
        assert!(dispatch.waiting().contains("worker-1:1: opens the data set"), "{}", dispatch.waiting());
        assert!(dispatch.hopeless().is_none());
        dispatch.warmed(at(9_000), vec![(worker(1), Ok(()))]);
        assert_eq!(owing(&dispatch, 0), BTreeSet::from([worker(1).as_str()]));
    }
}
