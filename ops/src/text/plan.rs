//! A compiled text chain.

use super::tokenize::Tokens;
use super::tokenize_chars::Characters;
use crate::chain::Op;
use crate::ragged::RaggedRow;
use crate::resources::{Need, Resources};
use crate::scratch::{RETAINED_BYTES, give_back};
use crate::spec::{DType, Layout, TensorSpec};
use feedstock_base::{Error, Result};

/// A thread's buffers.
#[derive(Default)]
pub(crate) struct TextScratch {
    pub(super) ids: Vec<i64>,
    pub(super) lowered: String,
}

impl TextScratch {
    /// Gives back what a text of unusual length needed.
    fn trim(&mut self) {
        give_back(&mut self.ids);
        if self.lowered.capacity() > RETAINED_BYTES {
            self.lowered = String::new();
        }
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

    pub(crate) fn apply(&self, bytes: &[u8], scratch: &mut TextScratch, row: &mut RaggedRow) -> Result<()> {
        let result = self.run(bytes, scratch, row);
        scratch.trim();
        result
    }

    fn run(&self, bytes: &[u8], scratch: &mut TextScratch, row: &mut RaggedRow) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_buffers_are_given_back() {
        let mut scratch = TextScratch {
            ids: Vec::with_capacity(RETAINED_BYTES / size_of::<i64>() + 1),
            lowered: String::with_capacity(RETAINED_BYTES + 1),
        };
        scratch.trim();
        assert_eq!((scratch.ids.capacity(), scratch.lowered.capacity()), (0, 0));
        scratch.ids.reserve_exact(100);
        scratch.trim();
        assert!(scratch.ids.capacity() >= 100);
    }
}
