//! Reads the samples that a destination lacks, changes them, and writes them shard by shard.

use super::cuts::{mean_batch_rows, mean_sample_bytes};
use super::digest::RowDigest;
use super::encode::{EncodeOptions, ShardEncoder};
use super::options::{RewriteOptions, RewriteStage};
use super::recode::{self, Change, Recoded, RecodedBatches, Recoder};
use super::schema::{PayloadKind, ShardSchema};
use super::state::{FinishedShard, RewriteState, Target, Upload};
use crate::{Error, RawBatches, RawOptions, Result};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Dataset, Plan, Position, SampleId, Shuffle};
use feedstock_ops::image::ShrinkImage;
use std::collections::BTreeMap;

/// One run of a rewrite.
pub(super) struct Rewriter<'a> {
    pub(super) dataset: &'a Dataset,
    pub(super) plan: &'a Plan,
    pub(super) shuffle: Shuffle,
    pub(super) starts: &'a [u64],
    pub(super) target: &'a Target,
    pub(super) options: &'a RewriteOptions,
}

impl Rewriter<'_> {
    /// The samples from `position` on.
    pub(super) fn read(&self, position: u64) -> Result<RawBatches> {
        let raw = RawOptions {
            shuffle: self.shuffle.clone(),
            batch_rows: mean_batch_rows(self.dataset, self.options.group_bytes),
            position: Position(position),
            budget_bytes: self.options.budget_bytes,
            deadline: self.options.deadline,
            ..RawOptions::default()
        };
        RawBatches::start(self.dataset, &raw)
    }

    fn recoder(&self, kinds: &BTreeMap<String, PayloadKind>) -> Result<Option<Recoder>> {
        let RewriteOptions { recode, restart_interval, .. } = *self.options;
        if recode.is_none() && restart_interval.is_none() {
            return Ok(None);
        }
        let pictures = kinds.iter().filter(|(_, kind)| **kind == PayloadKind::Image);
        let columns: Vec<String> = pictures.map(|(name, _)| name.clone()).collect();
        if columns.is_empty() {
            let message = "max_side and restart_interval change images, but the first samples hold none (no JPEG, PNG \
                           or WebP)";
            return Err(Error::config(message));
        }
        let shrink = recode.map(|recode| ShrinkImage { max_side: recode.max_side, quality: recode.quality });
        let change = Change { shrink, restart_interval };
        let catalog = self.dataset.catalog().clone();
        Ok(Some(Recoder { columns, change, on_error: self.options.on_error, catalog }))
    }

    /// Writes all shards that the state lacks.
    pub(super) fn write(
        &self,
        mut state: RewriteState,
        first: Option<RecordBatch>,
        rest: RawBatches,
    ) -> Result<RewriteState> {
        let recoder = self.recoder(&state.payload)?;
        let mut feed =
            Feed { source: RecodedBatches::new(first, rest, recoder, self.options.threads)?, left: None };
        let shape = ShardSchema::new(self.dataset, &state.payload);
        let encode = EncodeOptions {
            format: self.options.format,
            group_bytes: self.options.group_bytes,
            page_samples: self.options.page_samples,
            sample_bytes: mean_sample_bytes(self.dataset),
        };
        let mut under_way: Option<(FinishedShard, Upload)> = None;
        for index in state.finished.len()..self.starts.len() - 1 {
            let encoder = ShardEncoder::new(&shape, &state.payload, &encode)?;
            let written = state.finished.len() as u64;
            let file = state.settings.shard_name(index as u64, state.shards);
            let built = self.build(&state.settings.columns, index, file, encoder, &mut feed, written);
            // What is on its way counts even if the shard after it fails.
            self.settle(&mut state, under_way.take())?;
            let (shard, bytes) = built?;
            let upload = self.target.upload(&shard.file, bytes);
            under_way = Some((shard, upload));
        }
        self.settle(&mut state, under_way)?;
        self.options.report(RewriteStage::Writing, self.plan.len(), self.plan.len(), state.shards);
        Ok(state)
    }

    fn settle(&self, state: &mut RewriteState, under_way: Option<(FinishedShard, Upload)>) -> Result<()> {
        let Some((shard, upload)) = under_way else { return Ok(()) };
        upload.wait()?;
        state.finished.push(shard);
        self.target.save(state)
    }

    fn build(
        &self,
        columns: &[String],
        index: usize,
        file: String,
        mut encoder: ShardEncoder,
        feed: &mut Feed,
        written: u64,
    ) -> Result<(FinishedShard, bytes::Bytes)> {
        let (start, end) = (self.starts[index], self.starts[index + 1]);
        let mut rows = RowDigest::new(columns);
        let mut shard = FinishedShard { file, samples: end - start, ..FinishedShard::default() };
        while start + rows.rows < end {
            let part = feed.take(end - start - rows.rows)?;
            rows.add(&part.batch)?;
            recode::sample_ids(&part.batch)?.values().iter().for_each(|&id| shard.ids.add(SampleId(id)));
            encoder.add(&part.batch)?;
            part.fates.into_iter().for_each(|(_, fate)| shard.count(fate));
            self.options.report(RewriteStage::Writing, start + rows.rows, self.plan.len(), written);
        }
        let bytes = encoder.finish()?;
        (shard.file_bytes, shard.payload_bytes) = (bytes.len() as u64, rows.payload_bytes);
        shard.rows = rows.text();
        Ok((shard, bytes))
    }
}

/// Cuts batches where shards end.
struct Feed {
    source: RecodedBatches,
    left: Option<Recoded>,
}

impl Feed {
    /// The next rows, at most `most`.
    fn take(&mut self, most: u64) -> Result<Recoded> {
        let next = match self.left.take() {
            Some(left) => Some(left),
            None => self.source.next()?,
        };
        let Some(next) = next.filter(|next| next.batch.num_rows() > 0) else {
            return Err(Error::bug(format!("the order ended {most} samples before the last shard")));
        };
        let rows = next.batch.num_rows();
        let cut = usize::try_from(most).unwrap_or(usize::MAX).min(rows);
        if cut == rows {
            return Ok(next);
        }
        let (head, tail) = (next.batch.slice(0, cut), next.batch.slice(cut, rows - cut));
        let mut fates = next.fates;
        let left = fates.split_off(fates.partition_point(|(row, _)| *row < cut));
        let left = left.into_iter().map(|(row, fate)| (row - cut, fate)).collect();
        self.left = Some(Recoded { batch: tail, fates: left });
        Ok(Recoded { batch: head, fates })
    }
}
