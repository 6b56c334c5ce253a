//! Slow streams: whose rows another member is asked for as well, who of the two wins, and who is given up.
//!
//! A race is about the oldest step. The rival is asked for that step alone, so that nothing else is sent twice; once it has
//! won, it takes over what the slow stream owes.

use super::{Action, Dispatch, HERE, Stream, StreamId};
use crate::fleet::assign::assign;
use crate::fleet::hedge::{GIVE_UP_AFTER, HEDGE_AFTER, Judgement, Others, Pace, RIVAL_AFTER, racing_at_most};
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
        let lagging = judged.values().filter(|found| found.is_slow());
        self.lagging = lagging.map(|found| found.member.clone()).collect();
        let Some((&oldest, _)) = self.steps.first_key_value() else { return };
        self.settle(now, &judged, actions);
        self.race(now, oldest, &judged, actions);
        self.give_up(now, oldest, &judged, actions);
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

    /// What is to be thought of the streams that have owed rows for a while; in a fleet in which nothing is slow, of none.
    fn judged(&self, now: Duration) -> BTreeMap<StreamId, Judged> {
        let owes_for = |stream: &Stream| stream.owes_for(now).filter(|time| *time >= MEASURED_AFTER);
        let owing: Vec<_> = self.streams.iter().filter_map(|(id, s)| Some((*id, s, owes_for(s)?))).collect();
        if owing.is_empty() {
            return BTreeMap::new();
        }
        let rates = self.members.iter().filter_map(|(name, member)| Some((member.rate()?, &**name)));
        let mut rates: Vec<(f64, &str)> = rates.collect();
        rates.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let judge = |(id, stream, owes_for): (StreamId, &Stream, Duration)| {
            let others = rates.iter().filter(|(_, member)| *member != stream.member).map(|(rate, _)| *rate);
            let rate = stream.meter.rate().unwrap_or(0.0);
            let pace = Pace { rate, lacks: stream.progress.lacks, owes_for };
            let judgement = Others::of(&others.collect::<Vec<_>>()).judge(pace);
            (id, Judged { member: stream.member.clone(), pace, judgement })
        };
        owing.into_iter().map(judge).collect()
    }

    /// Ends the races that are decided before one of the two has brought everything, and replaces rivals that are slow.
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
        now >= rival.asked + RIVAL_AFTER && !comes && found.is_slow()
    }

    /// Asks further members for what slow streams owe of the oldest step.
    fn race(
        &mut self,
        now: Duration,
        oldest: u64,
        judged: &BTreeMap<StreamId, Judged>,
        actions: &mut Vec<Action>,
    ) {
        for slow in self.late(oldest, judged, HEDGE_AFTER) {
            let racing = self.streams.values().filter(|stream| stream.rival.is_some()).count() / 2;
            if racing >= racing_at_most(self.streams.len() - racing) {
                return;
            }
            let Some(second) = judged.get(&slow).and_then(|found| self.second(slow, found.judgement)) else {
                continue;
            };
            let rows = self.lacking(oldest, slow);
            if !self.budget.spend(now, rows) {
                return;
            }
            self.hedges += 1;
            self.start_race(now, slow, oldest, second, actions);
        }
    }

    fn start_race(
        &mut self,
        now: Duration,
        slow: StreamId,
        index: u64,
        member: String,
        actions: &mut Vec<Action>,
    ) {
        let Some(stream) = self.streams.get(&slow) else { return };
        let id = self.open(now, member.clone(), stream.strands.clone(), index, Some(index + 1), actions);
        actions.push(Action::Task { stream: id, index });
        if let Some(rival) = self.streams.get_mut(&id) {
            rival.owe(now, index);
            rival.rival = Some(slow);
        }
        if let Some(slow) = self.streams.get_mut(&slow) {
            slow.rival = Some(id);
            slow.tried.insert(member);
        }
    }

    /// Closes streams that trickle without a rival, because too many race or too much was asked for twice already.
    fn give_up(
        &mut self,
        now: Duration,
        oldest: u64,
        judged: &BTreeMap<StreamId, Judged>,
        actions: &mut Vec<Action>,
    ) {
        let late = self.late(oldest, judged, GIVE_UP_AFTER).into_iter();
        let given_up: Vec<StreamId> = late
            .filter(|id| {
                let found = judged.get(id);
                found.is_some_and(|found| {
                    found.pace.trickles(found.judgement) && self.second(*id, found.judgement).is_some()
                })
            })
            .collect();
        for &id in &given_up {
            self.suspect_slow(now, id);
            self.close(id, actions);
        }
        if !given_up.is_empty() {
            self.redistribute(now, actions);
        }
    }

    /// Slow streams without a rival that have owed rows of the oldest step for so long.
    fn late(&self, oldest: u64, judged: &BTreeMap<StreamId, Judged>, after: Duration) -> Vec<StreamId> {
        let late = |(id, found): (&StreamId, &Judged)| {
            let stream = self.streams.get(id)?;
            let owes =
                stream.owed.first() == Some(&oldest) && !stream.progress.waits && stream.rival.is_none();
            (owes && found.is_slow() && found.pace.owes_for >= after).then_some(*id)
        };
        judged.iter().filter_map(late).collect()
    }

    /// Rows of a step that a stream owes and no stream has brought.
    fn lacking(&self, index: u64, id: StreamId) -> u64 {
        let (Some(step), Some(stream)) = (self.steps.get(&index), self.streams.get(&id)) else { return 0 };
        step.iter().filter(|(strand, _)| stream.strands.contains(**strand)).map(|(_, rows)| rows).sum()
    }

    /// Who else can bring what a stream owes: a member that has no slow stream. First those whose rows have come fast, then
    /// those that have the data set open; in place of them all, or after one was tried in vain, this machine. Who was tried
    /// is tried again last.
    fn second(&self, slow: StreamId, judgement: Judgement) -> Option<String> {
        let stream = self.streams.get(&slow)?;
        let has_opened = |name: &&str| self.members.get(*name).is_some_and(Member::has_opened);
        let here = self.members.get(HERE).is_some_and(Member::is_up).then_some(HERE);
        let mut choices: Vec<BTreeSet<&str>> = match judgement {
            Judgement::Late => vec![],
            _ => vec![self.proven(), self.up().into_iter().filter(has_opened).collect(), self.up()],
        };
        let at = if stream.tried.is_empty() { choices.len() } else { 0 };
        choices.insert(at, here.into_iter().collect());
        for names in &mut choices {
            names.retain(|name| *name != stream.member && !self.lagging.contains(*name));
        }
        let is_new = |name: &&str| !stream.tried.contains(*name);
        let untried = choices.iter().map(|names| names.iter().copied().filter(is_new).collect());
        let others: BTreeSet<&str> =
            untried.chain(choices.iter().cloned()).find(|names: &BTreeSet<&str>| !names.is_empty())?;
        let first = stream.strands.iter().next()? as usize;
        assign(&others, self.strands).get(first).map(|name| (*name).to_owned())
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
        if let Some(member) = self.streams.get(&id).map(|stream| stream.member.clone()) {
            self.suspect(now, &member, Some(Error::new(ErrorKind::Retryable, "slower than another worker")));
        }
    }
}

/// One stream, and what is to be thought of it.
struct Judged {
    member: String,
    pace: Pace,
    judgement: Judgement,
}

impl Judged {
    fn is_slow(&self) -> bool {
        self.judgement != Judgement::Usual
    }
}
