//! The number of samples in a batch.

use feedstock_dataset::{Rank, StepSize};

/// The most rows of a rank's batch that a total bounds. Without it, 120 s would be 1,200 audio clips of 0.1 s.
const MAX_ROWS_PER_RANK: u64 = 1024;

/// The most rows of a global batch that a total bounds: those of 64 such ranks.
const MAX_ROWS_GLOBAL: u64 = 64 * MAX_ROWS_PER_RANK;

/// The number of samples in a step.
///
/// ```
/// use feedstock_dataset::Rank;
/// use feedstock_ops::{decode_image, resize};
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
/// let pipeline = dataset.map("image", [decode_image(), resize([32, 32])]);
/// let rows = |size| -> feedstock_trainer_bridge::Result<usize> {
///     let mut batches = pipeline.clone().batch(size).rank(Rank::new(0, 2)).start()?; // one of two ranks
///     Ok(batches.next().unwrap()?.len())
/// };
/// assert_eq!((rows(BatchSize::per_rank(4))?, rows(BatchSize::global(4))?), (4, 2));
/// # Ok::<(), feedstock_trainer_bridge::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum BatchSize {
    /// For each rank: a step takes this times the world size.
    PerRank(u64),
    /// Over all ranks: shares differ by at most one row.
    Global(u64),
    /// For each rank, the most that a bound on their padded length allows.
    PerRankTotal {
        /// The most rows × longest length, in the unit of the lengths' column (seconds, frames, tokens).
        total: f64,
        /// The most rows, even if they are short.
        max_rows: u64,
    },
    /// Over all ranks, the most that a bound on their padded length allows.
    GlobalTotal {
        /// The most rows × longest length, in the unit of the lengths' column.
        total: f64,
        /// The most rows, even if they are short.
        max_rows: u64,
    },
}

impl BatchSize {
    /// Takes `samples` samples per step for each rank.
    pub const fn per_rank(samples: u64) -> Self {
        Self::PerRank(samples)
    }

    /// Takes `samples` samples per step over all ranks.
    pub const fn global(samples: u64) -> Self {
        Self::Global(samples)
    }

    /// Takes, for each rank, the most samples that `total` allows: rows × longest length ≤ `total`. The unit is that of the
    /// lengths' column ([`Pipeline::bucket_by`](crate::Pipeline::bucket_by),
    /// [`Pipeline::lengths_from`](crate::Pipeline::lengths_from)). The limit is 1,024 rows, or [`max_rows`](Self::max_rows).
    /// All ranks take the same number of steps.
    ///
    /// The bound holds for each rank, so the global batches depend on the world size.
    ///
    /// ```
    /// use feedstock_dataset::Rank;
    /// use feedstock_ops::decode_audio;
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
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
    /// let pipeline = dataset
    ///     .map("audio", [decode_audio()])
    ///     .bucket_by("duration")
    ///     .batch(BatchSize::per_rank_total(2.0).max_rows(8)); // at most 2 s, with padding
    /// let mut batches = pipeline.rank(Rank::new(0, 1)).start()?;
    /// let batch = batches.next().unwrap()?; // without a shuffle, the longest come first
    /// assert_eq!(batch["audio"].shape(), [2, 16_000]);
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    pub const fn per_rank_total(total: f64) -> Self {
        Self::PerRankTotal { total, max_rows: MAX_ROWS_PER_RANK }
    }

    /// As [`per_rank_total`](Self::per_rank_total), over all ranks and with a limit of 65,536 rows. The global batches are the
    /// same for any world size. A rank's share may exceed its part of the total by one row.
    pub const fn global_total(total: f64) -> Self {
        Self::GlobalTotal { total, max_rows: MAX_ROWS_GLOBAL }
    }

    /// Limits the rows that a total gathers, for each rank or over all ranks, like the total. Does not change a size in rows.
    #[must_use]
    pub const fn max_rows(self, rows: u64) -> Self {
        match self {
            Self::PerRankTotal { total, .. } => Self::PerRankTotal { total, max_rows: rows },
            Self::GlobalTotal { total, .. } => Self::GlobalTotal { total, max_rows: rows },
            Self::PerRank(_) | Self::Global(_) => self,
        }
    }

    /// Returns the size of a step over all ranks, or `None` if it exceeds 64 bits.
    pub(crate) fn over(self, rank: Rank) -> Option<StepSize> {
        let ranks = u64::from(rank.world_size);
        Some(match self {
            Self::PerRank(samples) => StepSize::Rows(samples.checked_mul(ranks)?),
            Self::Global(samples) => StepSize::Rows(samples),
            Self::PerRankTotal { total, max_rows } => {
                let total = total * f64::from(rank.world_size);
                StepSize::Total { total, max_rows: max_rows.checked_mul(ranks)?, ranks }
            }
            Self::GlobalTotal { total, max_rows } => StepSize::Total { total, max_rows, ranks: 1 },
        })
    }
}
