//! Who is asked for what: a state machine without I/O or clock.
//!
//! ```text
//! step(index, strands) ─▶ Open, Task …      streams: member, strands, steps from..until; of each strand and step, one
//! received ─▶ …                             stream owes the rows (two while they race)
//! lost, leaving, members, tick ─▶ Open elsewhere, Task again, Close
//! ```
//! - lost: what a stream owed is asked of other members, from the first step that it owed;
//! - leaving, joining, coming back: strands move at the first step that nobody was asked for yet;
//! - slow: what the oldest step lacks is asked of a second member too; the first answer wins, the other stream is closed.
//!
//! Invariant: every strand of every unfinished step is owed by a stream, unless no member is up; then it is as soon as one
//! is.

use super::assign::assign;
use super::member::{self, Member};
use crate::{Error, ErrorKind};
use feedstock_dataset::StrandSet;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// This process itself, as a member.
pub(crate) const HERE: &str = "this machine";

/// A stream whose rows the oldest step has lacked for so long, while others have delivered theirs, gets a rival. Three times
/// what a step of 64 pictures takes on a fifth of a core; less than the silence after which a worker is given up.
const HEDGE_AFTER: Duration = Duration::from_millis(750);

/// Between two rivals, so that a fleet that is slow as a whole is not asked for everything twice.
const HEDGE_EVERY: Duration = Duration::from_secs(5);

/// Names a stream of this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamId(pub(crate) u64);

/// What the shell is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Open a stream for these strands, from step `from` on.
    Open { stream: StreamId, member: String, strands: StrandSet, from: u64 },
    /// Rows of this step are expected next on the stream.
    Task { stream: StreamId, index: u64 },
    /// Nothing more is wanted of it.
    Close { stream: StreamId },
    /// See whether the member is there again.
    Probe { member: String },
}

/// Whether this machine's own CPUs serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Local {
    /// Never: without a worker, ranks wait until their deadline.
    #[default]
    Never,
    /// While no worker answers.
    Fallback,
    /// Always, as one of the members.
    Share,
}

#[derive(Debug)]
struct Stream {
    member: String,
    strands: StrandSet,
    from: u64,
    /// Steps from this on are others'.
    until: Option<u64>,
    /// Steps asked for and not received.
    owed: BTreeSet<u64>,
    /// Since when the first of them is the next to come.
    since: Duration,
    rival: Option<StreamId>,
}

/// The state machine of one rank's run.
#[derive(Debug)]
pub(crate) struct Dispatch {
    strands: u32,
    local: Local,
    members: BTreeMap<String, Member>,
    streams: BTreeMap<StreamId, Stream>,
    /// Those that have a place and rows to come, and on which strands.
    steps: BTreeMap<u64, BTreeSet<u32>>,
    /// The first step that nobody was asked for.
    next_index: u64,
    next_stream: u64,
    hedged: Option<Duration>,
}

impl Dispatch {
    /// For an order of so many strands.
    pub(crate) fn new(strands: u32, local: Local) -> Self {
        Self {
            strands,
            local,
            members: match local {
                Local::Never => BTreeMap::new(),
                Local::Fallback | Local::Share => BTreeMap::from([(HERE.to_owned(), Member::default())]),
            },
            streams: BTreeMap::new(),
            steps: BTreeMap::new(),
            next_index: 0,
            next_stream: 0,
            hedged: None,
        }
    }

    /// These are the members now.
    pub(crate) fn members(&mut self, now: Duration, list: &[String]) -> Vec<Action> {
        let listed: BTreeSet<&String> = list.iter().collect();
        self.members.retain(|name, _| name == HERE || listed.contains(name));
        for name in list {
            self.members.entry(name.clone()).or_default();
        }
        let mut actions = Vec::new();
        self.redistribute(now, &mut actions);
        actions
    }

    /// The rows of step `index` are wanted soon, on these strands: streams are opened for them.
    pub(crate) fn prepare(&mut self, now: Duration, strands: &BTreeSet<u32>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.cover(now, self.next_index, strands, &mut actions);
        actions
    }

    /// The next step has a place: its rows are wanted.
    pub(crate) fn step(&mut self, now: Duration, index: u64, strands: BTreeSet<u32>) -> Vec<Action> {
        assert_eq!(index, self.next_index, "steps get places in order");
        self.next_index += 1;
        let mut actions = Vec::new();
        self.cover(now, index, &strands, &mut actions);
        for (&id, stream) in &mut self.streams {
            if stream.serves(index) && strands.iter().any(|strand| stream.strands.contains(*strand)) {
                stream.owe(now, index);
                actions.push(Action::Task { stream: id, index });
            }
        }
        self.steps.insert(index, strands);
        actions
    }

    /// A stream has brought what it owed of a step (or its rival had).
    pub(crate) fn received(&mut self, now: Duration, id: StreamId, index: u64) -> Vec<Action> {
        let Some(stream) = self.streams.get_mut(&id) else { return Vec::new() };
        stream.owed.remove(&index);
        stream.since = now;
        let (strands, rival) = (stream.strands.clone(), stream.rival.take());
        if let Some(member) = self.members.get_mut(&stream.member) {
            member.brought(now, id.0);
        }
        if let Some(step) = self.steps.get_mut(&index) {
            step.retain(|strand| !strands.contains(*strand));
            if step.is_empty() {
                self.steps.remove(&index);
            }
        }
        let mut actions = Vec::new();
        if let Some(rival) = rival {
            self.beaten(now, rival, id, &mut actions);
        }
        self.retire(&mut actions);
        actions
    }

    /// All rows of a step are there. Who still owes some is about to say that it brought them.
    pub(crate) fn finished(&mut self, index: u64) -> Vec<Action> {
        self.steps.remove(&index);
        for stream in self.streams.values_mut() {
            stream.owed.remove(&index);
        }
        let mut actions = Vec::new();
        self.retire(&mut actions);
        actions
    }

    /// A stream has ended before its time, or could not be opened.
    pub(crate) fn lost(&mut self, now: Duration, id: StreamId, error: Error) -> Vec<Action> {
        let Some(stream) = self.streams.remove(&id) else { return Vec::new() };
        if let Some(member) = self.members.get_mut(&stream.member)
            && member.lost(now, error, self.next_stream)
            && member::none_serves(self.members.values())
        {
            self.members.values_mut().for_each(|member| member.hurry(now));
        }
        let mut actions = Vec::new();
        if let Some(rival) = stream.rival.and_then(|rival| self.streams.get_mut(&rival)) {
            rival.rival = None; // the other one of the two goes on alone
        }
        // What it left lies where there was a place for it, not in equal shares.
        self.redistribute(now, &mut actions);
        actions
    }

    /// A stream has rows that its rival has been writing for too long: the older of the two is the slow one.
    pub(crate) fn waited(&mut self, now: Duration, id: StreamId) -> Vec<Action> {
        let rival = self.streams.get(&id).and_then(|stream| stream.rival).filter(|rival| *rival < id);
        let mut actions = Vec::new();
        if let Some(slow) = rival {
            self.beaten(now, slow, id, &mut actions);
        }
        actions
    }

    /// Whether anybody but this machine may serve.
    pub(crate) fn others_serve(&self) -> bool {
        self.members.iter().any(|(name, member)| name != HERE && member.is_up())
    }

    /// A member wants to go: it serves what it was asked for, and nothing from the next step on.
    pub(crate) fn leaving(&mut self, now: Duration, id: StreamId) -> Vec<Action> {
        let Some(member) = self.streams.get(&id).map(|stream| stream.member.clone()) else {
            return Vec::new();
        };
        self.suspect(now, &member, None);
        let mut actions = Vec::new();
        self.rebalance(&mut actions);
        actions
    }

    /// A probed member is there, or it is not.
    pub(crate) fn probed(&mut self, now: Duration, name: &str, result: Result<(), Error>) -> Vec<Action> {
        let Some(member) = self.members.get_mut(name) else { return Vec::new() };
        let mut actions = Vec::new();
        match result {
            Ok(()) => {
                member.is_back();
                self.redistribute(now, &mut actions);
            }
            Err(error) => member.is_away(now, error),
        }
        actions
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut here = false;
        for (name, member) in &mut self.members {
            if member.is_due(now) {
                match name == HERE {
                    true => {
                        member.is_back(); // there is nothing to ask
                        here = true;
                    }
                    false => {
                        member.probing();
                        actions.push(Action::Probe { member: name.clone() });
                    }
                }
            }
        }
        if here {
            self.redistribute(now, &mut actions);
        }
        self.hedge(now, &mut actions);
        actions
    }

    /// Why no member can ever serve: those that answer refused for good, and the others do not answer.
    /// While a stream still owes rows of the oldest step, that is not decided: they may be on their way.
    pub(crate) fn hopeless(&self) -> Option<&Error> {
        let oldest = self.steps.first_key_value().map(|(index, _)| index);
        let is_owed = oldest.is_some_and(|index| self.streams.values().any(|s| s.owed.contains(index)));
        if is_owed { None } else { member::hopeless(self.members.values()) }
    }

    /// What the oldest unfinished step waits for.
    pub(crate) fn waiting(&self) -> String {
        let Some((index, step)) = self.steps.first_key_value() else { return String::new() };
        let owing: BTreeSet<&str> = self
            .streams
            .values()
            .filter(|stream| stream.owed.contains(index))
            .map(|stream| stream.member.as_str())
            .collect();
        if !owing.is_empty() {
            return format!("rows of {} strands from {}", step.len(), list(owing));
        }
        let troubles = self.members.iter().map(|(name, member)| {
            let why = member.error().map_or("not asked yet".to_owned(), Error::to_string);
            format!("{name}: {why}")
        });
        let troubles: Vec<String> = troubles.take(8).collect();
        match troubles.is_empty() {
            true => "no worker is known: none is listed, or their name has no address".to_owned(),
            false => format!("no worker answers: {}", troubles.join("; ")),
        }
    }

    fn up(&self) -> BTreeSet<&str> {
        let mut up: BTreeSet<&str> =
            self.members.iter().filter(|(_, member)| member.is_up()).map(|(name, _)| name.as_str()).collect();
        if self.local == Local::Fallback && up.len() > 1 {
            up.remove(HERE);
        }
        up
    }

    /// Opens streams for those of `strands` that nobody serves at step `index`.
    fn cover(&mut self, now: Duration, index: u64, strands: &BTreeSet<u32>, actions: &mut Vec<Action>) {
        let served = |strand: u32| {
            self.streams.values().any(|stream| stream.serves(index) && stream.strands.contains(strand))
        };
        if strands.iter().all(|&strand| served(strand)) {
            return;
        }
        let chosen = assign(&self.up(), self.strands);
        let mut new: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for (strand, member) in (0..self.strands).zip(&chosen) {
            if !served(strand) {
                new.entry(member).or_default().insert(strand);
            }
        }
        // Only members that have something to do: a stream without rows would search the order for them.
        let new: Vec<(String, StrandSet)> = new
            .into_iter()
            .filter(|(_, free)| free.iter().any(|strand| strands.contains(strand)))
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

    fn open(
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
        let stream = Stream { member, strands, from, until, owed: BTreeSet::new(), since: now, rival: None };
        self.streams.insert(id, stream);
        id
    }

    /// The members, or what they serve, are others than before.
    fn redistribute(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.again(now, actions);
        self.rebalance(actions);
    }

    /// Of two rivals the older was the slow one. Its strands come back to it once it answers again.
    fn beaten(&mut self, now: Duration, rival: StreamId, by: StreamId, actions: &mut Vec<Action>) {
        if let Some(slow) = self.streams.get(&rival).filter(|_| rival < by).map(|s| s.member.clone()) {
            self.suspect(now, &slow, Some(Error::new(ErrorKind::Retryable, "slower than another worker")));
        }
        self.close(rival, actions);
        // One of the two may end before steps that the other owed, and a rival has its own strands besides.
        self.redistribute(now, actions);
    }

    /// Asks again for whatever unfinished steps lack and nobody owes.
    fn again(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let lacking: Vec<(u64, BTreeSet<u32>)> =
            self.steps.iter().map(|(index, strands)| (*index, strands.clone())).collect();
        for (index, strands) in lacking {
            let owed = |strand: u32| {
                self.streams.values().any(|s| s.owed.contains(&index) && s.strands.contains(strand))
            };
            let free: BTreeSet<u32> = strands.into_iter().filter(|&strand| !owed(strand)).collect();
            if free.is_empty() {
                continue;
            }
            self.cover(now, index, &free, actions);
            for (&id, stream) in &mut self.streams {
                let wanted = free.iter().any(|strand| stream.strands.contains(*strand));
                if stream.serves(index) && wanted && stream.owe(now, index) {
                    actions.push(Action::Task { stream: id, index });
                }
            }
        }
    }

    /// Ends streams whose strands belong to other members now, from the next step on.
    fn rebalance(&mut self, actions: &mut Vec<Action>) {
        let up = self.up();
        if up.is_empty() {
            return;
        }
        let chosen = assign(&up, self.strands);
        let next = self.next_index;
        let misplaced = |stream: &Stream| {
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

    /// Closes streams that owe nothing and never will.
    fn retire(&mut self, actions: &mut Vec<Action>) {
        let done: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, s)| s.owed.is_empty() && s.until.is_some_and(|until| until <= self.next_index))
            .map(|(&id, _)| id)
            .collect();
        for id in done {
            self.close(id, actions);
        }
    }

    fn close(&mut self, id: StreamId, actions: &mut Vec<Action>) {
        if let Some(stream) = self.streams.remove(&id) {
            actions.push(Action::Close { stream: id });
            if let Some(rival) = stream.rival.and_then(|rival| self.streams.get_mut(&rival)) {
                rival.rival = None;
            }
        }
    }

    fn suspect(&mut self, now: Duration, name: &str, error: Option<Error>) {
        if let Some(member) = self.members.get_mut(name) {
            member.suspect(now, error);
        }
    }

    fn hedge(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.hedged.is_some_and(|at| now < at + HEDGE_EVERY) {
            return;
        }
        // Before the first step is there, workers open data sets, each at its own pace.
        let Some((&index, _)) = self.steps.first_key_value().filter(|(index, _)| **index > 0) else { return };
        let late = self.streams.iter().find(|(_, stream)| {
            stream.rival.is_none() && stream.owed.first() == Some(&index) && now >= stream.since + HEDGE_AFTER
        });
        let Some((&slow, stream)) = late else { return };
        // Others have brought theirs: not everything is slow.
        let others_wait = self.streams.iter().any(|(&id, other)| {
            id != slow && other.owed.first() == Some(&index) && other.member != stream.member
        });
        if others_wait {
            return;
        }
        let (strands, until, owed) = (stream.strands.clone(), stream.until, stream.owed.clone());
        let member = stream.member.clone();
        let others: BTreeSet<&str> = self.up().into_iter().filter(|name| *name != member).collect();
        let Some(first) = strands.iter().next() else { return };
        let Some(second) = assign(&others, self.strands).get(first as usize).map(|name| (*name).to_owned())
        else {
            return;
        };
        self.hedged = Some(now);
        let id = self.open(now, second, strands, index, until, actions);
        actions.extend(owed.iter().map(|&index| Action::Task { stream: id, index }));
        if let Some(rival) = self.streams.get_mut(&id) {
            (rival.owed, rival.rival) = (owed, Some(slow));
        }
        if let Some(slow) = self.streams.get_mut(&slow) {
            slow.rival = Some(id);
        }
    }
}

impl Stream {
    fn serves(&self, index: u64) -> bool {
        self.from <= index && self.until.is_none_or(|until| index < until)
    }

    /// False if it owed it already.
    fn owe(&mut self, now: Duration, index: u64) -> bool {
        if self.owed.is_empty() {
            self.since = now;
        }
        self.owed.insert(index)
    }
}

fn list(names: BTreeSet<&str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[path = "dispatch_model.rs"]
mod model;
#[cfg(test)]
#[path = "dispatch_refusals.rs"]
mod refusals;
