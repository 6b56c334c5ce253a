//! Computes the plan of a data set.

use crate::catalog::Catalog;
use crate::dataset::Composition;
use crate::{BlockId, Dataset, Result};
use feedstock_plan::{Plan, PlanInput, Shuffle};

/// Returns what the order of all samples of a catalog is computed from.
pub(crate) fn plan_input(catalog: &Catalog) -> PlanInput {
    #[expect(clippy::cast_possible_truncation, reason = "block ids are u32")]
    let blocks = catalog.blocks() as u32;
    PlanInput {
        block_starts: catalog.block_starts().into(),
        selection: None,
        data: catalog.hashes(),
        filter: None,
        encoded_bytes: (0..blocks).map(|id| catalog.block(BlockId(id)).bytes).sum(),
    }
}

impl Dataset {
    /// Returns the order of this data set's selected samples under `shuffle`.
    ///
    /// # Errors
    /// `BadConfig` if the filter keeps nothing, or if lanes or window are out of range.
    pub fn plan(&self, shuffle: &Shuffle) -> Result<Plan> {
        if let Composition::Mix(mix) = &self.composition {
            return self.mixed_plan(mix, shuffle);
        }
        let mut input = plan_input(self.catalog());
        input.selection = self.selection().cloned();
        input.filter = self.filter_text().as_deref().map(str::to_owned);
        Plan::new(input, shuffle)
    }
}
