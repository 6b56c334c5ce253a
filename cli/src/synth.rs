//! `feedstock synth`: sample data.

use super::common::Common;
use super::failure::{Outcome, local_path};
use super::output::{Output, bytes, count, hours};
use super::progress::Reporter;
use clap::{Args, Subcommand};
use feedstock_synth::{
    CommonVoiceLayout, CommonVoiceOptions, Compression, DEFAULT_QUALITY, ImagenetOptions, Layout, Locale,
    Voice,
};
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

const SPEECH_EXAMPLES: &str = "\
Examples:
  feedstock synth common-voice /tmp/speech                           # 2000 clips, 2.8 hours, 80 MB, as Mozilla's archive
  feedstock synth common-voice /tmp/cv --samples 500 --locale en,de --layout hf-tars
  feedstock synth common-voice /tmp/short --mean-seconds 2 --layout parquet --voice formant
  feedstock inspect /tmp/speech --split train

Clips are 48 kHz mono MP3 at 64 kb/s, 1 to 12 s long (lognormal). Sentences are made of a word list, so they mean
nothing; some hold quotation marks, a few no words. A clip has the same name, sentence and speaker in every layout.
With --voice formant the same options write the same bytes; espeak-ng's sound depends on its installed version.";

/// Make sample data with natural statistics, in the layouts people hold.
#[derive(Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    Imagenet(Imagenet),
    CommonVoice(CommonVoice),
}

/// Pictures and labels, as ImageNet.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct Imagenet {
    /// The folder to write, on this machine; must be empty or absent.
    #[arg(value_parser = local_path)]
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

/// Spoken sentences and their TSVs, as Common Voice.
#[derive(Args)]
#[command(after_help = SPEECH_EXAMPLES)]
struct CommonVoice {
    /// The folder to write, on this machine; must be empty or absent.
    #[arg(value_parser = local_path)]
    dir: PathBuf,
    /// Number of clips.
    #[arg(long, default_value_t = 2000)]
    samples: u64,
    /// Seed of everything.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// mozilla, mozilla-tar-gz, hf-tars, parquet or webdataset.
    #[arg(long, default_value_t = CommonVoiceLayout::Mozilla)]
    layout: CommonVoiceLayout,
    /// Languages, separated by commas: de, en, es, fr.
    #[arg(long, value_delimiter = ',', default_value = "en")]
    locale: Vec<Locale>,
    /// Who speaks: auto (espeak-ng if installed, else formant), espeak, or formant (the built-in synthesiser).
    #[arg(long, default_value_t = Voice::Auto)]
    voice: Voice,
    /// Mean length of the clips in seconds, 1.5 to 9.
    #[arg(long, default_value_t = 5.0)]
    mean_seconds: f64,
    /// Clips of one shard (hf-tars, parquet, webdataset).
    #[arg(long, default_value_t = 500)]
    samples_per_shard: u64,
    /// Rows of a Parquet row group.
    #[arg(long, default_value_t = 100)]
    rows_per_group: usize,
    /// Replace sample data that is in the folder; other files are never touched.
    #[arg(long)]
    force: bool,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        match &self.kind {
            Kind::Imagenet(imagenet) => imagenet.run(common),
            Kind::CommonVoice(speech) => speech.run(common),
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

impl CommonVoice {
    fn options(&self, common: &Common) -> CommonVoiceOptions {
        CommonVoiceOptions {
            samples: self.samples,
            seed: self.seed,
            layout: self.layout,
            locales: self.locale.clone(),
            voice: self.voice,
            mean_seconds: self.mean_seconds,
            samples_per_shard: self.samples_per_shard,
            rows_per_group: self.rows_per_group,
            threads: common.threads(),
            overwrite: self.force,
        }
    }

    fn run(&self, common: &Common) -> Outcome {
        let reporter = Reporter::new(common, "speaking");
        let start = Instant::now();
        let summary = self.options(common).write(&self.dir, &mut |now| {
            reporter.tell("speaking", now.done, Some(now.total), Some(now.bytes));
        })?;
        reporter.end();
        let seconds = start.elapsed().as_secs_f64();
        let mut output = Output::new();
        if common.json {
            let locales: Vec<&str> = self.locale.iter().map(|locale| locale.name()).collect();
            output.json(&json!({
                "dir": self.dir,
                "layout": self.layout.name(),
                "samples": summary.samples,
                "locales": locales,
                "speakers": summary.speakers,
                "voice": summary.voice.name(),
                "audio_seconds": summary.seconds,
                "files": summary.files,
                "audio_bytes": summary.audio_bytes,
                "file_bytes": summary.file_bytes,
                "seconds": seconds,
            }))?;
        } else {
            output.line(format!(
                "{}: {} clips of {} speakers by {}, {}, mean {:.2} s, in {} {} files, {}, {:.0} × real time",
                self.dir.display(),
                count(summary.samples),
                count(summary.speakers),
                summary.voice,
                hours(summary.seconds),
                summary.seconds / summary.samples as f64,
                count(summary.files),
                self.layout,
                bytes(summary.file_bytes),
                summary.seconds / seconds
            ))?;
        }
        output.end()
    }
}
