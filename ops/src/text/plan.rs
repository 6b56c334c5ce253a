//! A compiled text chain.

use std::sync::Arc;

use super::step::{TextOp, TextScratch, TextStep};
use crate::plan::{Named, Plan, Row, at};
use crate::resources::Resources;
use crate::scratch::Scratch;
use crate::seed::SampleSeed;
use crate::spec::{DType, Layout, TensorSpec};
use crate::warning::Warnings;
use feedstock_base::{Error, Result};

/// Memory for a text of any length.
const FIXED_BYTES: u64 = 1 << 20;

/// Compiles a chain that starts with an op on text.
///
/// # Errors
/// `BadConfig`, naming the op and the reason.
pub(crate) fn compile(ops: &[Named<'_, dyn TextOp>], resources: &Resources) -> Result<Arc<dyn Plan>> {
    let [Named { name, op: Some(op) }, rest @ ..] = ops else {
        return Err(Error::bug("a text chain is compiled from its first op on"));
    };
    if let Some(next) = rest.first() {
        return Err(Error::config(format!(
            "op 1 ({}): nothing can follow {name}; its result is token ids",
            next.name
        )));
    }
    let step = op.compile(resources).map_err(at(0, name))?;
    Ok(Arc::new(TextPlan { step, output: TensorSpec::new(DType::I64, [0], Layout::T).ragged(0) }))
}

struct TextPlan {
    step: Box<dyn TextStep>,
    output: TensorSpec,
}

impl TextPlan {
    /// Returns the working memory for a text. A text over the limit on its length takes nothing.
    fn working_bytes(&self, bytes: &[u8]) -> u64 {
        let length = if bytes.len() > self.step.max_bytes() { 0 } else { bytes.len() as u64 };
        FIXED_BYTES + self.step.memory_a_byte() * length
    }
}

impl Plan for TextPlan {
    fn output(&self) -> &TensorSpec {
        &self.output
    }

    fn apply(&self, encoded: &[u8], _: SampleSeed, scratch: &mut Scratch, row: Row<'_>) -> Result<Warnings> {
        scratch.admit(|_| self.working_bytes(encoded))?;
        let scratch = scratch.part::<TextScratch>();
        scratch.ids.clear();
        self.step.run(encoded, scratch)?;
        let length = scratch.ids.len();
        row.ragged()?.i64s(length, length).copy_from_slice(&scratch.ids);
        Ok(Warnings::default())
    }
}
