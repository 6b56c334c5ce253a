//! The state machine against a model that only keeps count: whatever happens in whatever order, what unfinished steps lack
//! is owed by somebody, and every stream is asked for steps in order.

use super::*;

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

    /// Some of them, never none.
    fn some(&mut self) -> BTreeSet<u32> {
        let least = self.roll(STRANDS as usize) as u32;
        (0..STRANDS).filter(|strand| *strand == least || self.roll(2) == 0).collect()
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.roll(all.len())].clone())
    }
}

/// A stream as its worker and the rank's shell see it.
struct Seen {
    strands: StrandSet,
    from: u64,
    /// Steps asked for and not brought.
    tasks: BTreeSet<u64>,
    last: Option<u64>,
}

struct Model {
    dispatch: Dispatch,
    now: Duration,
    streams: BTreeMap<StreamId, Seen>,
    /// What unfinished steps lack.
    lacking: BTreeMap<u64, BTreeSet<u32>>,
    probes: Vec<String>,
    next: u64,
    next_strands: BTreeSet<u32>,
}

impl Model {
    fn new(dice: &mut Dice) -> Self {
        Self {
            dispatch: Dispatch::new(STRANDS, [Local::Never, Local::Fallback, Local::Share][dice.roll(3)]),
            now: Duration::ZERO,
            streams: BTreeMap::new(),
            lacking: BTreeMap::new(),
            probes: Vec::new(),
            next: 0,
            next_strands: dice.some(),
        }
    }

    fn happen(&mut self, dice: &mut Dice) {
        let (now, all) = (self.now, self.streams.keys().copied().collect::<Vec<_>>());
        let actions = match dice.roll(13) {
            0..=2 if self.lacking.len() < 4 => {
                let (index, strands) = (self.next, std::mem::replace(&mut self.next_strands, dice.some()));
                self.next += 1;
                self.lacking.insert(index, strands.clone());
                self.dispatch.step(now, index, strands)
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
            10 => match dice.of(&all) {
                Some(id) => self.dispatch.waited(now, id),
                None => return,
            },
            11 => {
                self.now += Duration::from_millis(dice.roll(2000) as u64);
                self.dispatch.tick(self.now)
            }
            _ => {
                let Some(name) = self.probes.pop() else { return };
                let error = || Error::new(ErrorKind::Retryable, "not there");
                self.dispatch.probed(now, &name, if dice.roll(2) == 0 { Ok(()) } else { Err(error()) })
            }
        };
        self.apply(actions);
        let actions = self.dispatch.prepare(self.now, &self.next_strands);
        self.apply(actions);
    }

    /// The stream brings the first step that it was asked for.
    fn bring(&mut self, id: StreamId) -> u64 {
        let stream = self.streams.get_mut(&id).unwrap();
        let index = stream.tasks.pop_first().unwrap();
        if let Some(lacking) = self.lacking.get_mut(&index) {
            lacking.retain(|strand| !stream.strands.contains(*strand));
            if lacking.is_empty() {
                self.lacking.remove(&index);
            }
        }
        index
    }

    fn apply(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Open { stream, strands, from, .. } => {
                    let seen = Seen { strands, from, tasks: BTreeSet::new(), last: None };
                    assert!(self.streams.insert(stream, seen).is_none(), "opened twice");
                }
                Action::Task { stream, index } => {
                    let stream = self.streams.get_mut(&stream).expect("it is open");
                    assert!(index >= stream.from, "step {index} lies before the stream's first");
                    assert!(stream.last.is_none_or(|last| last < index), "streams bring steps in order");
                    stream.last = Some(index);
                    stream.tasks.insert(index);
                }
                Action::Close { stream } => assert!(self.streams.remove(&stream).is_some(), "closed twice"),
                Action::Probe { member } => self.probes.push(member),
            }
        }
    }

    fn check(&self) {
        if self.dispatch.up().is_empty() {
            return;
        }
        for (index, lacking) in &self.lacking {
            for strand in lacking {
                let owed = |stream: &Seen| stream.tasks.contains(index) && stream.strands.contains(*strand);
                assert!(self.streams.values().any(owed), "nobody owes strand {strand} of step {index}");
            }
        }
    }
}

#[test]
fn whatever_happens_somebody_owes_what_is_lacking() {
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
    }
}
