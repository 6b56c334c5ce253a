//! `feedstock shard`: rewrite any layout into well-formed shards.

use super::common::Common;
use super::failure::{Failure, Outcome};
use super::output::{Output, bytes, count};
use super::progress::Reporter;
use super::source::SourceArgs;
use clap::{Args, ValueEnum};
use feedstock_dataset::Shuffle;
use feedstock_ingest::{
    OnBadPicture, Recode, RewriteFormat, RewriteOptions, RewriteReport, RewriteStage, rewrite,
};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  feedstock shard /data/imagenet/train s3://bucket/train --format parquet
  feedstock shard s3://bucket/tars /data/small --max-side 512 --quality 90 --on-error copy
  feedstock shard /data/imagenet/train /data/fast --restart-interval 4
  feedstock shard /data/train /data/dogs --format ipc --filter 'label < 100' --shuffle-seed 7

A run that was stopped goes on when the same command is given again: at the first shard that is missing. Everything is
read back at the end and compared. Shrunk pictures keep their aspect ratio and their EXIF orientation. Memory: two
shards and the budget.";

/// Rewrite a data set into shards of even size with small row groups, and check them.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    #[command(flatten)]
    source: SourceArgs,
    /// Where to write: a folder or prefix that is empty, absent, or holds a part of the same rewrite.
    dst: String,
    /// The files to write.
    #[arg(long, value_enum, default_value_t = Format::Parquet)]
    format: Format,
    /// What shard names begin with, best the split's name.
    #[arg(long, default_value = "train")]
    name: String,
    /// Keep only these columns, separated by commas [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    columns: Vec<String>,
    /// Shrink pictures whose longer side exceeds this, and encode them as JPEG [default: copy all].
    #[arg(long, value_name = "PIXELS")]
    max_side: Option<u32>,
    /// JPEG quality of shrunk pictures [default: 90].
    #[arg(long, requires = "max_side")]
    quality: Option<u8>,
    /// Give JPEGs a restart marker every so many MCUs (16×16 px in a 4:2:0 picture), without loss: crops then skip what
    /// they do not show. With 4, random_resized_crop costs about a quarter less CPU, and most files get smaller by 4 %;
    /// progressive ones become baseline, 6 % larger. Others stay as they are, and are counted [default: none].
    #[arg(long, value_name = "MCUS")]
    restart_interval: Option<u16>,
    /// What to do with a picture that cannot be read to be changed: stop, or copy its bytes.
    #[arg(long, value_enum, default_value_t = OnError::Raise)]
    on_error: OnError,
    /// Shuffle all samples; each is read on its own unless --shuffle-window is given [default: the catalog's order].
    #[arg(long, value_name = "SEED")]
    shuffle_seed: Option<u64>,
    /// Shuffle blocks, and samples within windows of so many: sequential reads, a budget of one window.
    #[arg(long, value_name = "SAMPLES", requires = "shuffle_seed")]
    shuffle_window: Option<u64>,
    /// Encoded bytes of the source in a shard, about [default: 512 MiB].
    #[arg(long, value_name = "BYTES")]
    shard_bytes: Option<u64>,
    /// Encoded bytes of a row group or record batch at most [default: 4 MiB].
    #[arg(long, value_name = "BYTES")]
    group_bytes: Option<u64>,
    /// Bytes of blocks read ahead at most, decompressed [default: 512 MiB].
    #[arg(long, value_name = "BYTES")]
    budget_bytes: Option<u64>,
    /// Do not read the shards back.
    #[arg(long)]
    no_verify: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// Parquet as Hugging Face datasets reads it.
    Parquet,
    /// Arrow IPC files.
    Ipc,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnError {
    /// Stop, naming the sample.
    Raise,
    /// Keep its bytes, and name it at the end.
    Copy,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let start = Instant::now();
        let reporter = Arc::new(Reporter::new(common, "writing"));
        let options = self.options(common, &reporter);
        let mut dataset = self.source.open(common)?;
        if !self.columns.is_empty() {
            let names: Vec<&str> = self.columns.iter().map(String::as_str).collect();
            dataset = dataset.columns(&names)?;
        }
        if self.dst.trim_end_matches('/') == self.source.uri.trim_end_matches('/') {
            return Err(Failure::config(format!("{} is the data set itself; name another place", self.dst)));
        }
        let report = rewrite(&dataset, &self.dst, &options);
        reporter.end();
        self.print(common, &report?, start.elapsed().as_secs_f64())
    }

    fn options(&self, common: &Common, reporter: &Arc<Reporter>) -> RewriteOptions {
        let default = RewriteOptions::default();
        let told = reporter.clone();
        RewriteOptions {
            format: match self.format {
                Format::Parquet => RewriteFormat::Parquet,
                Format::Ipc => RewriteFormat::Ipc,
            },
            name: self.name.clone(),
            shard_bytes: self.shard_bytes.unwrap_or(default.shard_bytes),
            group_bytes: self.group_bytes.unwrap_or(default.group_bytes),
            shuffle: match (self.shuffle_seed, self.shuffle_window) {
                (None, _) => Shuffle::none(),
                (Some(seed), None) => Shuffle::full(seed),
                (Some(seed), Some(window)) => Shuffle::seeded(seed).window(window),
            },
            recode: self.max_side.map(|max_side| Recode { max_side, quality: self.quality.unwrap_or(90) }),
            restart_interval: self.restart_interval,
            on_error: match self.on_error {
                OnError::Raise => OnBadPicture::Raise,
                OnError::Copy => OnBadPicture::Copy,
            },
            verify: !self.no_verify,
            threads: common.threads(),
            budget_bytes: self.budget_bytes.unwrap_or(default.budget_bytes),
            progress: Some(Arc::new(move |now| {
                let verb = match now.stage {
                    RewriteStage::Writing => "writing",
                    RewriteStage::Verifying => "verifying",
                };
                told.tell(verb, now.done, Some(now.total), None);
            })),
            ..default
        }
    }

    fn print(&self, common: &Common, report: &RewriteReport, seconds: f64) -> Outcome {
        let mut output = Output::new();
        if common.json {
            let kept = report
                .kept
                .iter()
                .map(|kept| json!({ "sample": kept.sample, "name": kept.name, "reason": kept.reason }));
            output.json(&json!({
                "uri": self.source.uri,
                "dst": self.dst,
                "samples": report.samples,
                "shards": report.shards,
                "resumed_shards": report.resumed_shards,
                "file_bytes": report.file_bytes,
                "payload_bytes": report.payload_bytes,
                "shrunk": report.shrunk,
                "restarted": report.restarted,
                "unmarked": report.unmarked,
                "kept_samples": report.kept_samples,
                "kept": kept.collect::<Vec<_>>(),
                "ids_digest": report.ids.to_string(),
                "verified": report.verified,
                "seconds": seconds,
            }))?;
            return output.end();
        }
        output.line(format!(
            "{}: {} samples in {} shards of {}, {}; {:.0} samples/s",
            self.dst,
            count(report.samples),
            count(report.shards),
            bytes(report.file_bytes / report.shards.max(1)),
            if report.verified { "read back and equal" } else { "not read back" },
            report.samples as f64 / seconds,
        ))?;
        if report.resumed_shards > 0 {
            output.fact("resumed", format!("{} shards were there already", count(report.resumed_shards)))?;
        }
        if self.max_side.is_some() {
            output.fact("shrunk", count(report.shrunk))?;
        }
        if self.restart_interval.is_some() {
            output.fact("with new restart markers", count(report.restarted))?;
            for (why, samples) in &report.unmarked {
                output.line(format!("  {} stay as they are: they {why}", count(*samples)))?;
            }
        }
        if report.kept_samples > 0 {
            output.fact("kept as they are", count(report.kept_samples))?;
            for kept in &report.kept {
                output.line(format!("  sample {} ({}): {}", kept.sample, kept.name, kept.reason))?;
            }
        }
        output.end()
    }
}
