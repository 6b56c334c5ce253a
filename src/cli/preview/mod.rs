//! `feedstock preview`: a page with what the model will see after the ops.
//!
//! The samples are the first of the epoch's order, decoded with the seeds of a real run, so the page shows
//! the very pictures of the first batches.

mod page;
mod picture;

use super::Common;
use super::failure::{Failure, Outcome};
use super::output::{Output, bytes};
use super::progress::Reporter;
use super::source::{ShuffleArgs, SourceArgs};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::util::display::array_value_to_string;
use clap::Args;
use feedstock_dataset::{Block, BlockId, Catalog, Dataset, PlannedSample, Position};
use feedstock_ops::{Chain, ChainSpec, SampleSeed, Scratch};
use futures::{StreamExt, TryStreamExt};
use page::{Page, Tile};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Blocks under way at once: enough to hide a round trip; 4 × 4 MiB.
const FETCHES: usize = 4;

const EXAMPLES: &str = "\
Examples:
  feedstock preview /data/imagenet --out page.html
  feedstock preview s3://bucket/train --ops 'decode_image,random_resized_crop:224,trivial_augment' --out page.html
  feedstock preview /data/imagenet --seed 7 --epoch 1 --samples 120 --original --out page.html";

/// Write an HTML page that shows samples as the model will see them.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    order: ShuffleArgs,
    /// The ops, as the pipeline has them.
    #[arg(long, default_value = "decode_image,random_resized_crop:224,horizontal_flip")]
    ops: String,
    /// The column of encoded pictures [default: the data set's only one].
    #[arg(long)]
    column: Option<String>,
    /// The page; it holds its pictures itself.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Number of samples, from the start of the epoch's order.
    #[arg(long, default_value_t = 64, value_name = "N")]
    samples: u64,
    /// The epoch.
    #[arg(long, default_value_t = 0)]
    epoch: u64,
    /// Show each stored picture beside the result.
    #[arg(long)]
    original: bool,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let chain = self.ops.parse::<ChainSpec>()?.compile()?;
        let dataset = self.source.open(common)?;
        let column = payload_column(&dataset, self.column.as_deref())?;
        let tiles = self.tiles(common, &dataset, &chain, &column)?;
        let failed = tiles.iter().filter(|tile| tile.picture.is_err()).count();
        let shown = tiles.len();
        let page = Page {
            uri: dataset.uri(),
            ops: &self.ops,
            output: &format!("{:?} {:?}", chain.output().dtype, chain.output().shape),
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
        output.end()
    }

    /// The tiles in plan order.
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
        let mut painter =
            Painter { command: self, chain, column, catalog: dataset.catalog(), scratch: Scratch::default() };
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

/// Makes tiles of samples.
struct Painter<'a> {
    command: &'a Command,
    chain: &'a Chain,
    column: &'a str,
    catalog: &'a Catalog,
    scratch: Scratch,
}

impl Painter<'_> {
    fn tile(&mut self, block: &Block, planned: &PlannedSample) -> Outcome<Tile> {
        let row = planned.row as usize;
        let id = planned.sample;
        let encoded = encoded(&block.rows, self.column, row)?;
        let seed = SampleSeed::new(self.command.order.seed, self.command.epoch, id.0);
        let mut out = vec![0; self.chain.output().bytes()];
        let picture = match encoded {
            None => Err("no picture stored (null)".to_owned()),
            Some(encoded) => match self.chain.apply(encoded, seed, &mut self.scratch, &mut out) {
                Ok(()) => Ok(picture::png(&out, self.chain.output())?),
                Err(error) => Err(error.to_string()),
            },
        };
        let original = encoded.filter(|_| self.command.original).map(<[u8]>::to_vec);
        let mut facts = String::new();
        for (field, values) in block.rows.schema().fields().iter().zip(block.rows.columns()) {
            if self.catalog.is_payload(field.name()) || values.is_null(row) {
                continue;
            }
            let value = array_value_to_string(values, row)
                .map_err(|e| Failure::bug(format!("column {} cannot be printed: {e}", field.name())))?;
            let class = self.class(field.name(), &value);
            let _infallible = writeln!(facts, "{}: {value}{class}", field.name());
        }
        Ok(Tile { id: id.0, place: self.catalog.describe_sample(id), facts, picture, original })
    }

    /// ` (tench)` behind a label with a name.
    fn class(&self, column: &str, value: &str) -> String {
        let names = self.catalog.class_names(column);
        let name =
            names.as_ref().zip(value.parse::<usize>().ok()).and_then(|(names, label)| names.get(label));
        name.map_or_else(String::new, |name| format!(" ({name})"))
    }
}

/// The named payload column, or the only one.
pub(crate) fn payload_column(dataset: &Dataset, named: Option<&str>) -> Outcome<String> {
    let known = dataset.catalog().payload_columns();
    match (named, known) {
        (Some(name), _) if known.iter().any(|column| column == name) => Ok(name.to_owned()),
        (None, [only]) => Ok(only.clone()),
        (None, []) => Err(Failure::config(format!("{} has no column of encoded bytes", dataset.uri()))),
        _ => Err(Failure::config(format!(
            "{}: name one of the payload columns {} with --column",
            dataset.uri(),
            known.join(", ")
        ))),
    }
}

/// The encoded bytes of a row; `None` where they are null.
pub(crate) fn encoded<'a>(rows: &'a RecordBatch, column: &str, row: usize) -> Outcome<Option<&'a [u8]>> {
    let values = rows.column_by_name(column).and_then(|values| values.as_binary_view_opt());
    let values = values.ok_or_else(|| Failure::bug(format!("a block has no payload column {column}")))?;
    Ok((!values.is_null(row)).then(|| values.value(row)))
}
