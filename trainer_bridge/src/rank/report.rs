//! What a rank reports: its steps, the samples it delivered and skipped, and its statistics.

use super::RankIterator;
use crate::ledger::Ledger;
use crate::policy::SkipReport;
use crate::staging::Stage;
use crate::warnings::WarningReport;
use feedstock_dataset::Position;
use feedstock_ingest::Stats;
use std::ops::Range;
use std::time::Duration;

/// The statistics of a rank's pipeline so far.
#[derive(Debug, Clone, Copy)]
pub struct RankStats {
    /// The engine's counts.
    pub engine: Stats,
    /// The time that the caller waited for batches, including the current wait.
    pub waited: Duration,
    /// The part of that time in which the caller waited for its own functions on batches that it had already taken: see
    /// [`RankIterator::add_function_wait`]. More workers do not shorten it.
    pub waited_for_functions: Duration,
    /// The number of batches that are ready now.
    pub ready: usize,
    /// The number of slots (with a device, of its buffers) that the caller holds now.
    pub held: usize,
    /// The number of all slots (with a device, of its buffers).
    pub slots: usize,
}

impl RankIterator {
    /// Returns the number of batches left in this epoch, 0 after the last epoch. If a total bounds batches, the first call in
    /// an epoch walks its plan, which takes about 0.2 µs per sample.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.columns(&["label"])?.batch(BatchSize::per_rank(5));
    /// let mut batches = pipeline.rank(Rank::new(0, 1)).start()?;
    /// batches.next().unwrap()?;
    /// assert_eq!((batches.steps_left(), batches.steps_per_epoch()), (2, 3));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    pub fn steps_left(&self) -> u64 {
        match self.end_epoch.is_some_and(|end| self.epoch >= end) {
            true => 0,
            false => self.plan.steps_left(self.epoch, self.position, &self.shape),
        }
    }

    /// Returns the number of batches in this epoch. It is the same in all epochs, unless a total bounds batches.
    pub fn steps_per_epoch(&self) -> u64 {
        self.plan.steps_left(self.epoch, Position(0), &self.shape)
    }

    /// Returns the ledger of the current epoch up to the last batch, or of the epoch just finished. Computing the planned side
    /// walks the plan, which takes about 0.1 µs per sample.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.ledger;
        let mut order = self.plan.epoch(self.ledger.epoch);
        let Range { start, end } = self.ledger_range;
        for step in order.steps(start, &self.shape).take_while(|step| step.position < end) {
            step.rows.iter().filter(|row| row.valid).for_each(|row| ledger.planned.add(row.sample));
        }
        ledger
    }

    /// Returns the samples skipped so far.
    pub fn skip_report(&self) -> &SkipReport {
        &self.skips
    }

    /// Returns the decoders' warnings about the batches so far.
    pub fn warning_report(&self) -> &WarningReport {
        &self.warnings
    }

    /// Returns the fraction of tensor `output` that was padding in the batches so far, 0.0 to 1.0. `None` if its rows have a
    /// fixed length, or nothing was delivered. Bucketing by length reduces it.
    pub fn padding_share(&self, output: &str) -> Option<f64> {
        let index = self.assembler.columns.iter().position(|column| column.name == output)?;
        let (own, all) = self.padding[index];
        (all > 0).then(|| 1.0 - own as f64 / all as f64)
    }

    /// Returns the statistics so far.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.columns(&["label"])?.batch(BatchSize::per_rank(16)).epochs(1);
    /// let mut batches = pipeline.rank(Rank::new(0, 1)).start()?;
    /// let batch = batches.next().unwrap()?;
    /// let stats = batches.stats();
    /// assert_eq!((stats.engine.samples, stats.held, stats.slots), (16, 1, 4));
    /// # drop(batch);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    pub fn stats(&self) -> RankStats {
        let ready = self.ready().len();
        let lent = self.stage.as_ref().and_then(Stage::lent);
        let (held, slots) = lent.unwrap_or_else(|| {
            let staged = self.stage.as_ref().map_or(0, |_| self.assembler.ready.len());
            let home = &self.assembler.home;
            (home.leased().saturating_sub(ready + staged), self.slots + home.added())
        });
        let waited_for_functions = self.waited_for_functions;
        let waited = self.waited + self.waiting + waited_for_functions;
        RankStats { engine: self.run.stats(), waited, waited_for_functions, ready, held, slots }
    }
}
