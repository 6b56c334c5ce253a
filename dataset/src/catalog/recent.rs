//! What was read of units lately. Each unit is read once, however many parts of it are needed at a time.

use crate::Result;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;

/// Values by unit, together within a limit of bytes; those that were read longest ago are dropped. Clones share them.
pub(crate) struct Recent<T>(Arc<Mutex<Held<T>>>);

struct Held<T> {
    most_bytes: u64,
    units: HashMap<u32, Arc<OnceCell<T>>>,
    /// Units whose bytes are counted, the one that was read longest ago first.
    counted: VecDeque<(u32, u64)>,
    bytes: u64,
}

impl<T: Clone> Recent<T> {
    pub(crate) fn new(most_bytes: u64) -> Self {
        let (units, counted) = (HashMap::new(), VecDeque::new());
        Self(Arc::new(Mutex::new(Held { most_bytes, units, counted, bytes: 0 })))
    }

    /// Returns what `read` returns for `unit`, or has returned lately; `bytes` are its bytes.
    pub(crate) async fn get(
        &self,
        unit: u32,
        read: impl Future<Output = Result<T>>,
        bytes: impl Fn(&T) -> u64,
    ) -> Result<T> {
        let cell = self.held().units.entry(unit).or_default().clone();
        let read = async || {
            let value = read.await?;
            self.held().count(unit, bytes(&value));
            Ok(value)
        };
        cell.get_or_try_init(read).await.cloned()
    }

    fn held(&self) -> MutexGuard<'_, Held<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Recent<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Held<T> {
    fn count(&mut self, unit: u32, bytes: u64) {
        self.counted.push_back((unit, bytes));
        self.bytes += bytes;
        while self.bytes > self.most_bytes
            && let Some((oldest, bytes)) = self.counted.pop_front()
        {
            self.units.remove(&oldest);
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn units_are_read_once_until_others_take_their_place() {
        let (recent, reads) = (Recent::new(3), AtomicU32::new(0));
        let value = async |unit: u32| {
            reads.fetch_add(1, Ordering::Relaxed);
            Ok(unit)
        };
        let read = async |unit| recent.get(unit, value(unit), |_| 1).await;
        for unit in [7, 7, 8, 9, 7] {
            assert_eq!(read(unit).await.unwrap(), unit);
        }
        assert_eq!(reads.load(Ordering::Relaxed), 3);
        read(10).await.unwrap(); // in place of 7
        read(9).await.unwrap();
        assert_eq!(reads.load(Ordering::Relaxed), 4);
        read(7).await.unwrap();
        assert_eq!(reads.load(Ordering::Relaxed), 5);
    }

    #[tokio::test]
    async fn a_failure_is_not_kept() {
        let recent = Recent::new(3);
        recent.get(1, async { Err(Error::config("no")) }, |_: &u32| 1).await.unwrap_err();
        assert_eq!(recent.get(1, async { Ok(5) }, |_| 1).await.unwrap(), 5);
    }
}
