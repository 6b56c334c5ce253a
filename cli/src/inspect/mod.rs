//! `feedstock inspect`: shows what a data set holds.

mod cells;
mod speech;

use super::common::Common;
use super::failure::{Failure, Outcome};
use super::medium::Medium;
use super::output::{Output, bytes, count};
use super::quality;
use super::source::{ShuffleArgs, SourceArgs};
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::DataType;
use cells::cells;
use clap::Args;
use feedstock_dataset::{BlockId, Catalog, Dataset};
use serde_json::{Value, json};
use speech::Speech;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Instant;

const LABEL_COLUMN: &str = "label";

const EXAMPLES: &str = "\
Examples:
  feedstock inspect /data/imagenet
  feedstock inspect s3://bucket/train --filter 'label < 100' --count width
  feedstock inspect /data/cv-corpus --split train           # hours, lengths, speakers, locales
  feedstock inspect s3://bucket/train --sql 'select avg(width), max(height) from catalog'";

/// Show what a data set holds: layout, samples, blocks, columns, labels, order and how well it shuffles; for speech also
/// hours, durations and speakers.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    order: ShuffleArgs,
    /// Count the values of this column [default: label, if the data set has it].
    #[arg(long, value_name = "COLUMN")]
    count: Option<String>,
    /// Number of counted values to show, the most frequent first.
    #[arg(long, default_value_t = 10, value_name = "N")]
    top: usize,
    /// Number of ranks, for the quality of the shuffle.
    #[arg(long, default_value = "1", value_name = "D")]
    world_size: NonZeroU32,
    /// Number of samples per step and rank, for the quality of the shuffle.
    #[arg(long, default_value = "64", value_name = "B")]
    batch_size: NonZeroU64,
    /// Print the rows of this query over the table `catalog` instead.
    #[arg(long, value_name = "QUERY", conflicts_with = "count")]
    sql: Option<String>,
}

struct Counts {
    column: String,
    distinct: u64,
    top: Vec<Counted>,
}

/// A value, its class name if it is a label, and the number of samples that have it.
struct Counted {
    value: String,
    name: Option<String>,
    count: u64,
}

impl Command {
    pub(crate) fn run(&self, common: &Common) -> Outcome {
        let start = Instant::now();
        let dataset = self.source.open(common)?;
        let opened_s = start.elapsed().as_secs_f64();
        if let Some(query) = &self.sql {
            let rows = futures::executor::block_on(dataset.sql(query))?;
            return print_rows(common, &rows);
        }
        let counts = self.counts(&dataset)?;
        let is_speech =
            dataset.catalog().payload_columns().iter().any(|name| Medium::of(name) == Medium::Speech);
        let speech = if is_speech { Some(Speech::of(&dataset)?) } else { None };
        let shuffle = self.order.shuffle()?;
        let fingerprint = dataset.plan(&shuffle)?.fingerprint().clone();
        let quality = quality::of(&dataset, &shuffle, self.batch_size.get(), self.world_size.get())?;
        let catalog = dataset.catalog();
        let block_bytes = block_bytes(catalog)?;
        let columns: Vec<(String, String, bool)> = catalog
            .schema()
            .fields()
            .iter()
            .map(|field| {
                let name = field.name().clone();
                let payload = catalog.is_payload(&name);
                (name, field.data_type().to_string(), payload)
            })
            .collect();
        let mut output = Output::new();
        if common.json {
            let columns = columns
                .iter()
                .map(|(name, kind, payload)| json!({ "name": name, "type": kind, "payload": payload }));
            output.json(&json!({
                "uri": catalog.uri(),
                "layout": catalog.layout().name(),
                "samples": catalog.samples(),
                "selected": dataset.len(),
                "objects": catalog.objects().len(),
                "blocks": catalog.blocks(),
                "block_bytes": block_bytes,
                "columns": columns.collect::<Vec<Value>>(),
                "counts": counts.as_ref().map(counts_json),
                "speech": speech.as_ref().map(Speech::json),
                "lanes": fingerprint.lanes,
                "window": fingerprint.window,
                "shuffle": fingerprint.shuffle,
                "piece": fingerprint.piece,
                "shuffle_quality": quality,
                "content_hash": format!("{:016x}", catalog.content_hash()),
                "notes": catalog.notes(),
                "opened_s": opened_s,
            }))?;
            return output.end();
        }
        let (samples, blocks) = (catalog.samples(), catalog.blocks() as u64);
        output.fact("data set", catalog.uri())?;
        output.fact(
            "layout",
            format!("{}, {} objects", catalog.layout(), count(catalog.objects().len() as u64)),
        )?;
        let selected = match dataset.filter_sql() {
            Some(filter) => format!("{}, {} where {filter}", count(samples), count(dataset.len())),
            None => count(samples),
        };
        output.fact("samples", selected)?;
        output.fact(
            "bytes",
            format!("{}, {} a sample", bytes(block_bytes), bytes(block_bytes / samples.max(1))),
        )?;
        let per_block = samples as f64 / blocks.max(1) as f64;
        let mean = bytes(block_bytes / blocks.max(1));
        output.fact("blocks", format!("{}, on average {per_block:.1} samples and {mean}", count(blocks)))?;
        for (place, (name, kind, payload)) in columns.iter().enumerate() {
            let kind = if *payload { "payload (encoded bytes)" } else { kind };
            output.fact(if place == 0 { "columns" } else { "" }, format!("{name:<16} {kind}"))?;
        }
        if let Some(counts) = &counts {
            let top: Vec<String> = counts.top.iter().map(Counted::shown).collect();
            let more = if counts.distinct > counts.top.len() as u64 { " …" } else { "" };
            output.fact(
                &counts.column,
                format!("{} values: {}{more}", count(counts.distinct), top.join(", ")),
            )?;
        }
        if let Some(speech) = &speech {
            speech.print(&mut output, dataset.len())?;
        }
        output.fact("order", fingerprint.describe_shuffle())?;
        if let Some(quality) = &quality {
            quality::print(&mut output, quality)?;
        }
        for note in catalog.notes() {
            output.fact("note", note)?;
        }
        output.fact("opened in", format!("{:.0} ms", 1000.0 * opened_s))?;
        output.end()
    }

    fn counts(&self, dataset: &Dataset) -> Outcome<Option<Counts>> {
        let column = match &self.count {
            Some(column) => column,
            None if dataset.catalog().schema().column_with_name(LABEL_COLUMN).is_some() => LABEL_COLUMN,
            None => return Ok(None),
        };
        let filter = dataset.filter_sql().map_or(String::new(), |sql| format!(" where {sql}"));
        let name = format!("\"{}\"", column.replace('"', "\"\""));
        let counted = format!("select {name} as value, count(*) as n from catalog{filter} group by {name}");
        let top = format!("select value, n from ({counted}) order by n desc, value limit {}", self.top);
        let distinct = format!("select count(*) from ({counted})");
        let (top, distinct) = futures::executor::block_on(async {
            Ok::<_, Failure>((dataset.sql(&top).await?, dataset.sql(&distinct).await?))
        })?;
        let number = |text: String| text.parse().map_err(|_| Failure::bug(format!("not a count: {text}")));
        let names = dataset.catalog().class_names(column);
        let mut values = Vec::new();
        for row in cells(&top)? {
            let [value, n] = <[String; 2]>::try_from(row)
                .map_err(|_| Failure::bug("a count has other than two columns"))?;
            let name =
                names.as_ref().zip(value.parse::<usize>().ok()).and_then(|(names, label)| names.get(label));
            values.push(Counted { name: name.cloned(), count: number(n)?, value });
        }
        let distinct = cells(&distinct)?.into_iter().flatten().next().unwrap_or_default();
        Ok(Some(Counts { column: column.to_owned(), distinct: number(distinct)?, top: values }))
    }
}

impl Counted {
    /// Returns the line `3 n01481666 × 4`.
    fn shown(&self) -> String {
        let name = self.name.as_ref().map_or(String::new(), |name| format!(" {name}"));
        format!("{}{name} × {}", self.value, count(self.count))
    }
}

fn counts_json(counts: &Counts) -> Value {
    let one =
        |counted: &Counted| json!({ "value": counted.value, "name": counted.name, "count": counted.count });
    json!({ "column": counts.column, "distinct": counts.distinct, "top": counts.top.iter().map(one).collect::<Vec<Value>>() })
}

/// Returns the bytes of all blocks.
pub(crate) fn block_bytes(catalog: &Catalog) -> Outcome<u64> {
    let blocks = u32::try_from(catalog.blocks()).map_err(|_| Failure::bug("more than 2^32 blocks"))?;
    Ok((0..blocks).map(|id| catalog.block(BlockId(id)).bytes).sum())
}

/// Returns whether the text of a value of this type is also its JSON.
fn is_number_or_flag(kind: &DataType) -> bool {
    *kind == DataType::Boolean || kind.is_integer() || kind.is_floating()
}

fn print_rows(common: &Common, batches: &[RecordBatch]) -> Outcome {
    let mut output = Output::new();
    let names: Vec<String> = batches
        .first()
        .map(|batch| batch.schema().fields().iter().map(|field| field.name().clone()).collect())
        .unwrap_or_default();
    if !common.json {
        output.line(names.join("\t"))?;
    }
    let is_null = batches.iter().flat_map(|batch| {
        (0..batch.num_rows()).map(|row| {
            batch
                .columns()
                .iter()
                .map(|column| *column.data_type() == DataType::Null || column.is_null(row))
                .collect()
        })
    });
    let is_plain: Vec<bool> = batches.first().map_or_else(Vec::new, |batch| {
        batch.columns().iter().map(|column| column.data_type()).map(is_number_or_flag).collect()
    });
    for (row, is_null) in cells(batches)?.into_iter().zip(is_null) {
        if common.json {
            let is_null: Vec<bool> = is_null;
            let values = row.into_iter().zip(is_null).zip(&is_plain).map(|((text, is_null), is_plain)| {
                match (is_null, is_plain) {
                    (true, _) => Value::Null,
                    (false, true) => serde_json::from_str(&text).unwrap_or(Value::String(text)), // NaN is not JSON
                    (false, false) => Value::String(text),
                }
            });
            let object: serde_json::Map<String, Value> = names.iter().cloned().zip(values).collect();
            output.json(&Value::Object(object))?;
        } else {
            output.line(row.join("\t"))?;
        }
    }
    output.end()
}
