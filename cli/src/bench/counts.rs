//! Sums over the batches of a run.

use super::waits::Waits;
use arrow::array::{Array, AsArray};
use arrow::datatypes::Float64Type;
use feedstock_trainer_bridge::{Batch, RankIterator};
use std::time::Duration;

/// Counts so far.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) samples: u64,
    pub(super) batches: u64,
    pub(super) first: Option<Duration>,
    pub(super) first_samples: u64,
    pub(super) last: Duration,
    /// Time spent on the ops and on waiting until the first batch came.
    pub(super) first_ops: Duration,
    pub(super) first_waited: Duration,
    /// Seconds of audio in all batches and in the first one; `None` once an audio clip of unknown duration came.
    audio_s: Option<f64>,
    first_audio_s: f64,
    /// Waits for each batch after the first.
    pub(super) waits: Waits,
    /// Bytes of the largest batch's tensors.
    pub(super) batch_bytes: u64,
    /// Cells of padded tensors, and the number of them that hold data.
    cells: u64,
    filled: u64,
}

impl Counts {
    /// Counts a batch that came at `now`, after a wait of `waited`.
    pub(super) fn add(&mut self, batch: &Batch, now: Duration, waited: Duration, rank: &RankIterator) {
        let samples = batch.len() as u64;
        let audio_s = audio_s(batch);
        if self.first.is_none() {
            self.first = Some(now);
            self.first_samples = samples;
            self.audio_s = Some(0.0);
            self.first_audio_s = audio_s.unwrap_or_default();
            self.first_ops = rank.stats().engine.ops_time;
            self.first_waited = rank.stats().waited;
        } else {
            self.waits.add(waited);
        }
        self.samples += samples;
        self.batches += 1;
        self.last = now;
        self.audio_s = self.audio_s.zip(audio_s).map(|(sum, more)| sum + more);
        self.batch_bytes = self.batch_bytes.max(batch.tensors().iter().map(|t| t.bytes().len() as u64).sum());
        for tensor in batch.tensors() {
            let (Some(lengths), Some(axis)) = (tensor.lengths(), tensor.padded_axis()) else { continue };
            self.cells += (tensor.shape()[axis] * lengths.len()) as u64;
            self.filled += lengths.iter().sum::<usize>() as u64;
        }
    }

    pub(super) fn audio_s_after_first(&self) -> Option<f64> {
        self.audio_s.map(|seconds| seconds - self.first_audio_s)
    }

    pub(super) fn padding_share(&self) -> Option<f64> {
        (self.cells > 0).then(|| 1.0 - self.filled as f64 / self.cells as f64)
    }
}

/// Returns the seconds of audio in a batch; `None` if the catalog lacks a duration.
fn audio_s(batch: &Batch) -> Option<f64> {
    let seconds = batch.column("duration")?.as_primitive_opt::<Float64Type>()?;
    (seconds.null_count() == 0).then(|| seconds.values().iter().sum())
}
