//! The options of a loader's device.

use feedstock_device::finish::Finish;

/// The default number of batches copied ahead: one being copied, one ready.
const DEPTH: usize = 2;

/// The largest depth. More would only occupy memory.
pub(super) const MOST_DEPTH: usize = 64;

/// Where batches go, and how.
///
/// ```
/// use feedstock_trainer_bridge::{DeviceOptions, FeatureFinish, Finish, PictureFinish};
///
/// let host = DeviceOptions::host().finish("image", Finish::Picture(PictureFinish::default()));
/// let audio = DeviceOptions::host().finish("image", Finish::Features(FeatureFinish::default()));
/// # use feedstock_dataset::Rank;
/// # use feedstock_ops::{decode_image, resize};
/// # use feedstock_trainer_bridge::{BatchSize, Dataset};
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
/// # images.write(folder.path(), &mut |_| {}).unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = OpenOptions { catalog, ..OpenOptions::default() };
/// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
/// let pipeline = dataset.map("image", [decode_image(), resize([32, 32])]).batch(BatchSize::per_rank(4));
/// assert!(pipeline.clone().device(host).rank(Rank::new(0, 1)).start().is_ok());
/// let error = pipeline.device(audio).rank(Rank::new(0, 1)).start().err().unwrap();
/// assert!(error.message().contains("image")); // the column is not one of features
/// # Ok::<(), feedstock_trainer_bridge::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceOptions {
    /// CUDA's device; `None` for host memory.
    pub(crate) ordinal: Option<u32>,
    pub(crate) depth: usize,
    pub(crate) fixed_addresses: bool,
    pub(crate) finish: Vec<(String, Finish)>,
    /// The fraction of the suitable JPEGs that nvJPEG decodes.
    pub(crate) nvjpeg: f64,
}

impl DeviceOptions {
    /// Delivers batches on CUDA's device `ordinal`. If the machine has no CUDA, batches are finished in host memory, and a
    /// warning is logged once.
    pub fn cuda(ordinal: u32) -> Self {
        Self { ordinal: Some(ordinal), ..Self::host() }
    }

    /// Delivers batches in host memory. One thread finishes them there, ahead of the caller.
    pub fn host() -> Self {
        Self { ordinal: None, depth: DEPTH, fixed_addresses: false, finish: Vec::new(), nvjpeg: 0.0 }
    }

    /// Sets the number of batches copied ahead of the caller, 1 to 64. There is one more buffer, for the caller's batch.
    /// Default 2: one ready, one being copied.
    #[must_use]
    pub fn depth(mut self, batches: usize) -> Self {
        self.depth = batches;
        self
    }

    /// Gives the columns of every batch the same addresses, as CUDA graphs need. [`Batch::settle`](crate::Batch::settle) copies
    /// each batch there. All batches must have one shape.
    #[must_use]
    pub fn fixed_addresses(mut self, fixed: bool) -> Self {
        self.fixed_addresses = fixed;
        self
    }

    /// Makes nvJPEG decode the fraction `share` of the JPEGs, 0.0 (the default) to 1.0. Their chain must be `decode_image`, one
    /// crop (`random_resized_crop`, or `resize` and a crop) with the bilinear filter, and flips. The choice is a pure function
    /// of seed, epoch and sample. The CPU decodes all other formats, and JPEGs that only CPUs decode alike, such as progressive
    /// ones. On an H100, pixels differ from the CPU's by at most two levels. Without CUDA, CPUs decode all images.
    #[must_use]
    pub fn nvjpeg(mut self, share: f64) -> Self {
        self.nvjpeg = share;
        self
    }

    /// Finishes the mapped column `output` on the device. Default: it is delivered as its chain made it.
    #[must_use]
    pub fn finish(mut self, output: &str, finish: Finish) -> Self {
        self.finish.push((output.to_owned(), finish));
        self
    }
}
