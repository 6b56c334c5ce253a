//! The lock and the condition variable of the queue. The model checks in `ingest/model` replace them.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
