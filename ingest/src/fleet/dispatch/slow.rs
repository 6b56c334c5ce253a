//! How long a rank waits where members are slow: members with a pace each, and a clock that goes in ticks.

use super::*;

const STRANDS: u32 = 16;
const TICK: Duration = Duration::from_millis(50);

/// Rows of a strand in each step, and the bytes of a row.
const ROWS: u64 = 2;
const ROW_BYTES: u64 = 10_000;

/// Steps under way at once.
const SLOTS: u64 = 3;

/// From being asked until a stream is open: a connection and two questions.
const OPENS_AFTER: Duration = Duration::from_millis(150);

/// The longest that a rank may wait for a step where up to two workers trickle, or this machine serves. Arithmetic: 750 + 50 ms
/// until the second member is asked, 400 + 50 until the third one is, 150 until its stream is open, 40 + 50 for making and
/// sending the rows: 1490 ms, and up to 500 more where a rate has fallen only in the meantime, since it is measured over 500 ms.
const MOST: Duration = Duration::from_secs(2);

/// Each further member that trickles and is asked in vain costs this more: 400 ms until it is judged, and a tick.
const IN_VAIN: Duration = Duration::from_millis(450);

/// How a member is.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Between being asked for a step and the first of its bytes.
    makes: Duration,
    bytes_per_tick: u64,
}

const FAST: Pace = Pace { makes: Duration::from_millis(40), bytes_per_tick: 2_000_000 };
const TRICKLE: Pace = Pace { makes: Duration::from_millis(40), bytes_per_tick: 10 };
/// It reports that it is alive, and nothing else.
const STUCK: Pace = Pace { makes: Duration::MAX, bytes_per_tick: 1 };

struct Sending {
    member: String,
    strands: StrandSet,
    asked: Duration,
    is_open: bool,
    /// Steps, and when they were asked for.
    tasks: BTreeMap<u64, Duration>,
    bytes: u64,
    /// Of the first task, what has come.
    came: u64,
}

struct Fleet<P> {
    dispatch: Dispatch,
    now: Duration,
    pace: P,
    streams: BTreeMap<StreamId, Sending>,
    /// What unfinished steps lack.
    lacking: BTreeMap<u64, BTreeSet<u32>>,
    next: u64,
    /// What a step of the trainer takes, and when it last gave a place back.
    trainer: Duration,
    gave_back: Duration,
    /// When the oldest step became the oldest.
    since: Duration,
    longest: Duration,
}

fn name(member: usize) -> String {
    format!("worker-{member}:1")
}

fn rows() -> RowsOfStrands {
    (0..STRANDS).map(|strand| (strand, ROWS)).collect()
}

/// Runs `steps` steps with workers whose pace depends on the time.
fn run<P: Fn(&str, Duration) -> Pace>(workers: usize, local: Local, steps: u64, pace: P) -> Fleet<P> {
    let fleet = begin(workers, local, pace);
    to_the_end(fleet, steps)
}

fn to_the_end<P: Fn(&str, Duration) -> Pace>(mut fleet: Fleet<P>, steps: u64) -> Fleet<P> {
    while fleet.next < steps || !fleet.lacking.is_empty() {
        fleet.tick(steps);
        assert!(fleet.now < Duration::from_secs(3600), "no progress");
    }
    fleet
}

fn begin<P: Fn(&str, Duration) -> Pace>(workers: usize, local: Local, pace: P) -> Fleet<P> {
    let mut fleet = Fleet {
        dispatch: Dispatch::new(0..STRANDS, local),
        now: Duration::ZERO,
        pace,
        streams: BTreeMap::new(),
        lacking: BTreeMap::new(),
        next: 0,
        trainer: Duration::ZERO,
        gave_back: Duration::ZERO,
        since: OPENS_AFTER,
        longest: Duration::ZERO,
    };
    let members: Vec<String> = (0..workers).map(name).collect();
    let actions = fleet.dispatch.members(Duration::ZERO, &members);
    fleet.act(actions);
    fleet
}

impl<P: Fn(&str, Duration) -> Pace> Fleet<P> {
    fn tick(&mut self, steps: u64) {
        self.now += TICK;
        while self.next < steps && self.has_place() {
            if self.lacking.is_empty() {
                self.since = self.since.max(self.now);
            }
            self.gave_back = self.now;
            let actions = self.dispatch.step(self.now, self.next, rows());
            self.lacking.insert(self.next, (0..STRANDS).collect());
            self.next += 1;
            self.act(actions);
            let actions = self.dispatch.prepare(self.now, &rows());
            self.act(actions);
        }
        for id in self.streams.keys().copied().collect::<Vec<_>>() {
            self.send(id);
        }
        let progress = self.streams.iter().map(|(&id, stream)| {
            let lacks = (stream.came > 0).then(|| stream.bytes_of_task() - stream.came);
            (id, Progress { bytes: stream.bytes, lacks, waits: false })
        });
        let actions = self.dispatch.tick(self.now, &progress.collect());
        self.act(actions);
    }

    fn has_place(&self) -> bool {
        let is_free = self.next < SLOTS || self.now >= self.gave_back + self.trainer;
        is_free && self.lacking.len() < SLOTS as usize
    }

    fn send(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !stream.is_open && self.now >= stream.asked + OPENS_AFTER {
            stream.is_open = true;
            let actions = self.dispatch.opened(self.now, id);
            self.act(actions);
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let pace = (self.pace)(&stream.member, self.now);
        let Some((&index, &asked)) = stream.tasks.first_key_value().filter(|_| stream.is_open) else {
            return;
        };
        let is_made = self.now >= asked.max(stream.asked + OPENS_AFTER).saturating_add(pace.makes);
        let whole = stream.bytes_of_task();
        let came = pace.bytes_per_tick.min(whole - stream.came);
        stream.bytes += came;
        stream.came = if is_made { stream.came + came } else { 0 };
        if stream.came == whole {
            stream.came = 0;
            stream.tasks.remove(&index);
            self.brought(id, index);
        }
    }

    fn brought(&mut self, id: StreamId, index: u64) {
        let strands = self.streams[&id].strands.clone();
        let oldest = self.lacking.first_key_value().map(|(oldest, _)| *oldest);
        let lacking = self.lacking.get_mut(&index);
        let is_complete = lacking.is_some_and(|lacking| {
            lacking.retain(|strand| !strands.contains(*strand));
            lacking.is_empty()
        });
        let actions = self.dispatch.received(self.now, id, index);
        self.act(actions);
        if is_complete {
            self.lacking.remove(&index);
            if oldest == Some(index) {
                self.longest = self.longest.max(self.now - self.since);
                self.since = self.now;
            }
            let actions = self.dispatch.finished(index);
            self.act(actions);
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Open { stream, member, strands, .. } => {
                    let (asked, tasks) = (self.now, BTreeMap::new());
                    let sending =
                        Sending { member, strands, asked, is_open: false, tasks, bytes: 0, came: 0 };
                    self.streams.insert(stream, sending);
                }
                Action::Task { stream, index } => {
                    self.streams.get_mut(&stream).unwrap().tasks.insert(index, self.now);
                }
                Action::Close { stream } => drop(self.streams.remove(&stream)),
                Action::Probe { member } => {
                    let actions = self.dispatch.probed(self.now, &member, Ok(Reported::default()));
                    self.act(actions);
                }
                Action::Ask { .. } => {}
                Action::Warm { member } => {
                    let actions = self.dispatch.warmed(self.now, vec![(member, Ok(()))]);
                    self.act(actions);
                }
            }
        }
    }

    fn hedged_rows(&self) -> u64 {
        self.dispatch.hedged().1
    }
}

impl Sending {
    fn bytes_of_task(&self) -> u64 {
        self.strands.len() as u64 * ROWS * ROW_BYTES
    }
}

#[test]
fn nothing_is_asked_for_twice_where_nothing_is_slow() {
    for workers in [1, 2, 5, 16] {
        let fleet = run(workers, Local::Never, 500, |_, _| FAST);
        assert_eq!(fleet.dispatch.hedged(), (0, 0));
        assert!(fleet.longest < Duration::from_millis(250), "{:?}", fleet.longest);
    }
}

#[test]
fn nothing_is_asked_for_twice_where_all_are_slow() {
    for (makes, bytes_per_tick) in [(3000, 1_000_000), (10, 5000)] {
        let slow = Pace { makes: Duration::from_millis(makes), bytes_per_tick };
        let fleet = run(5, Local::Never, 30, |_, _| slow);
        assert_eq!(fleet.dispatch.hedged(), (0, 0), "{slow:?}");
    }
}

#[test]
fn one_idle_worker_is_tried_where_all_are_slow() {
    let slow = Pace { makes: Duration::from_millis(10), bytes_per_tick: 500 };
    let mut fleet = begin(5, Local::Never, |_, _| slow);
    (0..200).for_each(|_| fleet.tick(30));
    let members: Vec<String> = (0..6).map(name).collect();
    let actions = fleet.dispatch.members(fleet.now, &members);
    fleet.act(actions);
    let fleet = to_the_end(fleet, 30);
    assert!(
        fleet.dispatch.hedged().0 <= 1,
        "it is tried once, and then known to be as slow: {:?}",
        fleet.dispatch.hedged()
    );
}

#[test]
fn a_step_waits_for_no_trickling_worker_from_the_first_step_on() {
    for (workers, slow) in [(2, 1), (3, 1), (3, 2), (4, 3), (5, 4), (8, 1), (8, 2), (8, 4), (8, 7), (16, 15)]
    {
        for begins in [0, 100, 1000, 1730] {
            let trickles = |member: &str, now: Duration| {
                let nth = (0..workers).position(|nth| name(nth) == member);
                if nth.is_some_and(|nth| nth < slow) && now >= Duration::from_millis(begins) {
                    TRICKLE
                } else {
                    FAST
                }
            };
            let fleet = run(workers, Local::Never, 400, trickles);
            assert!(fleet.longest <= MOST, "{slow} of {workers} from {begins} ms on: {:?}", fleet.longest);
            assert!(fleet.dispatch.hedged().0 > 0);
            assert!(fleet.hedged_rows() <= twice_at_most(400), "{} rows", fleet.hedged_rows());
        }
    }
}

#[test]
fn this_machine_steps_in_where_all_workers_trickle() {
    for workers in [1, 3] {
        for begins in [0, 1000] {
            let trickles = |member: &str, now: Duration| {
                if member == HERE || now < Duration::from_millis(begins) { FAST } else { TRICKLE }
            };
            let fleet = run(workers, Local::Fallback, 400, trickles);
            assert!(fleet.longest <= MOST, "{workers} workers from {begins} ms on: {:?}", fleet.longest);
        }
    }
}

/// Of all rows, and of four steps: what may be asked for twice.
fn twice_at_most(steps: u64) -> u64 {
    let rows = u64::from(STRANDS) * ROWS;
    steps * rows / 20 + 4 * rows
}

/// Each step's rows are owed by one stream, and too few steps are made to earn that many: 5 % of 32 rows every 2 s.
#[test]
fn one_stream_that_owes_everything_is_replaced_when_no_more_may_be_requested_twice() {
    for trainer in [0, 2].map(Duration::from_secs) {
        let trickles = |member: &str, now: Duration| match member != HERE && now.as_secs() % 8 > 2 {
            true => TRICKLE,
            false => FAST,
        };
        let fleet = to_the_end(Fleet { trainer, ..begin(1, Local::Fallback, trickles) }, 1000);
        assert!(fleet.longest <= MOST, "{trainer:?}: {:?}", fleet.longest);
        let (hedges, rows) = fleet.dispatch.hedged();
        assert!(rows <= twice_at_most(1000), "{trainer:?}: {hedges} hedges, {rows} rows");
        println!(
            "{trainer:?}: {hedges} hedges, {rows} rows of {} s, {:?}",
            fleet.now.as_secs(),
            fleet.longest
        );
    }
}

/// Pseudo-random, but the same for a member for some time: how many bytes come in a tick.
fn rate(seed: u64, member: &str, now: Duration) -> u64 {
    let hash = |what: u64| twox_hash::XxHash64::oneshot(seed.wrapping_mul(97) + what, member.as_bytes());
    let span = 300 + hash(0) % 4000;
    [1, 10, 100, 1000, 5000, 20_000, FAST.bytes_per_tick]
        [(hash(1 + now.as_millis() as u64 / span) % 7) as usize]
}

#[test]
fn no_step_waits_whatever_the_rates_are() {
    const STEPS: u64 = 300;
    let (mut longest, mut hedges) = ([Duration::ZERO; 2], 0);
    for seed in 0..200 {
        for (kind, local) in [Local::Never, Local::Fallback].into_iter().enumerate() {
            let workers = 1 + (seed % 5) as usize;
            let pace = |member: &str, now: Duration| {
                // Without this machine's help one worker is well.
                let is_well = member == HERE || local == Local::Never && member == name(0);
                let bytes_per_tick = if is_well { FAST.bytes_per_tick } else { rate(seed, member, now) };
                Pace { bytes_per_tick, ..FAST }
            };
            let most = match local {
                Local::Never => MOST + IN_VAIN * (workers as u32).saturating_sub(3),
                _ => MOST,
            };
            let fleet = run(workers, local, STEPS, pace);
            assert!(fleet.longest <= most, "seed {seed}, {local:?}: {:?}, at most {most:?}", fleet.longest);
            assert!(fleet.hedged_rows() <= twice_at_most(STEPS), "seed {seed}: {} rows", fleet.hedged_rows());
            longest[kind] = longest[kind].max(fleet.longest);
            hedges += fleet.dispatch.hedged().0;
        }
    }
    println!("{hedges} hedges; {longest:?} at most");
    assert!(hedges > 200, "{hedges}");
}

#[test]
fn a_worker_that_makes_nothing_is_slow_too() {
    let stuck = |member: &str, now: Duration| {
        if member == name(1) && now > Duration::from_secs(1) { STUCK } else { FAST }
    };
    let fleet = run(4, Local::Never, 400, stuck);
    assert!(fleet.longest <= MOST, "{:?}", fleet.longest);
}

#[test]
fn no_worker_is_late_after_the_rank_itself_was_stopped() {
    let mut fleet = begin(2, Local::Never, |_: &str, _| FAST);
    (0..40).for_each(|_| fleet.tick(1000));
    fleet.now += Duration::from_secs(30);
    (0..40).for_each(|_| fleet.tick(1000));
    assert_eq!(fleet.dispatch.hedged(), (0, 0));
}
