//! A compiled text chain.

use super::tokenize::Tokens;
use super::tokenize_chars::Characters;
use crate::chain::Op;
use crate::limits::MAX_CHARACTERS_BYTES;
use crate::ragged::RaggedRow;
use crate::resources::{Need, Resources};
use crate::scratch::Scratch;
use crate::spec::{DType, Layout, TensorSpec};
use feedstock_base::{Error, Result};

/// A thread's buffers.
#[derive(Default)]
pub(crate) struct TextScratch {
    pub(super) ids: Vec<i64>,
    pub(super) lowered: String,
}

impl TextScratch {
    pub(crate) fn kept_bytes(&self) -> usize {
        self.ids.capacity() * size_of::<i64>() + self.lowered.capacity()
    }
}

/// A compiled text chain.
pub(crate) struct TextPlan {
    step: Step,
    output: TensorSpec,
}

enum Step {
    Tokens(Box<Tokens>),
    Characters(Box<Characters>),
}

/// What a text op refers to.
pub(crate) fn needs(ops: &[Op]) -> Vec<Need> {
    ops.iter()
        .filter_map(|op| match op {
            Op::Tokenize(op) => Some(Need::File(op.tokenizer.clone())),
            _ => None,
        })
        .collect()
}

impl TextPlan {
    /// `ops` starts with a text op.
    pub(crate) fn compile(ops: &[Op], resources: &Resources) -> Result<Self> {
        let [op, rest @ ..] = ops else {
            return Err(Error::bug("a text chain is compiled from its first op on"));
        };
        if let Some(next) = rest.first() {
            let (name, first) = (next.name(), op.name());
            return Err(Error::config(format!(
                "op 1 ({name}): nothing can follow {first}; its result is token ids"
            )));
        }
        let step = match op {
            Op::Tokenize(op) => Tokens::new(op, resources).map(|tokens| Step::Tokens(Box::new(tokens))),
            Op::TokenizeChars(op) => {
                Characters::new(op).map(|characters| Step::Characters(Box::new(characters)))
            }
            #[allow(unreachable_patterns, reason = "without other features there are no other ops")]
            _ => Err(Error::bug("a text chain starts with a text op")),
        };
        let step = step.map_err(|error| error.context(format!("op 0 ({})", op.name())))?;
        Ok(Self { step, output: TensorSpec::new(DType::I64, [0], Layout::T).ragged(0) })
    }

    pub(crate) fn output(&self) -> &TensorSpec {
        &self.output
    }

    /// Returns the working memory for a text. For each byte of it, the tokenizer takes up to 300 bytes (1 MiB took 300 MB);
    /// characters take 8 for an id, twice as the buffer grows, and the text in lower case. A text over the limit on its
    /// length takes nothing.
    fn working_bytes(&self, bytes: &[u8]) -> u64 {
        let (most, a_byte) = match &self.step {
            Step::Tokens(tokens) => (tokens.max_bytes(), 320),
            Step::Characters(_) => (MAX_CHARACTERS_BYTES, 20),
        };
        let length = if bytes.len() > most { 0 } else { bytes.len() as u64 };
        (1 << 20) + a_byte * length
    }

    pub(crate) fn apply(&self, bytes: &[u8], scratch: &mut Scratch, row: &mut RaggedRow) -> Result<()> {
        scratch.admit(|_| self.working_bytes(bytes))?;
        let scratch = &mut scratch.text;
        scratch.ids.clear();
        match &self.step {
            Step::Tokens(tokens) => tokens.run(bytes, &mut scratch.ids)?,
            Step::Characters(characters) => characters.run(bytes, scratch)?,
        }
        let length = scratch.ids.len();
        row.i64s(length, length).copy_from_slice(&scratch.ids);
        Ok(())
    }
}
