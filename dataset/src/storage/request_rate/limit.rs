//! The rate that a store allows, as far as one process knows it.
//!
//! Processes that share a store's limit do not know each other. Each process must find out now and then whether the limit is still
//! there, and the price is a refusal. With N processes at a limit of L requests a second, and a refusal in each process every T
//! seconds, N / (T × L) of all requests are refused. So the time between two probes, the *plateau*, is long if the limit is known,
//! and short after a fall:
//!
//! ```text
//! rate
//!   │        refused                                  ╱ 2 times, 16 times, …
//!   │  ─────────╮           ______________ plateau ──╯
//!   │           ╰ − 10 % ──╯
//!   └────────────────────────────────────────────────────▶ time in turns that were taken
//! ```
//! - A refusal takes [`DROP`] of the rate, at most once per round trip. The rate returns to the refused one along a cubic, as in
//!   CUBIC, and reaches it at the end of the plateau. Then it rises ever faster: 2 times after half a plateau, 16 times after one.
//! - A refusal after the plateau sets the rate back to that of the plateau, or to [`BACK`] of the current one.
//! - The plateau of a new limit is 2 s at first, 30 s after 30 s, and 2 min after a minute. It grows to [`PLATEAU_REQUESTS`] requests,
//!   but to at most ten minutes. Above [`FAST`] requests a second, it has fewer requests.
//! - A rate below [`FALLEN`] of the *usual* one is a *fall*: the store has a fault or a lower limit. The plateau is then a quarter
//!   of the time since the fall began, at least 2 s. After it, the rate returns to the usual one. After [`FORGET`], the lower rate is
//!   the usual one.
//! - Refusals early in the plateau ([`EARLY`]) keep a new limit and a fall young. So plateaus stay short while a store refuses at
//!   random, and the rate is back some seconds after that ends.
//!
//! So a job is soon as fast as before a fault of some seconds, and a limit that has held for minutes costs few refusals. The
//! price is that a higher limit is used late, after about one plateau of each process. The tests in `crowd.rs` measure this.
//!
//! Source: S. Ha, I. Rhee, L. Xu, CUBIC: A New TCP-Friendly High-Speed TCP Variant, ACM SIGOPS Operating Systems Review 42(5), 2008.

use std::time::Duration;

/// The part of the rate that a refusal takes away.
const DROP: f64 = 0.1;
/// A refusal after the plateau leaves at least this part of the rate.
pub(super) const BACK: f64 = 0.2;
/// The shortest plateau, in seconds.
const PLATEAU_MIN_S: f64 = 2.0;
/// The longest plateau, in seconds.
const PLATEAU_MAX_S: f64 = 600.0;
/// The requests of a plateau. One refusal in 1,000 requests would allow plateaus of 1,000. But a process that exceeds the limit
/// causes refusals in others, too, before their plateaus end.
const PLATEAU_REQUESTS: f64 = 4000.0;
/// Above this rate, in requests per second, a plateau has fewer requests: half of them at twice the rate. So a process that sends
/// 480 a second is not slowed down by a store that refuses one request in a thousand, whatever the rate.
const FAST: f64 = 100.0;
/// The age of a limit, in seconds, at which the plateau is as long as that. It grows with the square of the age.
const NEW_S: f64 = 30.0;
/// A rate that was served for this long is the usual one, to which a process returns after a fall.
const SETTLED: Duration = Duration::from_secs(60);
/// The part of the usual rate, or of the one at the beginning of a fall, below which a fall begins.
const FALLEN: f64 = 0.9;
/// The plateau in a fall, as a part of the time since the fall began.
const FALL_PLATEAU: f64 = 0.25;
/// A fall that takes this long is a lower limit.
const FORGET: Duration = Duration::from_secs(300);
/// The part of a plateau that a return from a fall skips: it leads to 97 % of the usual rate.
const RETURNED: f64 = 0.35;
/// A refusal within this time of the last one, in seconds, belongs to the same overload and does not lower the usual rate.
const CALM_S: f64 = 10.0;
/// The part of a plateau in which the rate doubles after it.
const DOUBLING: f64 = 0.5;
/// A refusal within this part of the plateau makes a fall or a new limit younger by 1 / [`YOUNGER`]: the plateau is not what keeps
/// refusals rare.
const EARLY: f64 = 0.1;
const YOUNGER: u32 = 8;
/// The lowest rate, in requests per second. A store that refuses every third request, whatever the rate, drives a process there.
const RATE_MIN: f64 = 5.0;
/// More refusals than this without an answer in between indicate an outage. The waits between attempts grow then, and a lower rate
/// would only delay the recovery.
const OUTAGE: u32 = 8;

/// The rate of requests to a store that has refused some.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// The rate of the plateau, in requests per second: the one at which the store refused last.
    refused: f64,
    /// When the rate was lowered last.
    at: Duration,
    /// The time of the turns that were taken since.
    grown_s: f64,
    /// The rate of the plateau before the fall, if there is one.
    usual: f64,
    /// When the limit was met first.
    first: Duration,
    fall: Option<Fall>,
    /// Refusals since the last answer.
    unanswered: u32,
}

/// A time with a rate below the usual one.
#[derive(Debug, Clone, Copy)]
struct Fall {
    began: Duration,
    /// The plateau's rate then.
    refused: f64,
}

/// Returns the longest plateau at this rate, in seconds.
fn known_plateau_s(rate: f64) -> f64 {
    let requests = PLATEAU_REQUESTS * (FAST / rate).min(1.0);
    (requests / rate).clamp(PLATEAU_MIN_S, PLATEAU_MAX_S)
}

/// Returns the current rate as a part of the plateau's, `plateaus` plateaus after a refusal.
fn part_after(plateaus: f64) -> f64 {
    match plateaus < 1.0 {
        true => 1.0 - DROP * (1.0 - plateaus).powi(3),
        false => ((plateaus - 1.0) / DOUBLING).powi(2).min(60.0).exp2(),
    }
}

impl Limit {
    /// Returns the limit of a store that refused a request at `now`, after `served` without refusals at `rate`.
    pub(super) fn new(rate: f64, now: Duration, served: Duration) -> Self {
        let first = now.saturating_sub(if served >= SETTLED { SETTLED } else { Duration::ZERO });
        Self { refused: rate, at: now, grown_s: 0.0, usual: rate, first, fall: None, unanswered: 1 }
    }

    /// Returns the current rate, in requests per second.
    pub(super) fn rate(&self) -> f64 {
        let plateau_s = self.plateau_s();
        let plateaus = self.grown_s / plateau_s;
        match self.fall {
            Some(_) if plateaus >= self.return_plateaus() => {
                let known_s = known_plateau_s(self.usual);
                let since_s = self.grown_s - plateau_s * self.return_plateaus();
                self.goal() / part_after(RETURNED) * part_after(RETURNED + since_s / known_s)
            }
            _ => self.refused * part_after(plateaus),
        }
    }

    /// Returns how long the plateau takes, in seconds.
    fn plateau_s(&self) -> f64 {
        let known_s = match self.fall {
            Some(fall) => FALL_PLATEAU * self.at.saturating_sub(fall.began).as_secs_f64(),
            None => self.at.saturating_sub(self.first).as_secs_f64().powi(2) / NEW_S,
        };
        known_s.min(known_plateau_s(self.refused)).max(PLATEAU_MIN_S)
    }

    /// Returns the rate to which a return from a fall leads.
    fn goal(&self) -> f64 {
        (self.usual * part_after(RETURNED)).max(self.refused)
    }

    /// Returns after how many plateaus a return from a fall has reached its goal.
    fn return_plateaus(&self) -> f64 {
        1.0 + DOUBLING * (self.goal() / self.refused).log2().sqrt()
    }

    /// Records a turn of this length.
    pub(super) fn grow(&mut self, time: Duration) {
        self.grown_s += time.as_secs_f64();
    }

    pub(super) fn on_answer(&mut self) {
        self.unanswered = 0;
    }

    /// Records a refusal of a request that started at `started`. Requests from before the last reduction give no new information.
    pub(super) fn on_refusal(&mut self, now: Duration, started: Duration) {
        if started < self.at {
            return;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        if self.unanswered <= OUTAGE {
            self.lower(now);
        } else if self.is_new(now) {
            self.first = now; // an outage shows no limit
        }
        (self.at, self.grown_s) = (now, 0.0);
    }

    /// Whether the usual rate is not known yet.
    fn is_new(&self, now: Duration) -> bool {
        self.fall.is_none() && now.saturating_sub(self.first) < SETTLED
    }

    /// Whether the last reduction belongs to another overload.
    fn is_calm(&self) -> bool {
        let plateau_s = self.plateau_s();
        match self.fall {
            Some(_) => self.grown_s >= plateau_s * self.return_plateaus() + CALM_S,
            None => self.grown_s >= CALM_S.min(plateau_s / 4.0),
        }
    }

    fn lower(&mut self, now: Duration) {
        let (rate, is_calm) = (self.rate(), self.is_calm());
        let is_early = self.grown_s < EARLY * self.plateau_s();
        let mut low = rate * (1.0 - DROP);
        if self.fall.is_none() {
            low = low.min(self.refused.max(BACK * rate));
        }
        self.refused = low.max(RATE_MIN) / (1.0 - DROP);
        let is_fallen = self.refused < FALLEN * self.usual;
        if is_early {
            self.rejuvenate(now);
        }
        let is_forgotten = self.fall.is_some_and(|fall| now.saturating_sub(fall.began) > FORGET);
        if is_calm || self.refused > self.usual || self.is_new(now) || is_forgotten {
            (self.usual, self.fall) = (self.refused, None);
        } else if self.fall.map_or(is_fallen, |fall| self.refused < fall.refused * FALLEN) {
            self.fall = Some(Fall { began: now, refused: self.refused });
        }
    }

    /// Reduces the age of the fall, or that of a new limit.
    fn rejuvenate(&mut self, now: Duration) {
        let is_new = self.is_new(now);
        match &mut self.fall {
            Some(fall) => fall.began += now.saturating_sub(fall.began) / YOUNGER,
            None if is_new => self.first += now.saturating_sub(self.first) / YOUNGER,
            None => {}
        }
    }
}
