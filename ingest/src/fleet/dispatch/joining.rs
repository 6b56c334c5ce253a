//! Which members are ready, and what those that are not do until then: building a catalog may take minutes, for which no rank should
//! wait while another member can serve.
//!
//! ```text
//!              no member is ready ─▶ unknown: asked by streams ─▶ opened ─┐
//! standby ─────┤                      │ still opening after 400 ms         ├─▶ ready: strands move to it
//!    ▲         └ the job uses it ─▶ cold: Warm, no strands ─▶ warmed ──────┘       │
//!    └──────────────── others that are ready have its place, and nothing is owed ──┘
//! ```
//! Invariants:
//! - Strands are only given to members that have said that they are ready, i.e. have the data set of this recipe open. Only while none
//!   has said so, members are asked in the hope that they will be; the first one to be ready serves for those that still open the
//!   data set after 400 ms.
//! - A ready member is only released when ready members take its place: one that ranks before it and has become ready, or all others if
//!   it drains, or is not listed any more. The last one serves until another is ready, or until it is gone.
//! - A worker on standby costs nothing, is not asked, and serves only after it has become ready. It may have forgotten the data set
//!   meanwhile, so one that was ready and is replaced is asked again before it serves again.
//!
//! The members that serve are hence a pure function of those that are ready (`Dispatch::up`), and ranks that have heard the same compute
//! the same table. This machine has the data set open, and serves if it may and no worker is ready.

use super::{Action, Dispatch, HERE, StreamId, StreamState};
use crate::Error;
use crate::fleet::assign::{hash_of, mixed};
use crate::fleet::member::Member;
use std::collections::BTreeSet;
use std::time::Duration;

/// A worker that is at work on opening a stream for so long builds a catalog, or is too busy to serve.
pub(crate) const COLD_AFTER: Duration = Duration::from_millis(400);

/// Members of whom a rank has had no rows that it asks at once: fewer than the shell's connections for that (`run.rs`).
const ASKED_AT_ONCE: usize = 32;

impl Dispatch {
    /// Whether a member is ready. This machine counts once it has served.
    pub(super) fn is_served(&self) -> bool {
        self.members.values().any(Member::is_ready)
    }

    /// Whether another member than this machine is ready.
    fn has_warm_worker(&self) -> bool {
        self.members.iter().any(|(name, member)| name != HERE && member.is_ready())
    }

    /// Whether this machine can serve.
    fn is_here_up(&self) -> bool {
        self.members.get(HERE).is_some_and(Member::is_up)
    }

    /// Lets go of members that are about to go, if others can serve in their place.
    pub(super) fn release(&mut self, now: Duration) {
        if !self.may_release() {
            return;
        }
        self.members.retain(|_, member| !member.is_unlisted());
        for member in self.members.values_mut().filter(|member| member.is_going()) {
            member.departs(now);
        }
    }

    /// Whether others can serve in place of those that are about to go: this machine, or a member that stays.
    pub(super) fn may_release(&self) -> bool {
        self.is_here_up() || self.members.values().any(Member::stays)
    }

    /// Has the members that the job uses open the data set, and lets those stand by that others have replaced. Returns whether rows may
    /// be requested from further members, since none is ready.
    pub(super) fn appoint(&mut self, now: Duration, actions: &mut Vec<Action>) -> bool {
        let is_served = self.is_served();
        let used = self.used(now);
        let is_standby = |name: &&str| self.members.get(*name).is_some_and(Member::is_standby);
        let called: BTreeSet<String> = used.iter().copied().filter(is_standby).map(str::to_owned).collect();
        // Those that are asked keep their places: they may have nearly opened the data set.
        let opens = |member: &Member| member.is_there() && member.is_cold() && !member.is_overdue(now);
        let opening = self.those(|member| member.is_unknown() || opens(member));
        let is_worker = |name: &&&str| **name != HERE;
        let opening = opening.iter().filter(is_worker).count();
        let free = used.iter().filter(is_worker).count().saturating_sub(opening);
        match is_served {
            true => self.cool(now, &called, actions),
            false => {
                for name in called.iter().take(free) {
                    if let Some(member) = self.members.get_mut(name) {
                        member.may_be_asked();
                    }
                }
            }
        }
        self.cool_spares();
        !is_served && free > 0 && !called.is_empty()
    }

    /// Ready members that others have replaced stand by once they owe nothing.
    fn cool_spares(&mut self) {
        let up = self.up();
        let is_streaming = |name: &str| self.streams.values().any(|stream| stream.member == name);
        let spares = self.those(Member::stays);
        let spares =
            spares.into_iter().filter(|name| *name != HERE && !up.contains(name) && !is_streaming(name));
        let spares: Vec<String> = spares.map(str::to_owned).collect();
        for name in spares {
            if let Some(member) = self.members.get_mut(&name) {
                member.stands_by();
            }
        }
    }

    /// Gives these members nothing to do until they have the data set open.
    fn cool(&mut self, now: Duration, names: &BTreeSet<String>, actions: &mut Vec<Action>) {
        for (_, member) in self.members.iter_mut().filter(|(name, _)| names.contains(*name)) {
            member.cools();
        }
        self.warm(now, names, actions);
    }

    /// Has these members open the data set.
    fn warm(&mut self, now: Duration, names: &BTreeSet<String>, actions: &mut Vec<Action>) {
        for name in self.in_turn(names.iter().cloned()) {
            if self.members.get_mut(&name).is_some_and(|member| member.warms(now)) {
                actions.push(Action::Warm { member: name });
            }
        }
    }

    /// The sequence in which this rank asks members.
    pub(super) fn in_turn(&self, names: impl Iterator<Item = String>) -> Vec<String> {
        let mut names: Vec<String> = names.collect();
        names.sort_by_cached_key(|name| mixed(hash_of(name), self.asker));
        names
    }

    /// Takes strands from members whose workers are at work on opening the data set, if others have it open.
    pub(super) fn relieve(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let has_warm_worker = self.has_warm_worker();
        if !has_warm_worker && !self.is_here_up() {
            return;
        }
        if has_warm_worker {
            self.ask_unknown(now, actions);
        }
        let is_late = |stream: &&StreamState| {
            !stream.is_open
                && stream.counts.is_none()
                && stream.member != HERE
                && now >= stream.asked + COLD_AFTER
        };
        let opening = self.streams.values().filter(is_late);
        let mut names: BTreeSet<String> = opening.map(|stream| stream.member.clone()).collect();
        let is_late = |since: Duration| now >= since + COLD_AFTER;
        let is_silent = |member: &Member| member.is_unknown() && member.warming().is_some_and(is_late);
        names.extend(self.those(is_silent).into_iter().map(str::to_owned));
        if !has_warm_worker && !names.is_empty() {
            // What this machine serves in their place must not go to others that may have to open it, too.
            names = self.those(Member::is_unknown).into_iter().map(str::to_owned).collect();
        }
        // One that drains refuses to prepare. It keeps what it opens until others can serve.
        let waits = |member: &Member| member.is_unknown() && !member.is_going();
        names.retain(|name| name != HERE && self.members.get(name).is_some_and(waits));
        if names.is_empty() {
            return;
        }
        self.cool(now, &names, actions);
        let of_them =
            self.streams.iter().filter(|(_, stream)| !stream.is_open && names.contains(&stream.member));
        let of_them: Vec<StreamId> = of_them.map(|(id, _)| *id).collect();
        of_them.into_iter().for_each(|id| self.close(id, actions));
        self.redistribute(now, actions);
    }

    /// Asks members of whom this rank has had no rows so far, so that it need not wait for them later.
    fn ask_unknown(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let unknown =
            self.those(|member| member.is_unknown() && !member.is_going() && member.warming().is_none());
        let is_streaming = |name: &str| self.streams.values().any(|stream| stream.member == name);
        let silent = unknown.into_iter().filter(|name| *name != HERE && !is_streaming(name));
        let mut silent = self.in_turn(silent.map(str::to_owned));
        let under_way = self.those(|member| member.is_unknown() && member.warming().is_some()).len();
        silent.truncate(ASKED_AT_ONCE.saturating_sub(under_way)); // the time that they take begins now
        self.warm(now, &silent.into_iter().collect(), actions);
    }

    /// Members have the data set open, or cannot open it.
    pub(crate) fn warmed(&mut self, now: Duration, results: Vec<(String, Result<(), Error>)>) -> Vec<Action> {
        let was_served = self.is_served();
        let before: BTreeSet<String> = self.up().into_iter().map(str::to_owned).collect();
        for (name, result) in results {
            let Some(member) = self.members.get_mut(&name).filter(|member| member.warming().is_some()) else {
                continue;
            };
            match result {
                Ok(()) => member.warmed(),
                Err(error) => self.member_lost(now, &name, error),
            }
        }
        let mut actions = Vec::new();
        let is_other = self.up().into_iter().ne(before.iter().map(String::as_str));
        if !was_served || is_other && self.may_move(now) {
            self.redistribute(now, &mut actions);
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::fleet::dispatch::{Local, RowsOfStrands};
    use crate::fleet::member::Reported;
    use crate::fleet::progress::Progress;
    use crate::fleet::selection::Selection;
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
        streams.values().for_each(|stream| drop(dispatch.opened(at(5), *stream)));
        dispatch.lost(at(10), streams[&worker(1)], Error::new(ErrorKind::Retryable, "the connection ended"));
        let probe = dispatch.tick(at(1000), &BTreeMap::new());
        assert!(probe.contains(&Action::Probe { member: worker(1) }));
        assert_eq!(
            dispatch.probed(at(1001), &worker(1), Ok(Reported::default())),
            [Action::Warm { member: worker(1) }]
        );
        dispatch.step(at(1002), 1, rows());
        assert_eq!(owing(&dispatch, 1), BTreeSet::from([worker(0).as_str()]));
        assert!(dispatch.waiting().contains("worker-0"));
        dispatch.warmed(at(2000), vec![(worker(1), Ok(()))]);
        dispatch.step(at(2001), 2, rows());
        assert_eq!(owing(&dispatch, 2).len(), 2);
    }

    /// Reported by a process.
    fn process(instance: &str) -> Reported {
        Reported { instance: instance.to_owned(), ..Reported::default() }
    }

    /// A dispatch whose two workers are ready.
    fn of_two() -> (Dispatch, BTreeMap<String, StreamId>) {
        let mut dispatch = Dispatch::new(0..STRANDS, Local::Never);
        dispatch.members(at(0), &workers(2));
        let streams = opened(&dispatch.step(at(0), 0, rows()));
        for name in workers(2) {
            dispatch.reported(at(5), &name, &process("first"));
            dispatch.opened(at(5), streams[&name]);
            dispatch.received(at(10), streams[&name], 0);
        }
        dispatch.finished(0);
        (dispatch, streams)
    }

    #[test]
    fn a_worker_that_drained_opens_the_data_set_again_when_it_is_back() {
        let (mut dispatch, streams) = of_two();
        dispatch.leaving(at(20), streams[&worker(1)]);
        dispatch.step(at(30), 1, rows());
        assert_eq!(owing(&dispatch, 1), BTreeSet::from([worker(0).as_str()]));
        let drains = Reported { is_draining: true, ..process("first") };
        assert_eq!(dispatch.probed(at(600), &worker(1), Ok(drains)), []);
        let actions = dispatch.probed(at(2000), &worker(1), Ok(process("second")));
        assert_eq!(actions, [Action::Warm { member: worker(1) }]);
        dispatch.step(at(2001), 2, rows());
        assert_eq!(owing(&dispatch, 2), BTreeSet::from([worker(0).as_str()]));
    }

    #[test]
    fn a_worker_without_a_stream_that_restarts_opens_the_data_set_before_it_serves() {
        for restarts in [false, true] {
            let (mut dispatch, streams) = of_two();
            dispatch.close(streams[&worker(1)], &mut Vec::new()); // this rank has no rows of its strands at present
            let instance = if restarts { "second" } else { "first" };
            let actions = dispatch.answered(at(2000), &worker(1), Ok(process(instance)));
            assert_eq!(actions.contains(&Action::Warm { member: worker(1) }), restarts);
            dispatch.step(at(2001), 1, rows());
            assert_eq!(owing(&dispatch, 1).contains(worker(1).as_str()), !restarts);
        }
    }

    #[test]
    fn a_worker_without_a_stream_is_down_if_it_does_not_answer_twice() {
        let (mut dispatch, streams) = of_two();
        dispatch.close(streams[&worker(1)], &mut Vec::new());
        let gone = || Err(Error::new(ErrorKind::Retryable, "no answer"));
        let is_up = |dispatch: &Dispatch| dispatch.up().contains(worker(1).as_str());
        dispatch.answered(at(2000), &worker(1), gone());
        dispatch.answered(at(3000), &worker(1), Ok(process("first")));
        dispatch.answered(at(4000), &worker(1), gone());
        assert!(is_up(&dispatch), "one connection may fail");
        dispatch.answered(at(5000), &worker(1), gone());
        assert!(!is_up(&dispatch));
        // One that drains serves no more, since another one stays.
        let (mut dispatch, streams) = of_two();
        dispatch.close(streams[&worker(1)], &mut Vec::new());
        dispatch.answered(at(2000), &worker(1), Ok(Reported { is_draining: true, ..process("first") }));
        assert!(!is_up(&dispatch));
    }

    #[test]
    fn workers_that_open_the_data_set_for_a_minute_keep_no_place() {
        let mut dispatch = Dispatch::new(0..STRANDS, Local::Never).selecting(Selection::at_most(4));
        dispatch.members(at(0), &workers(1));
        let streams = opened(&dispatch.step(at(0), 0, rows()));
        dispatch.opened(at(5), streams[&worker(0)]);
        let first = warmed(&dispatch.members(at(1000), &workers(12)));
        assert!((3..=4).contains(&first.len()), "{first:?}");
        assert_eq!(warmed(&dispatch.tick(at(60_000), &BTreeMap::new())), BTreeSet::new());
        let second = warmed(&dispatch.tick(at(61_000), &BTreeMap::new()));
        assert!(second.len() >= 3 && first.is_disjoint(&second), "{second:?}");
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
