//! The results of a run, as text and as JSON.

use super::waits::Quantiles;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, bytes, count, hours};
use crate::usage::Usage;
use crate::verdict::{Bottleneck, Shares, WorkersShare};
use feedstock_dataset::StorageStats;
use feedstock_trainer_bridge::{Ledger, RankStats};
use serde_json::json;
use std::time::Duration;

/// The results of a run.
pub(super) struct Measured {
    pub(super) opened: Duration,
    pub(super) first_batch: Duration,
    pub(super) wall: Duration,
    pub(super) samples: u64,
    pub(super) samples_after_first: u64,
    pub(super) ops_after_first: f64,
    pub(super) waited_after_first: f64,
    pub(super) batches: u64,
    /// Waits for each batch after the first; `None` if there was only one.
    pub(super) waits: Option<Quantiles>,
    pub(super) usage: Usage,
    /// What storage did, opening the data set included.
    pub(super) storage: StorageStats,
    /// CPU threads of the pipeline.
    pub(super) threads: usize,
    /// The bare chain's rate, if it was measured.
    pub(super) ceiling: Option<f64>,
    /// How busy the fleet was after the first batch, if there is one.
    pub(super) workers: Option<WorkersShare>,
    pub(super) stats: Vec<RankStats>,
    pub(super) ledgers: Vec<Ledger>,
    pub(super) slot_bytes: u64,
    /// Seconds of audio from the first batch on, if the catalog has all durations.
    pub(super) audio_s_after_first: Option<f64>,
    /// Share of the cells of padded tensors that is padding.
    pub(super) padding_share: Option<f64>,
}

impl Measured {
    /// Prints the results. An error if an epoch was not delivered exactly once.
    pub(super) fn print(&self, as_json: bool) -> Outcome {
        let mut output = Output::new();
        match as_json {
            true => self.json(&mut output)?,
            false => self.text(&mut output)?,
        }
        output.end()?;
        match self.is_exact() {
            true => Ok(()),
            false => Err(Failure::bug("an epoch was not delivered exactly once; see the ledger")),
        }
    }

    fn json(&self, output: &mut Output) -> Outcome {
        let workers_busy = self.workers_busy();
        let sum =
            |time: fn(&RankStats) -> Duration| self.stats.iter().map(time).sum::<Duration>().as_secs_f64();
        output.json(&json!({
            "samples_per_s": self.rate(),
            "chain_ceiling_samples_per_s": self.ceiling,
            "audio_s_per_s": self.real_times(),
            "padding_share": self.padding_share,
            "first_batch_s": self.first_batch.as_secs_f64(),
            "cpu_s_per_1000_samples": self.cpu_per_1000(),
            "peak_rss_bytes": self.usage.peak_rss_bytes,
            "bottleneck": self.bottleneck().to_string(),
            "workers_busy": workers_busy,
            "samples": self.samples,
            "batches": self.batches,
            "bad_samples": self.number(|stats| stats.engine.bad_samples),
            "opened_s": self.opened.as_secs_f64(),
            "wall_s": self.wall.as_secs_f64(),
            "ops_s": sum(|stats| stats.engine.ops_time),
            "ops_busy": self.busy(),
            "fetch_s": sum(|stats| stats.engine.fetch_time),
            "waited_s": sum(|stats| stats.waited),
            "waited_after_first_s": self.waited_after_first,
            "waits_ms": self.waits.map(Quantiles::json),
            "fetched_bytes": self.number(|stats| stats.engine.fetched_bytes),
            "blocks_fetched": self.number(|stats| stats.engine.fetched),
            "blocks_fetched_again": self.number(|stats| stats.engine.refetched),
            "storage_requests": self.storage.requests,
            "storage_hedges": self.storage.hedges,
            "storage_retries": self.storage.retries,
            "storage_throttled": self.storage.throttled,
            "peak_resident_bytes": self.number(|stats| stats.engine.peak_resident_bytes),
            "slot_bytes": self.slot_bytes,
            "threads": self.threads,
            "epochs_exactly_once": if self.is_exact() { self.ledgers.len() } else { 0 },
        }))
    }

    fn text(&self, output: &mut Output) -> Outcome {
        let rate = self.rate();
        let share = self.ceiling.map_or(String::new(), |ceiling| {
            format!(", {:.0} % of the bare chain's {ceiling:.0}", 100.0 * rate / ceiling)
        });
        output.fact("rate", format!("{rate:.0} samples/s{share}"))?;
        if let (Some(seconds), Some(real_times)) = (self.audio_s_after_first, self.real_times()) {
            output.fact("audio", format!("{real_times:.0} × real time, {} in total", hours(seconds)))?;
        }
        if let Some(share) = self.padding_share {
            output.fact("padding", format!("{:.1} % of the cells in batches", 100.0 * share))?;
        }
        let ops = format!("ops use {:.0} % of {} CPU threads", 100.0 * self.busy(), self.threads);
        let fleet = self.workers_busy().map_or(String::new(), |share| {
            format!(", and {:.0} % of the workers' CPU threads", 100.0 * share)
        });
        output.fact("bottleneck", format!("{}; {ops}{fleet}", self.bottleneck()))?;
        let (first, opened) = (1000.0 * self.first_batch.as_secs_f64(), 1000.0 * self.opened.as_secs_f64());
        output
            .fact("first batch", format!("{first:.0} ms, including {opened:.0} ms to open the data set"))?;
        let bad = self.number(|stats| stats.engine.bad_samples);
        let (samples, batches) = (count(self.samples), count(self.batches));
        output.fact("samples", format!("{samples} in {batches} batches, {bad} unusable"))?;
        output.fact("CPU", format!("{:.2} s per 1,000 samples", self.cpu_per_1000()))?;
        let (peak, slots) = (bytes(self.usage.peak_rss_bytes), bytes(self.slot_bytes));
        output.fact("memory", format!("peak {peak}, including {slots} of slots"))?;
        output.fact("storage", self.storage_text())?;
        let wall = self.wall.as_secs_f64();
        output.fact(
            "waiting",
            format!("{:.2} s of {wall:.2} s after the first batch", self.waited_after_first),
        )?;
        if let Some(waits) = self.waits {
            output.fact("wait per batch", waits.text())?;
        }
        for ledger in &self.ledgers {
            output.fact("ledger", ledger.to_string())?;
        }
        Ok(())
    }

    fn storage_text(&self) -> String {
        let read = bytes(self.number(|stats| stats.engine.fetched_bytes));
        let fetched = count(self.number(|stats| stats.engine.fetched));
        let again = self.number(|stats| stats.engine.refetched);
        let StorageStats { requests, hedges, retries, throttled, .. } = self.storage;
        let requests = match requests {
            0 => String::new(), // files of this machine
            _ => format!(
                "; {} requests, {hedges} of them hedges, {retries} retries; {throttled} answers asked for a lower rate",
                count(requests)
            ),
        };
        format!("{read} in {fetched} reads, {again} of them repeated{requests}")
    }

    /// Samples per second after the first batch: before it, the shuffle window fills.
    fn rate(&self) -> f64 {
        self.share_of_wall(self.samples_after_first as f64)
    }

    fn real_times(&self) -> Option<f64> {
        self.audio_s_after_first.filter(|_| !self.wall.is_zero()).map(|seconds| self.share_of_wall(seconds))
    }

    fn cpu_per_1000(&self) -> f64 {
        1000.0 * self.usage.cpu.as_secs_f64() / self.samples.max(1) as f64
    }

    fn busy(&self) -> f64 {
        self.share_of_wall(self.ops_after_first) / self.threads as f64
    }

    fn bottleneck(&self) -> Bottleneck {
        let waited = self.share_of_wall(self.waited_after_first);
        Bottleneck::of(&Shares { ops: self.busy(), waited, workers: self.workers })
    }

    fn workers_busy(&self) -> Option<f64> {
        match self.workers {
            Some(WorkersShare::Busy(share)) => Some(share),
            Some(WorkersShare::Unknown) | None => None,
        }
    }

    fn is_exact(&self) -> bool {
        self.ledgers.iter().all(Ledger::is_exact)
    }

    fn number(&self, value: fn(&RankStats) -> u64) -> u64 {
        self.stats.iter().map(value).sum()
    }

    fn share_of_wall(&self, amount: f64) -> f64 {
        match self.wall.is_zero() {
            true => 0.0,
            false => amount / self.wall.as_secs_f64(),
        }
    }
}
