//! Options for batches by length: the column that holds the lengths, and the bound of a batch.

use super::failure::{Failure, Outcome};
use clap::Args;
use feedstock_trainer_bridge::{BatchSize, Pipeline};

/// Batches of samples of similar length.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Length")]
pub(crate) struct BucketArgs {
    /// Put samples of similar length into one batch. COLUMN holds the lengths, for example duration.
    #[arg(long, value_name = "COLUMN")]
    bucket: Option<String>,
    /// Number of samples that are bucketed together [default: the shuffle window].
    #[arg(long, value_name = "SAMPLES", requires = "bucket")]
    bucket_window: Option<u64>,
    /// Bound a step over all ranks by rows × longest length ≤ TOTAL instead of by a number of rows. The unit is that
    /// of --bucket's column, else of duration (seconds).
    #[arg(long, value_name = "T", conflicts_with_all = ["global_batch", "batch_size"])]
    batch_total: Option<f64>,
}

/// The column of the lengths, unless one is named.
const LENGTHS: &str = "duration";

impl BucketArgs {
    /// Returns `pipeline` with these batches. `rows` is the size of a step without --batch-total.
    pub(crate) fn apply(&self, pipeline: Pipeline, rows: u64) -> Outcome<Pipeline> {
        let mut pipeline = match self.batch_total {
            None => pipeline.batch(BatchSize::global(rows)),
            Some(total) if total.is_finite() && total > 0.0 => {
                pipeline.batch(BatchSize::global_total(total)).lengths_from(LENGTHS)
            }
            Some(total) => {
                return Err(Failure::config(format!("--batch-total must be greater than 0; got {total}")));
            }
        };
        if let Some(column) = &self.bucket {
            pipeline = pipeline.bucket_by(column);
        }
        if let Some(window) = self.bucket_window {
            pipeline = pipeline.bucket_window(window);
        }
        Ok(pipeline)
    }
}
