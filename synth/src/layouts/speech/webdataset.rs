//! The layout `common-voice-<split>-000000.tar` …: three members per audio clip, `.json` (the TSV's columns, `split`
//! and `duration` in seconds), `.mp3` and `.txt` (the sentence).

use super::super::tar_file;
use super::super::writer::Writer;
use super::shards::{Place, ShardPlan};
use crate::Result;
use crate::output::{OutFile, Target, Written};
use crate::speech::{Clip, Split};
use serde_json::json;

pub(crate) struct WebDatasetWriter {
    target: Target,
    plan: ShardPlan<Split>,
    place: Option<Place<Split>>,
    tar: Option<OutFile>,
    written: Written,
}

impl WebDatasetWriter {
    pub(crate) fn new(target: Target, plan: ShardPlan<Split>) -> Self {
        Self { target, plan, place: None, tar: None, written: Written::default() }
    }

    fn close(&mut self) -> Result<()> {
        let Some(mut tar) = self.tar.take() else { return Ok(()) };
        tar_file::end(&mut tar)?;
        tar.close(&mut self.written)
    }
}

impl Writer<Clip> for WebDatasetWriter {
    fn add(&mut self, clip: Clip) -> Result<()> {
        let mut place = Place::next(self.place, clip.split, &self.plan);
        if self.place.is_none_or(|last| (last.group, last.shard) != (place.group, place.shard)) {
            self.close()?;
            self.tar =
                Some(self.target.file(&format!("common-voice-{}-{:06}.tar", clip.split, place.shard))?);
        }
        let key = clip.path.trim_end_matches(".mp3");
        let facts = json!({
            "accents": clip.accents,
            "age": clip.age,
            "client_id": clip.client_id,
            "down_votes": clip.down_votes,
            "duration": f64::from(clip.duration_ms) / 1000.0,
            "gender": clip.gender,
            "locale": clip.locale.name(),
            "path": clip.path,
            "sentence": clip.sentence,
            "split": clip.split.name(),
            "up_votes": clip.up_votes,
        });
        if let Some(tar) = &mut self.tar {
            tar_file::append(tar, &format!("{key}.json"), facts.to_string().as_bytes())?;
            tar_file::append(tar, &format!("{key}.mp3"), &clip.mp3)?;
            tar_file::append(tar, &format!("{key}.txt"), clip.sentence.as_bytes())?;
        }
        place.left -= 1;
        self.place = Some(place);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Written> {
        self.close()?;
        Ok(self.written)
    }
}
