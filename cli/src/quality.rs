//! Prints how well an order shuffles.

use super::failure::Outcome;
use super::output::{Output, bytes, count};
use feedstock_dataset::{
    Dataset, LabelQuality, MAX_MEASURED_ROWS, OrderQuality, QualityOptions, Rank, ReadQuality, Shuffle,
    ShuffleQuality, StepShape, StepSize, Tail,
};

/// Measures the order for steps of `batch_size` samples a rank; of fewer if the data set is smaller. `None` if not every rank gets a sample.
pub(crate) fn of(
    dataset: &Dataset,
    shuffle: &Shuffle,
    batch_size: u64,
    world_size: u32,
) -> Outcome<Option<ShuffleQuality>> {
    let (selected, ranks) = (dataset.len(), u64::from(world_size));
    let rows = batch_size.min(selected.min(MAX_MEASURED_ROWS) / ranks.max(1));
    if rows == 0 {
        return Ok(None);
    }
    let shape =
        StepShape { size: StepSize::Rows(rows * ranks), rank: Rank::new(0, world_size), tail: Tail::Drop };
    let options = QualityOptions { shape, epoch: 0, labels: None };
    let measured = dataset.shuffle_quality(shuffle, &options, |shuffle| dataset.plan(shuffle));
    Ok(Some(futures::executor::block_on(measured)?))
}

/// Prints the figures of the order next to those of a full shuffle, then those of half and twice the window.
pub(crate) fn print(output: &mut Output, quality: &ShuffleQuality) -> Outcome {
    let (order, full) = (&quality.order, &quality.full_shuffle);
    output.fact("shuffle", &order.shuffle)?;
    if order.window.is_some() {
        output.fact("window", window(order))?;
    }
    if let Some(why) = &quality.why_blocks {
        output.fact("why blocks", why)?;
    }
    if let Some(column) = &quality.label_column {
        output.fact("label column", labelled(column, quality))?;
        for (name, mix, full) in [
            ("global batch", order.global_batch, full.global_batch),
            ("rank's batch", order.rank_batch, full.rank_batch),
        ] {
            if let (Some(mix), Some(full)) = (mix, full) {
                output.fact(name, labels(&mix, &full))?;
            }
        }
    }
    if let (Some(pairs), Some(full)) = (order.same_shard_pairs, full.same_shard_pairs) {
        let (pairs, full) = (percent(pairs), percent(full));
        output.fact("same shard", format!("{pairs} of the pairs in a global batch; full shuffle {full}"))?;
    }
    if let (Some(moved), Some(full)) = (order.displacement, full.displacement) {
        output.fact(
            "displacement",
            format!("{moved:.3} of the epoch from the catalog's order; full shuffle {full:.3}"),
        )?;
    }
    if let Some(of) = &order.reads {
        output.fact("reads", reads(of, quality.world_size))?;
        output.fact("", format!("{:.2} ranks read each; without caches, all columns", of.readers))?;
    }
    for (name, other) in
        [("half the window", &quality.half_window), ("twice the window", &quality.twice_window)]
    {
        if let Some(other) = other {
            output.fact(name, format!("{}: {}", window(other), in_short(other)))?;
        }
    }
    Ok(())
}

fn window(order: &OrderQuality) -> String {
    let (samples, size) = (order.window.unwrap_or(0), order.window_bytes.unwrap_or(0));
    format!("{} samples, {}", count(samples), bytes(size))
}

fn labelled(column: &str, quality: &ShuffleQuality) -> String {
    let steps = quality.labelled_steps;
    format!("{column}, of {} steps of {:.0} samples", count(steps as u64), quality.global_batch)
}

fn labels(mix: &LabelQuality, full: &LabelQuality) -> String {
    let ratio = mix.entropy_ratio.map_or(String::new(), |ratio| format!(" (ratio {ratio:.3})"));
    format!(
        "{:.1} labels, {:.2} bits{ratio}; full shuffle {:.1}, {:.2} bits",
        mix.labels, mix.entropy_bits, full.labels, full.entropy_bits
    )
}

fn reads(reads: &ReadQuality, world_size: u32) -> String {
    let of = |requests: u64, size: u64| format!("{} requests, {}", count(requests), bytes(size));
    let rank = of(reads.rank_requests, reads.rank_bytes);
    match world_size {
        1 => format!("{rank} an epoch"),
        _ => format!("{rank} an epoch and rank; {world_size} ranks {}", of(reads.requests, reads.bytes)),
    }
}

/// Returns the figures of another window, on one line.
fn in_short(order: &OrderQuality) -> String {
    let mut parts = Vec::new();
    if let (Some(global), Some(rank)) = (order.global_batch, order.rank_batch) {
        let ratio =
            |mix: LabelQuality| mix.entropy_ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.3}"));
        parts.push(format!("entropy ratio {} and {}", ratio(global), ratio(rank)));
    }
    if let Some(pairs) = order.same_shard_pairs {
        parts.push(format!("same shard {}", percent(pairs)));
    }
    if let Some(reads) = &order.reads {
        let (requests, size) = (count(reads.rank_requests), bytes(reads.rank_bytes));
        parts.push(format!("{requests} requests and {size} a rank"));
    }
    parts.join(", ")
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}
