//! The share of a fleet's work that a worker takes, as it publishes it.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// Units at most: several times the CPU threads of the largest machines.
pub(crate) const CAPACITY_MAX: u32 = 4096;

/// A worker's capacity. Every greeting names it, and a stream does when it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capacity {
    /// Relative to the units of other workers; by default the worker's CPU threads. They are whole numbers that a person
    /// sets, not measurements, so that shares stay as they are while a run goes on.
    pub(crate) units: u32,
    /// Milliseconds since 1970 when it was published, so that the next process at an address goes on from the last one. The
    /// highest one counts: several connections may report different ones in any order.
    pub(crate) generation: u64,
}

impl Capacity {
    /// Returns these units with a generation after `last`.
    ///
    /// # Errors
    /// `BadConfig` for units that are not 1 to [`CAPACITY_MAX`].
    pub(crate) fn after(last: Option<Self>, units: u32) -> Result<Self> {
        if !(1..=CAPACITY_MAX).contains(&units) {
            let message = format!("a worker's capacity must be 1 to {CAPACITY_MAX}; got {units}");
            return Err(Error::config(message));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let generation = now.max(last.map_or(0, |last| last.generation.saturating_add(1)));
        Ok(Self { units, generation })
    }

    /// The units, whatever the other side sent.
    pub(crate) fn units(self) -> u32 {
        self.units.clamp(1, CAPACITY_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_rise_and_units_are_checked() {
        let first = Capacity::after(None, 8).unwrap();
        let second = Capacity::after(Some(first), 4).unwrap();
        assert!(second.generation > first.generation);
        let ahead = Capacity { units: 8, generation: u64::MAX - 1 };
        assert_eq!(Capacity::after(Some(ahead), 4).unwrap().generation, u64::MAX);
        for units in [0, CAPACITY_MAX + 1] {
            let error = Capacity::after(None, units).unwrap_err();
            assert_eq!(error.message(), format!("a worker's capacity must be 1 to 4096; got {units}"));
        }
        assert_eq!(
            [0, 7, u32::MAX].map(|units| Capacity { units, generation: 1 }.units()),
            [1, 7, CAPACITY_MAX]
        );
    }
}
