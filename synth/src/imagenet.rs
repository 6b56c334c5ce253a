//! Writes ImageNet-like sample data.

use crate::Result;
use crate::imagenet_options::{ImagenetOptions, Layout};
use crate::layouts;
use crate::output::Target;
use crate::painter::{Painter, label};
use crate::parallel::in_order;
use crate::progress::{Progress, ProgressFn};
use std::path::Path;

/// A summary of the files written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Number of samples.
    pub samples: u64,
    /// Number of classes.
    pub classes: u32,
    /// Number of files written.
    pub files: u64,
    /// Total bytes of the images.
    pub image_bytes: u64,
    /// Total bytes of the files.
    pub file_bytes: u64,
}

impl ImagenetOptions {
    /// Writes the data set into `dir`, creates it if necessary, and calls `progress` after every sample.
    ///
    /// # Errors
    /// `BadConfig` if an option is out of range or `dir` holds files; `Storage` if a write fails, for example because
    /// the disk is full (the folder is then incomplete).
    pub fn write(&self, dir: impl AsRef<Path>, progress: &mut ProgressFn<'_>) -> Result<Summary> {
        self.check()?;
        let target = Target::prepare(dir.as_ref(), self.overwrite)?;
        let mut writer = layouts::open(self, target)?;
        let order = self.order();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "positions are below samples, which fits 32 bits"
        )]
        let index_at = |place: u64| order.as_ref().map_or(place, |order| u64::from(order[place as usize]));
        let (mut done, mut bytes) = (0, 0);
        in_order(
            self.threads,
            self.samples,
            || Painter::new(self),
            |painter, place| painter.sample(index_at(place)),
            |sample| {
                done += 1;
                bytes += sample.jpeg.len() as u64;
                writer.add(sample)?;
                progress(Progress { done, total: self.samples, bytes });
                Ok(())
            },
        )?;
        let written = writer.finish()?;
        Ok(Summary {
            samples: self.samples,
            classes: self.class_count(),
            files: written.files,
            image_bytes: bytes,
            file_bytes: written.bytes,
        })
    }

    /// Returns the samples in the order in which the layout stores them; `None` means by index.
    fn order(&self) -> Option<Vec<u32>> {
        let by_class = matches!(self.layout, Layout::Ilsvrc);
        by_class.then(|| {
            let classes = self.class_count();
            let mut order: Vec<u32> = (0..u32::try_from(self.samples).unwrap_or(u32::MAX)).collect();
            order.sort_by_cached_key(|&index| label(self.seed, index.into(), classes)); // a stable sort
            order
        })
    }
}
