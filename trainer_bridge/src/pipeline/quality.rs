//! How well a pipeline's order shuffles its data set.

use super::Pipeline;
use crate::Result;
use feedstock_dataset::{QualityOptions, Rank, Shuffle, ShuffleQuality};

impl Pipeline {
    /// Measures how well the order mixes the samples of batches for `world_size` ranks, on up to 64 sampled steps of `epoch`.
    /// Returns the figures of this order, of a full shuffle, and of half and twice the window. Blocks while it reads the
    /// labels of sampled samples; see [`feedstock_dataset::Dataset::shuffle_quality`].
    ///
    /// ```
    /// use feedstock_dataset::Shuffle;
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
    /// let pipeline = dataset.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(4));
    /// let quality = pipeline.shuffle_quality(2, 0, Some("label"))?;
    /// assert_eq!((quality.sampled_steps, quality.world_size), (4, 2));
    /// assert!(quality.order.global_batch.unwrap().entropy_ratio.unwrap() > 0.5);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if batches, lanes or window do not fit the data set, and for an unknown column of labels; storage's errors.
    pub fn shuffle_quality(
        &self,
        world_size: u32,
        epoch: u64,
        labels: Option<&str>,
    ) -> Result<ShuffleQuality> {
        let shape = self.shape(Rank { rank: 0, world_size })?;
        let options = QualityOptions { shape, epoch, labels };
        let plan = |shuffle: &Shuffle| {
            let mut recipe = self.recipe.clone();
            recipe.shuffle = shuffle.clone();
            recipe.plan(&shape)
        };
        futures::executor::block_on(self.recipe.dataset.shuffle_quality(&self.recipe.shuffle, &options, plan))
    }
}
