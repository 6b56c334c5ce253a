//! One writer per layout. Each gets the samples in the order in which it stores them.

mod columns;
mod folder;
mod ilsvrc;
mod ipc;
mod parquet;
pub(crate) mod speech;
mod tar_file;
mod webdataset;
pub(crate) mod writer;

use crate::output::Target;
use crate::{ImagenetOptions, Layout, Result};
use writer::Writer;

/// Returns the writer of the layout that `options` name.
pub(crate) fn open(options: &ImagenetOptions, target: Target) -> Result<Box<dyn Writer>> {
    Ok(match options.layout {
        Layout::Parquet => Box::new(parquet::ParquetWriter::new(options, target)?),
        Layout::Folder => Box::new(folder::FolderWriter::new(options, target)?),
        Layout::WebDataset => Box::new(webdataset::WebDatasetWriter::new(options, target)),
        Layout::Ipc => Box::new(ipc::IpcWriter::new(options, target)),
        Layout::Ilsvrc => Box::new(ilsvrc::IlsvrcWriter::new(target)?),
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::output::unfinished;
    use crate::{ErrorKind, Painter};
    use std::os::unix::fs::symlink;

    /// `/dev/full` fails every write as a full disk does.
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
