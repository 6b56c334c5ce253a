//! Fetches of extents, and what their results start.

use super::{Driver, FetchResult, Planning, row_of};
use crate::run::job::Destination;
use crate::run::large::shown_bytes;
use crate::run::planner::PlannedStep;
use crate::run::stats::add_time;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::Extent;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::task::JoinError;

impl<D: Destination> Driver<D> {
    pub(super) fn fetch(&mut self, extent: Extent, planned: &PlannedStep) {
        let epoch = planned.step.epoch;
        // A part of a mix that repeats is read once a pass. With weights, a pass is of a sample, not of the data set.
        let rows = planned.step.rows.iter().zip(&planned.extents);
        let rows = rows.filter(|(_, of_row)| self.planner.is_mix() && **of_row == extent);
        let pass = rows.map(|(row, _)| row.pass).max();
        let now = (epoch, pass.unwrap_or(0));
        if self.fetched.insert(extent, now) == Some(now)
            && self.context.shared.refetched.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::warn!(
                "{} is read again in epoch {epoch}: a memory budget of {} does not hold all data until it is needed \
                 again; raise budget_bytes, or lower window or shuffle_bytes (statistics count this as refetched)",
                self.context.catalog.describe_extent(extent),
                shown_bytes(self.budget_bytes)
            );
        }
        self.loading.insert(extent, Instant::now());
        let time = self.planner.time(&planned.step);
        let next_use = self.planner.next_use_from_disk(extent, epoch, time);
        let (reader, shared) = (self.reader.clone(), self.context.shared.clone());
        let sharing = self.context.sharing.clone();
        self.fetches.spawn(async move {
            let begun = Instant::now();
            let fetch = async move { reader.fetch_extent(extent, next_use).await };
            let block = match sharing {
                Some(sharing) => sharing.block(extent, fetch).await,
                None => fetch.await.map(Arc::new),
            };
            add_time(&shared.fetch_ns, begun);
            (extent, block)
        });
    }

    pub(super) fn on_fetch(&mut self, fetched: Result<FetchResult, JoinError>) {
        let (extent, block) = match fetched {
            Ok(fetched) => fetched,
            Err(join) => {
                // It is not known which extent the task fetched, and every step that waits would wait forever.
                let error =
                    Error::new(ErrorKind::Bug, format!("a block fetch ended without a result: {join}"));
                let lost: Vec<Extent> = self.loading.drain().map(|(extent, _)| extent).collect();
                lost.into_iter().for_each(|extent| self.break_extent(extent, &error));
                return;
            }
        };
        self.loading.remove(&extent);
        match block {
            Ok(block) => {
                let shared = &self.context.shared;
                shared.fetched.fetch_add(1, Ordering::Relaxed);
                let bytes = self.context.catalog.extent_memory_bytes(extent); // columns share the catalog's tables
                shared.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
                self.loaded.insert(extent, block.clone());
                for active in self.active.values_mut() {
                    let Some(rows) = active.waiting.remove(&extent) else { continue };
                    let task = |row| active.running.task(row, block.clone(), row_of(&active.planned, row));
                    self.turns.submit_all(active.turn, rows.into_iter().map(task).collect());
                }
            }
            Err(error) => self.break_extent(extent, &error),
        }
    }

    /// Ends the run at the first step that needs `extent`.
    fn break_extent(&mut self, extent: Extent, error: &Error) {
        self.planning = Planning::Failed;
        self.refused.clear();
        self.broken.insert(extent, error.clone());
        if let Some((&index, _)) = self.active.iter().find(|(_, active)| active.waiting.contains_key(&extent))
        {
            self.fail_from(index, error.clone());
        }
    }
}
