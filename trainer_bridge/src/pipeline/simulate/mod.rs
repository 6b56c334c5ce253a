//! A dry run of a pipeline: its rates, reads, memory and costs on a given machine and store, without reading data.

mod forecast;
mod options;
mod sampling;

pub use forecast::{Alternative, Bottleneck, Forecast, Simulation};
pub use options::{Prices, SimulateOptions, SimulatedWorkers};

use super::Pipeline;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Plan, Position, Rank, ShuffleKind, StepShape, Tail};
use feedstock_ingest::{Job, Simulated, SimulatedRank, sample_bytes, simulate};
use sampling::Sampling;

/// One variant of the job: an order, the memory and the machine.
struct Variant {
    plan: Plan,
    budget_bytes: u64,
    prefetch_bytes: u64,
    rank: SimulatedRank,
}

impl Pipeline {
    /// Simulates an epoch on the machine and the store of `options`, and the same with other settings, without reading data.
    ///
    /// The plan, the prefetching and the memory budget are those of a real run. The store, the CPU threads and the trainer are
    /// models under a virtual clock: the store answers as its profile states, with a constant number of requests under way, and
    /// every sample takes `decode_s`. Retries, 503s and the disk cache are left out. Up to 3 ranks are simulated; of a long
    /// epoch, a part.
    ///
    /// ```
    /// use feedstock_dataset::Shuffle;
    /// use feedstock_trainer_bridge::{BatchSize, Bottleneck, Dataset, SimulateOptions};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 64, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 64 images
    /// let pipeline = dataset.shuffle(Shuffle::seeded(7)).batch(BatchSize::per_rank(8)).threads(1);
    /// let slow = SimulateOptions { decode_s: 0.010, step_s: 0.020, ..SimulateOptions::default() };
    /// let forecast = pipeline.simulate(&slow)?.forecast;
    /// assert_eq!(forecast.bottleneck, Bottleneck::Cpu); // 8 samples take 80 ms, a step 20 ms
    /// assert!((95.0..105.0).contains(&forecast.samples_per_s));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for options that are out of range, and if the batches do not fit the data set or the memory budget.
    pub fn simulate(&self, options: &SimulateOptions) -> Result<Simulation> {
        options.check()?;
        if self.slots < 2 {
            return Err(Error::config(format!("slots must be at least 2; got {}", self.slots)));
        }
        let shape = self.shape(Rank { rank: 0, world_size: options.world_size })?;
        if shape.tail == Tail::Short {
            return Err(Error::config("tail=short has steps without rows for some ranks; use drop or pad"));
        }
        let plan = self.recipe.plan(&shape)?;
        plan.check_epoch(options.epoch)?;
        let catalog = self.recipe.dataset.catalog();
        shape.check(&plan, &|sample| catalog.describe_sample(sample))?;
        let (budget_bytes, prefetch_bytes) = (self.budget_bytes, self.bytes_ahead());
        let rank = options.rank(self.threads, self.slots, catalog.is_local());
        let as_set = Variant { plan, budget_bytes, prefetch_bytes, rank };
        let slot_bytes = self.slot_bytes()?;
        let sampling = Sampling::new(&as_set.plan, options.epoch, &shape);
        if sampling.epoch_steps < 2 {
            return Err(Error::config(format!(
                "an epoch has 1 step, and a forecast needs at least 2: {} samples are fewer than two global batches; lower the \
                 batch size or the world size",
                as_set.plan.len()
            )));
        }
        let forecast_of = |variant: &Variant| -> Result<Forecast> {
            let runs = self.simulate_ranks(options, &sampling, variant)?;
            let slots = slot_bytes.saturating_mul(sampling.rank_rows()).saturating_mul(self.slots as u64);
            Forecast::new(&runs, &sampling, slots, &options.prices)
                .ok_or_else(|| Error::new(ErrorKind::Bug, "no rank was simulated"))
        };
        let forecast = forecast_of(&as_set)?;
        let mut alternatives = Vec::new();
        for (change, variant) in self.alternatives(&as_set, &shape, options)? {
            alternatives.push(Alternative { change, forecast: forecast_of(&variant).ok() });
        }
        Ok(Simulation {
            epoch: options.epoch,
            world_size: options.world_size,
            samples: as_set.plan.len(),
            steps: sampling.epoch_steps,
            simulated_ranks: sampling.ranks.len(),
            simulated_steps: sampling
                .steps
                .warm_up
                .saturating_add(sampling.steps.counted)
                .min(sampling.epoch_steps),
            forecast,
            alternatives,
        })
    }

    fn simulate_ranks(
        &self,
        options: &SimulateOptions,
        sampling: &Sampling,
        variant: &Variant,
    ) -> Result<Vec<Simulated>> {
        let run = |rank: &u32| {
            let rank = Rank { rank: *rank, world_size: options.world_size };
            let job = Job {
                dataset: self.recipe.dataset.clone(),
                plan: variant.plan.clone(),
                maps: Vec::new(),
                shape: self.shape(rank)?,
                strands: None,
                seed: self.recipe.seed(),
                epoch: options.epoch,
                position: Position(0),
                end_epoch: options.epoch.checked_add(1),
                budget_bytes: variant.budget_bytes,
                prefetch_bytes: variant.prefetch_bytes,
                sample_bytes: sample_bytes(self.decoder_memory, variant.budget_bytes),
            };
            let mut machine = variant.rank.clone();
            machine.store.seed = options.seed.wrapping_add(u64::from(rank.rank));
            simulate(&job, &machine, sampling.steps)
        };
        sampling.ranks.iter().map(run).collect()
    }

    /// Returns what a user can change, and the job with each change.
    fn alternatives(
        &self,
        as_set: &Variant,
        shape: &StepShape,
        options: &SimulateOptions,
    ) -> Result<Vec<(String, Variant)>> {
        let same = || Variant { plan: as_set.plan.clone(), rank: as_set.rank.clone(), ..*as_set };
        let workers = if options.workers.is_some() { "workers × 2" } else { "threads × 2" };
        let mut threads = same();
        threads.rank.threads = threads.rank.threads.saturating_mul(2);
        let mut variants = vec![
            (workers.to_owned(), threads),
            (
                "budget_bytes × 2".to_owned(),
                Variant { budget_bytes: as_set.budget_bytes.saturating_mul(2), ..same() },
            ),
            ("budget_bytes ÷ 2".to_owned(), Variant { budget_bytes: as_set.budget_bytes / 2, ..same() }),
            (
                "prefetch_bytes × 2".to_owned(),
                Variant { prefetch_bytes: as_set.prefetch_bytes.saturating_mul(2), ..same() },
            ),
        ];
        let fingerprint = as_set.plan.fingerprint();
        let is_one_window = fingerprint.shuffle == ShuffleKind::Window && fingerprint.mixing.is_none();
        if is_one_window {
            let fixed = self.recipe.shuffle.as_saved(fingerprint);
            let most = u64::from(u32::MAX).min(as_set.plan.len());
            let windows = [
                ("shuffle_bytes × 2", fingerprint.window.saturating_mul(2).min(most)),
                ("shuffle_bytes ÷ 2", fingerprint.window / 2),
            ];
            for (change, window) in
                windows.into_iter().filter(|(_, window)| *window > 0 && *window != fingerprint.window)
            {
                let mut recipe = self.recipe.clone();
                recipe.shuffle = fixed.clone().window(window);
                variants.push((change.to_owned(), Variant { plan: recipe.plan(shape)?, ..same() }));
            }
        }
        Ok(variants)
    }

    /// Returns the bytes of a row in a slot; rows of variable length count as 0.
    fn slot_bytes(&self) -> Result<u64> {
        if self.recipe.maps.is_empty() {
            return Ok(0);
        }
        let (maps, _) = self.compile()?;
        let outputs = maps.iter().map(|map| map.chain.output());
        Ok(outputs.map(|output| output.bytes() as u64).sum())
    }
}
