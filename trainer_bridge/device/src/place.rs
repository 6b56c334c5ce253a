//! Names of devices.

use std::fmt;

/// Where a tensor is stored.
///
/// ```
/// use feedstock_device::Place;
///
/// assert_eq!([Place::Host, Place::Cuda(1)].map(|place| place.to_string()), ["cpu", "cuda:1"]); // torch's names
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// In host memory.
    Host,
    /// On CUDA's device of this number.
    Cuda(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}
