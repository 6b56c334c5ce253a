//! `random_iou_crop`: a random part that overlaps a box (SSD; Liu et al., arXiv 1512.02325).

use serde::{Deserialize, Serialize};

use crate::check::check_range;
use crate::image::compile::{Compiler, ImageOp};
use crate::image::geometry::{Rect, Size};
use crate::image::step::CropByBoxes;
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// Rounds before the image stays whole. Each draws an option. torchvision tries without end. With the default options, one that
/// leaves the image whole is drawn before with a probability of 1 − (6/7)¹⁰⁰ > 1 − 10⁻⁶.
const ROUNDS: usize = 100;

/// The most options, and the most trials. The rounds above, each with all trials, draw at most 10⁵ parts, and compare each with every
/// box: 10⁵ × the number of boxes.
const MOST_OPTIONS: usize = 100;
const MOST_TRIALS: u32 = 1_000;

/// Cuts out a random part that overlaps a box by a random least IoU (intersection over union), as torchvision's `RandomIoUCrop`. Boxes
/// whose centre is outside of the part are dropped.
///
/// The crop depends on the sample's boxes at this place of the chain, so it works only in a joint map with boxes: they draw it by
/// [`Chain::draw_crop`](crate::Chain::draw_crop), and the image, masks and keypoints follow. Images differ in size after it, so a resize
/// or crop has to follow. An image without boxes stays whole.
///
/// ```
/// use feedstock_ops::image::{Annotation, BoxFormat, Boxes};
/// use feedstock_ops::{BoxCrop, ChainSpec, NumberList, RaggedRow, SampleSeed};
///
/// let boxes = Annotation::Boxes(Boxes::new(BoxFormat::Xyxy));
/// let ops = r#"[{"op": "random_iou_crop", "sampler_options": [0.5]}, {"op": "resize", "size": [32, 32]}]"#;
/// let chain = ChainSpec::from_json(ops)?.compile_annotation(&boxes)?;
/// let given = NumberList { values: &[20.0, 10.0, 60.0, 40.0], each: Some(4) }; // 40 × 30 pixels
/// let seed = chain.draw_crop(given, [60, 90], SampleSeed::new(7, 0, 0))?;
/// let Some(BoxCrop::Part { x, y, width, height }) = seed.box_crop() else { panic!("the image stays whole") };
/// assert!(width * height <= 2_400); // 1,200 pixels / 0.5
/// assert!(x < 40 && 40 < x + width && y < 25 && 25 < y + height); // the box's centre
///
/// let mut row = RaggedRow::new();
/// chain.annotate(given, [60, 90], seed, &mut row)?;
/// assert_eq!(row.length(), 1);
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RandomIouCrop {
    /// The least share of the image's width and of its height, above 0; default 0.3.
    #[serde(default = "default_min_scale")]
    pub min_scale: f64,
    /// The greatest share, at most 1; default 1.
    #[serde(default = "default_max_scale")]
    pub max_scale: f64,
    /// The least width over height of the part; default 0.5.
    #[serde(default = "default_min_aspect_ratio")]
    pub min_aspect_ratio: f64,
    /// The greatest width over height; default 2.
    #[serde(default = "default_max_aspect_ratio")]
    pub max_aspect_ratio: f64,
    /// The least IoUs of which one is drawn: at least one box whose centre is in the part overlaps it with at least this IoU. From 1
    /// on, the image stays whole. Default 0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.
    #[serde(default = "default_sampler_options")]
    pub sampler_options: Vec<f64>,
    /// Trials before another option is drawn, 1 … 1,000; default 40.
    #[serde(default = "default_trials")]
    pub trials: u32,
}

fn default_min_scale() -> f64 {
    0.3
}

fn default_max_scale() -> f64 {
    1.0
}

fn default_min_aspect_ratio() -> f64 {
    0.5
}

fn default_max_aspect_ratio() -> f64 {
    2.0
}

fn default_sampler_options() -> Vec<f64> {
    vec![0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
}

fn default_trials() -> u32 {
    40
}

impl Default for RandomIouCrop {
    fn default() -> Self {
        Self::new()
    }
}

impl RandomIouCrop {
    /// SSD's crop.
    pub fn new() -> Self {
        Self {
            min_scale: default_min_scale(),
            max_scale: default_max_scale(),
            min_aspect_ratio: default_min_aspect_ratio(),
            max_aspect_ratio: default_max_aspect_ratio(),
            sampler_options: default_sampler_options(),
            trials: default_trials(),
        }
    }

    /// The part's share of the image's width and of its height, `[least, greatest]`.
    #[must_use]
    pub fn scale(self, [min_scale, max_scale]: [f64; 2]) -> Self {
        Self { min_scale, max_scale, ..self }
    }

    /// Width over height of the part, `[least, greatest]`.
    #[must_use]
    pub fn aspect_ratio(self, [min_aspect_ratio, max_aspect_ratio]: [f64; 2]) -> Self {
        Self { min_aspect_ratio, max_aspect_ratio, ..self }
    }

    /// The least IoUs of which one is drawn. From 1 on, the image stays whole.
    #[must_use]
    pub fn sampler_options(self, sampler_options: impl Into<Vec<f64>>) -> Self {
        Self { sampler_options: sampler_options.into(), ..self }
    }

    /// Trials before another option is drawn.
    #[must_use]
    pub fn trials(self, trials: u32) -> Self {
        Self { trials, ..self }
    }

    /// Draws a part with the right aspect ratio; `None` for another one.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32 side")]
    fn draw_part(&self, image: Size, generator: &mut Generator) -> Option<Rect> {
        let mut part =
            |side: u32| (f64::from(side) * generator.uniform(self.min_scale, self.max_scale)) as u32;
        let (width, height) = (part(image.width), part(image.height));
        let aspect_ratio = f64::from(width) / f64::from(height);
        if width == 0
            || height == 0
            || !(self.min_aspect_ratio..=self.max_aspect_ratio).contains(&aspect_ratio)
        {
            return None;
        }
        let mut offset = |room: u32| (f64::from(room) * generator.unit()) as u32;
        let x = offset(image.width - width);
        let y = offset(image.height - height);
        Some(Rect { x, y, width, height })
    }
}

impl ImageOp for RandomIouCrop {
    fn compile(&self, compiler: &mut Compiler) -> Result<()> {
        check_range("min_scale … max_scale", [self.min_scale, self.max_scale], f64::MIN_POSITIVE, 1.0)?;
        let aspect_ratios = [self.min_aspect_ratio, self.max_aspect_ratio];
        check_range("min_aspect_ratio … max_aspect_ratio", aspect_ratios, 1e-3, 1e3)?;
        if !(1..=MOST_OPTIONS).contains(&self.sampler_options.len()) {
            let options = self.sampler_options.len();
            return Err(Error::config(format!(
                "sampler_options must have 1 … {MOST_OPTIONS} numbers; got {options}"
            )));
        }
        if let Some(option) = self.sampler_options.iter().find(|option| !(0.0..=f64::MAX).contains(*option)) {
            return Err(Error::config(format!("sampler_options must be finite numbers >= 0; got {option}")));
        }
        if !(1..=MOST_TRIALS).contains(&self.trials) {
            return Err(Error::config(format!("trials must be 1 … {MOST_TRIALS}; got {}", self.trials)));
        }
        compiler.crop_by_boxes(self.clone())
    }
}

impl CropByBoxes for RandomIouCrop {
    fn draw(&self, image: Size, boxes: &[[f64; 4]], generator: &mut Generator) -> Option<Rect> {
        if boxes.is_empty() {
            return None; // no part would overlap a box
        }
        let options = u32::try_from(self.sampler_options.len()).unwrap_or(u32::MAX);
        for _ in 0..ROUNDS {
            let least = self.sampler_options[generator.below(options) as usize];
            if least >= 1.0 {
                return None;
            }
            for _ in 0..self.trials {
                let Some(part) = self.draw_part(image, generator) else { continue };
                let overlaps =
                    |corners: &[f64; 4]| part.has_centre_of(*corners) && iou(part, *corners) >= least;
                if boxes.iter().any(overlaps) {
                    return Some(part);
                }
            }
        }
        None
    }
}

/// Returns the intersection over the union of a part and a box.
fn iou(part: Rect, [left, top, right, bottom]: [f64; 4]) -> f64 {
    let [x, y, width, height] = [part.x, part.y, part.width, part.height].map(f64::from);
    let across = (right.min(x + width) - left.max(x)).max(0.0);
    let down = (bottom.min(y + height) - top.max(y)).max(0.0);
    let shared = across * down;
    shared / ((right - left) * (bottom - top) + width * height - shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::SampleSeed;

    const IMAGE: Size = Size { height: 60, width: 100 };

    #[test]
    fn parts_overlap_a_box_and_keep_their_bounds() {
        let op = RandomIouCrop::new().sampler_options([0.3]).scale([0.4, 0.9]).aspect_ratio([0.8, 1.9]);
        let boxes = [[10.0, 5.0, 60.0, 50.0], [70.0, 20.0, 80.0, 30.0]];
        let mut parts = std::collections::HashSet::new();
        for sample in 0..500 {
            let Some(part) = op.draw(IMAGE, &boxes, &mut SampleSeed::new(1, 0, sample).op(1)) else {
                panic!("sample {sample} stays whole")
            };
            let aspect_ratio = f64::from(part.width) / f64::from(part.height);
            assert!((0.8..=1.9).contains(&aspect_ratio), "{part:?}");
            assert!((40..=90).contains(&part.width) && (24..=54).contains(&part.height), "{part:?}");
            assert!(part.x + part.width <= 100 && part.y + part.height <= 60, "{part:?}");
            // Only the first box is large enough.
            assert!(part.has_centre_of(boxes[0]) && iou(part, boxes[0]) >= 0.3, "{part:?}");
            parts.insert(part);
        }
        assert!(parts.len() > 450, "{}", parts.len());
    }

    #[test]
    fn images_stay_whole_without_boxes_or_by_an_option_or_without_a_part() {
        let draw = |op: RandomIouCrop, boxes: &[[f64; 4]]| {
            op.draw(IMAGE, boxes, &mut SampleSeed::new(1, 0, 0).op(1))
        };
        let all = [[0.0, 0.0, 100.0, 60.0]];
        assert_eq!(draw(RandomIouCrop::new().sampler_options([0.0]), &[]), None);
        assert_eq!(draw(RandomIouCrop::new().sampler_options([1.0]), &all), None);
        let small = RandomIouCrop::new().sampler_options([0.9]).scale([0.3, 0.5]).trials(3);
        assert_eq!(draw(small, &all), None);
        assert!(draw(RandomIouCrop::new().sampler_options([0.0]), &all).is_some());
    }

    #[test]
    fn the_iou_counts_what_both_have_once() {
        let part = Rect { x: 10, y: 10, width: 10, height: 20 };
        assert_eq!(iou(part, [10.0, 10.0, 20.0, 30.0]), 1.0);
        assert_eq!(iou(part, [15.0, 20.0, 25.0, 30.0]), 50.0 / 250.0);
        assert_eq!(iou(part, [20.0, 10.0, 25.0, 30.0]), 0.0);
        assert_eq!(iou(part, [12.0, 12.0, 12.0, 14.0]), 0.0);
    }
}
