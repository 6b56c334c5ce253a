//! Views: several tensors of one image, which is decoded once.

use super::Pipeline;
use feedstock_ingest::{MapSpec, ViewSpec};
use feedstock_ops::image::View;
use feedstock_ops::{ChainSpec, Op};

impl Pipeline {
    /// Decodes each image in `column` once, with `decode`, and makes a tensor of each view of it: the crops that
    /// self-supervised training compares. The tensors have the views' names. A view has rows [h, w, 3], or [n, h, w, 3] with
    /// [`View::count`].
    ///
    /// View number i (from 0) of the name `name` draws as a map with the [`key`](Self::key) `name/i`, so all images of a
    /// sample have independent draws, whatever other views there are. If `decode` has `scaled=false`, a view has the bytes of
    /// that map. Otherwise, the image is decoded at the finest fraction of its size (1, 1/2, 1/4, 1/8) that one of the views
    /// needs. An image that cannot be decoded, or that is too small for one view, is one bad sample.
    ///
    /// A rank does not start if a view has the name of a column of the data set or of another map, or a key.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::image::View;
    /// use feedstock_ops::{decode_image, horizontal_flip, random_resized_crop};
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
    /// let crop = |size| [random_resized_crop(size), horizontal_flip(0.5)];
    /// let views = [View::new("global", crop(32)), View::new("local", crop(16)).count(8)];
    /// let pipeline = dataset.views("image", decode_image(), views).batch(BatchSize::per_rank(4));
    /// let batch = pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap()?;
    /// assert_eq!(batch["global"].shape(), [4, 32, 32, 3]);
    /// assert_eq!(batch["local"].shape(), [4, 8, 16, 16, 3]);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there are no views.
    #[must_use]
    pub fn views(
        mut self,
        column: &str,
        decode: impl Into<Op>,
        views: impl IntoIterator<Item = View>,
    ) -> Self {
        let (decode, views): (Op, Vec<View>) = (decode.into(), views.into_iter().collect());
        assert!(!views.is_empty(), "views: there must be at least one view of '{column}'");
        // Another call may have the same names on another column.
        let names = views.iter().map(|view| view.name.as_str()).collect::<Vec<_>>().join("+");
        let of = format!("{}:{names}", self.recipe.maps.len());
        self.recipe.maps.extend(views.into_iter().map(|View { name, count, ops, .. }| {
            let chain: ChainSpec = std::iter::once(decode.clone()).chain(ops.0).collect();
            MapSpec { view: Some(ViewSpec { of: of.clone(), count }), ..MapSpec::new(column, &name, chain) }
        }));
        self
    }
}
