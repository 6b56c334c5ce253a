//! What the order holds: the steps of an epoch, and the samples of a step.

use super::Loader;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Cursor, Position, Rank, SampleId, StepShape, StepSize};

impl Loader {
    /// Returns the sample ids of every rank's batch at step `step` of `epoch`, including padding.
    ///
    /// ```
    /// use feedstock_dataset::{Rank, Shuffle};
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
    /// let pipeline = dataset.columns(&["label"])?.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(4));
    /// let mut loader = pipeline.loader(Rank::new(1, 2))?;
    /// let step = loader.samples_in(0, 0)?; // by rank; nothing is read
    /// assert_eq!(step.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    /// assert_eq!(loader.next().unwrap()?.sample_ids(), step[1]);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a step that the epoch does not have.
    pub fn samples_in(&self, epoch: u64, step: u64) -> Result<Vec<Vec<SampleId>>> {
        let position = self.position_of(epoch, step)?;
        let mut order = self.plan.epoch(epoch);
        let ranks = 0..self.rank.world_size;
        let shapes =
            ranks.map(|rank| StepShape { rank: Rank::new(rank, self.rank.world_size), ..self.shape });
        Ok(shapes
            .map(|shape| order.step(position, &shape).map_or(Vec::new(), |step| step.rows))
            .map(|rows| rows.iter().map(|row| row.sample).collect())
            .collect())
    }

    pub(super) fn position_of(&self, epoch: u64, step: u64) -> Result<Position> {
        let position = match self.shape.size {
            StepSize::Rows(rows) => step.checked_mul(rows).map(Position),
            StepSize::Total { .. } => {
                let mut order = self.plan.epoch(epoch);
                let mut next = Some(Position(0));
                for _ in 0..step {
                    next = next.and_then(|next| order.step(next, &self.shape)).map(|step| step.next);
                    if next.is_none() {
                        break;
                    }
                }
                next
            }
        };
        position.filter(|position| self.shape.has_step(self.plan.len_of(epoch), *position)).ok_or_else(|| {
            let steps = self.plan.steps_left(epoch, Position(0), &self.shape);
            Error::new(
                ErrorKind::BadConfig,
                format!("epoch {epoch} has {steps} steps, so step {step} does not exist"),
            )
        })
    }

    /// Returns the number of batches in `epoch`, the same on all ranks. It is the same in all epochs, unless a total bounds
    /// batches.
    pub fn steps_in(&self, epoch: u64) -> u64 {
        self.steps_after(&self.plan.cursor(epoch, Position(0)))
    }

    /// Returns the number of batches from `cursor` to the end of its epoch.
    pub fn steps_after(&self, cursor: &Cursor) -> u64 {
        match self.is_over(cursor.epoch) {
            true => 0,
            false => self.plan.steps_left(cursor.epoch, cursor.position, &self.shape),
        }
    }

    /// Whether an epoch never ends, as in a mix without end.
    pub fn is_endless(&self) -> bool {
        self.plan.is_endless()
    }
}
