//! What a pipeline may use: batches in memory, CPU threads, bytes and time.

use super::Pipeline;
use std::sync::Arc;
use std::time::Duration;

/// 1,200 photographs of 110 kB: half a second ahead of a rank that trains on 2,400 a second, while 999 of 1,000 reads from object
/// storage take less.
const PREFETCH_BYTES: u64 = 128 << 20;

/// A local disk answers within milliseconds. With 128 MiB, the default pipeline takes 150 MiB more.
const LOCAL_PREFETCH_BYTES: u64 = 64 << 20;

impl Pipeline {
    /// Sets the number of batches in memory for each rank, at least 2. Default 4: 2 ready, 1 being written, 1 with the caller.
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
    /// let pipeline = dataset.batch(BatchSize::per_rank(4));
    /// assert_eq!(pipeline.slot_count(), 4);
    /// let error = pipeline.slots(1).rank(Rank::new(0, 1)).start().err().unwrap();
    /// assert_eq!(error.kind(), feedstock_trainer_bridge::ErrorKind::BadConfig);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    #[must_use]
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// Returns the number that [`slots`](Self::slots) set, or its default.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.slots
    }

    /// Limits the bytes of batches that a caller may keep beyond [`slots`](Self::slots). Default 1 GiB; with 0, none.
    ///
    /// A caller that has waited for a batch for a second while it holds all [`slots`](Self::slots) keeps its batches, as
    /// `collect()` does. Half as many slots are added then, and again whenever it holds all of them, with one warning in the log.
    /// Added slots are freed when batches are dropped. If the limit has no room for another batch of the mean size, waiting for a
    /// second ends with an error (`BadConfig`), after which the caller may drop batches and go on. With a device, nothing is added,
    /// and the same wait ends with that error.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_trainer_bridge::{Batch, BatchSize, Dataset, Result};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.batch(BatchSize::per_rank(2)).epochs(1); // 8 batches, and 4 slots
    /// let all: Vec<Batch> = pipeline.rank(Rank::new(0, 1)).start()?.collect::<Result<_>>()?;
    /// assert_eq!(all.len(), 8);
    /// let error = pipeline.held_bytes(0).rank(Rank::new(0, 1)).start()?.collect::<Result<Vec<Batch>>>().unwrap_err();
    /// assert!(error.message().contains("all 4 slots are held"));
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    #[must_use]
    pub fn held_bytes(mut self, bytes: u64) -> Self {
        self.held_bytes = bytes;
        self
    }

    /// Limits the CPU threads that work for this pipeline at once, at least 1. All its ranks in this process share them. They
    /// belong to the process's only pool, which has the number of threads of its largest pipeline. Default: the CPUs that the
    /// process may use (affinity, cgroup quota), divided by the environment's `LOCAL_WORLD_SIZE`. A different number starts a
    /// new share, to which earlier clones do not belong.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        if self.threads != Some(threads) {
            self.engine = Arc::default();
        }
        self.threads = Some(threads);
        self
    }

    /// Returns the number that [`threads`](Self::threads) set, or `None` if the default applies.
    #[must_use]
    pub fn thread_limit(&self) -> Option<usize> {
        self.threads
    }

    /// Limits the bytes of blocks in memory for each rank of this process. Blocks count decompressed, with images and audio
    /// still encoded. Default 1 GiB, twice the default shuffle window. With less than the window, blocks are read twice.
    ///
    /// A process grows by at most `budget_bytes` + slots + 200 MB + `threads` × [`decoder_memory`](Self::decoder_memory) +
    /// [`row_index_bytes`](Self::row_index_bytes). With the defaults and 8 threads, that is 1 GiB + 4 batches + 200 MB +
    /// 512 MiB + 64 MiB. Of the 200 MB, 64 MiB are for blocks that are being decompressed and 32 MiB for idle blocks; the rest
    /// is the program. A block over 32 MiB counts towards the budget while it is made. A step that needs more than the budget is
    /// an error that states how much it needs. With workers and [`Local`](crate::Local), a step that this process serves itself may
    /// take half of the budget.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::{decode_image, resize};
    /// use feedstock_trainer_bridge::{BatchSize, Dataset, ErrorKind};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.map("image", [decode_image(), resize([32, 32])]).batch(BatchSize::per_rank(4));
    /// let error = pipeline.budget_bytes(1_000).rank(Rank::new(0, 1)).start().err().unwrap();
    /// assert_eq!(error.kind(), ErrorKind::BadConfig); // not a wait for ever
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    #[must_use]
    pub fn budget_bytes(mut self, bytes: u64) -> Self {
        self.budget_bytes = bytes;
        self
    }

    /// Limits the bytes that each rank of this process fetches for steps that have no slot yet. Default: 64 MiB if the
    /// data set is on a disk of this machine, else 128 MiB. The next two steps are fetched in any case, and no more than 64 steps. Of files on a local disk, no more than these bytes are kept for the
    /// next epoch, since the operating system caches files; with object storage, the whole budget is used to keep them.
    ///
    /// Raise it if the storage stops for longer than the steps ahead last: at 140 MB/s, 128 MiB last a second. Streams from
    /// workers do not use it, they use what they [reserve](crate::Workers).
    #[must_use]
    pub fn prefetch_bytes(mut self, bytes: u64) -> Self {
        self.prefetch_bytes = Some(bytes);
        self
    }

    /// Returns the bytes that are fetched ahead.
    pub(crate) fn bytes_ahead(&self) -> u64 {
        self.prefetch_bytes.unwrap_or_else(|| match self.recipe.dataset.catalog().is_on_local_disks() {
            true => LOCAL_PREFETCH_BYTES,
            false => PREFETCH_BYTES,
        })
    }

    /// Limits the working memory of each CPU thread for one sample, in bytes. It covers the decoded image or waveform, the
    /// decoder's buffers and the ops' results. Default 64 MiB, a 22-megapixel RGB image.
    ///
    /// A sample that needs more borrows the rest from `budget_bytes` until it is decoded. Its header states what it needs: 150
    /// MB for a PNG of 50 megapixels. A sample that needs more than `decoder_memory` + `budget_bytes` / 2 (with
    /// [`Local`](crate::Local), a quarter of `budget_bytes`) is bad, subject to [`on_error`](Self::on_error). The other half of the budget is for the blocks of its batch. The sum follows from options
    /// alone, so all ranks and workers find the same samples bad. If the blocks of a batch leave too little room for what one
    /// of its samples borrows, the run ends with an error that states the sizes.
    #[must_use]
    pub fn decoder_memory(mut self, bytes: u64) -> Self {
        self.decoder_memory = bytes;
        self
    }

    /// Sets the bytes that this process keeps to remember where the rows of baseline JPEGs begin. Default 64 MiB, enough for some
    /// 240,000 images of 500 × 375 pixels; 0 remembers nothing. They are not part of `budget_bytes`.
    ///
    /// From the second epoch on, a crop is then decoded without the rows above it: with `random_resized_crop(224)` in 0.80 to
    /// 0.84 × the CPU time. Batches are the same bytes with and without.
    #[must_use]
    pub fn row_index_bytes(mut self, bytes: u64) -> Self {
        self.row_index_bytes = Some(bytes);
        self
    }

    /// Sets the longest wait for a batch, after which the iterator yields an error that states what it waited for.
    /// Default 5 min.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}
