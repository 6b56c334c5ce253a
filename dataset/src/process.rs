//! Values that a process shares, for as long as anything uses them.
//!
//! After `fork` the child has none of its parent's threads, and any lock that another thread held then is never released.
//! So a value belongs to the process that made it: a child gets a separate value and touches none of its parent's.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A process-wide weak reference: the value ends with its last user, and the next one makes another.
///
/// ```
/// # use std::sync::Arc;
/// # use feedstock_dataset::PerProcess;
/// static SHARED: PerProcess<Vec<u8>> = PerProcess::new();
/// let first = Arc::new(vec![0; 1024]);
/// *SHARED.lock() = Arc::downgrade(&first);
/// assert!(Arc::ptr_eq(&first, &SHARED.lock().upgrade().unwrap())); // one for the process
/// drop(first);
/// assert!(SHARED.lock().upgrade().is_none()); // it ended with its last user
/// ```
pub struct PerProcess<T>(OnceLock<Box<Place<T>>>);

struct Place<T> {
    process: u32,
    value: Mutex<Weak<T>>,
    /// The place of a child of this process.
    next: PerProcess<T>,
}

impl<T> PerProcess<T> {
    /// Returns a reference without a value.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Returns this process's value, locked. A caller that finds none makes it under the lock.
    pub fn lock(&self) -> MutexGuard<'_, Weak<T>> {
        self.of(std::process::id()).lock().unwrap_or_else(PoisonError::into_inner) // stored whole
    }

    fn of(&self, process: u32) -> &Mutex<Weak<T>> {
        let mut at = self;
        loop {
            let empty = || Box::new(Place { process, value: Mutex::new(Weak::new()), next: Self::new() });
            let place = at.0.get_or_init(empty);
            if place.process == process {
                return &place.value;
            }
            at = &place.next;
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_value_ends_with_its_last_user() {
        let shared = PerProcess::new();
        assert!(shared.lock().upgrade().is_none());
        let value = Arc::new(7);
        *shared.lock() = Arc::downgrade(&value);
        assert_eq!(shared.lock().upgrade().as_deref(), Some(&7));
        drop(value);
        assert!(shared.lock().upgrade().is_none());
    }

    #[test]
    fn a_child_neither_sees_nor_locks_what_its_parent_has() {
        let shared = PerProcess::new();
        let (ours, theirs) = (Arc::new(1), Arc::new(2));
        *shared.of(10).lock().unwrap() = Arc::downgrade(&ours);
        let _held_for_ever = shared.of(10).lock().unwrap();
        assert!(shared.of(11).lock().unwrap().upgrade().is_none());
        *shared.of(11).lock().unwrap() = Arc::downgrade(&theirs);
        assert_eq!(shared.of(11).lock().unwrap().upgrade().as_deref(), Some(&2));
        assert!(shared.of(12).lock().unwrap().upgrade().is_none());
    }
}
