//! `to_chw`: channels first.

use serde::{Deserialize, Serialize};

use crate::chain::Op;

/// Lays the result out as channel × height × width, as torch's convolutions take it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToChw {}

impl From<ToChw> for Op {
    fn from(op: ToChw) -> Self {
        Self::ToChw(op)
    }
}

/// [`ToChw`].
pub fn to_chw() -> Op {
    ToChw::default().into()
}
