//! The layout that Hugging Face's loading script reads: `audio/<locale>/<split>/<locale>_<split>_<i>.tar` (members in
//! one folder named as the shard), `transcript/<locale>/<split>.tsv` and `n_shards.json`.

use super::super::tar_file;
use super::super::writer::Writer;
use super::shards::{Group, Place, ShardPlan};
use super::tsv;
use crate::output::{OutFile, Target, Written};
use crate::speech::{Clip, Locale, Split};
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::io::Write;

pub(crate) struct HfTarsWriter {
    target: Target,
    plan: ShardPlan<Group>,
    place: Option<Place<Group>>,
    tar: Option<OutFile>,
    transcript: Option<OutFile>,
    written: Written,
}

impl HfTarsWriter {
    pub(crate) fn new(target: Target, plan: ShardPlan<Group>) -> Result<Self> {
        for (locale, split) in plan.groups() {
            target.folder(&format!("audio/{locale}/{split}"))?;
            target.folder(&format!("transcript/{locale}"))?;
        }
        Ok(Self { target, plan, place: None, tar: None, transcript: None, written: Written::default() })
    }

    fn close_tar(&mut self) -> Result<()> {
        let Some(mut tar) = self.tar.take() else { return Ok(()) };
        tar_file::end(&mut tar)?;
        tar.close(&mut self.written)
    }

    fn close_transcript(&mut self) -> Result<()> {
        match self.transcript.take() {
            Some(transcript) => transcript.close(&mut self.written),
            None => Ok(()),
        }
    }

    /// Returns `{"en": {"train": 2, …}, …}`.
    fn shard_counts(&self) -> Value {
        let mut counts: Map<String, Value> = Map::new();
        for locale in Locale::ALL {
            let splits = Split::ALL.iter().filter_map(|split| {
                let shards = self.plan.of(&(locale, *split))?;
                Some((split.name().to_owned(), json!(shards.count)))
            });
            let splits: Map<String, Value> = splits.collect();
            if !splits.is_empty() {
                counts.insert(locale.name().to_owned(), Value::Object(splits));
            }
        }
        Value::Object(counts)
    }
}

impl Writer<Clip> for HfTarsWriter {
    fn add(&mut self, clip: Clip) -> Result<()> {
        let (locale, split) = (clip.locale, clip.split);
        let mut place = Place::next(self.place, (locale, split), &self.plan);
        let shard = format!("{locale}_{split}_{}", place.shard);
        let moved = self.place.is_none_or(|last| (last.group, last.shard) != (place.group, place.shard));
        if moved {
            self.close_tar()?;
            if place.shard == 0 {
                self.close_transcript()?;
                let mut transcript = self.target.file(&format!("transcript/{locale}/{split}.tsv"))?;
                tsv::put(&mut transcript, tsv::HEADER)?;
                self.transcript = Some(transcript);
            }
            self.tar = Some(self.target.file(&format!("audio/{locale}/{split}/{shard}.tar"))?);
        }
        if let (Some(tar), Some(transcript)) = (&mut self.tar, &mut self.transcript) {
            tar_file::append(tar, &format!("{shard}/{}", clip.path), &clip.mp3)?;
            tsv::put(transcript, &tsv::line(&clip))?;
        }
        place.left -= 1;
        self.place = Some(place);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Written> {
        self.close_tar()?;
        self.close_transcript()?;
        let mut file = self.target.file("n_shards.json")?;
        let counts = self.shard_counts().to_string();
        file.write_all(counts.as_bytes()).map_err(|e| Error::write(file.path(), e))?;
        file.close(&mut self.written)?;
        Ok(self.written)
    }
}
