//! Checks that a shape fits a plan.

use crate::plan::Plan;
use crate::size::StepSize;
use crate::step::{StepShape, Tail};
use feedstock_base::{Error, Result, SampleId};

impl StepShape {
    /// Rejects shapes that yield no step of `plan`, or a step without rows for some rank. `name` returns a sample's name for
    /// errors.
    ///
    /// ```
    /// # use feedstock_base::{Rank, SampleId};
    /// # use feedstock_plan::{Plan, Shuffle, StepShape, StepSize, Tail};
    /// # use feedstock_plan::{Access, DataHashes, PlanInput};
    /// # let data = DataHashes { identity: 1, blocks: 1, legacy: 1 };
    /// # let input = PlanInput { block_starts: [0, 4, 8].into(), selection: None, data, filter: None, encoded_bytes: 8_000, access: Access::Blocks };
    /// let plan = Plan::new(input, &Shuffle::none())?;
    /// let shape = StepShape { size: StepSize::Rows(16), rank: Rank::new(0, 2), tail: Tail::Drop };
    /// let name = |sample: SampleId| format!("train.tar, sample {sample}");
    /// assert_eq!(
    ///     shape.check(&plan, &name).unwrap_err().message(),
    ///     "the data set has 8 selected samples, fewer than one global batch of 16: with tail=drop an epoch would be empty; \
    ///      use a smaller batch or tail=pad"
    /// );
    /// StepShape { tail: Tail::Pad, ..shape }.check(&plan, &name)?;
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a rank outside its world, a batch with fewer rows than ranks, an epoch without a step, a total
    /// without lengths, and a sample that leaves some rank without a row under the total; the message names the sample.
    pub fn check(&self, plan: &Plan, name: &dyn Fn(SampleId) -> String) -> Result<()> {
        let (world_size, samples) = (u64::from(self.rank.world_size), plan.len());
        if self.rank.rank >= self.rank.world_size {
            return Err(Error::config(format!("rank {} must be below its world size", self.rank)));
        }
        self.size.check()?;
        if self.size.max_rows() < world_size {
            return Err(Error::config(format!(
                "a global batch of {} leaves some of the {world_size} ranks without rows; use at least {world_size}",
                self.size.max_rows()
            )));
        }
        self.check_total(plan, name)?;
        if self.tail == Tail::Drop && samples < self.least_rows() {
            return Err(Error::config(format!(
                "the data set has {samples} selected samples, fewer than one global batch of {}: with tail=drop an \
                 epoch would be empty; use a smaller batch or tail=pad",
                self.least_rows()
            )));
        }
        Ok(())
    }

    fn check_total(&self, plan: &Plan, name: &dyn Fn(SampleId) -> String) -> Result<()> {
        let StepSize::Total { total, .. } = self.size else { return Ok(()) };
        let world_size = u64::from(self.rank.world_size);
        let Some((column, sample, longest)) = plan.longest() else {
            return Err(Error::config(format!(
                "a batch total of {total} needs the samples' lengths: name the column that holds them"
            )));
        };
        if self.size.rows_of(longest) >= world_size {
            return Ok(());
        }
        let who = name(sample);
        Err(Error::config(match f64::from(longest) > total {
            true => format!(
                "{who}: its {column} of {longest} alone exceeds the batch total of {total}; filter longer samples out \
                 (`{column} <= {total}`) or raise the total"
            ),
            false => format!(
                "{who}: its {column} of {longest} on each of {world_size} ranks makes {}, over the batch total of \
                 {total} over all ranks; filter longer samples out or raise the total",
                f64::from(longest) * f64::from(self.rank.world_size)
            ),
        }))
    }
}
