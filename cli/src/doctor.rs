//! `feedstock doctor`: reads a data set and reports what would fail or slow down training.

use super::common::Common;
use super::failure::{Failure, Outcome};
use super::output::{Output, bytes, count};
use super::progress::Reporter;
use super::source::SourceArgs;
use clap::Args;
use feedstock_ingest::doctor::{ColumnReport, DoctorOptions, LayoutReport, Report, Spread, examine};
use feedstock_ingest::{RawOptions, sample_bytes};
use feedstock_ops::DECODER_MEMORY;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

/// Number of bad samples that are printed without `--json`.
const SHOWN: usize = 20;

const EXAMPLES: &str = "\
Examples:
  feedstock doctor /data/imagenet                        # decode every sample
  feedstock doctor s3://bucket/train --samples 10000     # evenly spaced runs of 64 samples, 10,000 in all
  feedstock doctor /data/cv-corpus --split train --json  # one JSON object with all bad samples (--listed)
  feedstock doctor /data/streets --masks mask            # decode the column mask as classes

Every sample is decoded whole, with the default limits of the ops and the memory limit of a run. Exit codes: 0 every
sample decodes · 5 some samples do not decode; they are listed, and training with on_error=raise would stop at them ·
others as in `feedstock --help`.";

/// Decode all or some samples of a data set, and report bad samples, unusual values and the quality of the layout.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    #[command(flatten)]
    source: SourceArgs,
    /// Number of samples to read, in evenly spaced runs of 64 [default: all].
    #[arg(long, value_name = "N")]
    samples: Option<NonZeroU64>,
    /// The `budget_bytes` of the run. A sample may take --decoder-memory and half of it [default: 1 GiB].
    #[arg(long, value_name = "BYTES")]
    budget_bytes: Option<u64>,
    /// The `decoder_memory` of the run [default: 64 MiB].
    #[arg(long, value_name = "BYTES")]
    decoder_memory: Option<u64>,
    /// Maximum number of bad samples to list per column. All are counted.
    #[arg(long, value_name = "N", default_value_t = 100)]
    listed: usize,
    /// Columns of masks: their images are decoded as classes, so images with colours and without a palette are refused.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    masks: Vec<String>,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let dataset = self.source.open(common)?;
        let reporter = Arc::new(Reporter::new(common, "decoding"));
        let shown = reporter.clone();
        let options = DoctorOptions {
            samples: self.samples.map(NonZeroU64::get),
            threads: common.threads(),
            sample_bytes: sample_bytes(
                self.decoder_memory.unwrap_or(DECODER_MEMORY),
                self.budget_bytes.unwrap_or_else(|| RawOptions::default().budget_bytes),
            ),
            listed: self.listed,
            masks: self.masks.clone(),
            progress: Some(Arc::new(move |done, total| shown.tell("decoding", done, Some(total), None))),
            ..DoctorOptions::default()
        };
        let report = examine(&dataset, &options);
        reporter.end();
        let report = report?;
        let mut output = Output::new();
        if common.json {
            let value = serde_json::to_value(&report)
                .map_err(|e| Failure::bug(format!("the report cannot be written as JSON: {e}")))?;
            output.json(&value)?;
        } else {
            print(&mut output, &report)?;
        }
        output.end()?;
        match report.refused() {
            0 => Ok(()),
            refused => Err(Failure::sample(format!(
                "{}{} of {} examined samples cannot be decoded",
                count(refused),
                if report.columns.len() > 1 { " values" } else { "" },
                count(report.examined)
            ))),
        }
    }
}

fn print(output: &mut Output, report: &Report) -> Outcome {
    output.fact("data set", &report.uri)?;
    output.fact("examined", format!("{} of {} samples", count(report.examined), count(report.samples)))?;
    for column in &report.columns {
        print_column(output, column)?;
    }
    for block in &report.unreadable {
        output.fact("unreadable", format!("{}: {}", block.block, block.reason))?;
    }
    for note in &report.notes {
        output.fact("note", note)?;
    }
    print_layout(output, &report.layout)
}

fn print_column(output: &mut Output, column: &ColumnReport) -> Outcome {
    let decoded = count(column.examined - column.refused);
    output.fact(&column.column, format!("{decoded} decode, {} do not", count(column.refused)))?;
    for refusal in column.refusals.iter().take(SHOWN) {
        output
            .fact("  refused", format!("{} (sample {}): {}", refusal.name, refusal.sample, refusal.reason))?;
    }
    if column.refused > SHOWN as u64 {
        output.fact("", format!("… {} more; --json lists them", count(column.refused - SHOWN as u64)))?;
    }
    output.fact("  formats", counted(&column.formats))?;
    for (name, counts) in [("  modes", &column.modes), ("  rates", &column.rates)] {
        if !counts.is_empty() {
            output.fact(name, counted(counts))?;
        }
    }
    let spreads = [
        ("  width", column.width(), "px"),
        ("  height", column.height(), "px"),
        ("  duration", column.seconds(), "s"),
    ];
    for (name, spread, unit) in spreads {
        if let Some(Spread { min, median, p99, max, .. }) = spread {
            output.fact(name, format!("{min} … {max} {unit}, median {median}, 99th percentile {p99}"))?;
        }
    }
    let kinds = [
        ("  not decoded", &column.unsupported),
        ("  warned", &column.warnings),
        ("  unusual", &column.unusual),
    ];
    for (name, kinds) in kinds {
        for (what, kind) in kinds {
            let examples = kind.examples.join(", ");
            let more = if kind.samples > kind.examples.len() as u64 { " …" } else { "" };
            output.fact(name, format!("{} {what}: {examples}{more}", count(kind.samples)))?;
        }
    }
    Ok(())
}

fn print_layout(output: &mut Output, layout: &LayoutReport) -> Outcome {
    let objects = format!(
        "{}, {} objects of {}",
        layout.layout,
        count(layout.objects),
        bytes(layout.mean_object_bytes)
    );
    let (mean, largest) = (bytes(layout.mean_block_bytes), bytes(layout.largest_block_bytes));
    output.fact(
        "layout",
        format!("{objects}, {} blocks, mean {mean}, largest {largest}", count(layout.blocks)),
    )?;
    if let Some(labels) = layout.labels {
        output.fact(
            "labels",
            format!(
                "{} values; {:.1} different ones in neighbouring samples, {:.1} in a random draw",
                count(labels.labels),
                labels.in_a_run,
                labels.at_random
            ),
        )?;
    }
    for advice in &layout.advice {
        output.fact("advice", advice)?;
    }
    Ok(())
}

/// Returns the counts as `JPEG 4,000, PNG 3`, the most frequent first.
fn counted(counts: &BTreeMap<String, u64>) -> String {
    let mut counts: Vec<(&String, &u64)> = counts.iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let shown: Vec<String> = counts.iter().map(|(what, n)| format!("{what} × {}", count(**n))).collect();
    shown.join(", ")
}
