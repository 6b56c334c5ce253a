//! Which device a loader's batches go to, and how.

use feedstock_device::finish::Finish;

/// Batches on their way unless said otherwise: one being copied, one ready.
const DEPTH: usize = 2;

/// More would only hold memory: the device is at most this number of batches late.
pub(super) const MOST_DEPTH: usize = 64;

/// Where batches go, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceOptions {
    /// CUDA's device; `None` for host memory.
    pub(crate) ordinal: Option<u32>,
    pub(crate) depth: usize,
    pub(crate) fixed_addresses: bool,
    pub(crate) finish: Vec<(String, Finish)>,
    /// Of the JPEGs that can be.
    pub(crate) nvjpeg: f64,
}

impl DeviceOptions {
    /// CUDA's device `ordinal`. Where the machine has no CUDA, batches stay in host memory, finished there all the same, and a
    /// warning is logged once.
    pub fn cuda(ordinal: u32) -> Self {
        Self { ordinal: Some(ordinal), ..Self::host() }
    }

    /// Host memory: batches are finished there, ahead of the caller, on one thread.
    pub fn host() -> Self {
        Self { ordinal: None, depth: DEPTH, fixed_addresses: false, finish: Vec::new(), nvjpeg: 0.0 }
    }

    /// Batches copied ahead of the caller, 1 to 64; there is one buffer more, for the batch that the caller has. Default 2:
    /// one ready, one being copied.
    #[must_use]
    pub fn depth(mut self, batches: usize) -> Self {
        self.depth = batches;
        self
    }

    /// Gives every batch's columns the same addresses, as CUDA graphs need them: [`Batch::settle`](crate::Batch::settle) copies
    /// each batch there. Needs batches of one shape.
    #[must_use]
    pub fn fixed_addresses(mut self, fixed: bool) -> Self {
        self.fixed_addresses = fixed;
        self
    }

    /// Has nvJPEG decode `share` of the JPEGs, from 0 (the default) to 1: those of chains of `decode_image`, one cut
    /// (`random_resized_crop`, or `resize` and a crop) with the filter bilinear, and flips. Which ones is a pure function
    /// of seed, epoch and sample; progressive and other JPEGs that only CPUs decode alike, and all other formats, stay with
    /// the CPU. Pixels differ from the CPU's by two levels at most on an H100. Where
    /// there is no CUDA, CPUs decode all.
    #[must_use]
    pub fn nvjpeg(mut self, share: f64) -> Self {
        self.nvjpeg = share;
        self
    }

    /// Finishes the mapped column `output` on the device. Default: it arrives as its chain made it.
    #[must_use]
    pub fn finish(mut self, output: &str, finish: Finish) -> Self {
        self.finish.push((output.to_owned(), finish));
        self
    }
}
