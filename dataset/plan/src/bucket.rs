//! Length bucketing: a stage on top of the base order that gives the samples of a step similar lengths.
//!
//! ```text
//! base positions ─cut─▶ macro-windows ─sort by length─▶ groups ─permute groups─▶ bucketed positions
//!                                                        └ inside a group: by lane, then entry
//! ```
//! 1. A macro-window is a run of `window` consecutive base positions.
//! 2. Its samples are sorted, longest first, ties by base position, and cut into groups of a step's size. With the longest
//!    first, one division finds the size of a group under a bound from its first sample.
//! 3. The groups are permuted with (seed, epoch, window). Without a shuffle they stay, longest first, so that a batch that does
//!    not fit in the trainer's memory comes at the start.
//! 4. Inside a group, samples are sorted by lane, then entry. So a rank's run is on few lanes, and lengths are spread over
//!    ranks at random.
//!
//! Windows do not mix, so the result is a permutation, and any position is found from its window alone. This costs about
//! 0.2 µs a sample once for each window, and 8 bytes a sample of the windows that are kept, enough for a block's samples.

use crate::base::BaseOrder;
use crate::random::permutation;
use crate::size::StepSize;
use std::collections::HashMap;
use std::sync::Arc;

/// The version of this stage's arithmetic; a change that moves any sample raises it.
pub(crate) const VERSION: u32 = 1;

/// Minimum number of macro-windows kept: the one being read, the one into which a step or a block on the border reaches, and
/// the epoch's first and last, into which blocks on the border of two lanes reach.
const WINDOWS_KEPT: u64 = 4;

/// Separates this stage's generators from those of the shuffle, whose words are (seed, lane, window).
const SALT: u64 = 0x6275_636B_6574; // "bucket"

/// The input of the bucketed order of every epoch.
#[derive(Debug)]
pub(crate) struct BucketFacts {
    /// Samples of a macro-window; whole groups if groups have a number of rows.
    pub(crate) window: u64,
    pub(crate) group: StepSize,
    pub(crate) lengths: Arc<[f32]>,
    pub(crate) shuffled: bool,
    /// Positions in an epoch.
    pub(crate) samples: u64,
    /// The number of macro-windows kept in order.
    kept: usize,
}

impl BucketFacts {
    /// `base_window` is the number of samples that the base order shuffles among each other. A block is spread over one such
    /// window, or two if it is on their border.
    pub(crate) fn new(
        (window, group): (u64, StepSize),
        lengths: Arc<[f32]>,
        shuffled: bool,
        samples: u64,
        base_window: Option<u64>,
    ) -> Self {
        let spread = 2 * base_window.unwrap_or(0).min(samples) / window + 3;
        let kept = as_usize(spread.max(WINDOWS_KEPT));
        Self { window, group, lengths, shuffled, samples, kept }
    }
}

/// Results for the windows that were used most recently.
#[derive(Debug, Clone)]
struct Kept<T> {
    /// By window, with the time of its last use.
    windows: HashMap<u64, (u64, T)>,
    time: u64,
    most: usize,
}

impl<T> Kept<T> {
    fn new(most: usize) -> Self {
        Self { windows: HashMap::new(), time: 0, most }
    }

    fn get(&mut self, window: u64) -> Option<&T> {
        self.time += 1;
        let (used, kept) = self.windows.get_mut(&window)?;
        *used = self.time;
        Some(kept)
    }

    /// Adds a value. With a quarter more values than the limit, drops the quarter that was not used for longest.
    fn put(&mut self, window: u64, value: T) {
        self.time += 1;
        self.windows.insert(window, (self.time, value));
        if self.windows.len() > self.most + self.most / 4 {
            let mut times: Vec<u64> = self.windows.values().map(|(used, _)| *used).collect();
            let (_, &mut oldest, _) = times.select_nth_unstable(self.windows.len() - self.most);
            self.windows.retain(|_, (used, _)| *used >= oldest);
        }
    }
}

/// Samples of similar length that make a step.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Group {
    /// The index of its first sample among the window's samples by length.
    first: u32,
    /// The number of its rows.
    rows: u32,
    /// Its end as an offset into the bucketed window.
    end: u32,
    longest: f32,
}

/// A run of bucketed positions that is one group, and its longest length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GroupRun {
    pub(crate) end: u64,
    pub(crate) longest: f32,
}

#[derive(Debug)]
struct WindowOrder {
    /// Base offset by bucketed offset.
    order: Vec<u32>,
    /// Bucketed offset by base offset.
    inverse: Vec<u32>,
}

/// The bucketed order of one epoch, window by window.
#[derive(Debug, Clone)]
pub(crate) struct Buckets {
    facts: Arc<BucketFacts>,
    seed: u64,
    groups: Kept<Arc<[Group]>>,
    orders: Kept<Arc<WindowOrder>>,
}

impl Buckets {
    /// `seed` is derived from the plan's seed and the epoch.
    pub(crate) fn new(facts: Arc<BucketFacts>, seed: u64) -> Self {
        let (groups, orders) = (Kept::new(facts.kept), Kept::new(facts.kept));
        Self { facts, seed, groups, orders }
    }

    /// Returns the base position of a bucketed one.
    pub(crate) fn base_of(&mut self, base: &mut BaseOrder, position: u64) -> u64 {
        let (window, offset) = self.locate(position);
        let start = window * self.facts.window;
        start + u64::from(self.order(base, window).order[offset])
    }

    /// Returns the bucketed position of a base one.
    pub(crate) fn position_of(&mut self, base: &mut BaseOrder, position: u64) -> u64 {
        let (window, offset) = self.locate(position);
        let start = window * self.facts.window;
        start + u64::from(self.order(base, window).inverse[offset])
    }

    /// Returns the first position of the macro-window that holds `position`; it is the same before and after bucketing.
    pub(crate) fn window_start(&self, position: u64) -> u64 {
        position - position % self.facts.window
    }

    /// Returns the size of the groups.
    pub(crate) fn group(&self) -> StepSize {
        self.facts.group
    }

    /// Returns the group at a bucketed position.
    pub(crate) fn group_at(&mut self, base: &mut BaseOrder, position: u64) -> GroupRun {
        let (window, offset) = self.locate(position);
        let start = window * self.facts.window;
        let groups = match self.groups.get(window) {
            Some(groups) => groups.clone(),
            None => {
                let sorted = self.sorted(base, window);
                self.keep_groups(window, &sorted)
            }
        };
        let group = groups[groups.partition_point(|group| group.end as usize <= offset)];
        GroupRun { end: start + u64::from(group.end), longest: group.longest }
    }

    fn locate(&self, position: u64) -> (u64, usize) {
        #[expect(clippy::cast_possible_truncation, reason = "windows are u32")]
        (position / self.facts.window, (position % self.facts.window) as usize)
    }

    fn order(&mut self, base: &mut BaseOrder, window: u64) -> Arc<WindowOrder> {
        if let Some(order) = self.orders.get(window) {
            return order.clone();
        }
        let sorted = self.sorted(base, window);
        let groups = self.keep_groups(window, &sorted);
        let order = Arc::new(self.arrange(base, window, &sorted, &groups));
        self.orders.put(window, order.clone());
        order
    }

    /// Sorts the window's samples, longest first: inverted length bits above the base offset.
    fn sorted(&self, base: &mut BaseOrder, window: u64) -> Vec<u64> {
        let start = window * self.facts.window;
        let end = (start + self.facts.window).min(self.facts.samples);
        let mut keys: Vec<u64> = (start..end)
            .map(|position| {
                let length = self.facts.lengths[as_usize(base.sample_at(position).sample.0)];
                // The bits of non-negative floats rise with their values.
                u64::from(u32::MAX - length.to_bits()) << 32 | (position - start)
            })
            .collect();
        keys.sort_unstable();
        keys
    }

    fn keep_groups(&mut self, window: u64, sorted: &[u64]) -> Arc<[Group]> {
        if let Some(groups) = self.groups.get(window) {
            return groups.clone();
        }
        let groups: Arc<[Group]> = self.cut(window, sorted).into();
        self.groups.put(window, groups.clone());
        groups
    }

    /// Returns the groups of a window, in their order in the epoch.
    fn cut(&self, window: u64, sorted: &[u64]) -> Vec<Group> {
        let (rows, short) = match self.facts.group {
            StepSize::Rows(rows) => self.equal_groups(window, sorted.len(), rows),
            StepSize::Total { .. } => (bounded_groups(sorted, &self.facts.group), None),
        };
        let firsts = rows.iter().scan(0, |first, rows| Some(std::mem::replace(first, *first + rows)));
        let by_length: Vec<Group> = firsts
            .zip(&rows)
            .map(|(first, &rows)| Group { first, rows, end: 0, longest: length(sorted[first as usize]) })
            .collect();
        let mut order: Vec<usize> = (0..by_length.len()).filter(|&group| Some(group) != short).collect();
        if self.facts.shuffled {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "at most one group for each sample of a window"
            )]
            let permuted = permutation(order.len() as u32, &[self.seed, SALT, window]);
            order = permuted.into_iter().map(|at| order[at as usize]).collect();
        }
        let mut end = 0;
        let place = |group: usize| {
            end += by_length[group].rows;
            Group { end, ..by_length[group] }
        };
        order.into_iter().chain(short).map(place).collect()
    }

    /// Returns the rows of groups of `rows` each, longest samples first, and the index of a short one. Only an epoch's last
    /// window has a short group. It comes last, where a dropped tail drops it, and holds samples of any length, so that
    /// dropping is fair.
    fn equal_groups(&self, window: u64, samples: usize, rows: u64) -> (Vec<u32>, Option<usize>) {
        #[expect(clippy::cast_possible_truncation, reason = "a group is no larger than its window, a u32")]
        let (rows, samples) = (rows as u32, samples as u32);
        let (full, rest) = (samples / rows, samples % rows);
        let mut groups = vec![rows; full as usize];
        if rest == 0 {
            return (groups, None);
        }
        let short = match self.facts.shuffled {
            true => permutation(full + 1, &[self.seed, SALT, window, 1])[0],
            false => full,
        };
        groups.insert(short as usize, rest);
        (groups, Some(short as usize))
    }

    /// Arranges the samples of the window: group after group, inside a group by lane and entry.
    fn arrange(&self, base: &mut BaseOrder, window: u64, sorted: &[u64], groups: &[Group]) -> WindowOrder {
        let start = window * self.facts.window;
        let mut order = Vec::with_capacity(sorted.len());
        let mut members = Vec::new();
        for group in groups {
            let keys = &sorted[group.first as usize..(group.first + group.rows) as usize];
            members.clear();
            members.extend(keys.iter().map(|&key| {
                let offset = offset(key);
                (base.row_key(start + u64::from(offset)), offset)
            }));
            members.sort_unstable();
            order.extend(members.iter().map(|(_, offset)| *offset));
        }
        let mut inverse = vec![0; order.len()];
        for (place, &offset) in (0u32..).zip(&order) {
            inverse[offset as usize] = place;
        }
        WindowOrder { order, inverse }
    }
}

/// Returns the rows of groups under a bound, longest samples first. Each takes the maximum that its first sample allows. The
/// last two share evenly, so that no group is much smaller than its neighbours.
fn bounded_groups(sorted: &[u64], size: &StepSize) -> Vec<u32> {
    let mut groups: Vec<u32> = Vec::new();
    let mut at = 0;
    while at < sorted.len() {
        let left = (sorted.len() - at) as u64;
        // A plan is rejected if one sample alone exceeds the bound.
        let rows = size.rows_of(length(sorted[at])).clamp(1, left);
        at += as_usize(rows);
        #[expect(clippy::cast_possible_truncation, reason = "at most a window, a u32")]
        groups.push(rows as u32);
    }
    if let [.., before, last] = groups.as_mut_slice()
        && *last < *before
    {
        // The second half starts with a sample that is no longer than the first's, and has no more rows: it fits too.
        let both = *before + *last;
        (*before, *last) = (both.div_ceil(2), both / 2);
    }
    groups
}

fn length(key: u64) -> f32 {
    f32::from_bits(u32::MAX - (key >> 32) as u32)
}

fn offset(key: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    {
        key as u32
    }
}

#[expect(clippy::cast_possible_truncation, reason = "sample ids index tables in memory")]
fn as_usize(n: u64) -> usize {
    n as usize
}
