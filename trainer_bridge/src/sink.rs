//! From a finished step to a batch: the error policy is applied here, on the thread that finished the step.

use crate::batch::{Batch, Tensor};
use crate::policy::{OnError, Skipped, substitute};
use crate::slots::{Home, Lease, Slot};
use crate::{Error, ErrorKind, Result};
use arrow::array::UInt64Array;
use arrow::compute::take_record_batch;
use feedstock_ingest::{Finished, Ready, Sink};
use feedstock_ops::TensorSpec;
use std::sync::Arc;

/// A batch and the samples that it had to replace.
pub(crate) struct Assembled {
    pub(crate) batch: Batch,
    pub(crate) skipped: Vec<Skipped>,
}

/// Turns finished steps into batches, in step order.
pub(crate) struct Assembler {
    pub(crate) ready: Ready<Assembled>,
    pub(crate) home: Arc<Home>,
    pub(crate) on_error: OnError,
    /// Name and type of each mapped column, in the order of the maps.
    pub(crate) tensors: Vec<(String, TensorSpec)>,
}

impl Assembler {
    fn assemble(&self, finished: Finished<Slot>) -> Result<Assembled> {
        let Finished { step, mut columns, destination: mut slot, failures, .. } = finished;
        let mut valid: Vec<bool> = step.rows.iter().map(|row| row.valid).collect();
        let mut skipped = Vec::new();
        if let Some((_, error)) = failures.first() {
            let unusable = |kind| matches!(kind, ErrorKind::BadSample);
            if self.on_error == OnError::Raise {
                return Err(first_of(error, failures.len()));
            }
            if let Some((_, error)) = failures.iter().find(|(_, error)| !unusable(error.kind())) {
                return Err(error.clone()); // only the data can be skipped, not our faults or a bad chain
            }
            let bad: Vec<usize> = failures.iter().map(|(row, _)| *row).collect();
            let sources: UInt64Array =
                substitute(&mut slot, step.rows.len(), &bad).into_iter().map(|row| row as u64).collect();
            columns = take_record_batch(&columns, &sources)
                .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot substitute rows: {e}")))?;
            for (row, error) in failures {
                if std::mem::replace(&mut valid[row], false) {
                    skipped.push(Skipped {
                        sample: step.rows[row].sample,
                        epoch: step.epoch,
                        reason: error.to_string(),
                    });
                }
            }
        }
        let shape = slot.shape.clone();
        let lease = Arc::new(Lease::new(slot, self.home.clone()));
        let tensors = self.tensors.iter().zip(&shape.columns).map(|((name, spec), (offset, _))| Tensor {
            name: name.clone(),
            spec: spec.clone(),
            rows: step.rows.len(),
            offset: *offset,
            lease: lease.clone(),
        });
        let batch = Batch {
            epoch: step.epoch,
            position: step.position,
            next: step.next,
            sample_ids: step.rows.iter().map(|row| row.sample).collect(),
            padding: step.rows.iter().map(|row| !row.valid).collect(),
            valid,
            tensors: tensors.collect(),
            columns,
            _lease: lease.clone(),
        };
        Ok(Assembled { batch, skipped })
    }
}

impl Sink<Slot> for Assembler {
    fn finished(&self, finished: Finished<Slot>) {
        let index = finished.index;
        match self.assemble(finished) {
            Ok(assembled) => self.ready.push(index, assembled),
            Err(error) => self.ready.fail(index, error),
        }
    }

    fn failed(&self, index: u64, error: Error) {
        self.ready.fail(index, error);
    }

    fn ended(&self, steps: u64) {
        self.ready.end(steps);
    }
}

fn first_of(error: &Error, failures: usize) -> Error {
    let more = match failures {
        1 => String::new(),
        n => format!(" (and {} more in this batch)", n - 1),
    };
    Error::new(error.kind(), format!("{error}{more}"))
}
