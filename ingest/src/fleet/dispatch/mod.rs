//! Who is asked for what: a state machine without I/O or clock.
//!
//! ```text
//! step(index, strands) ─▶ Open, Task …      streams: member, strands, steps from..until; of each strand and step, one
//! received ─▶ …                             stream owes the rows (two while they race)
//! lost, leaving, members, tick ─▶ Open elsewhere, Task again, Close
//! ```
//! - lost: what a stream owed is asked of other members, from the first step that it owed;
//! - leaving, joining, coming back: strands move at the first step that was not requested yet;
//! - capacities: members publish them, and strands are in proportion to them (`capacities.rs`);
//! - cold: a member that has yet to open the data set gets no strands while another one can serve, and a ready one keeps its strands
//!   until ready ones take its place (`joining.rs`);
//! - slow: what the oldest step lacks is asked of a second member too; the first answer wins, the other stream is closed
//!   (`races.rs`).
//!
//! Invariant: every strand of every unfinished step is owed by a stream, unless no member is up; then it is as soon as one
//! is.

mod capacities;
mod joining;
mod moves;
mod races;

#[cfg(test)]
pub(crate) use joining::COLD_AFTER;

use super::assign::Parts;
use super::hedge::Budget;
use super::member::{self, Member, Reported};
use super::progress::{Meter, Progress};
use super::selection::Selection;
use super::weights::Weights;
use crate::{Error, ErrorKind};
use feedstock_dataset::StrandSet;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// This process itself, as a member.
pub(crate) const HERE: &str = "this machine";

/// By strand, how many rows of a step lie on it.
pub(crate) type RowsOfStrands = BTreeMap<u32, u64>;

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
    /// Its rows are no longer needed.
    Close { stream: StreamId },
    /// See whether the member is there again.
    Probe { member: String },
    /// Ask the member how it is: its capacity, whether it drains, and whether it is there at all.
    Ask { member: String },
    /// Have the member open the data set.
    Warm { member: String },
}

/// Whether this machine's own CPUs serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Local {
    /// Never: without a worker, ranks wait until their deadline.
    #[default]
    Never,
    /// While no worker has the data set open.
    Fallback,
    /// Always, as one of the members.
    Share,
}

/// What the dispatch knows of a stream.
#[derive(Debug)]
struct StreamState {
    member: String,
    strands: StrandSet,
    from: u64,
    /// Steps from this on are others'.
    until: Option<u64>,
    /// Steps asked for and not received.
    owed: BTreeSet<u64>,
    /// Since when the first of them is the next to come, from it or from the stream whose rival it is.
    since: Duration,
    asked: Duration,
    is_open: bool,
    /// From when on it may be late; `None` while its worker opens the data set.
    counts: Option<Duration>,
    progress: Progress,
    meter: Meter,
    rival: Option<StreamId>,
    /// Members that were asked for the step that it owes first, besides it.
    tried: BTreeSet<String>,
}

/// The state machine of one rank's run.
#[derive(Debug)]
pub(crate) struct Dispatch {
    parts: Parts,
    /// Which members the job uses.
    selection: Selection,
    /// Differs between ranks, so that they ask members in different sequences.
    asker: u64,
    weights: Weights,
    /// When members were last asked for their capacities.
    asked: Duration,
    local: Local,
    members: BTreeMap<String, Member>,
    streams: BTreeMap<StreamId, StreamState>,
    /// Those that have a place and rows to come, and on which strands.
    steps: BTreeMap<u64, RowsOfStrands>,
    /// The first step that was not requested.
    next_index: u64,
    next_stream: u64,
    /// Members with a slow stream.
    lagging: BTreeSet<String>,
    /// When streams were looked at last.
    looked: Duration,
    budget: Budget,
    hedges: u64,
}

impl Dispatch {
    /// Returns the dispatch of an order; `parts` has the part of each strand.
    pub(crate) fn new(parts: impl IntoIterator<Item = u32>, local: Local) -> Self {
        Self {
            parts: Parts::of(parts),
            selection: Selection::all(),
            asker: 0,
            weights: Weights::default(),
            asked: Duration::ZERO,
            local,
            members: match local {
                Local::Never => BTreeMap::new(),
                Local::Fallback | Local::Share => BTreeMap::from([(HERE.to_owned(), Member::default())]),
            },
            streams: BTreeMap::new(),
            steps: BTreeMap::new(),
            next_index: 0,
            next_stream: 0,
            lagging: BTreeSet::new(),
            looked: Duration::ZERO,
            budget: Budget::default(),
            hedges: 0,
        }
    }

    /// Uses this selection of the members.
    pub(crate) fn selecting(self, selection: Selection) -> Self {
        Self { selection, ..self }
    }

    /// Asks members in a sequence that depends on this number: hundreds of ranks that began with the same ones would wait for these.
    pub(crate) fn asking_as(self, asker: u64) -> Self {
        Self { asker, ..self }
    }

    /// These are the members now.
    pub(crate) fn members(&mut self, now: Duration, list: &[String]) -> Vec<Action> {
        let listed: BTreeSet<&String> = list.iter().collect();
        let (has_lost, is_going) = self.unlist(&listed);
        let is_served = self.is_served();
        for name in listed {
            self.members.entry(name.clone()).or_insert_with(Member::standing_by).set_listed(true);
        }
        let mut actions = Vec::new();
        if self.appoint(now, &mut actions) || has_lost || !is_served || is_going && self.may_move(now) {
            self.redistribute(now, &mut actions);
        }
        actions
    }

    /// Drops the members that are not listed any more, or lets them serve on until others can. Returns whether some were dropped, and
    /// whether others are to go.
    fn unlist(&mut self, listed: &BTreeSet<&String>) -> (bool, bool) {
        let is_listed = |name: &String| name == HERE || listed.contains(name);
        let before = self.members.len();
        self.members.retain(|name, member| is_listed(name) || member.is_ready());
        let mut is_going = false;
        for (_, member) in self.members.iter_mut().filter(|(name, _)| !is_listed(name)) {
            is_going |= !member.is_going();
            member.set_listed(false);
        }
        (self.members.len() < before, is_going)
    }

    /// The rows of step `index` are needed soon, on these strands: streams are opened for them.
    pub(crate) fn prepare(&mut self, now: Duration, rows: &RowsOfStrands) -> Vec<Action> {
        let mut actions = Vec::new();
        self.cover(now, self.next_index, rows, false, &mut actions);
        actions
    }

    /// The next step has a place: its rows are requested.
    pub(crate) fn step(&mut self, now: Duration, index: u64, rows: RowsOfStrands) -> Vec<Action> {
        assert_eq!(index, self.next_index, "steps get places in order");
        self.next_index += 1;
        self.budget.earn(rows.values().sum());
        let mut actions = Vec::new();
        self.cover(now, index, &rows, false, &mut actions);
        for (&id, stream) in &mut self.streams {
            if stream.serves(index) && stream.has_some_of(&rows) {
                stream.owe(now, index);
                actions.push(Action::Task { stream: id, index });
            }
        }
        self.steps.insert(index, rows);
        actions
    }

    /// A worker is at work on opening the data set of a stream, which takes as long as it takes.
    pub(crate) fn opening(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_open) else { return };
        stream.counts = None;
        if let Some(member) = self.members.get_mut(&stream.member) {
            member.is_opening();
        }
    }

    /// A stream is open: data set, catalog and ops are ready. Where its worker had to make them ready, it can be late only
    /// from now on.
    pub(crate) fn opened(&mut self, now: Duration, id: StreamId) -> Vec<Action> {
        let Some(stream) = self.streams.get_mut(&id) else { return Vec::new() };
        (stream.is_open, stream.counts) = (true, stream.counts.or(Some(now)));
        let (name, may_release) = (stream.member.clone(), self.may_release());
        if let Some(member) = self.members.get_mut(&name) {
            member.opened();
        }
        let mut actions = Vec::new();
        if !may_release && self.may_release() && self.members.values().any(Member::is_going) {
            self.redistribute(now, &mut actions); // they have served on until now
        }
        actions
    }

    /// A stream has brought what it owed of a step (or its rival had).
    pub(crate) fn received(&mut self, now: Duration, id: StreamId, index: u64) -> Vec<Action> {
        let Some(stream) = self.streams.get_mut(&id) else { return Vec::new() };
        stream.owed.remove(&index);
        let time = now.saturating_sub(stream.at_work_since());
        stream.since = now;
        stream.tried.clear();
        let (strands, rival, name) = (stream.strands.clone(), stream.rival, stream.member.clone());
        let rows = self.lacking(index, id);
        if let Some(member) = self.members.get_mut(&name) {
            member.brought(now, id.0);
            member.took(time, rows);
            if !self.lagging.contains(&name) {
                member.set_slow(false);
            }
        }
        if let Some(step) = self.steps.get_mut(&index) {
            step.retain(|strand, _| !strands.contains(*strand));
            if step.is_empty() {
                self.steps.remove(&index);
            }
        }
        let mut actions = Vec::new();
        if let Some(rival) = rival {
            // Of two rivals the older was the slow one. The other may be a good one, though it came too late.
            self.beaten(now, rival, rival < id, &mut actions);
        }
        self.retire(&mut actions);
        actions
    }

    /// All rows of a step are there. A stream that still owes some is about to report that it brought them.
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
        self.member_lost(now, &stream.member, error);
        let mut actions = Vec::new();
        self.parted(id, &stream);
        // What it left was moved to any member that had room, not in equal shares.
        self.redistribute(now, &mut actions);
        actions
    }

    /// A stream of the member, or its opening of the data set, has ended with an error.
    fn member_lost(&mut self, now: Duration, name: &str, error: Error) {
        let (may_release, next_stream) = (self.may_release(), self.next_stream);
        let Some(member) = self.members.get_mut(name) else { return };
        let refuses = member.lost(now, error, next_stream);
        if member.is_unlisted() && may_release {
            self.members.remove(name);
        }
        if refuses && member::none_serves(self.members.values()) {
            self.members.values_mut().for_each(|member| member.hurry(now));
        }
    }

    /// Whether anybody but this machine may serve.
    pub(crate) fn others_serve(&self) -> bool {
        self.members.iter().any(|(name, member)| name != HERE && member.is_there())
    }

    /// A member wants to go: it serves what it was asked for, and nothing from the next step on. If strands have just moved, that is the
    /// next step a second later. If no other member is ready, it serves until one is.
    pub(crate) fn leaving(&mut self, now: Duration, id: StreamId) -> Vec<Action> {
        let Some(member) = self.streams.get(&id).map(|stream| stream.member.clone()) else {
            return Vec::new();
        };
        let mut actions = Vec::new();
        let is_due = match self.members.get_mut(&member).filter(|member| member.is_up()) {
            Some(member) => {
                member.drains();
                self.may_move(now) // strands of members that drain one after the other move together
            }
            None => false,
        };
        if is_due {
            self.redistribute(now, &mut actions);
        }
        actions
    }

    /// A probed member is there, or it is not.
    pub(crate) fn probed(
        &mut self,
        now: Duration,
        name: &str,
        result: Result<Reported, Error>,
    ) -> Vec<Action> {
        if let Ok(reported) = &result {
            self.reported(now, name, reported);
        }
        let may_release = self.may_release();
        let Some(member) = self.members.get_mut(name) else { return Vec::new() };
        let mut actions = Vec::new();
        match result {
            Ok(Reported { is_draining: true, .. }) if may_release => {
                let message = format!("{name}: the worker is going away");
                member.is_away(now, Error::new(ErrorKind::Retryable, message));
            }
            Ok(Reported { is_draining: true, .. }) => {
                member.is_back();
                member.drains();
                member.may_be_asked(); // it opens streams until its drain ends, and no other can
                self.redistribute(now, &mut actions);
            }
            Ok(_) => {
                member.is_back();
                if !member.has_opened() && !member.is_cold() {
                    member.stands_by();
                }
                self.redistribute(now, &mut actions);
            }
            Err(error) => member.is_away(now, error),
        }
        actions
    }

    /// The member of a stream.
    pub(crate) fn member_of(&self, id: StreamId) -> Option<String> {
        self.streams.get(&id).map(|stream| stream.member.clone())
    }

    /// Streams that were given a rival so far, and rows that were asked for twice.
    pub(crate) fn hedged(&self) -> (u64, u64) {
        (self.hedges, self.budget.rows())
    }

    /// Time has passed; streams have come so far.
    pub(crate) fn tick(&mut self, now: Duration, progress: &BTreeMap<StreamId, Progress>) -> Vec<Action> {
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
        if self.appoint(now, &mut actions) {
            self.redistribute(now, &mut actions);
        }
        self.follow(now, &mut actions);
        self.relieve(now, &mut actions);
        self.hedge(now, progress, &mut actions);
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
            let why = match member.error() {
                _ if member.is_cold() => "opens the data set".to_owned(),
                Some(error) => error.to_string(),
                None if member.is_standby() => "on standby".to_owned(),
                None => "not asked yet".to_owned(),
            };
            format!("{name}: {why}")
        });
        let troubles: Vec<String> = troubles.take(8).collect();
        match troubles.is_empty() {
            true => "no worker is known: none is listed, or their name has no address".to_owned(),
            false => format!("no worker answers: {}", troubles.join("; ")),
        }
    }

    /// The members that the job uses once they are ready, of those that are there and stay.
    fn used(&self, now: Duration) -> BTreeSet<&str> {
        // All of the job's places are taken over once at most: each worker builds the catalog for itself.
        let overdue = self.those(|member| member.is_overdue(now)).len();
        let has_place = |member: &Member| overdue > self.selection.most() || !member.is_overdue(now);
        self.selected(self.those(|member| member.is_there() && !member.is_going() && has_place(member)))
    }

    /// Returns the number of workers that strands are given to, and of those that are there beyond the number that the job uses.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let is_worker = |name: &&str| *name != HERE;
        let there = self.those(|member| member.is_there() && !member.is_going());
        let there = there.into_iter().filter(is_worker).count();
        (self.up().into_iter().filter(is_worker).count(), there.saturating_sub(self.selection.most()))
    }

    /// Returns the number of workers that the job uses at most.
    pub(crate) fn most(&self) -> usize {
        self.selection.most()
    }

    /// The members that strands are given to: of those that are ready, the ones that the job uses. One that is about to go serves if no
    /// other is ready. Places that are left go to members that may be asked, of which there are some only if lately none was ready.
    fn up(&self) -> BTreeSet<&str> {
        let mut ready = self.those(Member::stays);
        let mut unknown = self.those(Member::is_unknown);
        let here = [ready.take(HERE), unknown.take(HERE)].into_iter().flatten().next();
        if ready.is_empty() {
            ready = self.those(|member| member.is_ready() && member.is_going());
        }
        let up = self.selection.of_both(ready, unknown);
        self.without_here(up.into_iter().chain(here).collect())
    }

    /// By strand, the member that serves it.
    #[cfg(test)]
    pub(crate) fn members_of_strands(&self) -> Vec<String> {
        self.table(&self.up()).into_iter().map(str::to_owned).collect()
    }

    /// The names of these members.
    fn those(&self, are: impl Fn(&Member) -> bool) -> BTreeSet<&str> {
        self.members.iter().filter(|(_, member)| are(member)).map(|(name, _)| name.as_str()).collect()
    }

    /// Those of `members` that the job uses. This machine always is, if it serves at all: it costs no connection.
    fn selected<'a>(&self, mut members: BTreeSet<&'a str>) -> BTreeSet<&'a str> {
        let here = members.take(HERE);
        self.selection.of(members).into_iter().chain(here).collect()
    }

    /// Where this machine serves in place of others only, it does not serve with them.
    fn without_here<'a>(&self, mut members: BTreeSet<&'a str>) -> BTreeSet<&'a str> {
        if self.local == Local::Fallback && members.len() > 1 {
            members.remove(HERE);
        }
        members
    }
}

impl StreamState {
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

    /// Whether some of these rows are the stream's.
    fn has_some_of(&self, rows: &RowsOfStrands) -> bool {
        rows.keys().any(|strand| self.strands.contains(*strand))
    }

    /// Counts from now on, as if it had only been asked.
    fn begin_anew(&mut self, now: Duration) {
        (self.since, self.meter) = (now, Meter::default());
    }

    /// Since when it is itself at work on the step that it owes first.
    fn at_work_since(&self) -> Duration {
        self.since.max(self.asked).max(self.counts.unwrap_or_default())
    }

    /// Whether a step waits for its rows, and for no other stream that writes the same ones.
    fn holds_up(&self, index: u64) -> bool {
        self.owed.first() == Some(&index) && !self.progress.waits
    }

    /// Takes what it has brought so far.
    fn look(&mut self, now: Duration, progress: Progress) {
        self.progress = progress;
        let owes = self.owes_for(now).is_some();
        self.meter.look(now, progress.bytes, owes);
    }

    /// How long the rows of its next step are owed, not counting what its worker takes to open the data set. `None`: it owes
    /// none, or has the rows and waits for another stream that writes the same ones.
    fn owes_for(&self, now: Duration) -> Option<Duration> {
        let counts = self.counts.filter(|_| !self.owed.is_empty() && !self.progress.waits)?;
        Some(now.saturating_sub(counts.max(self.since)))
    }
}

fn list(names: BTreeSet<&str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod slow;
