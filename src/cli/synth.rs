//! `feedstock synth`: sample data.

use super::Common;
use super::failure::Outcome;
use super::output::{Output, bytes, count};
use super::progress::Reporter;
use clap::{Args, Subcommand};
use feedstock_synth::{Compression, DEFAULT_QUALITY, ImagenetOptions, Layout};
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  feedstock synth imagenet /tmp/pictures                             # 4000 pictures, 440 MB, Parquet
  feedstock synth imagenet /tmp/tars --samples 1000 --layout webdataset
  feedstock synth imagenet /tmp/small --samples 100 --width 64 --height 64 --exact-size --layout folder

The same options write the same bytes on every machine, and a sample has the same name, label and JPEG in every
layout. Every picture carries its index as grey levels in its top left corner.";

/// Make sample data with natural statistics, in the layouts people hold.
#[derive(Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    Imagenet(Imagenet),
}

/// Pictures and labels, as ImageNet.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct Imagenet {
    /// The folder to write; must be empty or absent.
    dir: PathBuf,
    /// Number of samples.
    #[arg(long, default_value_t = 4000)]
    samples: u64,
    /// Seed of everything.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// parquet, folder, webdataset, ipc or ilsvrc.
    #[arg(long, default_value_t = Layout::Parquet)]
    layout: Layout,
    /// Number of classes; each has a sample [default: 1000, or as many as samples].
    #[arg(long)]
    classes: Option<u32>,
    /// Mean width in pixels.
    #[arg(long, default_value_t = 400)]
    width: u32,
    /// Mean height in pixels.
    #[arg(long, default_value_t = 350)]
    height: u32,
    /// Every picture exactly width × height, instead of within 15 %.
    #[arg(long)]
    exact_size: bool,
    /// JPEG quality.
    #[arg(long, default_value_t = DEFAULT_QUALITY)]
    quality: u8,
    /// Samples of one shard (parquet, webdataset, ipc).
    #[arg(long, default_value_t = 500)]
    samples_per_shard: u64,
    /// Rows of a Parquet row group or an IPC record batch.
    #[arg(long, default_value_t = 100)]
    rows_per_group: usize,
    /// Leave Parquet pages uncompressed, instead of Snappy as Hugging Face writes.
    #[arg(long)]
    uncompressed: bool,
    /// Replace sample data that is in the folder; other files are never touched.
    #[arg(long)]
    force: bool,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        match &self.kind {
            Kind::Imagenet(imagenet) => imagenet.run(common),
        }
    }
}

impl Imagenet {
    fn options(&self, common: &Common) -> ImagenetOptions {
        ImagenetOptions {
            samples: self.samples,
            seed: self.seed,
            layout: self.layout,
            classes: self.classes,
            width: self.width,
            height: self.height,
            exact_size: self.exact_size,
            quality: self.quality,
            samples_per_shard: self.samples_per_shard,
            rows_per_group: self.rows_per_group,
            compression: if self.uncompressed { Compression::None } else { Compression::Snappy },
            threads: common.threads(),
            overwrite: self.force,
        }
    }

    fn run(&self, common: &Common) -> Outcome {
        let reporter = Reporter::new(common, "writing");
        let start = Instant::now();
        let summary = self.options(common).write(&self.dir, &mut |now| {
            reporter.tell("writing", now.done, Some(now.total), Some(now.bytes));
        })?;
        reporter.end();
        let seconds = start.elapsed().as_secs_f64();
        let mut output = Output::new();
        if common.json {
            output.json(&json!({
                "dir": self.dir,
                "layout": self.layout.name(),
                "samples": summary.samples,
                "classes": summary.classes,
                "files": summary.files,
                "image_bytes": summary.image_bytes,
                "file_bytes": summary.file_bytes,
                "seconds": seconds,
            }))?;
        } else {
            output.line(format!(
                "{}: {} samples of {} classes in {} {} files, {}, mean picture {}, {:.0} samples/s",
                self.dir.display(),
                count(summary.samples),
                count(summary.classes.into()),
                count(summary.files),
                self.layout,
                bytes(summary.file_bytes),
                bytes(summary.image_bytes / summary.samples),
                summary.samples as f64 / seconds
            ))?;
        }
        output.end()
    }
}
