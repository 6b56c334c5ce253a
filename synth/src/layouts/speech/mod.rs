//! One writer per layout of clips. Clips come grouped: by language and split, or by split alone.

mod columns;
mod hf_tars;
mod mozilla;
mod mozilla_tar_gz;
mod parquet;
mod tsv;
mod webdataset;

use super::{Shards, Writer};
use crate::Result;
use crate::common_voice::{CommonVoiceLayout, CommonVoiceOptions};
use crate::output::Target;
use crate::speech::{Clip, Locale, Role, Split};
use std::collections::BTreeMap;

/// The writer of the layout that `options` names. `roles` are those of all clips.
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

/// How many clips each group has, cut into shards.
pub(crate) struct ShardPlan<G> {
    groups: BTreeMap<G, Shards>,
}

impl<G: Ord> ShardPlan<G> {
    fn new(groups: impl Iterator<Item = G>, per_shard: u64) -> Self {
        let mut counts: BTreeMap<G, u64> = BTreeMap::new();
        for group in groups {
            *counts.entry(group).or_default() += 1;
        }
        let groups = counts.into_iter().map(|(group, count)| (group, Shards::new(count, per_shard)));
        Self { groups: groups.collect() }
    }

    /// The shards of a group; none if it has no clip.
    fn of(&self, group: &G) -> Option<Shards> {
        self.groups.get(group).copied()
    }
}

/// Place of the next clip: its group, the shard in it, and the clips that the shard still takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place<G> {
    group: G,
    shard: u64,
    left: u64,
}

impl<G: Ord + Copy> Place<G> {
    /// Where a clip of `group` goes after `last`. The plan counted every clip, so the group is known.
    fn next(last: Option<Self>, group: G, plan: &ShardPlan<G>) -> Self {
        let shards = plan.of(&group).unwrap_or(Shards::new(1, 1));
        match last {
            Some(place) if place.group == group && place.left > 0 => place,
            Some(place) if place.group == group => {
                Self { group, shard: place.shard + 1, left: shards.len(place.shard + 1) }
            }
            _ => Self { group, shard: 0, left: shards.len(0) },
        }
    }
}

/// The splits under the names of Hugging Face `datasets`.
fn hf_split(split: Split) -> &'static str {
    match split {
        Split::Dev => "validation",
        other => other.name(),
    }
}

/// The group of layouts that keep languages apart.
type Group = (Locale, Split);

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::output::unfinished;
    use crate::{ErrorKind, Narrator, Voice};
    use std::os::unix::fs::symlink;

    /// `/dev/full` answers every write as a full disk does.
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
