//! The state machine against a model that only keeps count: whatever happens in whatever order, what unfinished steps lack
//! is owed by a stream, every stream is asked for steps in order, and no more is asked for twice than may be.

use super::*;
use crate::ErrorKind;
use crate::fleet::selection::Selection;
use crate::wire::Capacity;

const STRANDS: u32 = 8;
const MEMBERS: [&str; 4] = ["a:1", "b:1", "c:1", "d:1"];

/// Pseudo-random numbers from a seed: splitmix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % below as u64).unwrap()
    }

    /// Rows on some strands, never on none.
    fn some(&mut self) -> RowsOfStrands {
        let least = self.roll(STRANDS as usize) as u32;
        let some: Vec<u32> = (0..STRANDS).filter(|strand| *strand == least || self.roll(2) == 0).collect();
        some.into_iter().map(|strand| (strand, 1 + self.roll(5) as u64)).collect()
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.roll(all.len())].clone())
    }
}

/// A stream as its worker and the rank's shell see it.
struct Seen {
    member: String,
    strands: StrandSet,
    from: u64,
    progress: Progress,
    /// Steps asked for and not brought.
    tasks: BTreeSet<u64>,
    last: Option<u64>,
}

struct Model {
    dispatch: Dispatch,
    now: Duration,
    streams: BTreeMap<StreamId, Seen>,
    /// What unfinished steps lack.
    lacking: BTreeMap<u64, RowsOfStrands>,
    probes: Vec<String>,
    asks: Vec<String>,
    cold: Vec<String>,
    next: u64,
    next_rows: RowsOfStrands,
    /// Members that trickle: several at once.
    slow: BTreeSet<&'static str>,
    counted: Counted,
}

/// Rows asked for, those asked for twice, and the largest step.
#[derive(Default)]
struct Counted {
    rows: u64,
    twice: u64,
    /// Those of `twice` whose stream had a frame under way.
    trickling: u64,
    largest: u64,
    races: u64,
    most_at_once: usize,
}

/// What there was before a tick.
struct Before {
    hedged: (u64, u64),
    owed_twice: u64,
    races: BTreeMap<StreamId, StreamId>,
    alone: usize,
}

impl Model {
    fn new(dice: &mut Dice) -> Self {
        let local = [Local::Never, Local::Fallback, Local::Share][dice.roll(3)];
        let selection = [Selection::all(), Selection::at_most(2)][dice.roll(2)];
        Self {
            dispatch: Dispatch::new(0..STRANDS, local).selecting(selection),
            now: Duration::ZERO,
            streams: BTreeMap::new(),
            lacking: BTreeMap::new(),
            probes: Vec::new(),
            asks: Vec::new(),
            cold: Vec::new(),
            next: 0,
            next_rows: dice.some(),
            slow: MEMBERS.into_iter().filter(|_| dice.roll(3) == 0).collect(),
            counted: Counted::default(),
        }
    }

    fn happen(&mut self, dice: &mut Dice) {
        let (now, all) = (self.now, self.streams.keys().copied().collect::<Vec<_>>());
        let actions = match dice.roll(16) {
            0..=2 if self.lacking.len() < 4 => {
                let (index, rows) = (self.next, std::mem::replace(&mut self.next_rows, dice.some()));
                self.next += 1;
                let count = rows.values().sum();
                self.counted.rows += count;
                self.counted.largest = self.counted.largest.max(count);
                self.lacking.insert(index, rows.clone());
                self.dispatch.step(now, index, rows)
            }
            3..=6 => {
                let busy: Vec<StreamId> =
                    all.iter().copied().filter(|id| !self.streams[id].tasks.is_empty()).collect();
                let Some(id) = dice.of(&busy) else { return };
                let index = self.bring(id);
                // That a step is whole is heard before its last stream's word, or after it.
                let whole_first = !self.lacking.contains_key(&index) && dice.roll(2) == 0;
                let mut actions = if whole_first { self.dispatch.finished(index) } else { Vec::new() };
                actions.extend(self.dispatch.received(now, id, index));
                if !whole_first && !self.lacking.contains_key(&index) {
                    actions.extend(self.dispatch.finished(index));
                }
                actions
            }
            7 => {
                let Some(id) = dice.of(&all) else { return };
                self.streams.remove(&id);
                self.dispatch.lost(now, id, Error::new(ErrorKind::Retryable, "lost"))
            }
            8 => match dice.of(&all) {
                Some(id) => self.dispatch.leaving(now, id),
                None => return,
            },
            9 => {
                let listed = MEMBERS.iter().filter(|_| dice.roll(4) > 0).map(|name| (*name).to_owned());
                self.dispatch.members(now, &listed.collect::<Vec<_>>())
            }
            10 => {
                let Some(id) = dice.of(&all) else { return };
                match dice.roll(4) {
                    0 => {
                        self.dispatch.opening(id);
                        Vec::new()
                    }
                    _ => self.dispatch.opened(now, id),
                }
            }
            11 => {
                let Some(name) = self.cold.pop() else { return };
                let error = || Error::new(ErrorKind::Retryable, "not opened");
                let result = if dice.roll(4) > 0 { Ok(()) } else { Err(error()) };
                self.dispatch.warmed(now, vec![(name, result)])
            }
            12 | 13 => {
                (0..dice.roll(25)).for_each(|_| self.tick(dice));
                Vec::new()
            }
            14 => {
                let capacity =
                    Capacity { units: 1 + dice.roll(8) as u32, generation: dice.roll(1000) as u64 };
                let Some(name) = dice.of(&MEMBERS) else { return };
                self.dispatch.published(now, name, capacity);
                Vec::new()
            }
            _ => {
                let error = || Error::new(ErrorKind::Retryable, "not there");
                // One of three processes at the address.
                let reported = Reported {
                    instance: dice.roll(3).to_string(),
                    capacity: None,
                    is_draining: dice.roll(4) == 0,
                };
                let result = if dice.roll(2) == 0 { Ok(reported) } else { Err(error()) };
                match self.probes.pop() {
                    Some(name) => self.dispatch.probed(now, &name, result),
                    None => match self.asks.pop() {
                        Some(name) => self.dispatch.answered(now, &name, result),
                        None => return,
                    },
                }
            }
        };
        self.apply(actions);
        let actions = self.dispatch.prepare(self.now, &self.next_rows);
        self.apply(actions);
    }

    /// A twentieth of a second, in which streams bring some bytes, those of slow members nearly none.
    fn tick(&mut self, dice: &mut Dice) {
        self.now += Duration::from_millis(50);
        for stream in self.streams.values_mut().filter(|stream| !stream.tasks.is_empty()) {
            let is_slow = self.slow.contains(&*stream.member);
            stream.progress = Progress {
                bytes: stream.progress.bytes + dice.roll(if is_slow { 5 } else { 5000 }) as u64,
                lacks: (dice.roll(4) > 0).then(|| 20_000 + dice.roll(100_000) as u64),
                waits: dice.roll(20) == 0,
            };
        }
        let progress = self.streams.iter().map(|(&id, stream)| (id, stream.progress)).collect();
        let before = Before {
            hedged: self.dispatch.hedged(),
            owed_twice: self.owed_twice(),
            races: self.racing(),
            alone: self.alone(),
        };
        let actions = self.dispatch.tick(self.now, &progress);
        self.apply(actions);
        self.count(&before);
        self.check();
    }

    /// Streams that have rivals, and the rivals.
    fn racing(&self) -> BTreeMap<StreamId, StreamId> {
        let races = self.dispatch.streams.iter().filter_map(|(&slow, stream)| Some((slow, stream.rival?)));
        races.filter(|(slow, rival)| slow < rival).collect()
    }

    /// How many streams are no rivals.
    fn alone(&self) -> usize {
        self.streams.len() - self.racing().len()
    }

    /// Counts what a tick has asked for although it was owed already.
    fn count(&mut self, before: &Before) {
        let (hedges, rows) = self.dispatch.hedged();
        let (hedges, rows) = (hedges - before.hedged.0, rows - before.hedged.1);
        let more = self.owed_twice().saturating_sub(before.owed_twice);
        assert!(more <= rows, "{more} rows more are owed twice, {rows} are counted");
        let racing = self.racing();
        for (slow, _) in racing.iter().filter(|(slow, rival)| before.races.get(slow) != Some(rival)) {
            let (oldest, seen) = (self.lacking.values().next(), &self.streams[slow]);
            let rows = oldest.into_iter().flatten().filter(|(strand, _)| seen.strands.contains(**strand));
            let is_trickling = seen.progress.lacks.is_some();
            self.counted.trickling += if is_trickling { rows.map(|(_, rows)| rows).sum() } else { 0 };
        }
        // Streams that are replaced, and rivals that are given up, are closed in the same tick.
        let most = (self.alone().max(before.alone) / 4).max(1);
        assert!(hedges == 0 || racing.len() <= most, "{} races, {most} may be", racing.len());
        self.counted.races += hedges;
        self.counted.twice += rows;
        self.counted.most_at_once = self.counted.most_at_once.max(racing.len());
    }

    /// Rows of unfinished steps that two streams are asked for.
    fn owed_twice(&self) -> u64 {
        let owing = |index: u64, strand: u32| {
            let owes = |seen: &&Seen| seen.tasks.contains(&index) && seen.strands.contains(strand);
            let owing = self.streams.values().filter(owes).count();
            assert!(owing <= 2, "{owing} streams owe strand {strand} of step {index}");
            owing
        };
        let lacking = self.lacking.iter().flat_map(|(&index, rows)| rows.iter().map(move |row| (index, row)));
        lacking.filter(|(index, (strand, _))| owing(*index, **strand) > 1).map(|(_, (_, rows))| rows).sum()
    }

    /// The stream brings the first step that it was asked for.
    fn bring(&mut self, id: StreamId) -> u64 {
        let stream = self.streams.get_mut(&id).unwrap();
        let index = stream.tasks.pop_first().unwrap();
        if let Some(lacking) = self.lacking.get_mut(&index) {
            lacking.retain(|strand, _| !stream.strands.contains(*strand));
            if lacking.is_empty() {
                self.lacking.remove(&index);
            }
        }
        index
    }

    fn apply(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Open { stream, member, strands, from } => {
                    let progress = Progress::default();
                    let seen = Seen { member, strands, from, progress, tasks: BTreeSet::new(), last: None };
                    assert!(self.streams.insert(stream, seen).is_none(), "opened twice");
                }
                Action::Task { stream, index } => {
                    let stream = self.streams.get_mut(&stream).expect("it is open");
                    assert!(index >= stream.from, "step {index} is before the stream's first");
                    assert!(stream.last.is_none_or(|last| last < index), "streams bring steps in order");
                    stream.last = Some(index);
                    stream.tasks.insert(index);
                }
                Action::Close { stream } => assert!(self.streams.remove(&stream).is_some(), "closed twice"),
                Action::Probe { member } => self.probes.push(member),
                Action::Ask { member } => self.asks.push(member),
                Action::Warm { member } => self.cold.push(member),
            }
        }
    }

    fn check(&self) {
        if self.dispatch.up().is_empty() {
            return;
        }
        for (index, lacking) in &self.lacking {
            for strand in lacking.keys() {
                let owed = |stream: &Seen| stream.tasks.contains(index) && stream.strands.contains(*strand);
                assert!(self.streams.values().any(owed), "no stream owes strand {strand} of step {index}");
            }
        }
        // 5 % and four steps; where workers bring nothing at all, one stream's rows every five seconds besides.
        let Counted { rows, twice, trickling, largest, .. } = self.counted;
        let most = rows / 20 + 4 * largest;
        assert!(trickling <= most, "{trickling} of {rows} rows that trickled were asked for twice");
        let most = most + (self.now.as_secs() / 5) * largest;
        assert!(twice <= most, "{twice} of {rows} rows were asked for twice");
    }
}

#[test]
fn whatever_happens_somebody_owes_what_is_lacking() {
    let (mut races, mut most_at_once) = (0, 0);
    for seed in 0..1000 {
        let mut dice = Dice(seed);
        let mut model = Model::new(&mut dice);
        let listed = MEMBERS.map(str::to_owned);
        let actions = model.dispatch.members(Duration::ZERO, &listed);
        model.apply(actions);
        for event in 0..300 {
            let happened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                model.happen(&mut dice);
                model.check();
            }));
            assert!(happened.is_ok(), "seed {seed}, event {event}");
        }
        races += model.counted.races;
        most_at_once = most_at_once.max(model.counted.most_at_once);
    }
    assert!(
        races > 1000 && most_at_once > 1,
        "{races} races, {most_at_once} at once: too few to mean anything"
    );
}
