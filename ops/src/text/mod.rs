//! Text: sentences into token ids.
//!
//! A text chain is one op: the cell's bytes are UTF-8, its result i64 `[T]`, as long as the sentence has tokens. An
//! empty sentence has none, unless the tokenizer adds special ones. Bytes that are no UTF-8 are a bad sample.

mod cell;
mod tokenize;
mod tokenize_chars;

pub(crate) use plan::{TextPlan, TextScratch, needs};
pub use tokenize::{Tokenize, tokenize};
pub use tokenize_chars::{TokenizeChars, Unknown, UnknownPolicy, Vocabulary, tokenize_chars};

mod plan;
