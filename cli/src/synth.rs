//! `feedstock synth`: makes sample data.

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
  feedstock synth imagenet /tmp/images                               # 4000 images, 440 MB, Parquet
  feedstock synth imagenet /tmp/tars --samples 1000 --layout webdataset
  feedstock synth imagenet /tmp/small --samples 100 --width 64 --height 64 --exact-size --layout folder

The same options write the same bytes on every machine. A sample has the same name, label and JPEG in every layout. Each
image encodes its index as grey levels in its top left corner.";

const SPEECH_EXAMPLES: &str = "\
Examples:
  feedstock synth common-voice /tmp/speech                           # 2000 audio clips, 2.8 hours, 80 MB, Mozilla's layout
  feedstock synth common-voice /tmp/cv --samples 500 --locale en,de --layout hf-tars
  feedstock synth common-voice /tmp/short --mean-seconds 2 --layout parquet --voice formant
  feedstock inspect /tmp/speech --split train

Audio clips are 48 kHz mono MP3 at 64 kb/s, 1 to 12 s long (lognormal). Sentences are random words from a list, without
meaning; some hold quotation marks, a few hold no words. An audio clip has the same name, sentence and speaker in every
layout. With --voice formant the same options write the same bytes; espeak-ng's audio depends on its installed version.";

/// Make sample data with natural statistics, in common layouts.
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

/// Make images and labels in the style of ImageNet.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct Imagenet {
    /// The local folder to write to; must be empty or absent.
    #[arg(value_parser = local_path)]
    dir: PathBuf,
    /// Number of samples.
    #[arg(long, default_value_t = 4000)]
    samples: u64,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Layout of the files: parquet, folder, webdataset, ipc or ilsvrc.
    #[arg(long, default_value_t = Layout::Parquet)]
    layout: Layout,
    /// Number of classes; each has at least one sample [default: 1000, or the number of samples if that is less].
    #[arg(long)]
    classes: Option<u32>,
    /// Mean width in pixels.
    #[arg(long, default_value_t = 400)]
    width: u32,
    /// Mean height in pixels.
    #[arg(long, default_value_t = 350)]
    height: u32,
    /// Make every image exactly width × height, instead of within 15 %.
    #[arg(long)]
    exact_size: bool,
    /// JPEG quality.
    #[arg(long, default_value_t = DEFAULT_QUALITY)]
    quality: u8,
    /// Number of samples per shard (parquet, webdataset, ipc).
    #[arg(long, default_value_t = 500)]
    samples_per_shard: u64,
    /// Number of rows per Parquet row group or IPC record batch.
    #[arg(long, default_value_t = 100)]
    rows_per_group: usize,
    /// Leave Parquet pages uncompressed. By default they are Snappy-compressed, as Hugging Face writes them.
    #[arg(long)]
    uncompressed: bool,
    /// Replace earlier sample data in the folder. Other files are never touched.
    #[arg(long)]
    force: bool,
}

/// Make spoken sentences and their TSVs in the style of Common Voice.
#[derive(Args)]
#[command(after_help = SPEECH_EXAMPLES)]
struct CommonVoice {
    /// The local folder to write to; must be empty or absent.
    #[arg(value_parser = local_path)]
    dir: PathBuf,
    /// Number of audio clips.
    #[arg(long, default_value_t = 2000)]
    samples: u64,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Layout of the files: mozilla, mozilla-tar-gz, hf-tars, parquet or webdataset.
    #[arg(long, default_value_t = CommonVoiceLayout::Mozilla)]
    layout: CommonVoiceLayout,
    /// Languages, separated by commas: de, en, es, fr.
    #[arg(long, value_delimiter = ',', default_value = "en")]
    locale: Vec<Locale>,
    /// Voice: auto (espeak-ng if installed, else formant), espeak, or formant (the built-in synthesiser).
    #[arg(long, default_value_t = Voice::Auto)]
    voice: Voice,
    /// Mean duration of the audio clips in seconds, 1.5 to 9.
    #[arg(long, default_value_t = 5.0)]
    mean_seconds: f64,
    /// Number of audio clips per shard (hf-tars, parquet, webdataset).
    #[arg(long, default_value_t = 500)]
    samples_per_shard: u64,
    /// Number of rows per Parquet row group.
    #[arg(long, default_value_t = 100)]
    rows_per_group: usize,
    /// Replace earlier sample data in the folder. Other files are never touched.
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
                "{}: {} samples of {} classes in {} {} files, {}, mean image {}, {:.0} samples/s",
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
                "{}: {} audio clips of {} speakers by {}, {}, mean {:.2} s, in {} {} files, {}, {:.0} × real time",
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
