//! Chains without injected faults: the twin of `faults.rs` in builds without the feature `faults`.

/// Does nothing.
pub(crate) fn meet(_encoded: &[u8]) {}
