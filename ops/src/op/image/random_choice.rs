//! `random_choice`: one of several ops.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::random_apply::named;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::in_place::Choice;
use crate::op::Op;
use crate::resources::Needs;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Runs one of `ops`, as torchvision's `RandomChoice`.
///
/// The ops must keep the image's size and type, as those of [`RandomApply`](super::RandomApply). A `random_apply` of probability
/// 1 runs several ops as one.
///
/// ```
/// use feedstock_ops::image::RandomChoice;
/// use feedstock_ops::{ChainSpec, equalize, solarize};
///
/// let choice = RandomChoice::new([solarize(128.0, 1.0), equalize(1.0)]).probabilities([0.75, 0.25]);
/// let text = "random_choice:[solarize:128:1,equalize:1]:probabilities=0.75/0.25";
/// assert_eq!(ChainSpec::parse(text)?, ChainSpec::from([choice.into()]));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RandomChoice {
    /// At least one op.
    pub ops: Vec<Op>,
    /// A weight for each op, ≥ 0, which need not sum to 1; default: all are equally likely.
    #[serde(default)]
    pub probabilities: Option<Vec<f64>>,
}

impl RandomChoice {
    /// Runs one of `ops`, which are equally likely.
    pub fn new(ops: impl Into<Vec<Op>>) -> Self {
        Self { ops: ops.into(), probabilities: None }
    }

    /// Sets a weight for each op.
    #[must_use]
    pub fn probabilities(self, probabilities: impl Into<Vec<f64>>) -> Self {
        Self { probabilities: Some(probabilities.into()), ..self }
    }

    fn weights(&self) -> Result<Vec<f64>> {
        let count = self.ops.len();
        let Some(weights) = &self.probabilities else { return Ok(vec![1.0; count]) };
        let is_weight = |weight: &f64| (0.0..=f64::MAX).contains(weight);
        let total: f64 = weights.iter().sum();
        if weights.len() != count
            || !weights.iter().all(is_weight)
            || !(f64::MIN_POSITIVE..=f64::MAX).contains(&total)
        {
            return Err(Error::config(format!(
                "probabilities must be {count} finite numbers >= 0, one for each op, not all 0; got {weights:?}"
            )));
        }
        Ok(weights.clone())
    }
}

impl ImageOp for RandomChoice {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        compiler.group(&named(&self.ops), OneOf(self.weights()?))
    }

    fn refer(&self, needs: &mut Needs) {
        self.ops.iter().for_each(|op| op.refer(needs));
    }
}

/// Weights of the ops.
struct OneOf(Vec<f64>);

impl Choice for OneOf {
    fn draw(&self, generator: &mut Generator) -> Range<usize> {
        let mut left = generator.unit() * self.0.iter().sum::<f64>();
        let passed = self.0.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        // Where sums were rounded up, the last op that has a weight.
        let last = self.0.iter().rposition(|weight| *weight > 0.0).unwrap_or(0);
        let chosen = passed.unwrap_or(last);
        chosen..chosen + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::SampleSeed;

    #[test]
    fn ops_are_chosen_by_their_weights() {
        let choice = OneOf(vec![1.0, 0.0, 3.0]);
        let mut counts = [0_u32; 3];
        for sample in 0..4000 {
            counts[choice.draw(&mut SampleSeed::new(1, 0, sample).op(2)).start] += 1;
        }
        // 1,000 and 3,000 expected, σ ≈ 27.
        assert!(counts[0].abs_diff(1000) < 150 && counts[1] == 0, "{counts:?}");
    }
}
