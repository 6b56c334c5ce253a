//! `feedstock shard`: rewrites any layout as well-formed shards.

use super::common::Common;
use super::failure::{Failure, Outcome};
use super::output::{Output, bytes, count};
use super::progress::Reporter;
use super::source::SourceArgs;
use clap::{Args, ValueEnum};
use feedstock_dataset::{MAX_PAGE_BYTES, Shuffle};
use feedstock_ingest::{
    OnBadPicture, Recode, RewriteFormat, RewriteOptions, RewriteReport, RewriteStage, rewrite,
};
use serde_json::json;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  feedstock shard /data/imagenet/train s3://bucket/train --format parquet
  feedstock shard s3://bucket/tars /data/small --max-side 512 --quality 90 --on-error copy
  feedstock shard /data/imagenet/train /data/fast --restart-interval 4
  feedstock shard /data/imagenet/train s3://bucket/train --page-samples 2
  feedstock shard /data/train /data/dogs --format ipc --filter 'label < 100' --shuffle-seed 7

Repeat the same command to resume a run that was stopped: it continues at the first missing shard. At the end, all shards
are read back and compared with the source. Shrunk images keep their aspect ratio and their EXIF orientation. Memory in
use: two shards and --budget-bytes.";

/// Encoded bytes of a row group whose pages are read one by one. Each rank reads the labels of a row group with one request, before
/// its first piece of it; of photographs, 150 pieces. In larger row groups, finding the place of a page takes longer.
const PAGED_GROUP_BYTES: u64 = 32 << 20;

/// Rewrite a data set as shards of even size with small row groups, and verify them.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    #[command(flatten)]
    source: SourceArgs,
    /// The folder or prefix to write to. It must be empty, absent, or hold a part of the same rewrite.
    dst: String,
    /// The format of the shards.
    #[arg(long, value_enum, default_value_t = Format::Parquet)]
    format: Format,
    /// The prefix of shard names; the name of the split is a good choice.
    #[arg(long, default_value = "train")]
    name: String,
    /// Keep only these columns, separated by commas [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    columns: Vec<String>,
    /// Shrink images whose longer side exceeds this, and encode them as JPEG [default: copy all].
    #[arg(long, value_name = "PIXELS")]
    max_side: Option<u32>,
    /// JPEG quality of shrunk images [default: 90].
    #[arg(long, requires = "max_side")]
    quality: Option<u8>,
    /// Insert a restart marker into JPEGs every N MCUs (16×16 px in a 4:2:0 image), without loss. Random crops can
    /// then skip the parts outside them: with 4, random_resized_crop takes about a quarter less CPU. Most files get
    /// 4 % smaller; progressive ones become baseline and 6 % larger. Files that cannot be changed are copied and counted
    /// [default: none].
    #[arg(long, value_name = "MCUS")]
    restart_interval: Option<u16>,
    /// What to do with an image that must be changed but cannot be read: stop, or copy its bytes.
    #[arg(long, value_enum, default_value_t = OnError::Raise)]
    on_error: OnError,
    /// Shuffle all samples with this seed. Without --shuffle-window, each sample is read separately [default: catalog
    /// order].
    #[arg(long, value_name = "SEED")]
    shuffle_seed: Option<u64>,
    /// Shuffle blocks, and samples within windows of this size. Reads are then sequential, and --budget-bytes must
    /// hold one window.
    #[arg(long, value_name = "SAMPLES", requires = "shuffle_seed")]
    shuffle_window: Option<u64>,
    /// Approximate encoded bytes of the source per shard [default: 512 MiB].
    #[arg(long, value_name = "BYTES")]
    shard_bytes: Option<u64>,
    /// Write Parquet pages of N samples, so that a shuffle can permute them instead of blocks: 1 to 3 for photographs. Row groups
    /// and shards then hold a multiple of N samples [default: pages of about 1 MiB].
    #[arg(long, value_name = "N")]
    page_samples: Option<NonZeroU32>,
    /// Maximum encoded bytes of a row group or record batch [default: 4 MiB; 32 MiB with --page-samples].
    #[arg(long, value_name = "BYTES")]
    group_bytes: Option<u64>,
    /// Maximum bytes of decompressed blocks that are read ahead [default: 512 MiB].
    #[arg(long, value_name = "BYTES")]
    budget_bytes: Option<u64>,
    /// Skip reading the shards back.
    #[arg(long)]
    no_verify: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// Parquet in the schema of Hugging Face datasets.
    Parquet,
    /// Arrow IPC files.
    Ipc,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnError {
    /// Stop, and name the sample.
    Raise,
    /// Copy its bytes, and list the sample at the end.
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
        self.check_destination()?;
        let report = rewrite(&dataset, &self.dst, &options);
        reporter.end();
        self.print(common, &report?, start.elapsed().as_secs_f64())
    }

    /// Refuses the data set itself and folders in it, which would become part of it.
    fn check_destination(&self) -> Outcome {
        let (source, destination) = (self.source.uri.trim_end_matches('/'), self.dst.trim_end_matches('/'));
        let is_within =
            destination.strip_prefix(source).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match is_within {
            true => Err(Failure::config(format!(
                "{} is in the data set itself; set another destination",
                self.dst
            ))),
            false => Ok(()),
        }
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
            group_bytes: self.group_bytes.unwrap_or(match self.page_samples {
                Some(_) => PAGED_GROUP_BYTES,
                None => default.group_bytes,
            }),
            page_samples: self.page_samples,
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

    /// Notes that pages are too large for a shuffle to permute them.
    fn note_on_pages(&self, report: &RewriteReport) -> Option<String> {
        let samples = u64::from(self.page_samples?.get());
        let sample_bytes = report.payload_bytes / report.samples.max(1);
        let page_bytes = sample_bytes.saturating_mul(samples);
        (page_bytes > MAX_PAGE_BYTES).then(|| {
            let (page_bytes, most) = (bytes(page_bytes), bytes(MAX_PAGE_BYTES));
            let remedy = match MAX_PAGE_BYTES / sample_bytes.max(1) {
                0 => "write without --page-samples".to_owned(),
                fewer => format!("write with --page-samples {}", fewer.min(2)),
            };
            format!("{page_bytes} each; a shuffle permutes blocks where pages have over {most}: {remedy}")
        })
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
                "pages_note": self.note_on_pages(report),
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
            if report.verified { "verified" } else { "not verified" },
            report.samples as f64 / seconds,
        ))?;
        if report.resumed_shards > 0 {
            output.fact("resumed", format!("{} shards existed already", count(report.resumed_shards)))?;
        }
        if let Some(note) = self.note_on_pages(report) {
            output.fact("pages", note)?;
        }
        if self.max_side.is_some() {
            output.fact("shrunk", count(report.shrunk))?;
        }
        if self.restart_interval.is_some() {
            output.fact("with new restart markers", count(report.restarted))?;
            for (why, samples) in &report.unmarked {
                output.line(format!("  {} unchanged: they {why}", count(*samples)))?;
            }
        }
        if report.kept_samples > 0 {
            output.fact("copied after errors", count(report.kept_samples))?;
            for kept in &report.kept {
                output.line(format!("  sample {} ({}): {}", kept.sample, kept.name, kept.reason))?;
            }
        }
        output.end()
    }
}
