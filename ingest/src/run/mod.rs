//! Running a plan: what a run is asked for, and the engine that does it on this process's threads.

pub(crate) mod columns;
pub(crate) mod driver;
pub(crate) mod engine;
pub(crate) mod handle;
pub(crate) mod images;
pub(crate) mod job;
pub(crate) mod joint;
pub(crate) mod large;
pub(crate) mod planner;
pub(crate) mod ready;
pub(crate) mod residency;
pub(crate) mod row_indexes;
pub(crate) mod running;
pub(crate) mod share;
pub(crate) mod stats;
pub(crate) mod views;
pub(crate) mod walk;
pub(crate) mod watchdog;
