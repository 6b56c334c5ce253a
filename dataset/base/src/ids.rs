//! Ids as types, so that a position cannot be mistaken for a sample.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A sample's index in the catalog, counted over all samples, filtered or not.
    ///
    /// ```
    /// use feedstock_base::SampleId;
    ///
    /// let bad = [SampleId(12), SampleId(7)];
    /// assert_eq!(bad.iter().min(), Some(&SampleId(7)));
    /// assert_eq!(format!("sample {}", bad[0]), "sample 12");
    /// ```
    SampleId(u64)
}
id! {
    /// A block's index in the catalog.
    BlockId(u32)
}
id! {
    /// One of C equal parts of the order: position p is on lane p mod C.
    Lane(u32)
}
id! {
    /// An index into the order of one epoch, 0 … N−1.
    Position(u64)
}

/// One data-parallel process among `world_size`, as in `torch.distributed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rank {
    /// 0 … `world_size` − 1.
    pub rank: u32,
    /// The number of ranks that share each global batch.
    pub world_size: u32,
}

impl Rank {
    /// Creates rank `rank` of `world_size`.
    ///
    /// ```
    /// use feedstock_base::Rank;
    ///
    /// let ranks: Vec<String> = (0..2).map(|rank| Rank::new(rank, 2).to_string()).collect();
    /// assert_eq!(ranks, ["0/2", "1/2"]);
    /// assert!(std::panic::catch_unwind(|| Rank::new(2, 2)).is_err());
    /// ```
    ///
    /// # Panics
    /// If `rank >= world_size`: such a rank would never get data.
    pub const fn new(rank: u32, world_size: u32) -> Self {
        assert!(rank < world_size, "rank must be below world_size");
        Self { rank, world_size }
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.rank, self.world_size)
    }
}
