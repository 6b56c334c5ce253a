//! Shares of the strands, which follow what members publish of their capacities.
//!
//! ```text
//! greeting, stream, answer ─▶ published: units, generation ─▶ 0.75 s without news, at most 1 s ─▶ adopt: in force ─▶ strands move
//! ```
//! The table of strands is a pure function of the members that are up and of the units in force. Ranks that have heard the same
//! generations therefore compute the same table, in whatever order they heard them; those that have yet to hear one request
//! rows from the worker of the table before, which makes the same bytes. A member that has published nothing counts as the
//! median of the others, so a fleet of equal workers never moves a strand for this.
//!
//! A member publishes changes on its streams, which a rank reads while they owe rows. A rank asks the other members that it uses how they
//! are: at most [`ASKS`] of them every [`ASK_EVERY`], and each again after [`ASK_AGAIN`]. So all ranks have the same table about a minute
//! after a member was lost.

use super::{Action, Dispatch};
use crate::fleet::assign::assign;
use crate::fleet::member::Reported;
use crate::wire::Capacity;
use crate::{Error, ErrorKind};
use std::collections::BTreeSet;
use std::time::Duration;

/// Time between two rounds of questions.
pub(super) const ASK_EVERY: Duration = Duration::from_millis(500);

/// Members that are asked in a round: 16 a second, so that 1,000 are known after a minute. 1,000 ranks ask each of 1,000 workers
/// 16 times a second.
pub(super) const ASKS: usize = 8;

/// A member that has answered is asked again after this.
const ASK_AGAIN: Duration = Duration::from_secs(60);

impl Dispatch {
    /// A member has published its capacity.
    pub(crate) fn published(&mut self, now: Duration, name: &str, capacity: Capacity) {
        let Some(member) = self.members.get_mut(name) else { return };
        member.published(capacity);
        let known = member.capacity().map(Capacity::units);
        if known != self.weights.of(name) {
            self.weights.note(now);
        }
    }

    /// A member has reported which process it is, and its capacity.
    pub(crate) fn reported(&mut self, now: Duration, name: &str, reported: &Reported) {
        let Some(member) = self.members.get_mut(name) else { return };
        member.is_process(&reported.instance);
        if let Some(capacity) = reported.capacity {
            self.published(now, name, capacity);
        }
    }

    /// A member that owes nothing has answered how it is, or has not. What happens to others is learnt from their streams.
    pub(crate) fn answered(
        &mut self,
        now: Duration,
        name: &str,
        result: Result<Reported, Error>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(member) = self.members.get_mut(name).filter(|member| member.is_up()) else { return actions };
        if self.streams.values().any(|stream| stream.member == name && !stream.owed.is_empty()) {
            return actions;
        }
        let is_down = member.answered(result.is_ok());
        let before = (member.is_ready(), member.is_going());
        match result {
            Ok(reported) if reported.is_draining => member.drains(),
            Ok(reported) => {
                self.reported(now, name, &reported);
                if let Some(member) =
                    self.members.get_mut(name).filter(|member| before.0 && !member.is_ready())
                {
                    member.stands_by(); // it opens the data set first
                }
            }
            Err(error) if is_down || error.kind() != ErrorKind::Retryable => member.is_away(now, error),
            Err(_) => {}
        }
        let after = self.members.get(name).map(|member| (member.is_ready(), member.is_going()));
        if after != Some(before) && self.may_move(now) {
            self.redistribute(now, &mut actions);
        }
        actions
    }

    /// Whether strands may move to members that have just joined. If they have done so within the last second, they follow these with
    /// the news: streams are opened again at every move, and hundreds of workers may join one after the other.
    pub(super) fn may_move(&mut self, now: Duration) -> bool {
        self.weights.may_move(now)
    }

    /// The capacities that are known are in force from now on.
    pub(super) fn adopt(&mut self) {
        if self.weights.has_news() {
            let known = self.members.iter().filter_map(|(name, member)| Some((name, member.capacity()?)));
            let generation = known.clone().map(|(_, capacity)| capacity.generation).max();
            self.weights.adopt(known.map(|(name, capacity)| (name.clone(), capacity.units())).collect());
            tracing::debug!("the capacities of workers are in force, of generation {generation:?}");
        }
    }

    /// By strand, which of `members` serves it.
    pub(super) fn table<'a>(&self, members: &BTreeSet<&'a str>) -> Vec<&'a str> {
        let units = |name: &str| self.weights.of(name);
        let mut known: Vec<u32> = members.iter().filter_map(|name| units(name)).collect();
        known.sort_unstable();
        let median = known.get(known.len().saturating_sub(1) / 2).copied().unwrap_or(1);
        let weighted = members.iter().map(|name| (*name, units(name).unwrap_or(median)));
        assign(&weighted.collect(), &self.parts)
    }

    /// Moves strands after news have settled, and asks members of whom none may come.
    pub(super) fn follow(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.weights.is_settled(now) {
            self.weights.moves(now);
            self.redistribute(now, actions);
        }
        if now >= self.asked + ASK_EVERY {
            self.asked = now;
            self.ask_silent(now, actions);
        }
    }

    /// Asks members that serve strands, but owe this rank nothing, how they are. A stream is only read while it owes rows.
    fn ask_silent(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.streams.is_empty() {
            return;
        }
        let owing = self.streams.values().filter(|stream| !stream.owed.is_empty());
        let owing: BTreeSet<&str> = owing.map(|stream| &*stream.member).collect();
        let up = self.up();
        let silent = up.iter().filter(|name| !owing.contains(*name) && **name != super::HERE);
        let asked = |name: &str| self.members.get(name).and_then(|member| member.asked());
        let is_due = |asked: Option<Duration>| asked.is_none_or(|asked| now >= asked + ASK_AGAIN);
        let due = silent.filter(|name| is_due(asked(name))).map(|name| (*name).to_owned());
        let mut due = self.in_turn(due);
        due.sort_by_key(|name| asked(name)); // stable: of equal ones, the first in turn
        due.truncate(ASKS);
        for name in due {
            if let Some(member) = self.members.get_mut(&name) {
                member.ask(now);
                actions.push(Action::Ask { member: name });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::dispatch::{Local, RowsOfStrands, StreamId};
    use crate::fleet::selection::Selection;
    use std::collections::BTreeMap;

    const STRANDS: u32 = 1024;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|nth| format!("worker-{nth}:1")).collect()
    }

    fn dispatch() -> Dispatch {
        Dispatch::new((0..STRANDS).map(|strand| strand % 64), Local::Never)
    }

    fn rows(strands: std::ops::Range<u32>) -> RowsOfStrands {
        strands.map(|strand| (strand, 1)).collect()
    }

    fn units(units: u32, generation: u64) -> Capacity {
        Capacity { units, generation }
    }

    fn tick(dispatch: &mut Dispatch, now: u64) -> Vec<Action> {
        dispatch.tick(at(now), &BTreeMap::new())
    }

    /// The strands of each member in the table.
    fn shares(dispatch: &Dispatch) -> Vec<usize> {
        let chosen = dispatch.table(&dispatch.up());
        dispatch.members.keys().map(|name| chosen.iter().filter(|own| *own == name).count()).collect()
    }

    #[test]
    fn strands_move_at_the_next_step_once_the_news_have_settled() {
        let mut dispatch = dispatch();
        let names = names(2);
        dispatch.members(at(0), &names);
        dispatch.step(at(0), 0, rows(0..STRANDS));
        dispatch.published(at(100), &names[0], units(1, 7));
        dispatch.published(at(300), &names[1], units(3, 7));
        assert_eq!(tick(&mut dispatch, 1000), []);
        assert_eq!(shares(&dispatch), [512, 512], "the news have yet to settle");
        tick(&mut dispatch, 1050);
        assert_eq!(shares(&dispatch), [256, 768]);
        let owed: Vec<_> =
            dispatch.streams.values().map(|stream| (stream.strands.len(), stream.until)).collect();
        assert_eq!(owed, [(512, Some(1)), (512, None)], "what was requested stays where it was");
        let actions = dispatch.step(at(1901), 1, rows(0..STRANDS));
        let opened: Vec<usize> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Open { strands, from: 1, .. } => Some(strands.len()),
                _ => None,
            })
            .collect();
        assert_eq!(opened, [256, 256], "the second one has 512 already");
    }

    #[test]
    fn equal_capacities_and_those_that_do_not_change_move_nothing() {
        let mut dispatch = dispatch();
        let names = names(3);
        dispatch.members(at(0), &names);
        let _opened = dispatch.step(at(0), 0, rows(0..STRANDS));
        let until = |dispatch: &Dispatch| dispatch.streams.values().all(|stream| stream.until.is_none());
        names.iter().for_each(|name| dispatch.published(at(10), name, units(16, 1)));
        tick(&mut dispatch, 2000);
        assert!(until(&dispatch));
        names.iter().for_each(|name| dispatch.published(at(2100), name, units(16, 2)));
        assert!(!dispatch.weights.has_news(), "a generation with the same units");
        // One that has published nothing counts as the median.
        let mut of_another = super::Dispatch::new((0..STRANDS).map(|strand| strand % 64), Local::Never);
        of_another.members(at(0), &names);
        of_another.published(at(0), &names[0], units(16, 1));
        of_another.adopt();
        assert_eq!(of_another.table(&of_another.up()), dispatch.table(&dispatch.up()));
    }

    #[test]
    fn ranks_that_heard_the_same_generations_compute_the_same_table() {
        let names = names(40);
        let published: Vec<(usize, Capacity)> = (0..200_u32)
            .map(|nth| (nth as usize * 7 % 40, units(1 + nth * nth % 32, u64::from(nth))))
            .collect();
        let table = |order: &[(usize, Capacity)], adopts_each: bool| {
            let mut dispatch = dispatch();
            dispatch.members(at(0), &names);
            for (member, capacity) in order {
                dispatch.published(at(0), &names[*member], *capacity);
                if adopts_each {
                    dispatch.adopt();
                }
            }
            dispatch.adopt();
            let up = dispatch.up();
            dispatch.table(&up).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let expected = table(&published, false);
        let backwards: Vec<_> = published.iter().copied().rev().collect();
        let twice: Vec<_> = published.iter().chain(&published[..60]).copied().collect();
        for order in [&published, &backwards, &twice] {
            for adopts_each in [false, true] {
                assert_eq!(table(order, adopts_each), expected);
            }
        }
        assert_ne!(table(&published[..100], false), expected, "an earlier generation has another table");
    }

    #[test]
    fn workers_that_join_one_after_the_other_move_strands_a_few_times() {
        let mut dispatch = dispatch();
        let names = names(41);
        dispatch.members(at(0), &names[..1]);
        dispatch.step(at(0), 0, rows(0..STRANDS));
        dispatch.opened(at(5), StreamId(0));
        dispatch.received(at(6), StreamId(0), 0);
        dispatch.finished(0);
        let (mut opened, mut index) = (0, 0);
        for nth in 1..=40 {
            let now = 1000 + 100 * nth as u64;
            dispatch.members(at(now), &names[..=nth]);
            dispatch.warmed(at(now + 10), vec![(names[nth].clone(), Ok(()))]);
            tick(&mut dispatch, now + 50);
            index += 1;
            let actions = dispatch.step(at(now + 60), index, rows(0..STRANDS));
            opened += usize::from(actions.iter().any(|action| matches!(action, Action::Open { .. })));
            dispatch.finished(index);
        }
        assert!((1..=6).contains(&opened), "streams were opened at {opened} of 40 steps");
        tick(&mut dispatch, 8000);
        dispatch.step(at(8001), index + 1, rows(0..STRANDS));
        let streaming: BTreeSet<&str> = dispatch.streams.values().map(|stream| &*stream.member).collect();
        assert_eq!(streaming.len(), 41, "all of them serve in the end");
    }

    #[test]
    fn members_without_a_stream_are_asked_a_few_at_a_time() {
        let mut dispatch = dispatch();
        let names = names(200);
        dispatch.members(at(0), &names);
        dispatch.step(at(0), 0, rows(0..4)); // of the strands of a few
        let mut asked = BTreeSet::new();
        let streaming: BTreeSet<String> =
            dispatch.streams.values().map(|stream| stream.member.clone()).collect();
        for round in 1..=40 {
            let now = tick(&mut dispatch, 500 * round).into_iter().filter_map(|action| match action {
                Action::Ask { member } => Some(member),
                _ => None,
            });
            let now: Vec<String> = now.collect();
            assert!(now.len() <= ASKS);
            assert!(now.iter().all(|name| !streaming.contains(name)));
            asked.extend(now);
        }
        assert_eq!(asked.len(), 200 - streaming.len());
    }

    #[test]
    fn a_rank_uses_the_workers_that_the_job_selects_and_spares_take_their_places() {
        // One rank: 32 of 100.
        let mut dispatch = dispatch().selecting(Selection::of_job(1, 64, 5));
        let names = names(100);
        dispatch.members(at(0), &names);
        assert_eq!(dispatch.sizes(), (32, 68));
        dispatch.step(at(0), 0, rows(0..STRANDS));
        let streaming = |dispatch: &Dispatch| -> BTreeSet<String> {
            dispatch.streams.values().map(|stream| stream.member.clone()).collect()
        };
        let before = streaming(&dispatch);
        assert_eq!(before.len(), 32);
        let lost = StreamId(0);
        let member = dispatch.streams[&lost].member.clone();
        let error = crate::Error::new(crate::ErrorKind::Retryable, "the connection ended");
        dispatch.lost(at(10), lost, error);
        dispatch.step(at(20), 1, rows(0..STRANDS));
        let after = streaming(&dispatch);
        assert!(!after.contains(&member));
        assert_eq!(after.difference(&before).count(), 1, "one spare takes its place");
        assert_eq!(dispatch.sizes(), (32, 67), "without the one that was lost");
    }
}
