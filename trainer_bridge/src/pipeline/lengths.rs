//! The lengths of samples, by which batches are bucketed and bounded.

use super::Pipeline;

impl Pipeline {
    /// Puts samples of similar length into one batch. Inside windows of many batches, samples are sorted by the numeric
    /// `column` of the catalog (`duration`) and cut into global batches, which are shuffled. The order stays a pure function
    /// of (data set, seed, epoch), and all ranks get the same bucket at a step. Default: no bucketing.
    ///
    /// ```
    /// # use feedstock_dataset::Rank;
    /// # use feedstock_ops::decode_audio;
    /// # use feedstock_trainer_bridge::{BatchSize, Dataset};
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
    /// #     let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    /// #     let (len, head) = (data.len() as u32, [16, 0x0001_0001, rate, 2 * rate, 0x0010_0002].map(u32::to_le_bytes));
    /// #     let riff = [b"RIFF", &(36 + len).to_le_bytes()[..], b"WAVEfmt ", head.as_flattened()].concat();
    /// #     [&riff, &b"data"[..], &len.to_le_bytes(), &data].concat()
    /// # }
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, samples) in [("1.wav", 4_000), ("2.wav", 16_000), ("3.wav", 4_000), ("4.wav", 16_000)] {
    /// #     std::fs::write(folder.path().join(name), wav(16_000, &vec![0; samples])).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // WAVs of 0.25, 1, 0.25 and 1 s
    /// let padding = |pipeline: feedstock_trainer_bridge::Pipeline| -> feedstock_trainer_bridge::Result<f64> {
    ///     let mut batches = pipeline.batch(BatchSize::per_rank(2)).epochs(1).rank(Rank::new(0, 1)).start()?;
    ///     for batch in &mut batches {
    ///         batch?;
    ///     }
    ///     Ok(batches.padding_share("audio").unwrap())
    /// };
    /// let pipeline = dataset.map("audio", [decode_audio()]);
    /// assert_eq!(padding(pipeline.clone())?, 0.375); // 1.5 s of 4 s
    /// assert_eq!(padding(pipeline.bucket_by("duration"))?, 0.0);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    #[must_use]
    pub fn bucket_by(mut self, column: &str) -> Self {
        (self.recipe.by_length.column, self.recipe.by_length.bucketed) = (Some(column.to_owned()), true);
        self
    }

    /// Sets the samples of a bucketing window. Default: the shuffle's window, or the samples of 512 MiB of encoded bytes.
    #[must_use]
    pub fn bucket_window(mut self, samples: u64) -> Self {
        self.recipe.by_length.window = Some(samples);
        self
    }

    /// Sets the numeric column of lengths for batches that a total bounds, if they are not bucketed.
    #[must_use]
    pub fn lengths_from(mut self, column: &str) -> Self {
        self.recipe.by_length.column = Some(column.to_owned());
        self
    }
}
