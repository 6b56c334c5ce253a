//! `random_apply`: several ops at random.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::check::check_probability;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::in_place::Choice;
use crate::op::Op;
use crate::plan::Named;
use crate::resources::Needs;
use crate::seed::Generator;
use feedstock_base::Result;

/// Runs `ops` in order with `probability`, as torchvision's `RandomApply`.
///
/// The ops must keep the image's size and type: flips, color ops, warps and augmentations, also in further `random_apply` and
/// `random_choice`. On the command line, they are in brackets. Each draws from a separate generator, so that it draws the same
/// whatever the probability is ([`SampleSeed::within`](crate::SampleSeed::within)).
///
/// ```
/// use feedstock_ops::{ChainSpec, color_jitter, decode_image, grayscale, random_apply, random_resized_crop};
///
/// let jitter = color_jitter(0.8, 0.8, 0.8, 0.2);
/// let ops = [decode_image(), random_resized_crop(224), random_apply([jitter], 0.8), grayscale(0.2)];
/// let text = "decode_image,random_resized_crop:224,random_apply:[color_jitter:0.8:0.8:0.8:0.2]:0.8,grayscale:0.2";
/// assert_eq!(ChainSpec::parse(text)?, ChainSpec::from(ops));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RandomApply {
    /// At least one op.
    pub ops: Vec<Op>,
    /// 0 … 1; default 0.5.
    #[serde(default = "half")]
    pub probability: f64,
}

fn half() -> f64 {
    0.5
}

impl RandomApply {
    /// Runs `ops` with `probability`, 0 … 1.
    pub fn new(ops: impl Into<Vec<Op>>, probability: f64) -> Self {
        Self { ops: ops.into(), probability }
    }
}

/// Returns ops with their names, to be compiled.
pub(super) fn named(ops: &[Op]) -> Vec<Named<'_, dyn ImageOp>> {
    ops.iter().map(|op| Named { name: op.name(), op: op.image() }).collect()
}

impl ImageOp for RandomApply {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_probability(self.probability)?;
        compiler.group(&named(&self.ops), AllOrNone { count: self.ops.len(), probability: self.probability })
    }

    fn refer(&self, needs: &mut Needs) {
        self.ops.iter().for_each(|op| op.refer(needs));
    }
}

struct AllOrNone {
    count: usize,
    probability: f64,
}

impl Choice for AllOrNone {
    fn draw(&self, generator: &mut Generator) -> Range<usize> {
        if generator.chance(self.probability) { 0..self.count } else { 0..0 }
    }
}
