//! `feedstock preview`: writes a page with samples as the model will see them after the ops.
//!
//! The samples are the first ones in the epoch's order, processed with the seeds of a real run. The page therefore shows
//! exactly the images and spectrograms of the first batches.

mod page;
mod picture;
mod spectrogram;

use super::chains::{ChainArgs, ChainMemory, ChainOutput, Chains, Stored, has_lists};
use super::common::Common;
use super::failure::{Failure, Outcome, local_path};
use super::output::{Output, bytes};
use super::progress::Reporter;
use super::source::{ShuffleArgs, SourceArgs};
use arrow::array::Array;
use arrow::util::display::array_value_to_string;
use clap::Args;
use feedstock_dataset::{Block, BlockId, Catalog, Dataset, PlannedSample, Position};
use feedstock_ops::audio::read_audio_header;
use feedstock_ops::{SampleSeed, TensorSpec};
use futures::{StreamExt, TryStreamExt};
use page::{Page, Shown, Sound, Tile};
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
  feedstock preview /data/imagenet --seed 7 --epoch 1 --samples 120 --original --out page.html
  feedstock preview /data/imagenet --view global=random_resized_crop:224 \\
    --view 'local*8=random_resized_crop:96' --out page.html
  feedstock preview /data/documents --column images --ops decode_image,resize:224x224 --out page.html

--view decodes each image once and shows each view with its name, as fs.views in Python makes it; --ops then has only the
decoder. Of a column of lists of images, the page has all images of each sample.";

/// Write an HTML page that shows samples as the model will see them.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    order: ShuffleArgs,
    #[command(flatten)]
    chains: ChainArgs,
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
        let given = self.chains.parse()?;
        let dataset = self.source.open(common)?;
        let ops = self.chains.on(given, &dataset)?;
        let compiled = ops.compile(&ops.pipeline(&dataset))?;
        let tiles = self.tiles(common, &dataset, &compiled)?;
        let failed = tiles.iter().filter(|tile| tile.shown.is_err()).count();
        let shown = tiles.len();
        let page = Page {
            uri: dataset.uri(),
            chains: &facts(ops.text(), compiled.outputs()),
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
                "images": tiles.iter().map(Tile::images).sum::<usize>(),
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
    fn tiles(&self, common: &Common, dataset: &Dataset, bare: &Chains) -> Outcome<Vec<Tile>> {
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
            bare,
            is_sound: bare.outputs().iter().any(|output| spectrogram::is_sound(&output.spec)),
            catalog: dataset.catalog(),
            memory: bare.memory(),
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
    bare: &'a Chains,
    /// Whether the result is audio.
    is_sound: bool,
    catalog: &'a Catalog,
    memory: ChainMemory,
}

impl Painter<'_> {
    fn tile(&mut self, block: &Block, planned: &PlannedSample) -> Outcome<Tile> {
        let row = planned.row as usize;
        let id = planned.sample;
        let stored = self.bare.stored(&block.rows, row)?;
        let seed = SampleSeed::new(self.command.order.seed, self.command.epoch, id.0);
        let shown = match &stored {
            None => Err("no stored value (null)".to_owned()),
            Some(stored) => self.shown(stored, seed)?,
        };
        let is_sound = self.is_sound;
        let files = stored.as_ref().map(Stored::files).unwrap_or_default();
        let originals = match self.command.original && !is_sound {
            true => files.iter().map(|file| file.to_vec()).collect(),
            false => Vec::new(),
        };
        let sound = files.first().filter(|_| is_sound).map(|clip| {
            let header = read_audio_header(clip, clip.len() as u64); // the ops report a damaged header
            Sound { bytes: clip.to_vec(), seconds: header.ok().and_then(|header| header.seconds()) }
        });
        let said = SENTENCES.into_iter().find(|name| is_sound && block.rows.column_by_name(name).is_some());
        let mut sentence = None;
        let mut facts = String::new();
        for (field, values) in block.rows.schema().fields().iter().zip(block.rows.columns()) {
            if self.catalog.is_payload(field.name()) || has_lists(field) || values.is_null(row) {
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
            shown,
            originals,
            sound,
        })
    }

    /// Returns the chains' results as PNGs, or why there are none.
    fn shown(&mut self, stored: &Stored<'_>, seed: SampleSeed) -> Outcome<Result<Vec<Shown>, String>> {
        if let Err(error) = self.bare.run(stored, seed, &mut self.memory) {
            return Ok(Err(error.to_string()));
        }
        let shown = |(output, tensor, length): (&ChainOutput, &[u8], usize)| -> Outcome<Shown> {
            let spec = &output.spec;
            let is_image = !spectrogram::is_sound(spec) && (spec.is_list() || !spec.is_ragged());
            let pngs = match is_image {
                true => picture::pngs(tensor, spec)?,
                false => vec![spectrogram::png(tensor, spec, length)?],
            };
            Ok(Shown { name: output.view.clone(), pngs })
        };
        self.bare.results(&self.memory).map(shown).collect::<Outcome<_>>().map(Ok)
    }

    /// Returns ` (tench)`, the class name to be shown after a label; empty if it has none.
    fn class(&self, column: &str, value: &str) -> String {
        let names = self.catalog.class_names(column);
        let name =
            names.as_ref().zip(value.parse::<usize>().ok()).and_then(|(names, label)| names.get(label));
        name.map_or_else(String::new, |name| format!(" ({name})"))
    }
}

/// Returns what the chains do, as terms and texts: the ops, and the ops of each view.
fn facts(ops: &str, outputs: &[ChainOutput]) -> Vec<(String, String)> {
    let of = |output: &ChainOutput| {
        let view = output.view.as_ref().map(|name| (format!("view {name}"), output.ops.clone()));
        view.into_iter().chain([("result".to_owned(), described(&output.spec))])
    };
    std::iter::once(("ops".to_owned(), ops.to_owned())).chain(outputs.iter().flat_map(of)).collect()
}

/// Returns type and shape, with `T` for the time of audio and `N` for the images of a list.
fn described(spec: &TensorSpec) -> String {
    let axis = |(place, length): (usize, &usize)| match spec.ragged_axis {
        Some(ragged) if ragged == place => if spec.is_list() { "N" } else { "T" }.to_owned(),
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
