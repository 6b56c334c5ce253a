//! One writer per layout; each is given the samples in the order in which it stores them.

mod columns;
mod folder;
mod ilsvrc;
mod ipc;
mod parquet;
pub(crate) mod speech;
mod tar_file;
mod webdataset;

use crate::output::{Target, Written};
use crate::{ImagenetOptions, Layout, Result, Sample};

/// Writes samples (pictures, unless said) one after another.
pub(crate) trait Writer<S = Sample> {
    /// Adds the next sample.
    fn add(&mut self, sample: S) -> Result<()>;
    /// Closes the last file.
    fn finish(self: Box<Self>) -> Result<Written>;
}

/// The writer of the layout that `options` names.
pub(crate) fn open(options: &ImagenetOptions, target: Target) -> Result<Box<dyn Writer>> {
    Ok(match options.layout {
        Layout::Parquet => Box::new(parquet::ParquetWriter::new(options, target)?),
        Layout::Folder => Box::new(folder::FolderWriter::new(options, target)?),
        Layout::WebDataset => Box::new(webdataset::WebDatasetWriter::new(options, target)),
        Layout::Ipc => Box::new(ipc::IpcWriter::new(options, target)),
        Layout::Ilsvrc => Box::new(ilsvrc::IlsvrcWriter::new(target)?),
    })
}

/// Samples cut into shards whose lengths differ by at most one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shards {
    samples: u64,
    pub(crate) count: u64,
}

impl Shards {
    pub(crate) fn new(samples: u64, samples_per_shard: u64) -> Self {
        Self { samples, count: samples.div_ceil(samples_per_shard) }
    }

    /// How many samples shard `shard` holds.
    pub(crate) fn len(self, shard: u64) -> u64 {
        self.samples / self.count + u64::from(shard < self.samples % self.count)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::output::unfinished;
    use crate::{ErrorKind, Painter};
    use std::os::unix::fs::symlink;

    /// `/dev/full` answers every write as a full disk does.
    #[test]
    fn a_full_disk_is_one_clear_error() {
        let names = [
            (Layout::Parquet, "data/train-00000-of-00001.parquet"),
            (Layout::Folder, "n01440764/n01440764_0.JPEG"),
            (Layout::WebDataset, "imagenet-train-000000.tar"),
            (Layout::Ipc, "data-00000-of-00001.arrow"),
            (Layout::Ilsvrc, "ILSVRC2012_img_train.tar"),
        ];
        for (layout, name) in names {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink("/dev/full", unfinished(&path)).unwrap();
            let options = ImagenetOptions { samples: 2, classes: Some(1), layout, ..Default::default() };
            let mut painter = Painter::new(&options).unwrap();
            let write = || {
                let mut writer = open(&options, Target::unchecked(dir.path()))?;
                (0..2).try_for_each(|index| writer.add(painter.sample(index)?))?;
                writer.finish()
            };
            let error = { write }().err().unwrap_or_else(|| panic!("{layout} wrote to a full disk"));
            assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
            assert!(
                error.to_string().contains(name) && error.to_string().contains("free some space"),
                "{error}"
            );
        }
    }
}
