//! `to_f32`: f32 in 0 … 1.

use serde::{Deserialize, Serialize};

use crate::chain::Op;

/// Converts to f32, 0 … 1 (divided by 255), as the first half of torchvision's `ToTensor`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToF32 {}

impl From<ToF32> for Op {
    fn from(op: ToF32) -> Self {
        Self::ToF32(op)
    }
}

/// [`ToF32`].
pub fn to_f32() -> Op {
    ToF32::default().into()
}
