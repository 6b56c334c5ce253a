//! Which ranks and steps are simulated.

use feedstock_dataset::{Plan, Position, StepShape, StepSize};
use feedstock_ingest::SimulatedSteps;

/// Ranks that are simulated, spread over all.
const RANKS: u32 = 3;

/// An epoch of at most this number of rows a rank is simulated whole, in about 0.2 s without the windows.
const WHOLE_ROWS: u64 = 1 << 17;

/// Of an epoch whose steps need windows of more entries than this, a part is simulated: shuffling these takes a second.
const WHOLE_ENTRIES: u64 = 1 << 27;

/// Rows of a rank that are counted in a longer epoch.
const COUNTED_ROWS: u64 = 1 << 15;

/// Steps that are counted at least, so that rare slow requests are among them.
const MIN_STEPS: u64 = 256;

/// Rows of a rank before the counting begins, at most. Until a window is full, more is read for each step than later.
const WARM_UP_ROWS: u64 = 1 << 16;

/// The ranks and steps of a dry run.
#[derive(Debug, Clone)]
pub(super) struct Sampling {
    pub(super) world_size: u32,
    pub(super) ranks: Vec<u32>,
    pub(super) steps: SimulatedSteps,
    /// Steps of the epoch.
    pub(super) epoch_steps: u64,
    /// Rows of a step over all ranks, about.
    step_rows: u64,
}

impl Sampling {
    pub(super) fn new(plan: &Plan, epoch: u64, shape: &StepShape) -> Self {
        let epoch_steps = plan.steps_left(epoch, Position(0), shape).max(1);
        let step_rows = match shape.size {
            StepSize::Rows(rows) => rows,
            StepSize::Total { .. } => (plan.len() / epoch_steps).max(1),
        };
        let world_size = shape.rank.world_size;
        let sampled = world_size.clamp(1, RANKS);
        let spread = |i: u32| match sampled {
            1 => 0,
            _ => u64::from(i) * u64::from(world_size - 1) / u64::from(sampled - 1),
        };
        let ranks = (0..sampled).map(|i| u32::try_from(spread(i)).unwrap_or(u32::MAX)).collect();
        let rank_rows = (step_rows / u64::from(world_size)).max(1);
        let window = plan.fingerprint().window;
        let counted = (COUNTED_ROWS / rank_rows).max(MIN_STEPS);
        let to_fill = window.saturating_mul(2) / step_rows + MIN_STEPS;
        let warm_up = to_fill.min((WARM_UP_ROWS / rank_rows).max(MIN_STEPS));
        let is_short = epoch_steps.saturating_mul(rank_rows) <= WHOLE_ROWS
            && epoch_steps.saturating_mul(window.min(step_rows)) <= WHOLE_ENTRIES;
        let is_whole = is_short || epoch_steps <= warm_up + counted;
        let steps = match is_whole {
            true => SimulatedSteps { warm_up: 0, counted: epoch_steps },
            false => SimulatedSteps { warm_up, counted },
        };
        Self { world_size, ranks, steps, epoch_steps, step_rows }
    }

    /// Returns the rows of a rank's step, rounded up.
    pub(super) fn rank_rows(&self) -> u64 {
        self.step_rows.div_ceil(u64::from(self.world_size))
    }
}
