//! Slow streams: from whom else their rows are requested, which of two rivals wins, and which streams are replaced.
//!
//! A race is about the oldest step. The rival is asked for that step alone, so that nothing else is sent twice; once it has
//! won, it takes over what the slow stream owes. Where no rival is allowed, the other member is asked in the same way and the
//! slow stream is closed at once: no row is owed twice.

use super::{Action, Dispatch, HERE, StreamId, StreamState};
use crate::fleet::hedge::{HEDGE_AFTER, HERE_AFTER, Judgement, Others, Pace, RIVAL_AFTER, racing_at_most};
use crate::fleet::member::Member;
use crate::fleet::progress::Progress;
use crate::{Error, ErrorKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A stream is judged once it has owed rows for so long: half of the time over which its rate is measured.
const MEASURED_AFTER: Duration = Duration::from_millis(250);

/// The run looks at its streams twenty times a second. After so long without, this process itself had stopped: no stream is
/// late before what has come meanwhile is read.
const STOPPED: Duration = Duration::from_secs(1);

impl Dispatch {
    /// Takes how much every stream has brought so far, and acts where one is slow.
    pub(super) fn hedge(
        &mut self,
        now: Duration,
        progress: &BTreeMap<StreamId, Progress>,
        actions: &mut Vec<Action>,
    ) {
        if now.saturating_sub(self.looked) > STOPPED {
            self.streams.values_mut().for_each(|stream| stream.begin_anew(now));
        }
        self.looked = now;
        self.measure(now, progress);
        let judged = self.judged(now);
        // This machine's bytes come all at once, so its rate means little; `Member::row_time` is used instead.
        let lagging = judged.values().filter(|found| found.is_slow() && found.member != HERE);
        self.lagging = lagging.map(|found| found.member.clone()).collect();
        let Some((&oldest, _)) = self.steps.first_key_value() else { return };
        self.settle(now, &judged, actions);
        self.ask_others(now, oldest, &judged, actions);
        self.ask_here(now, oldest, &judged, actions);
    }

    /// A member that has no stream at present keeps the rate that it had: it may be all that a slow one is compared with.
    fn measure(&mut self, now: Duration, progress: &BTreeMap<StreamId, Progress>) {
        let mut rates: BTreeMap<&str, f64> = BTreeMap::new();
        for (id, stream) in &mut self.streams {
            stream.look(now, progress.get(id).copied().unwrap_or_default());
            if let Some(rate) = stream.meter.rate().filter(|_| stream.is_open) {
                let best = rates.entry(&stream.member).or_default();
                *best = best.max(rate);
            }
        }
        for (name, rate) in rates {
            if let Some(member) = self.members.get_mut(name) {
                member.set_rate(rate);
            }
        }
    }

    /// Judges the streams that have owed rows for a while; in a fleet in which nothing is slow, none.
    fn judged(&self, now: Duration) -> BTreeMap<StreamId, Judged> {
        let is_measured = |stream: &StreamState| now >= stream.at_work_since() + MEASURED_AFTER;
        let owing = self.streams.iter().filter(|(_, stream)| is_measured(stream));
        let owing: Vec<_> =
            owing.filter_map(|(id, stream)| Some((*id, stream, stream.owes_for(now)?))).collect();
        if owing.is_empty() {
            return BTreeMap::new();
        }
        let rates = self.members.iter().filter_map(|(name, member)| Some((member.rate()?, &**name)));
        let mut rates: Vec<(f64, &str)> = rates.collect();
        rates.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let untried = self.untried();
        let judge = |(id, stream, waited): (StreamId, &StreamState, Duration)| {
            let others = rates.iter().filter(|(_, member)| *member != stream.member).map(|(rate, _)| *rate);
            let has_untried = untried.iter().any(|member| *member != stream.member);
            let rate = stream.meter.rate().unwrap_or(0.0);
            let pace = Pace { rate, lacks: stream.progress.lacks, waited };
            let others = Others::of(&others.collect::<Vec<_>>()).and_untried(has_untried);
            let judgement = others.judge(pace);
            (id, Judged { member: stream.member.clone(), pace, judgement })
        };
        owing.into_iter().map(judge).collect()
    }

    /// Other machines that have the data set open and have brought nothing yet. One that is a rival is on trial, and one that was too
    /// slow as a rival has had it.
    fn untried(&self) -> BTreeSet<&str> {
        let is_rival =
            |name: &str| self.streams.values().any(|stream| stream.rival.is_some() && stream.member == name);
        let is_untried = |(name, member): &(&String, &Member)| {
            *name != HERE
                && member.is_up()
                && member.has_opened()
                && member.rate().is_none()
                && !member.was_slow()
                && !is_rival(name)
        };
        self.members.iter().filter(is_untried).map(|(name, _)| &**name).collect()
    }

    /// Ends the races that are decided before one of the two has brought everything, and rivals that are slow.
    fn settle(&mut self, now: Duration, judged: &BTreeMap<StreamId, Judged>, actions: &mut Vec<Action>) {
        let races = self.streams.iter().filter_map(|(&slow, stream)| Some((slow, stream.rival?)));
        let races: Vec<_> = races.filter(|(slow, rival)| slow < rival).collect();
        for (slow, rival) in races {
            let (Some(first), Some(second)) = (self.streams.get(&slow), self.streams.get(&rival)) else {
                continue;
            };
            let is_slow = |id: StreamId| judged.get(&id).is_some_and(Judged::is_slow);
            // The waiting stream has received its rows, and the other one is writing the same ones.
            if second.progress.waits && is_slow(slow) {
                self.beaten(now, slow, true, actions);
            } else if first.progress.waits && is_slow(rival) {
                self.beaten(now, rival, true, actions);
            } else if self.is_no_help(now, rival, judged) {
                let is_slow = second.is_open;
                self.beaten(now, rival, is_slow, actions);
            }
        }
    }

    /// Whether a rival does not do what it was asked for: its connection is slow, too.
    fn is_no_help(&self, now: Duration, id: StreamId, judged: &BTreeMap<StreamId, Judged>) -> bool {
        let (Some(rival), Some(found)) = (self.streams.get(&id), judged.get(&id)) else { return false };
        let comes = rival.is_open && found.pace.lacks.is_none(); // its worker is making the rows
        rival.member != HERE && now >= rival.asked + RIVAL_AFTER && !comes && found.is_slow()
    }

    /// Requests what slow streams owe of the oldest step from other members.
    fn ask_others(
        &mut self,
        now: Duration,
        oldest: u64,
        judged: &BTreeMap<StreamId, Judged>,
        actions: &mut Vec<Action>,
    ) {
        for (&slow, found) in judged.iter().filter(|(_, found)| found.is_slow()) {
            let Some(stream) = self.streams.get(&slow) else { continue };
            let had_time = found.pace.waited >= HEDGE_AFTER && now >= stream.asked + RIVAL_AFTER;
            if !had_time || stream.rival.is_some() || !stream.holds_up(oldest) {
                continue;
            }
            let Some(member) = self.second(now, slow, found) else { continue };
            if !self.race(now, slow, oldest, &member, found.is_stuck(), actions)
                && self.may_replace(slow, &member, found.pace)
            {
                self.replace(now, slow, oldest, &member, true, actions);
            }
        }
    }

    /// Requests what the oldest step lacks after [`HERE_AFTER`] from this machine.
    fn ask_here(
        &mut self,
        now: Duration,
        oldest: u64,
        judged: &BTreeMap<StreamId, Judged>,
        actions: &mut Vec<Action>,
    ) {
        for (&id, found) in judged.iter().filter(|(_, found)| found.pace.waited >= HERE_AFTER) {
            let holds_up = |id: StreamId| {
                self.streams.get(&id).is_some_and(|stream| stream.holds_up(oldest) && stream.member != HERE)
            };
            let rival = self.streams.get(&id).and_then(|stream| stream.rival);
            if !holds_up(id) || rival.is_some_and(|id| !holds_up(id)) || !self.here_helps(now, id, found.pace)
            {
                continue;
            }
            let is_slow = |id: StreamId| judged.get(&id).is_some_and(Judged::is_slow);
            // No more than two race: of two rivals one makes way.
            let (loser, other) = match rival {
                Some(rival) if found.is_slow() => (Some(id), rival),
                rival => (rival, id),
            };
            if let Some(loser) = loser {
                self.beaten(now, loser, is_slow(loser), actions);
            }
            let is_stuck = judged.get(&other).is_none_or(Judged::is_stuck);
            if !self.race(now, other, oldest, HERE, is_stuck, actions) {
                self.replace(now, other, oldest, HERE, is_slow(other), actions);
            }
        }
    }

    /// Requests what a stream owes of the oldest step from `member` as well. False if no rival is allowed.
    fn race(
        &mut self,
        now: Duration,
        slow: StreamId,
        oldest: u64,
        member: &str,
        is_stuck: bool,
        actions: &mut Vec<Action>,
    ) -> bool {
        let racing = self.streams.values().filter(|stream| stream.rival.is_some()).count() / 2;
        let is_allowed = racing < racing_at_most(self.streams.len() - racing)
            && self.budget.spend(now, self.lacking(oldest, slow), is_stuck);
        if is_allowed {
            self.hedges += 1;
            self.start_race(now, slow, oldest, member, actions);
        }
        is_allowed
    }

    /// Whether a stream may be closed for the sake of a worker: rows are under way and trickle. Each member is tried once for a
    /// step, so that a step that is slow everywhere ends, too.
    fn may_replace(&self, slow: StreamId, member: &str, pace: Pace) -> bool {
        let was_slow = self.members.get(member).is_some_and(Member::was_slow);
        let is_new = self.streams.get(&slow).is_some_and(|stream| !stream.tried.contains(member));
        is_new && !was_slow && pace.trickles()
    }

    /// Requests what a stream owes of the oldest step from `member` instead.
    fn replace(
        &mut self,
        now: Duration,
        slow: StreamId,
        oldest: u64,
        member: &str,
        is_slow: bool,
        actions: &mut Vec<Action>,
    ) {
        self.start_race(now, slow, oldest, member, actions);
        self.beaten(now, slow, is_slow, actions);
    }

    fn start_race(
        &mut self,
        now: Duration,
        slow: StreamId,
        index: u64,
        member: &str,
        actions: &mut Vec<Action>,
    ) {
        let Some(stream) = self.streams.get(&slow) else { return };
        let (since, counts, mut tried) = (stream.since, stream.counts, stream.tried.clone());
        tried.insert(stream.member.clone());
        let id = self.open(now, member.to_owned(), stream.strands.clone(), index, Some(index + 1), actions);
        actions.push(Action::Task { stream: id, index });
        if let Some(rival) = self.streams.get_mut(&id) {
            rival.owe(now, index);
            // The rows are owed for as long as by the slow stream.
            (rival.since, rival.counts, rival.tried) = (since, counts, tried);
            rival.rival = Some(slow);
        }
        if let Some(slow) = self.streams.get_mut(&slow) {
            slow.rival = Some(id);
            slow.tried.insert(member.to_owned());
        }
    }

    /// Rows of a step that a stream owes and no stream has brought.
    pub(super) fn lacking(&self, index: u64, id: StreamId) -> u64 {
        let (Some(step), Some(stream)) = (self.steps.get(&index), self.streams.get(&id)) else { return 0 };
        step.iter().filter(|(strand, _)| stream.strands.contains(**strand)).map(|(_, rows)| rows).sum()
    }

    /// Which other member can bring what a stream owes: one that has no slow stream, and none that was tried before if there
    /// is another one. In this order: this machine, if a worker was tried in vain; members whose rows have come fast; those that
    /// have the data set open; this machine; members that were slow when they were last asked.
    fn second(&self, now: Duration, slow: StreamId, found: &Judged) -> Option<String> {
        let stream = self.streams.get(&slow)?;
        let mut others = match found.judgement {
            Judgement::Behind => self.up(),
            Judgement::Untried => self.untried(),
            Judgement::Late | Judgement::Usual => BTreeSet::new(),
        };
        others.remove(HERE);
        others.extend(self.here_helps(now, slow, found.pace).then_some(HERE));
        others.retain(|name| *name != stream.member && !self.lagging.contains(*name));
        let proven = self.proven();
        let is = |name: &str, what: fn(&Member) -> bool| self.members.get(name).is_some_and(what);
        let rank = |name: &str| match () {
            () if name == HERE && !stream.tried.is_empty() => 0,
            () if name == HERE => 4,
            () if proven.contains(name) => 1,
            () if is(name, Member::was_slow) => 5,
            () if is(name, Member::has_opened) => 2,
            () => 3,
        };
        let key = |name: &str| (stream.tried.contains(name), rank(name));
        let best = others.iter().map(|name| key(name)).min()?;
        others.retain(|name| key(name) == best);
        let first = stream.strands.iter().next()? as usize;
        self.table(&others).get(first).map(|name| (*name).to_owned())
    }

    /// Whether this machine may serve, and brings a stream's rows in time or before the stream does.
    fn here_helps(&self, now: Duration, slow: StreamId, pace: Pace) -> bool {
        let Some(here) = self.members.get(HERE).filter(|here| here.is_up()) else { return false };
        let is_here = |stream: &StreamState| stream.member == HERE;
        let Some(row_time) = here.row_time() else {
            // It is assumed to be fast until it is late itself.
            let mut here = self.streams.values().filter(|stream| is_here(stream) && !stream.owed.is_empty());
            return here.all(|stream| now < stream.at_work_since() + HEDGE_AFTER);
        };
        let owing = self.streams.iter().filter(|(id, stream)| is_here(stream) || **id == slow);
        let rows: u64 = owing.filter_map(|(id, stream)| Some(self.lacking(*stream.owed.first()?, *id))).sum();
        pace.is_beaten_by(row_time.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX)))
    }

    /// Of two rivals one is beaten: it is closed. If it was slow, its member is left alone for a while; strands come back to it
    /// once it answers again.
    pub(super) fn beaten(
        &mut self,
        now: Duration,
        loser: StreamId,
        is_slow: bool,
        actions: &mut Vec<Action>,
    ) {
        if is_slow {
            self.suspect_slow(now, loser);
        }
        self.close(loser, actions);
        // One of the two may end before steps that the other owed, and a rival has its own strands besides.
        self.redistribute(now, actions);
    }

    fn suspect_slow(&mut self, now: Duration, id: StreamId) {
        let Some(name) = self.streams.get(&id).map(|stream| stream.member.clone()) else { return };
        self.suspect(now, &name, Some(Error::new(ErrorKind::Retryable, "slower than another worker")));
        if let Some(member) = self.members.get_mut(&name) {
            member.set_slow(true);
        }
    }
}

/// One stream, and how it was judged.
struct Judged {
    member: String,
    pace: Pace,
    judgement: Judgement,
}

impl Judged {
    fn is_slow(&self) -> bool {
        self.judgement != Judgement::Usual
    }

    /// No frame is under way.
    fn is_stuck(&self) -> bool {
        self.pace.lacks.is_none()
    }
}
