//! Samples by index: the image, its label and its name.

use crate::draw::{Draw, mix_seed};
use crate::jpeg::Encoder;
use crate::mark::{MARK_HEIGHT, MARK_WIDTH, write_mark};
use crate::scene::{Rows, Scene};
use crate::{ImagenetOptions, Result};

/// Variation of width and height around their mean unless the size is exact: ±15 %, as in ImageNet.
const SIZE_SPREAD: f32 = 0.15;
/// The first of ImageNet's class names, and a step with which 1000 names stay in its usual range.
const FIRST_CLASS: u32 = 1_440_764;
const CLASS_STEP: u32 = 13_634;

/// A complete sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// 0 … samples − 1; encoded in the pixels, see [`read_mark`](crate::read_mark).
    pub index: u64,
    /// 0 … classes − 1: the position of `class` among all class names, sorted.
    pub label: i64,
    /// Class name as in ImageNet, `n########`.
    pub class: String,
    /// File name as in ImageNet: `<class>_<index>.JPEG`; unique in the data set.
    pub name: String,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// A baseline 4:2:0 JPEG.
    pub jpeg: Vec<u8>,
}

/// Makes samples one at a time. Each thread has a separate one.
///
/// ```
/// use feedstock_synth::{ImagenetOptions, Painter};
///
/// let options = ImagenetOptions { samples: 100, width: 64, height: 48, exact_size: true, ..ImagenetOptions::default() };
/// let sample = Painter::new(&options)?.sample(42)?;
/// assert_eq!((sample.index, sample.width, sample.height), (42, 64, 48));
/// assert_eq!(sample.name, format!("{}_42.JPEG", sample.class));
/// assert_eq!(Painter::new(&options)?.sample(42)?, sample); // the same bytes on every machine
/// # Ok::<(), feedstock_synth::Error>(())
/// ```
pub struct Painter {
    options: ImagenetOptions,
    encoder: Encoder,
    rows: Rows,
    rgb: Vec<u8>,
}

impl Painter {
    /// Creates a painter for `options`. Only `samples`, `seed`, `classes`, sizes and `quality` affect it.
    ///
    /// # Errors
    /// `BadConfig` if an option is out of range.
    pub fn new(options: &ImagenetOptions) -> Result<Self> {
        options.check()?;
        let encoder = Encoder::new(options.quality)?;
        Ok(Self { options: options.clone(), encoder, rows: Rows::default(), rgb: Vec::new() })
    }

    /// Returns sample `index`, which is the same for every call, thread and machine.
    ///
    /// # Errors
    /// `Bug` if libjpeg-turbo rejects the pixels.
    pub fn sample(&mut self, index: u64) -> Result<Sample> {
        let options = &self.options;
        let mut draw = Draw::new(mix_seed(options.seed, index));
        let (mut width, mut height) = (options.width, options.height);
        if !options.exact_size {
            width = stray(width, &mut draw).max(MARK_WIDTH);
            height = stray(height, &mut draw).max(MARK_HEIGHT);
        }
        let scene = Scene::new(&mut draw, width, height);
        self.rgb.resize(3 * width as usize * height as usize, 0);
        scene.paint(&mut self.rgb, width as usize, &mut self.rows);
        write_mark(&mut self.rgb, width as usize, mark_of(index));
        let jpeg = self.encoder.encode(&self.rgb, width, height)?;
        let label = label(options.seed, index, options.class_count());
        let class = class_name(label);
        let name = format!("{class}_{index}.JPEG");
        Ok(Sample { index, label: i64::from(label), class, name, width, height, jpeg })
    }
}

/// Returns the JPEG and label of sample `index` of a data set with `seed` and otherwise default options (about
/// 400×350, 4:2:0, 110 KB; 1000 classes).
///
/// # Panics
/// If libjpeg-turbo runs out of memory.
#[expect(clippy::expect_used, reason = "default options are valid; tests need the bytes without a Result")]
pub fn picture(seed: u64, index: u64) -> (Vec<u8>, i64) {
    let options = ImagenetOptions { seed, samples: u64::from(u32::MAX), ..ImagenetOptions::default() };
    let sample = Painter::new(&options).and_then(|mut painter| painter.sample(index));
    let sample = sample.expect("default options make an image");
    (sample.jpeg, sample.label)
}

/// Returns the label of a sample. Every run of `classes` samples holds each class once, in a different order.
pub(crate) fn label(seed: u64, index: u64, classes: u32) -> u32 {
    let count = u64::from(classes);
    let (run, place) = (index / count, index % count);
    let mut draw = Draw::new(mix_seed(!seed, run));
    let start = draw.below(count);
    let mut step = 1 + draw.below(count);
    while gcd(step, count) != 1 {
        step += 1; // terminates: some number below 2 × count has no common factor with it
    }
    let label = (u128::from(step) * u128::from(place) + u128::from(start)) % u128::from(count);
    #[expect(clippy::cast_possible_truncation, reason = "below classes, a u32")]
    let label = label as u32;
    label
}

/// Returns the class name `n########`, ascending with the label.
pub(crate) fn class_name(label: u32) -> String {
    format!("n{:08}", FIRST_CLASS + CLASS_STEP * label)
}

#[expect(clippy::cast_possible_truncation, reason = "the mark holds the low 32 bits; check() bounds samples")]
fn mark_of(index: u64) -> u32 {
    index as u32
}

#[expect(clippy::cast_possible_truncation, reason = "sizes are at most 65500 and vary by 15 %")]
fn stray(mean: u32, draw: &mut Draw) -> u32 {
    let size = mean as f32 * draw.real(1.0 - SIZE_SPREAD, 1.0 + SIZE_SPREAD);
    ((size + 0.5) as u32).min(crate::imagenet_options::MAX_SIDE)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_run_holds_every_class_once() {
        for classes in [1, 2, 7, 1000] {
            for run in 0..3 {
                let indices = (0..u64::from(classes)).map(|place| run * u64::from(classes) + place);
                let labels: BTreeSet<u32> = indices.map(|index| label(5, index, classes)).collect();
                assert_eq!(labels, (0..classes).collect());
            }
        }
    }

    #[test]
    fn class_names_sort_as_labels() {
        let names: Vec<String> = (0..crate::imagenet_options::MAX_CLASSES).map(class_name).collect();
        assert!(names.is_sorted());
        assert!(names.iter().all(|name| name.len() == 9));
    }
}
