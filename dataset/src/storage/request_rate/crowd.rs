//! Simulates processes that share a store, with a virtual clock. The tests measure what the store refuses, what it serves, and how
//! soon the processes recover from a fault. Turns, concurrency and retries are those of `limiter.rs` and `retry.rs`.

use super::super::aimd::{Aimd, Event};
use super::RequestRate;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// Returns the requests per second that the store serves at a time, and the share that it refuses at random.
type Store = fn(f64) -> (f64, f64);

/// One simulation.
struct Crowd {
    processes: usize,
    callers: usize,
    minutes: usize,
    /// When a process begins, in seconds.
    begins: fn(usize) -> f64,
    store: Store,
    /// The requests that may come at once, in seconds of the store's limit.
    burst_s: f64,
    /// A process pauses after each step of this many requests, for this many seconds.
    step: u32,
    pause_s: f64,
    seed: u64,
}

const SETTLED: Crowd = Crowd {
    processes: 32,
    callers: 16,
    minutes: 15,
    begins: |process| 0.001 * process as f64,
    store: |_| (200.0, 0.0),
    burst_s: 1.0,
    step: u32::MAX,
    pause_s: 0.0,
    seed: 1,
};

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15); // splitmix64
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((x ^ (x >> 31)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Published latencies of S3: median 27 ms, σ 0.62.
    fn latency_s(&mut self) -> f64 {
        let normal = (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
        0.027 * (0.62 * normal).exp()
    }
}

struct Process {
    rate: RequestRate,
    aimd: Aimd,
    under_way: usize,
    waiting: VecDeque<usize>,
    /// Failed attempts of each caller since its last success.
    failed: Vec<i32>,
    awaits_turn: bool,
    served: u32,
    paused_until: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Begins { caller: usize },
    Ends { caller: usize, started: Duration, is_served: bool },
    Turn,
}

/// What the store did.
struct Outcome {
    /// Requests served and refused in each second.
    seconds: Vec<(f64, f64)>,
    /// Requests served in each minute to each process.
    minutes: Vec<Vec<f64>>,
}

impl Outcome {
    /// Requests served a second, and the share of all that was refused in percent.
    fn between(&self, from_s: usize, until_s: usize) -> (f64, f64) {
        let seconds = &self.seconds[from_s..until_s];
        let (served, refused) = seconds.iter().fold((0.0, 0.0), |sum, s| (sum.0 + s.0, sum.1 + s.1));
        (served / seconds.len() as f64, 100.0 * refused / (served + refused))
    }

    /// What each process was served after `from` minutes, as a part of the mean, in ascending order.
    fn shares(&self, from: usize) -> Vec<f64> {
        let processes = self.minutes[0].len();
        let served = |process: usize| self.minutes[from..].iter().map(|minute| minute[process]).sum::<f64>();
        let mean = (0..processes).map(served).sum::<f64>() / processes as f64;
        let mut shares: Vec<f64> = (0..processes).map(|process| served(process) / mean).collect();
        shares.sort_by(f64::total_cmp);
        shares
    }

    /// Seconds after `from_s` until `per_s` requests a second were served for three seconds.
    fn reaches(&self, per_s: f64, from_s: usize) -> usize {
        let served = |second: usize| self.seconds[second..second + 3].iter().map(|s| s.0).sum::<f64>() / 3.0;
        let found = (from_s..self.seconds.len() - 3).find(|second| served(*second) >= per_s);
        found.map_or(usize::MAX, |second| second - from_s)
    }
}

fn s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

impl Crowd {
    fn run(&self) -> Outcome {
        let mut seconds = vec![(0.0, 0.0); 60 * self.minutes];
        let mut minutes = vec![vec![0.0; self.processes]; self.minutes];
        let mut random = Random(self.seed);
        let (mut left, mut left_at) = ((self.store)(0.0).0 * self.burst_s, 0.0);
        let mut events = BinaryHeap::new();
        let mut processes: Vec<Process> = (0..self.processes).map(|_| self.process()).collect();
        for process in 0..self.processes {
            let begins = (self.begins)(process) + 0.001 * self.processes as f64 * random.uniform();
            events.extend(
                (0..self.callers).map(|caller| Reverse((s(begins), process, What::Begins { caller }))),
            );
        }
        while let Some(Reverse((now, number, what))) = events.pop() {
            let at = now.as_secs_f64();
            if at >= seconds.len() as f64 {
                break;
            }
            let process = &mut processes[number];
            match what {
                What::Begins { caller } => process.waiting.push_back(caller),
                What::Turn => process.awaits_turn = false,
                What::Ends { caller, started, is_served } => {
                    let wait_s = process.end(self, caller, (started, now), is_served, &mut random);
                    events.push(Reverse((now + s(wait_s), number, What::Begins { caller })));
                }
            }
            while !process.awaits_turn
                && !process.waiting.is_empty()
                && process.under_way < process.aimd.limit()
            {
                if let Err(turn) = process.rate.take_turn(now) {
                    process.awaits_turn = true;
                    events.push(Reverse((turn, number, What::Turn)));
                    break;
                }
                let (per_s, refused) = (self.store)(at);
                left = (left + (at - left_at) * per_s).min((per_s * self.burst_s).max(1.0));
                left_at = at;
                let is_served = per_s > 0.0 && left >= 1.0 && random.uniform() >= refused;
                left -= f64::from(u8::from(is_served));
                match is_served {
                    true => seconds[at as usize].0 += 1.0,
                    false => seconds[at as usize].1 += 1.0,
                }
                minutes[at as usize / 60][number] += f64::from(u8::from(is_served));
                let caller = process.waiting.pop_front().unwrap();
                process.under_way += 1;
                let ends = What::Ends { caller, started: now, is_served };
                events.push(Reverse((now + s(random.latency_s()), number, ends)));
            }
        }
        Outcome { seconds, minutes }
    }

    fn process(&self) -> Process {
        Process {
            rate: RequestRate::default(),
            aimd: Aimd::new((256 / self.processes).clamp(1, 128), 128),
            under_way: 0,
            waiting: VecDeque::new(),
            failed: vec![0; self.callers],
            awaits_turn: false,
            served: 0,
            paused_until: 0.0,
        }
    }
}

impl Process {
    /// Ends a request, and returns for how many seconds its caller waits before the next one.
    fn end(
        &mut self,
        crowd: &Crowd,
        caller: usize,
        (started, now): (Duration, Duration),
        is_served: bool,
        random: &mut Random,
    ) -> f64 {
        self.under_way -= 1;
        let event = if is_served { Event::Success } else { Event::Throttled };
        self.aimd.on_event(now, started, event);
        if !is_served {
            self.rate.on_refusal(now, started);
            self.failed[caller] += 1;
            return (0.05 * 2.0_f64.powi(self.failed[caller] - 1)).min(10.0) * random.uniform();
        }
        self.rate.on_answer(now);
        self.failed[caller] = 0;
        self.served += 1;
        if self.served.is_multiple_of(crowd.step) {
            self.paused_until = now.as_secs_f64() + crowd.pause_s;
        }
        (self.paused_until - now.as_secs_f64()).max(0.0)
    }
}

/// Returns the requests served a second, the percentage refused and the largest share of a process over the smallest, of minutes 4
/// to 15.
fn settled(crowd: &Crowd) -> (f64, f64, f64) {
    let outcome = crowd.run();
    let (per_s, refused) = outcome.between(180, 60 * crowd.minutes);
    let shares = outcome.shares(3);
    (per_s, refused, shares[shares.len() - 1] / shares[0])
}

#[test]
fn processes_share_a_small_store_with_few_refusals() {
    for seed in 1..=3 {
        for crowd in [
            Crowd { seed, ..SETTLED },
            Crowd { callers: 1, seed, ..SETTLED },
            Crowd { burst_s: 0.1, seed, ..SETTLED },
            Crowd { begins: |process| process as f64, seed, ..SETTLED },
        ] {
            let (per_s, refused, unfair) = settled(&crowd);
            assert!(refused < 0.1 && per_s > 186.0 && unfair < 5.0, "{per_s} {refused} {unfair}");
        }
    }
}

#[test]
fn few_and_many_processes_share_a_store() {
    for seed in 1..=3 {
        let few = settled(&Crowd { processes: 8, seed, ..SETTLED });
        assert!(few.0 > 188.0 && few.1 < 0.12 && few.2 < 5.0, "{few:?}");
        let two = settled(&Crowd { processes: 2, seed, ..SETTLED });
        assert!(two.0 > 190.0 && two.1 < 0.1 && two.2 < 3.0, "{two:?}");
    }
    let many = settled(&Crowd { processes: 200, store: |_| (2_000.0, 0.0), ..SETTLED });
    assert!(many.0 > 1_900.0 && many.1 < 0.15, "{many:?}");
}

#[test]
fn processes_that_pause_are_refused_as_rarely() {
    let (per_s, refused, _) = settled(&Crowd { step: 5, pause_s: 1.0, ..SETTLED });
    assert!(per_s > 188.0 && refused < 0.12, "{per_s} {refused}");
    let (per_s, refused, unfair) = settled(&Crowd { step: 50, pause_s: 10.0, ..SETTLED });
    assert!(per_s > 140.0 && refused < 1.0 && unfair < 2.0, "{per_s} {refused} {unfair}");
}

/// The newcomer begins with 16 requests at once.
#[test]
fn a_process_that_joins_others_gets_its_share() {
    for seed in 1..=3 {
        let late = |process: usize| if process == 0 { 360.0 } else { 0.001 * process as f64 };
        let outcome = Crowd { begins: late, seed, ..SETTLED }.run();
        let (per_s, refused) = outcome.between(180, 900);
        assert!(per_s > 188.0 && refused < 0.4, "{per_s} {refused}");
        let newcomer = outcome.minutes[12..].iter().map(|minute| minute[0]).sum::<f64>() / (3.0 * 60.0);
        assert!((3.0..30.0).contains(&newcomer), "{newcomer}");
        assert!(outcome.shares(12)[0] > 0.3, "{:?}", outcome.shares(12));
    }
}

/// Faults of 10 to 60 s in a crowd that has found its limit.
#[test]
fn a_crowd_recovers_from_a_fault_within_seconds() {
    let faults: [(Store, usize); 5] = [
        (|at| (if (360.0..370.0).contains(&at) { 0.0 } else { 200.0 }, 0.0), 370),
        (|at| (if (360.0..380.0).contains(&at) { 100.0 } else { 200.0 }, 0.0), 380),
        (|at| (if (360.0..380.0).contains(&at) { 20.0 } else { 200.0 }, 0.0), 380),
        (|at| (if (360.0..420.0).contains(&at) { 100.0 } else { 200.0 }, 0.0), 420),
        (|at| (if (360.0..420.0).contains(&at) { 0.0 } else { 200.0 }, 0.0), 420),
    ];
    for (store, ends_s) in faults {
        for seed in 1..=3 {
            let outcome = Crowd { store, minutes: 10, seed, ..SETTLED }.run();
            let reached = [160.0, 170.0].map(|per_s| outcome.reaches(per_s, ends_s));
            assert!(reached[0] <= 20 && reached[1] <= 40, "{reached:?}");
            let (_, refused) = outcome.between(ends_s + 10, 600);
            assert!(refused < 0.2, "{refused}");
        }
    }
}

/// Processes that no limit held back before. Each one alone can send 490 requests a second.
#[test]
fn fast_processes_recover_from_a_fault_within_seconds() {
    let faults: [(Store, usize, usize); 5] = [
        (|at| (1e6, if (120.0..130.0).contains(&at) { 0.5 } else { 0.0 }), 130, 10),
        (|at| (if (120.0..130.0).contains(&at) { 0.0 } else { 1e6 }, 0.0), 130, 10),
        (|at| (if (120.0..130.0).contains(&at) { 200.0 } else { 1e6 }, 0.0), 130, 10),
        (|at| (if (120.0..180.0).contains(&at) { 200.0 } else { 1e6 }, 0.0), 180, 40),
        (|at| (1e6, if (120.0..180.0).contains(&at) { 0.5 } else { 0.0 }), 180, 20),
    ];
    for (store, ends_s, within_s) in faults {
        for seed in 1..=3 {
            let outcome = Crowd { processes: 4, store, minutes: 5, seed, ..SETTLED }.run();
            let reached = outcome.reaches(0.9 * outcome.between(60, 120).0, ends_s);
            assert!(reached <= within_s, "{reached} s after {ends_s} s");
        }
    }
}

/// Refusals at random from the first request on, so that the processes have no usual rate. The wait after them does not depend on
/// how long they last.
#[test]
fn processes_recover_from_a_fault_at_the_start_within_seconds() {
    let faults: [(Store, usize); 3] = [
        (|at| (1e6, if at < 30.0 { 1.0 / 3.0 } else { 0.0 }), 30),
        (|at| (1e6, if at < 240.0 { 1.0 / 3.0 } else { 0.0 }), 240),
        (|at| (if at < 120.0 { 0.0 } else { 1e6 }, 0.0), 120),
    ];
    for (store, ends_s) in faults {
        let outcome = Crowd { processes: 4, store, minutes: 6, ..SETTLED }.run();
        let reached = outcome.reaches(4.0 * 400.0, ends_s);
        assert!(reached <= 15, "{reached} s after {ends_s} s");
    }
}

/// A process notices a higher limit once its own plateau is over.
#[test]
fn a_higher_limit_is_found_within_minutes() {
    for seed in 1..=3 {
        let twice = |at: f64| (if at < 360.0 { 200.0 } else { 400.0 }, 0.0);
        let outcome = Crowd { store: twice, minutes: 20, seed, ..SETTLED }.run();
        assert!(outcome.reaches(280.0, 360) <= 600, "{} s", outcome.reaches(280.0, 360));
        let fast = |at: f64| (if at < 360.0 { 400.0 } else { 4_000.0 }, 0.0);
        let outcome = Crowd { processes: 2, store: fast, minutes: 10, seed, ..SETTLED }.run();
        assert!(outcome.reaches(600.0, 360) <= 30, "{} s", outcome.reaches(600.0, 360));
    }
}

#[test]
fn a_lower_limit_is_found_within_seconds() {
    let tenth = |at: f64| (if at < 360.0 { 2_000.0 } else { 200.0 }, 0.0);
    let outcome = Crowd { store: tenth, ..SETTLED }.run();
    let refused = [(370, 390), (480, 540), (720, 900)].map(|(from, until)| outcome.between(from, until).1);
    assert!(refused[0] < 25.0 && refused[1] < 5.0 && refused[2] < 1.5, "{refused:?}");
}

/// Refusals that no rate avoids do not stop a process, and rare ones do not slow it down.
#[test]
fn refusals_at_random_leave_a_rate() {
    let random =
        |store: Store| Crowd { processes: 2, store, minutes: 15, ..SETTLED }.run().between(600, 900).0 / 2.0;
    let rates = [random(|_| (1e6, 1.0 / 3.0)), random(|_| (1e6, 0.001))];
    assert!(rates[0] > 2.5 && rates[1] > 400.0, "{rates:?}");
}

#[test]
fn without_refusals_nothing_waits() {
    let outcome = Crowd { processes: 8, callers: 1, store: |_| (5_500.0, 0.0), minutes: 1, ..SETTLED }.run();
    let (per_s, refused) = outcome.between(5, 60);
    assert!(per_s > 8.0 / 0.035 && refused == 0.0, "{per_s} {refused}");
}
