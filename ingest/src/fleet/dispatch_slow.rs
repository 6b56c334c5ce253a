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

/// What a step may take, so that a rank waits no longer than 2 s.
const MOST: Duration = Duration::from_secs(2);

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
    let mut fleet = begin(workers, local, pace);
    while fleet.next < steps || !fleet.lacking.is_empty() {
        fleet.tick(steps);
        assert!(fleet.now < Duration::from_secs(3600), "it stands still");
    }
    fleet
}

fn begin<P: Fn(&str, Duration) -> Pace>(workers: usize, local: Local, pace: P) -> Fleet<P> {
    let mut fleet = Fleet {
        dispatch: Dispatch::new(STRANDS, local),
        now: Duration::ZERO,
        pace,
        streams: BTreeMap::new(),
        lacking: BTreeMap::new(),
        next: 0,
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
        while self.next < steps && self.lacking.len() < SLOTS as usize {
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

    fn send(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !stream.is_open && self.now >= stream.asked + OPENS_AFTER {
            stream.is_open = true;
            self.dispatch.opened(self.now, id);
        }
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
                    let actions = self.dispatch.probed(self.now, &member, Ok(()));
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
            let most = 400 * u64::from(STRANDS) * ROWS / 20 + 4 * u64::from(STRANDS) * ROWS;
            assert!(fleet.hedged_rows() <= most, "{} rows", fleet.hedged_rows());
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

#[test]
fn a_worker_that_opens_the_data_set_is_not_late() {
    let mut dispatch = Dispatch::new(STRANDS, Local::Never);
    dispatch.members(Duration::ZERO, &[name(0), name(1)]);
    let actions = dispatch.step(Duration::ZERO, 0, rows());
    let streams = actions.iter().filter_map(|action| match action {
        Action::Open { stream, .. } => Some(*stream),
        _ => None,
    });
    let [first, second] = streams.collect::<Vec<_>>()[..] else { panic!("{actions:?}") };
    dispatch.opened(Duration::ZERO, first);
    dispatch.opening(second);
    let mut progress = BTreeMap::from([(first, Progress::default()), (second, Progress::default())]);
    let mut tick = |dispatch: &mut Dispatch, tick: u32| {
        if let Some(progress) = progress.get_mut(&first).filter(|_| tick < 10) {
            progress.bytes += 100_000;
        }
        let actions = dispatch.tick(TICK * tick, &progress);
        actions.iter().any(|action| matches!(action, Action::Open { .. }))
    };
    (1..10).for_each(|now| assert!(!tick(&mut dispatch, now)));
    dispatch.received(TICK * 10, first, 0);
    assert!((10..200).all(|now| !tick(&mut dispatch, now)), "10 s long");
    dispatch.opened(TICK * 200, second);
    let late: Vec<u32> = (200..230).filter(|now| tick(&mut dispatch, *now)).collect();
    assert_eq!(late.first(), Some(&215), "750 ms after it is open");
    assert_eq!(dispatch.hedged(), (1, u64::from(STRANDS / 2) * ROWS));
}
