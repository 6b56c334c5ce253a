//! Randomness that belongs to the sample.
//!
//! Every random op draws from a separate generator, seeded by (seed, epoch, sample id, op index), so what a sample
//! looks like does not depend on threads, workers, retries or the ops around it.
//!
//! # Derivation
//! With `mix` the finaliser of SplitMix64 (Steele, Lea, Flood 2014) and γ = 0x9E37_79B9_7F4A_7C15, all modulo 2⁶⁴:
//!
//! ```text
//! s₀ = mix(seed + γ)
//! s₁ = mix((s₀ ^ epoch) + γ)
//! s₂ = mix((s₁ ^ sample_id) + γ)                        the SampleSeed
//! s₂ = mix((s₂ ^ salt) + γ)                             only for a chain that has a salt
//! s₂ = mix((s₂ ^ k) + γ)                                only for the ops within op k, such as those of random_apply
//! op(i): xoshiro256++ with state SplitMix64(mix((s₂ ^ i) + γ))   as its authors seed it
//! ```
//! A salt separates the draws of two chains that read one column. It is the same fold, from 0, over a tag (1: an output's
//! name, 2: a key), the length of the text in bytes, and its bytes as little-endian words of 8, the last filled with zeros.
//! View number n of the name v has the salt of the key "v/n".
//!
//! Image number n of a list absorbs one more word, after the salt of its chain: the same fold, from 0, over the tag 3 and n.
//!
//! The derivation is part of the format: changing it changes every augmentation, so a test pins its values.

use rand_core::{Rng as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

fn absorb(state: u64, word: u64) -> u64 {
    let mut z = (state ^ word).wrapping_add(GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The seed of one sample in one epoch; see the module for the derivation.
///
/// ```
/// use feedstock_ops::SampleSeed;
///
/// let draw = |seed: SampleSeed, op| seed.op(op).next_u64();
/// let sample = SampleSeed::new(7, 3, 42); // the job's seed, the epoch, the sample
/// assert_eq!(draw(sample, 1), draw(SampleSeed::new(7, 3, 42), 1)); // on any thread or machine
/// assert_ne!(draw(sample, 1), draw(sample, 2)); // each op draws separately,
/// assert_ne!(draw(sample, 1), draw(SampleSeed::new(7, 4, 42), 1)); // and in each epoch
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SampleSeed {
    word: u64,
    /// What the sample's boxes drew, for ops that depend on them. It changes no other draw.
    crop: Option<BoxCrop>,
}

/// What `random_iou_crop` shows of a sample's image. The sample's boxes decide it, so it travels with the seed to the chains of the
/// image, its masks and keypoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BoxCrop {
    /// All of the image.
    Whole,
    /// A rectangle, in pixels of the image at the op's place in the chain.
    Part {
        /// The first column.
        x: u32,
        /// The first row.
        y: u32,
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
    },
}

impl SampleSeed {
    /// Returns the seed of sample `sample_id` in `epoch` of the job seeded with `seed`.
    pub fn new(seed: u64, epoch: u64, sample_id: u64) -> Self {
        Self { word: absorb(absorb(absorb(0, seed), epoch), sample_id), crop: None }
    }

    /// Returns the seed that a chain with this salt draws from.
    #[must_use]
    pub fn salted(self, salt: Salt) -> Self {
        salt.0.map_or(self, |word| Self { word: absorb(self.word, word), ..self })
    }

    /// Returns the seed that the chain draws from for image `number` (from 0) of a sample's list.
    ///
    /// ```
    /// use feedstock_ops::SampleSeed;
    ///
    /// let sample = SampleSeed::new(7, 3, 42);
    /// assert_ne!(sample.image(0).op(1).next_u64(), sample.image(1).op(1).next_u64());
    /// assert_ne!(sample.image(0).op(1).next_u64(), sample.op(1).next_u64());
    /// ```
    #[must_use]
    pub fn image(self, number: u32) -> Self {
        self.salted(Salt(Some(absorb(absorb(0, IMAGE_TAG), u64::from(number)))))
    }

    /// Returns the seed that the ops within the op at `index` draw from; the first of them has index 0 again.
    ///
    /// ```
    /// use feedstock_ops::SampleSeed;
    ///
    /// let sample = SampleSeed::new(7, 3, 42);
    /// assert_ne!(sample.within(1).op(0).next_u64(), sample.op(1).next_u64());
    /// assert_ne!(sample.within(1).op(0).next_u64(), sample.within(2).op(0).next_u64());
    /// ```
    #[must_use]
    pub fn within(self, index: usize) -> Self {
        Self { word: absorb(self.word, index as u64), ..self }
    }

    /// Returns the seed with what the sample's boxes drew. All other draws stay the same.
    ///
    /// ```
    /// use feedstock_ops::{BoxCrop, SampleSeed};
    ///
    /// let sample = SampleSeed::new(7, 3, 42);
    /// let drawn = sample.with_box_crop(BoxCrop::Whole);
    /// assert_eq!((sample.box_crop(), drawn.box_crop()), (None, Some(BoxCrop::Whole)));
    /// assert_eq!(sample.op(1).next_u64(), drawn.op(1).next_u64());
    /// ```
    #[must_use]
    pub fn with_box_crop(self, crop: BoxCrop) -> Self {
        Self { crop: Some(crop), ..self }
    }

    /// Returns what the sample's boxes drew; `None` if they have not drawn.
    pub fn box_crop(self) -> Option<BoxCrop> {
        self.crop
    }

    /// Returns the generator of the op at `index` (0-based, counting every op of the chain).
    pub fn op(self, index: usize) -> Generator {
        Generator(Xoshiro256PlusPlus::seed_from_u64(absorb(self.word, index as u64)))
    }
}

/// Separates the random draws of one chain from those of other chains on the same sample. Default: no salt.
///
/// ```
/// use feedstock_ops::{Salt, SampleSeed};
///
/// let sample = SampleSeed::new(7, 0, 42);
/// assert_eq!(sample.salted(Salt::default()), sample);
/// assert_ne!(sample.salted(Salt::of_output("view")), sample.salted(Salt::of_key("view")));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Salt(Option<u64>);

/// Tags keep an output's name, an equal key and the number of an image apart.
const OUTPUT_TAG: u64 = 1;
const KEY_TAG: u64 = 2;
const IMAGE_TAG: u64 = 3;

impl Salt {
    /// Returns the salt of a further map of a column, whose result is named `output`.
    pub fn of_output(output: &str) -> Self {
        Self::of(OUTPUT_TAG, output)
    }

    /// Returns the salt of a key that the user chose. Chains with equal keys draw the same.
    pub fn of_key(key: &str) -> Self {
        Self::of(KEY_TAG, key)
    }

    /// Returns the salt of view `number` (from 0) of the views `name` of an image: that of the key `name/number`.
    ///
    /// ```
    /// use feedstock_ops::Salt;
    ///
    /// assert_eq!(Salt::of_view("local", 3), Salt::of_key("local/3"));
    /// ```
    pub fn of_view(name: &str, number: u32) -> Self {
        Self::of_key(&format!("{name}/{number}"))
    }

    fn of(tag: u64, text: &str) -> Self {
        let start = absorb(absorb(0, tag), text.len() as u64);
        Self(Some(text.as_bytes().chunks(8).fold(start, |state, bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            absorb(state, u64::from_le_bytes(word))
        })))
    }
}

/// A generator of random numbers: xoshiro256++ with the distributions that ops draw from. All machines draw the same bits.
///
/// ```
/// use feedstock_ops::SampleSeed;
///
/// let mut draws = SampleSeed::new(7, 0, 42).op(0);
/// assert!((0..100).all(|_| draws.below(6) < 6));
/// assert!((0..100).all(|_| (0.8..1.2).contains(&draws.uniform(0.8, 1.2))));
/// let heads = (0..10_000).filter(|_| draws.chance(0.5)).count();
/// assert!((4_700..5_300).contains(&heads));
/// let mut cards = [0, 1, 2, 3];
/// draws.shuffle(&mut cards);
/// cards.sort_unstable();
/// assert_eq!(cards, [0, 1, 2, 3]);
/// ```
#[derive(Debug, Clone)]
pub struct Generator(Xoshiro256PlusPlus);

impl Generator {
    /// Draws 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Draws a number uniformly from [0, 1), a multiple of 2⁻⁵³.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Draws a number uniformly from [`low`, `high`); returns `low` if they are equal.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + self.unit() * (high - low)
    }

    /// Draws an integer uniformly from 0 … `bound` − 1, without bias (Lemire 2019); returns 0 if `bound` is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        // Rejects with probability < bound / 2³², so two tries are practically never exceeded.
        let threshold = bound.wrapping_neg().checked_rem(bound).unwrap_or(0);
        loop {
            let word = self.next_u64() >> 32;
            let product = word * u64::from(bound);
            #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
            if product as u32 >= threshold {
                return (product >> 32) as u32;
            }
        }
    }

    /// Returns true with `probability`, 0 … 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Draws a number from the standard normal distribution (Box–Muller, the cosine branch; libm keeps it portable).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * libm::log(1.0 - self.unit())).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }

    /// Draws from Beta(`alpha`, `alpha`), as the ratio of a gamma to the sum of two; `alpha` must be above 0.
    pub fn beta(&mut self, alpha: f64) -> f64 {
        let mut weights = [0.0; 2];
        self.dirichlet(alpha, &mut weights);
        weights[0]
    }

    /// Fills `weights` with a draw from the symmetric Dirichlet distribution of concentration `alpha`, which must be above 0.
    /// Their sum is 1.
    ///
    /// ```
    /// use feedstock_ops::SampleSeed;
    ///
    /// let mut weights = [0.0; 3];
    /// SampleSeed::new(7, 0, 42).op(0).dirichlet(1.0, &mut weights);
    /// assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    /// ```
    pub fn dirichlet(&mut self, alpha: f64, weights: &mut [f64]) {
        weights.iter_mut().for_each(|weight| *weight = self.gamma(alpha));
        let (sum, equal) = (weights.iter().sum::<f64>(), 1.0 / weights.len() as f64);
        // A small `alpha` may make all of them underflow.
        weights.iter_mut().for_each(|weight| *weight = if sum > 0.0 { *weight / sum } else { equal });
    }

    /// Draws from Gamma(`shape`, 1) (Marsaglia and Tsang 2000; shapes below 1 by Ahrens and Dieter's power of a uniform).
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let power = libm::pow(1.0 - self.unit(), 1.0 / shape);
            return self.gamma(shape + 1.0) * power;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            // Each draw is accepted with a probability above 0.95, so the loop ends.
            let x = self.normal();
            let v = (1.0 + c * x) * (1.0 + c * x) * (1.0 + c * x);
            let u = 1.0 - self.unit();
            if v > 0.0 && libm::log(u) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v;
            }
        }
    }

    /// Shuffles `slice` (Fisher–Yates).
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for i in (1..slice.len()).rev() {
            let bound = u32::try_from(i + 1).unwrap_or(u32::MAX);
            slice.swap(i, self.below(bound) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivation_is_that_of_the_references() {
        for case in crate::golden::references()["seeds"]["plain"].as_array().unwrap() {
            let of: Vec<u64> =
                case["of"].as_array().unwrap().iter().map(|x| x.as_str().unwrap().parse().unwrap()).collect();
            let first: u64 = case["first"].as_str().unwrap().parse().unwrap();
            let op = usize::try_from(of[3]).unwrap();
            assert_eq!(SampleSeed::new(of[0], of[1], of[2]).op(op).next_u64(), first, "{of:?}");
        }
    }

    #[test]
    fn ops_within_an_op_absorb_its_index_then_theirs() {
        for case in crate::golden::references()["seeds"]["within"].as_array().unwrap() {
            let path: Vec<usize> = serde_json::from_value(case["path"].clone()).unwrap();
            let (op, outer) = path.split_last().unwrap();
            let seed = outer.iter().fold(SampleSeed::new(7, 1, 42), |seed, index| seed.within(*index));
            let first: u64 = case["first"].as_str().unwrap().parse().unwrap();
            assert_eq!(seed.op(*op).next_u64(), first, "{case}");
        }
    }

    #[test]
    fn salts_are_those_of_the_references() {
        for case in crate::golden::references()["seeds"]["salted"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let salt = if case["tag"] == 1 { Salt::of_output(text) } else { Salt::of_key(text) };
            let first: u64 = case["first"].as_str().unwrap().parse().unwrap();
            assert_eq!(SampleSeed::new(7, 1, 42).salted(salt).op(1).next_u64(), first, "{case}");
        }
    }

    #[test]
    fn a_salt_changes_the_draws_and_no_salt_changes_none() {
        let seed = SampleSeed::new(7, 1, 3);
        assert_eq!(seed.salted(Salt::default()), seed);
        let salts = [
            Salt::default(),
            Salt::of_output("view2"),
            Salt::of_output("view3"),
            Salt::of_key("view2"),
            Salt::of_key("view2\0"),
            Salt::of_key("a key of more than eight bytes"),
        ];
        let firsts: std::collections::BTreeSet<u64> =
            salts.iter().map(|salt| seed.salted(*salt).op(1).next_u64()).collect();
        assert_eq!(firsts.len(), salts.len());
        assert_eq!(seed.salted(Salt::of_key("k")), seed.salted(Salt::of_key("k")));
    }

    #[test]
    fn below_is_uniform_and_in_range() {
        let mut generator = SampleSeed::new(1, 2, 3).op(0);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[generator.below(7) as usize] += 1;
        }
        // 10,000 expected each, σ ≈ 93: six σ.
        assert!(counts.iter().all(|&n| n.abs_diff(10_000) < 560), "{counts:?}");
        assert_eq!(generator.below(1), 0);
        assert_eq!(generator.below(0), 0);
    }

    #[test]
    fn dirichlet_has_its_mean_and_variance() {
        // A weight of Dirichlet(α, α, α): mean 1/3, variance (1/3)(2/3) / (3 α + 1).
        for alpha in [0.3, 1.0, 5.0] {
            let mut generator = SampleSeed::new(1, 2, 3).op(2);
            let mut draws = Vec::new();
            for _ in 0..20_000 {
                let mut weights = [0.0; 3];
                generator.dirichlet(alpha, &mut weights);
                assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{weights:?}");
                draws.push(weights[1]);
            }
            let mean = draws.iter().sum::<f64>() / 20_000.0;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
            let expected = 2.0 / 9.0 / (3.0 * alpha + 1.0);
            assert!((mean - 1.0 / 3.0).abs() < 0.01, "{alpha}: {mean}");
            assert!((variance / expected - 1.0).abs() < 0.05, "{alpha}: {variance} for {expected}");
        }
    }

    #[test]
    fn normal_has_mean_0_and_variance_1() {
        let mut generator = SampleSeed::new(1, 2, 3).op(1);
        let draws: Vec<f64> = (0..40_000).map(|_| generator.normal()).collect();
        let mean = draws.iter().sum::<f64>() / 40_000.0;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 40_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
