//! `feedstock preview`: writes a page with samples as the model will see them after the ops.
//!
//! The samples are the first ones in the epoch's order, processed with the seeds of a real run. The page therefore shows
//! exactly the images and spectrograms of the first batches.

mod page;
mod picture;
mod spectrogram;

use super::common::Common;
use super::failure::{Failure, Outcome, local_path};
use super::medium::Medium;
use super::output::{Output, bytes};
use super::progress::Reporter;
use super::source::{ShuffleArgs, SourceArgs};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::util::display::array_value_to_string;
use clap::Args;
use feedstock_dataset::{Block, BlockId, Catalog, Dataset, PlannedSample, Position};
use feedstock_ops::audio::read_audio_header;
use feedstock_ops::{Chain, ChainSpec, RaggedRow, SampleSeed, Scratch, TensorSpec};
use feedstock_trainer_bridge as bridge;
use futures::{StreamExt, TryStreamExt};
use page::{Page, Sound, Tile};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Blocks fetched at once: enough to hide a round trip. They take 4 × 4 MiB.
const FETCHES: usize = 4;
/// Columns that may hold the spoken text, in order of preference.
const SENTENCES: [&str; 5] = ["sentence", "text", "transcript", "transcription", "txt"];
/// Maximum characters shown of a value without spaces: a hash is useless to a reader.
const MOST_CHARACTERS: usize = 40;

const EXAMPLES: &str = "\
Examples:
  feedstock preview /data/imagenet --out page.html
  feedstock preview s3://bucket/train --ops 'decode_image,random_resized_crop:224,trivial_augment' --out page.html
  feedstock preview /data/cv-corpus/de --split train --samples 20 --out page.html   # spectrograms and sound
  feedstock preview /data/imagenet --seed 7 --epoch 1 --samples 120 --original --out page.html";

/// Write an HTML page that shows samples as the model will see them.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    order: ShuffleArgs,
    /// The pipeline's ops [default: decode_image,random_resized_crop:224,horizontal_flip; for audio:
    /// decode_audio,resample:16000,log_mel:80].
    #[arg(long)]
    ops: Option<String>,
    /// The column of encoded samples [default: the data set's only payload column].
    #[arg(long)]
    column: Option<String>,
    /// The page to write. It contains its images and audio clips.
    #[arg(long, value_name = "FILE", value_parser = local_path)]
    out: PathBuf,
    /// Number of samples, from the start of the epoch's order.
    #[arg(long, default_value_t = 64, value_name = "N")]
    samples: u64,
    /// The number of the epoch, from 0.
    #[arg(long, default_value_t = 0)]
    epoch: u64,
    /// Also show each stored image next to its result. Audio clips can always be played.
    #[arg(long)]
    original: bool,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let given = self.ops.as_deref().map(str::parse::<ChainSpec>).transpose()?;
        let dataset = self.source.open(common)?;
        let column = payload_column(&dataset, self.column.as_deref())?;
        let ops = self.ops.as_deref().unwrap_or(Medium::of(&column).default_ops());
        let spec = given.map_or_else(|| ops.parse(), Ok)?;
        let chain = bridge::Dataset::from(dataset.clone()).map(&column, spec).chain(&column)?;
        let tiles = self.tiles(common, &dataset, &chain, &column)?;
        let failed = tiles.iter().filter(|tile| tile.picture.is_err()).count();
        let shown = tiles.len();
        let page = Page {
            uri: dataset.uri(),
            ops,
            output: &described(chain.output()),
            seed: self.order.seed,
            epoch: self.epoch,
            tiles: &tiles,
        };
        let html = page.html();
        std::fs::write(&self.out, &html).map_err(|e| Failure::write(&self.out, &e))?;
        let mut output = Output::new();
        let path = self.out.display();
        if common.json {
            output.json(&serde_json::json!({
                "out": self.out, "samples": shown, "failed": failed, "bytes": html.len(),
            }))?;
        } else {
            let bad = if failed > 0 { format!(", {failed} of them unusable") } else { String::new() };
            output.line(format!("{path}: {shown} samples{bad}, {}", bytes(html.len() as u64)))?;
        }
        output.end()?;
        match shown > 0 && failed == shown {
            true => Err(Failure::sample(format!(
                "none of the {shown} samples is usable; check --ops, and see {path} for the reasons"
            ))),
            false => Ok(()),
        }
    }

    /// Returns the tiles in the order of the plan.
    fn tiles(&self, common: &Common, dataset: &Dataset, chain: &Chain, column: &str) -> Outcome<Vec<Tile>> {
        let plan = dataset.plan(&self.order.shuffle()?)?;
        let mut order = plan.epoch(self.epoch);
        let total = self.samples.min(plan.len());
        let mut by_block: BTreeMap<BlockId, Vec<(u64, PlannedSample)>> = BTreeMap::new();
        for position in 0..total {
            let planned = order.sample_at(Position(position));
            by_block.entry(planned.block).or_default().push((position, planned));
        }
        let reporter = Reporter::new(common, "decoding");
        let mut painter = Painter {
            command: self,
            chain,
            column,
            catalog: dataset.catalog(),
            scratch: Scratch::default(),
            row: RaggedRow::new(),
        };
        let reader = dataset.block_reader();
        let mut tiles: Vec<(u64, Tile)> = Vec::new();
        futures::executor::block_on(async {
            let fetch = |&id: &BlockId| {
                let reader = reader.clone();
                async move { reader.fetch(id, u64::MAX).await }
            };
            let mut blocks = futures::stream::iter(by_block.keys()).map(fetch).buffer_unordered(FETCHES);
            while let Some(block) = blocks.try_next().await? {
                for (position, planned) in &by_block[&block.id] {
                    tiles.push((*position, painter.tile(&block, planned)?));
                    reporter.tell("decoding", tiles.len() as u64, Some(total), None);
                }
            }
            Ok::<_, Failure>(())
        })?;
        reporter.end();
        tiles.sort_by_key(|(position, _)| *position);
        Ok(tiles.into_iter().map(|(_, tile)| tile).collect())
    }
}

/// Makes tiles from samples.
struct Painter<'a> {
    command: &'a Command,
    chain: &'a Chain,
    column: &'a str,
    catalog: &'a Catalog,
    scratch: Scratch,
    row: RaggedRow,
}

impl Painter<'_> {
    fn tile(&mut self, block: &Block, planned: &PlannedSample) -> Outcome<Tile> {
        let row = planned.row as usize;
        let id = planned.sample;
        let encoded = encoded(&block.rows, self.column, row)?;
        let seed = SampleSeed::new(self.command.order.seed, self.command.epoch, id.0);
        let picture = match encoded {
            None => Err("no stored value (null)".to_owned()),
            Some(encoded) => self.picture(encoded, seed)?,
        };
        let is_sound = spectrogram::is_sound(self.chain.output());
        let original = encoded.filter(|_| self.command.original && !is_sound).map(<[u8]>::to_vec);
        let sound = encoded.filter(|_| is_sound).map(|clip| {
            let header = read_audio_header(clip, clip.len() as u64); // the ops report a damaged header
            Sound { bytes: clip.to_vec(), seconds: header.ok().and_then(|header| header.seconds()) }
        });
        let said = SENTENCES.into_iter().find(|name| is_sound && block.rows.column_by_name(name).is_some());
        let mut sentence = None;
        let mut facts = String::new();
        for (field, values) in block.rows.schema().fields().iter().zip(block.rows.columns()) {
            if self.catalog.is_payload(field.name()) || values.is_null(row) {
                continue;
            }
            let value = array_value_to_string(values, row)
                .map_err(|e| Failure::bug(format!("column {} cannot be printed: {e}", field.name())))?;
            if said == Some(field.name()) {
                sentence = Some(value);
                continue;
            }
            if is_sound && value.is_empty() {
                continue;
            }
            let class = self.class(field.name(), &value);
            let value = if is_sound { shortened(value) } else { value };
            let _infallible = writeln!(facts, "{}: {value}{class}", field.name());
        }
        Ok(Tile {
            id: id.0,
            place: self.catalog.describe_sample(id),
            facts,
            sentence,
            picture,
            original,
            sound,
        })
    }

    /// Returns a PNG of the ops' result, or why there is none.
    fn picture(&mut self, encoded: &[u8], seed: SampleSeed) -> Outcome<Result<Vec<u8>, String>> {
        let spec = self.chain.output();
        if spec.is_ragged() {
            return match self.chain.apply_ragged(encoded, seed, &mut self.scratch, &mut self.row) {
                Ok(()) => spectrogram::png(&self.row, spec).map(Ok),
                Err(error) => Ok(Err(error.to_string())),
            };
        }
        let mut out = vec![0; spec.bytes()];
        match self.chain.apply(encoded, seed, &mut self.scratch, &mut out) {
            Ok(()) if spectrogram::is_sound(spec) => spectrogram::shown(&out, spec, 0).map(Ok),
            Ok(()) => picture::png(&out, spec).map(Ok),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    /// Returns ` (tench)`, the class name to be shown after a label; empty if it has none.
    fn class(&self, column: &str, value: &str) -> String {
        let names = self.catalog.class_names(column);
        let name =
            names.as_ref().zip(value.parse::<usize>().ok()).and_then(|(names, label)| names.get(label));
        name.map_or_else(String::new, |name| format!(" ({name})"))
    }
}

/// Returns type and shape, with `T` for the ragged axis.
fn described(spec: &TensorSpec) -> String {
    let axis = |(place, length): (usize, &usize)| match spec.ragged_axis {
        Some(ragged) if ragged == place => "T".to_owned(),
        _ => length.to_string(),
    };
    let shape: Vec<String> = spec.shape.iter().enumerate().map(axis).collect();
    format!("{:?} [{}]", spec.dtype, shape.join(", "))
}

/// Truncates a long value without spaces.
fn shortened(value: String) -> String {
    match value.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) if !value.contains(' ') => format!("{}…", &value[..end]),
        _ => value,
    }
}

/// Returns the named payload column, or the only one.
pub(crate) fn payload_column(dataset: &Dataset, named: Option<&str>) -> Outcome<String> {
    let known = dataset.catalog().payload_columns();
    match (named, known) {
        (Some(name), _) if known.iter().any(|column| column == name) => Ok(name.to_owned()),
        (None, [only]) => Ok(only.clone()),
        (None, []) => {
            Err(Failure::config(format!("{} has no payload column (encoded images or audio)", dataset.uri())))
        }
        _ => Err(Failure::config(format!(
            "{}: set --column to one of the payload columns: {}",
            dataset.uri(),
            known.join(", ")
        ))),
    }
}

/// Returns the encoded bytes of a row; `None` if they are null.
pub(crate) fn encoded<'a>(rows: &'a RecordBatch, column: &str, row: usize) -> Outcome<Option<&'a [u8]>> {
    let values = rows.column_by_name(column).and_then(|values| values.as_binary_view_opt());
    let values = values.ok_or_else(|| Failure::bug(format!("a block has no payload column {column}")))?;
    Ok((!values.is_null(row)).then(|| values.value(row)))
}
