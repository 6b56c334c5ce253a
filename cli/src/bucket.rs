//! Batches by length: which column tells it, and what bounds a batch.

use super::failure::{Failure, Outcome};
use clap::Args;
use feedstock_trainer_bridge::{BatchSize, Pipeline};

/// Batches of samples of like length.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Length")]
pub(crate) struct BucketArgs {
    /// Put samples of like length into one batch; COLUMN holds the lengths, as duration does.
    #[arg(long, value_name = "COLUMN")]
    bucket: Option<String>,
    /// Samples among which like lengths are sought [default: the shuffle's window].
    #[arg(long, value_name = "SAMPLES", requires = "bucket")]
    bucket_window: Option<u64>,
    /// As many samples a step, over all ranks, as rows × longest length ≤ T allows, in the unit of the lengths (of
    /// --bucket's column, else of duration).
    #[arg(long, value_name = "T", conflicts_with_all = ["global_batch", "batch_size"])]
    batch_total: Option<f64>,
}

/// Where lengths stand unless a column is named.
const LENGTHS: &str = "duration";

impl BucketArgs {
    /// `pipeline` with these batches; `rows` is the size of a step that nothing else bounds.
    pub(crate) fn apply(&self, pipeline: Pipeline, rows: u64) -> Outcome<Pipeline> {
        let mut pipeline = match self.batch_total {
            None => pipeline.batch(BatchSize::global(rows)),
            Some(total) if total.is_finite() && total > 0.0 => {
                pipeline.batch(BatchSize::global_total(total)).lengths_from(LENGTHS)
            }
            Some(total) => {
                return Err(Failure::config(format!(
                    "--batch-total {total} is no bound; it must be above 0"
                )));
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
