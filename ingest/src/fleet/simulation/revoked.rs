//! The claim on rows of a stream that is ended in the middle of them.

use super::data::{SLOTS, bytes, specs, walk, warnings};
use crate::fleet::gathering::{Claim, Gathering, Writing};
use crate::memory::row::{RowBuffers, RowPlace};
use crate::run::job::Finished;
use crate::run::ready::{Popped, Ready};
use crate::run::stats::RunStatus;
use crate::worker::LaneMemory;
use crate::{Error, ErrorKind};
use arrow::array::{ArrayRef, UInt64Array};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::Step;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The sample in this row cannot be used.
const BAD: usize = 5;

/// Writes the first `until` bytes of each row.
fn write(writing: &mut Writing<LaneMemory>, step: &Step, rows: &[usize], until: usize) {
    for (nth, &row) in rows.iter().enumerate() {
        let sample = step.rows[row].sample;
        let Some(memory) = writing.memory(nth) else { continue };
        memory.set_warnings(warnings(sample));
        for column in 0..specs().len() {
            let made = bytes(step.epoch, sample, column);
            let part = &made[..made.len().min(until)];
            match memory.column(column).unwrap() {
                RowPlace::Fixed(out) => out[..part.len()].copy_from_slice(part),
                RowPlace::Ragged(out) => out.lengthen(made.len(), part.len()).copy_from_slice(part),
            }
        }
    }
}

fn columns(step: &Step, rows: &[usize]) -> RecordBatch {
    let ids: UInt64Array = rows.iter().map(|&row| step.rows[row].sample.0).collect();
    RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).unwrap()
}

fn failures(rows: &[usize]) -> Vec<(usize, Error)> {
    let nth = rows.iter().position(|row| *row == BAD);
    nth.map(|nth| (nth, Error::new(ErrorKind::BadSample, "damaged"))).into_iter().collect()
}

#[tokio::test]
async fn rows_of_a_stream_that_is_aborted_are_free_and_come_once() {
    let step = walk(0).next().unwrap();
    let ready = Arc::new(Ready::<Finished<LaneMemory>>::default());
    let shared = Arc::new(RunStatus::default());
    let place = LaneMemory::new(specs(), Arc::new(RowBuffers::default())).unwrap();
    let (events, _heard) = unbounded_channel();
    let gathering = Gathering::new(0, step.clone(), place, ready.clone(), shared.clone(), events).unwrap();
    let (mine, others): (Vec<usize>, Vec<usize>) = (0..step.rows.len()).partition(|row| row % 2 == 1);

    for _ in 0..SLOTS {
        let (holds, held) = oneshot::channel();
        let (slow, planned, rows) = (gathering.clone(), step.clone(), mine.clone());
        let task = tokio::spawn(async move {
            let Claim::Mine(mut writing) = slow.claim(&rows).await else {
                panic!("no other stream writes them")
            };
            write(&mut writing, &planned, &rows, 3);
            holds.send(()).unwrap();
            std::future::pending::<()>().await;
            writing.done(columns(&planned, &rows), Vec::new());
        });
        held.await.unwrap();
        let early = timeout(Duration::from_millis(20), gathering.claim(&mine)).await;
        assert!(early.is_err(), "the slow stream has the rows");
        let rival = gathering.clone();
        let rows = mine.clone();
        let waits = tokio::spawn(async move { matches!(rival.claim(&rows).await, Claim::Mine(_)) });
        task.abort();
        assert!(waits.await.unwrap(), "a stream that waits for the rows is woken when they are free");
    }
    for rows in [&mine, &others] {
        let Claim::Mine(mut writing) = gathering.claim(rows).await else { panic!("they are free") };
        write(&mut writing, &step, rows, usize::MAX);
        writing.done(columns(&step, rows), failures(rows));
        assert!(matches!(gathering.claim(rows).await, Claim::Written));
    }

    let Popped::Item(finished) = ready.pop(Duration::ZERO) else { panic!("it is complete") };
    let expected: Vec<_> = step.rows.iter().map(|row| warnings(row.sample)).enumerate().collect();
    let expected: Vec<_> = expected.into_iter().filter(|(_, warnings)| !warnings.is_empty()).collect();
    assert_eq!(finished.warnings, expected, "once for each row");
    assert_eq!(finished.failures.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [BAD]);
    assert_eq!(finished.columns, columns(&step, &(0..step.rows.len()).collect::<Vec<_>>()));
    for (at, row) in step.rows.iter().enumerate() {
        for column in [0, 1] {
            assert_eq!(finished.destination.part(at, column), bytes(step.epoch, row.sample, column));
        }
    }
    let stats = shared.stats();
    assert_eq!((stats.samples, stats.bad_samples, stats.steps), (step.rows.len() as u64, 1, 1));
}
