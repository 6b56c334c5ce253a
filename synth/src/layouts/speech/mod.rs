//! One writer per layout of audio clips. They come grouped by language and split, or by split alone.

mod columns;
mod hf_tars;
mod mozilla;
mod mozilla_tar_gz;
mod parquet;
mod shards;
mod tsv;
mod webdataset;

use super::writer::Writer;
use crate::Result;
use crate::output::Target;
use crate::speech::options::{CommonVoiceLayout, CommonVoiceOptions};
use crate::speech::{Clip, Role};
use shards::ShardPlan;

/// Returns the writer of the layout that `options` name. `roles` are those of all audio clips.
pub(crate) fn open(
    options: &CommonVoiceOptions,
    target: Target,
    roles: impl Iterator<Item = Role>,
) -> Result<Box<dyn Writer<Clip>>> {
    let per_shard = options.samples_per_shard;
    Ok(match options.layout {
        CommonVoiceLayout::Mozilla => Box::new(mozilla::MozillaWriter::new(target)),
        CommonVoiceLayout::MozillaTarGz => Box::new(mozilla_tar_gz::MozillaTarGzWriter::new(target)),
        CommonVoiceLayout::HfTars => {
            let plan = ShardPlan::new(roles.map(|role| (role.locale, role.split)), per_shard);
            Box::new(hf_tars::HfTarsWriter::new(target, plan)?)
        }
        CommonVoiceLayout::Parquet => {
            let plan = ShardPlan::new(roles.map(|role| role.split), per_shard);
            Box::new(parquet::ParquetWriter::new(options, target, plan)?)
        }
        CommonVoiceLayout::WebDataset => {
            let plan = ShardPlan::new(roles.map(|role| role.split), per_shard);
            Box::new(webdataset::WebDatasetWriter::new(target, plan))
        }
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::output::unfinished;
    use crate::speech::Split;
    use crate::{ErrorKind, Narrator, Voice};
    use std::os::unix::fs::symlink;

    /// `/dev/full` fails every write as a full disk does.
    #[test]
    fn a_full_disk_is_one_clear_error() {
        let names = [
            (CommonVoiceLayout::Mozilla, "en/clip_durations.tsv"),
            (CommonVoiceLayout::Mozilla, "en/clips/common_voice_en_17000000.mp3"),
            (CommonVoiceLayout::MozillaTarGz, "cv-corpus-17.0-2024-03-15-en.tar.gz"),
            (CommonVoiceLayout::HfTars, "audio/en/train/en_train_0.tar"),
            (CommonVoiceLayout::HfTars, "n_shards.json"),
            (CommonVoiceLayout::Parquet, "data/train-00000-of-00001.parquet"),
            (CommonVoiceLayout::WebDataset, "common-voice-train-000000.tar"),
        ];
        for (layout, name) in names {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink("/dev/full", unfinished(&path)).unwrap();
            let options =
                CommonVoiceOptions { samples: 1, layout, voice: Voice::Formant, ..Default::default() };
            let mut narrator = Narrator::new(&options).unwrap();
            let mut clip = narrator.clip(0).unwrap();
            clip.split = Split::Train;
            let role = Role { split: Split::Train, ..options.cast().role(0) };
            let write = || {
                let mut writer = open(&options, Target::unchecked(dir.path()), [role].into_iter())?;
                writer.add(clip)?;
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
