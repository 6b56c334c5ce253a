//! Text: sentences into token ids.
//!
//! A text chain is one op: the cell's bytes are UTF-8, its result i64 `[T]`, as long as the sentence has tokens. An
//! empty sentence has none, unless the tokenizer adds special ones. Bytes that are no UTF-8 are a bad sample.

pub(crate) mod cell;
pub(crate) mod limits;
mod plan;
pub(crate) mod step;

pub(crate) use plan::compile;

pub use crate::op::constructors::text::*;
pub use crate::op::text::*;
