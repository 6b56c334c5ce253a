//! Samples made by many threads, handed on in order.
//!
//! Thread t of T makes places t, t + T, t + 2T … into its own short queue, and the consumer takes from the
//! queues in turn; so the order needs no sorting, and memory is bounded by T × `QUEUE` samples.

use crate::{Error, ErrorKind, ImagenetOptions, Painter, Result, Sample};
use std::sync::mpsc::sync_channel;

/// Finished samples waiting per thread: covers a writer's pause of 4 × 5 ms; 4 × 110 KB.
const QUEUE: usize = 4;

/// Gives `consume` the samples `index_at(0)`, `index_at(1)` … `index_at(total − 1)`, in this order.
pub(crate) fn in_order(
    options: &ImagenetOptions,
    total: u64,
    index_at: impl Fn(u64) -> u64 + Sync,
    mut consume: impl FnMut(Sample) -> Result<()>,
) -> Result<()> {
    let threads = options.threads.max(1);
    let index_at = &index_at;
    std::thread::scope(|scope| {
        let queues: Vec<_> = (0..threads)
            .map(|thread| {
                let (sender, receiver) = sync_channel::<Result<Sample>>(QUEUE);
                scope.spawn(move || {
                    let mut painter = match Painter::new(options) {
                        Ok(painter) => painter,
                        Err(error) => return drop(sender.send(Err(error))),
                    };
                    for place in (thread as u64..total).step_by(threads) {
                        if sender.send(painter.sample(index_at(place))).is_err() {
                            return; // the consumer stopped
                        }
                    }
                });
                receiver
            })
            .collect();
        let mut turn = queues.iter().cycle();
        for place in 0..total {
            let sample = turn.next().and_then(|queue| queue.recv().ok()).ok_or_else(|| {
                Error::new(
                    ErrorKind::Bug,
                    format!("a painting thread ended before sample {place} of {total}"),
                )
            })?;
            consume(sample?)?;
        }
        Ok(())
    })
}
