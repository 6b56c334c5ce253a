//! Which streams there are: opened for strands that no stream serves, ended where strands move, closed when nothing is owed.

use super::{Action, Dispatch, HERE, RowsOfStrands, StreamId, StreamState};
use crate::Error;
use crate::fleet::hedge::is_behind;
use crate::fleet::member::Member;
use crate::fleet::progress::{Meter, Progress};
use feedstock_dataset::StrandSet;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

impl Dispatch {
    /// Who is asked for what is waited for: members that are up and have lately brought rows as fast as others. A member that
    /// was slow and answers again gets new steps, and not those that it has held up.
    pub(super) fn proven(&self) -> BTreeSet<&str> {
        let fit =
            self.members.iter().filter(|(name, member)| member.is_up() && !self.lagging.contains(*name));
        let rates: Vec<(&str, f64)> =
            fit.filter_map(|(name, member)| Some((&**name, member.rate()?))).collect();
        let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let proven = rates.iter().filter(|(_, rate)| !is_behind(*rate, best)).map(|(name, _)| *name);
        self.without_here(proven.collect())
    }

    /// The members that are asked for strands without a stream: members that are not slow, while there is one. Rows that are
    /// waited for are not requested from a member that was slow when it was last asked.
    fn fit(&self, is_waited_for: bool) -> BTreeSet<&str> {
        let up = self.up();
        let was_slow = |name: &str| self.members.get(name).is_some_and(Member::was_slow);
        let is_slow = |name: &str| self.lagging.contains(name) || is_waited_for && was_slow(name);
        let fit: BTreeSet<&str> = up.iter().copied().filter(|name| !is_slow(name)).collect();
        let is_here = |name: &str, member: &Member| name == HERE && member.is_up() && !is_slow(name);
        match fit.is_empty() {
            false => fit,
            true if self.members.iter().any(|(name, member)| is_here(name, member)) => BTreeSet::from([HERE]),
            true => up,
        }
    }

    /// Opens streams for those strands of `rows` that no stream serves at step `index`.
    pub(super) fn cover(
        &mut self,
        now: Duration,
        index: u64,
        rows: &RowsOfStrands,
        is_waited_for: bool,
        actions: &mut Vec<Action>,
    ) {
        let serving: Vec<&StreamState> =
            self.streams.values().filter(|stream| stream.serves(index)).collect();
        if rows.keys().all(|&strand| serving.iter().any(|stream| stream.strands.contains(strand))) {
            return;
        }
        let mut served = vec![false; self.parts.strands()];
        serving
            .iter()
            .flat_map(|stream| stream.strands.iter())
            .for_each(|strand| served[strand as usize] = true);
        let proven = if is_waited_for { self.proven() } else { BTreeSet::new() };
        let members = if proven.is_empty() { self.fit(is_waited_for) } else { proven };
        let chosen = self.table(&members);
        let mut new: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for (strand, member) in (0..).zip(&chosen) {
            if !served[strand as usize] {
                new.entry(member).or_default().insert(strand);
            }
        }
        // Only members that have something to do: a stream without rows would search the order for them.
        let new: Vec<(String, StrandSet)> = new
            .into_iter()
            .filter(|(_, free)| free.iter().any(|strand| rows.contains_key(strand)))
            .map(|(member, free)| (member.to_owned(), free.into_iter().collect()))
            .collect();
        for (member, free) in new {
            // Where others serve some of them later, it must not.
            let until = self.streams.values().filter(|stream| stream.from > index);
            let until = until.filter(|stream| stream.strands.iter().any(|strand| free.contains(strand)));
            let until = until.map(|stream| stream.from).min();
            self.open(now, member, free, index, until, actions);
        }
    }

    pub(super) fn open(
        &mut self,
        now: Duration,
        member: String,
        strands: StrandSet,
        from: u64,
        until: Option<u64>,
        actions: &mut Vec<Action>,
    ) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        actions.push(Action::Open { stream: id, member: member.clone(), strands: strands.clone(), from });
        let stream = StreamState {
            member,
            strands,
            from,
            until,
            owed: BTreeSet::new(),
            since: now,
            asked: now,
            is_open: false,
            counts: Some(now),
            progress: Progress::default(),
            meter: Meter::default(),
            rival: None,
            tried: BTreeSet::new(),
        };
        self.streams.insert(id, stream);
        id
    }

    /// The members, or what they serve, are others than before.
    pub(super) fn redistribute(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.adopt();
        self.release(now);
        self.appoint(now, actions);
        self.again(now, actions);
        self.rebalance(actions);
    }

    /// Requests again what unfinished steps lack and no stream owes.
    fn again(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let lacking: Vec<(u64, RowsOfStrands)> =
            self.steps.iter().map(|(index, rows)| (*index, rows.clone())).collect();
        for (index, mut free) in lacking {
            let owed = |strand: u32| {
                self.streams.values().any(|s| s.owed.contains(&index) && s.strands.contains(strand))
            };
            free.retain(|&strand, _| !owed(strand));
            if free.is_empty() {
                continue;
            }
            self.cover(now, index, &free, true, actions);
            for (&id, stream) in &mut self.streams {
                if stream.serves(index) && stream.has_some_of(&free) && stream.owe(now, index) {
                    actions.push(Action::Task { stream: id, index });
                }
            }
        }
    }

    /// Ends streams whose strands belong to other members now, from the next step on.
    pub(super) fn rebalance(&mut self, actions: &mut Vec<Action>) {
        let up = self.up();
        if up.is_empty() {
            return;
        }
        let chosen = self.table(&up);
        let next = self.next_index;
        let misplaced = |stream: &StreamState| {
            stream.strands.iter().any(|strand| chosen.get(strand as usize) != Some(&stream.member.as_str()))
        };
        let moving: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.until.is_none() && misplaced(stream))
            .map(|(&id, _)| id)
            .collect();
        for id in moving {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.until = Some(next);
            }
        }
        self.retire(actions);
    }

    /// Closes streams that owe nothing and never will. Streams that race are left: one of them is about to win.
    pub(super) fn retire(&mut self, actions: &mut Vec<Action>) {
        let done: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, s)| s.owed.is_empty() && s.until.is_some_and(|until| until <= self.next_index))
            .filter(|(_, s)| s.rival.is_none())
            .map(|(&id, _)| id)
            .collect();
        for id in done {
            self.close(id, actions);
        }
    }

    pub(super) fn close(&mut self, id: StreamId, actions: &mut Vec<Action>) {
        if let Some(stream) = self.streams.remove(&id) {
            actions.push(Action::Close { stream: id });
            self.parted(id, &stream);
        }
    }

    /// Of two rivals one is gone. The other goes on alone; in place of the one that was there first it serves later steps, too.
    pub(super) fn parted(&mut self, id: StreamId, gone: &StreamState) {
        let Some(rival) = gone.rival else { return };
        if let Some(other) = self.streams.get_mut(&rival) {
            other.rival = None;
            if id < rival {
                other.until = gone.until;
            }
        }
    }

    pub(super) fn suspect(&mut self, now: Duration, name: &str, error: Option<Error>) {
        if let Some(member) = self.members.get_mut(name) {
            member.suspect(now, error);
        }
    }
}
