//! Mixup (Zhang et al., ICLR 2018) and CutMix (Yun et al., ICCV 2019) over a batch.
//!
//! Every row is mixed with the row before it (the first with the last), by one weight per batch, as torchvision's `MixUp` and
//! `CutMix` do. The weight and the box depend on (seed, epoch, position of the step), so all ranks draw the same.

use crate::kernels::PictureRow;
use feedstock_base::{Error, ErrorKind, Result};
use feedstock_ops::SampleSeed;
use serde::{Deserialize, Serialize};

/// The index of the draw among a seed's generators. It is after that of any op, since positions and sample ids may collide.
const DRAW: usize = 1 << 31;

/// Smaller values only give weights of 0 and 1, and underflow.
const LEAST_ALPHA: f64 = 0.01;

/// Mixes pairs of rows, and adds their labels' weights to the batch.
///
/// The batch gets two columns. `<labels>_partner` is the label of the row that was mixed in. `mix_weight` (f32) is the weight
/// of the row's own label: `weight · loss(labels) + (1 − weight) · loss(partner)`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct MixupCutmix {
    /// Mixup's weights are Beta(α, α); 0 for none. Default 0.2.
    pub mixup_alpha: f64,
    /// CutMix's kept areas are Beta(α, α); 0 for none. Default 1.
    pub cutmix_alpha: f64,
    /// The fraction of batches that are mixed. Default 1.
    pub probability: f64,
    /// The fraction of mixed batches that get CutMix, if both are on. Default 0.5.
    pub switch_probability: f64,
    /// The column of labels. Default `label`.
    pub labels: String,
}

impl Default for MixupCutmix {
    fn default() -> Self {
        Self {
            mixup_alpha: 0.2,
            cutmix_alpha: 1.0,
            probability: 1.0,
            switch_probability: 0.5,
            labels: "label".to_owned(),
        }
    }
}

/// A validated [`MixupCutmix`].
#[derive(Debug, Clone)]
pub struct Mixing {
    mix: MixupCutmix,
    height: usize,
    width: usize,
}

/// The draw of one batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// The weight of the rows' own values outside the box.
    weight: f32,
    /// The box with the partner's values: top, left, bottom, right.
    cut: [u32; 4],
    /// The weight of the rows' own labels.
    pub label_weight: f32,
}

impl MixupCutmix {
    /// Validates the parameters for images of this height and width.
    ///
    /// ```
    /// use feedstock_device::finish::MixupCutmix;
    ///
    /// let mixing = MixupCutmix::default().compile((224, 224))?;
    /// assert_eq!(mixing.draw(7, 0, 256), mixing.draw(7, 0, 256)); // on every rank
    /// assert_ne!(mixing.draw(7, 0, 256), mixing.draw(7, 0, 512)); // the next step
    ///
    /// let mut never = MixupCutmix::default();
    /// (never.mixup_alpha, never.cutmix_alpha) = (0.0, 0.0);
    /// let error = never.compile((224, 224)).unwrap_err();
    /// assert_eq!(error.message(), "mix: mixup_alpha and cutmix_alpha are both 0; leave mix out");
    /// # Ok::<(), feedstock_base::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a parameter outside its range.
    pub fn compile(&self, (height, width): (usize, usize)) -> Result<Mixing> {
        let alphas = [("mixup_alpha", self.mixup_alpha), ("cutmix_alpha", self.cutmix_alpha)];
        let shares = [("probability", self.probability), ("switch_probability", self.switch_probability)];
        let bad = |message: String| Err(Error::new(ErrorKind::BadConfig, format!("mix: {message}")));
        for (name, alpha) in alphas {
            if alpha != 0.0 && !(LEAST_ALPHA..=1e6).contains(&alpha) {
                return bad(format!("{name} must be 0 or from {LEAST_ALPHA} to 1e6; got {alpha}"));
            }
        }
        for (name, share) in shares {
            if !(0.0..=1.0).contains(&share) {
                return bad(format!("{name} must be 0 … 1; got {share}"));
            }
        }
        if self.mixup_alpha == 0.0 && self.cutmix_alpha == 0.0 {
            return bad("mixup_alpha and cutmix_alpha are both 0; leave mix out".to_owned());
        }
        Ok(Mixing { mix: self.clone(), height, width })
    }
}

impl Mixing {
    /// The column of labels.
    pub fn labels(&self) -> &str {
        &self.mix.labels
    }

    /// Returns the draw of the step at `position`.
    pub fn draw(&self, seed: u64, epoch: u64, position: u64) -> Drawn {
        let mut generator = SampleSeed::new(seed, epoch, position).op(DRAW);
        let mix = &self.mix;
        if !generator.chance(mix.probability) {
            return Drawn { weight: 1.0, cut: [0; 4], label_weight: 1.0 };
        }
        let cuts = match (mix.mixup_alpha > 0.0, mix.cutmix_alpha > 0.0) {
            (true, true) => generator.chance(mix.switch_probability),
            (_, cutmix) => cutmix,
        };
        if !cuts {
            let weight = single(generator.beta(mix.mixup_alpha));
            return Drawn { weight, cut: [0; 4], label_weight: weight };
        }
        let kept = generator.beta(mix.cutmix_alpha);
        let side = (1.0 - kept).sqrt();
        let [(top, bottom), (left, right)] = [self.height, self.width].map(|length| {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            let middle = generator.below(length);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at most half a side"
            )]
            let reach = (0.5 * side * f64::from(length)) as u32;
            (middle.saturating_sub(reach), middle.saturating_add(reach).min(length))
        });
        let area = f64::from(bottom - top) * f64::from(right - left);
        let label_weight = single(1.0 - area / (self.height * self.width) as f64);
        Drawn { weight: 1.0, cut: [top, left, bottom, right], label_weight }
    }
}

impl Drawn {
    /// Returns the row that row `row` of `rows` is mixed with, or `row` if nothing is mixed.
    pub fn partner(&self, row: u32, rows: u32) -> u32 {
        match self.label_weight < 1.0 {
            true => (row + rows - 1) % rows,
            false => row,
        }
    }

    /// Returns the plan of a row that is not mixed.
    pub fn plain(row: u32, mirrored: bool) -> PictureRow {
        PictureRow { partner: row, mirrored: u32::from(mirrored), weight: 1.0, cut: [0; 4] }
    }

    /// Returns the plan of one row.
    pub fn row(&self, row: u32, rows: u32, mirrored: bool) -> PictureRow {
        let partner = self.partner(row, rows);
        PictureRow { partner, mirrored: u32::from(mirrored), weight: self.weight, cut: self.cut }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "to single precision, once")]
fn single(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixing(mix: MixupCutmix) -> Mixing {
        mix.compile((32, 48)).unwrap()
    }

    #[test]
    fn weights_are_beta() {
        // Variance of Beta(α, α): 1 / (4 (2α + 1)).
        for alpha in [0.2, 1.0, 4.0] {
            let mix = mixing(MixupCutmix { mixup_alpha: alpha, cutmix_alpha: 0.0, ..MixupCutmix::default() });
            let weights: Vec<f64> = (0..20_000).map(|p| f64::from(mix.draw(1, 0, p).label_weight)).collect();
            let mean = weights.iter().sum::<f64>() / 20_000.0;
            let variance = weights.iter().map(|w| (w - mean).powi(2)).sum::<f64>() / 20_000.0;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((mean - 0.5).abs() < 0.02, "{alpha}: {mean}");
            assert!((variance / expected - 1.0).abs() < 0.04, "{alpha}: {variance} for {expected}");
        }
    }

    #[test]
    fn a_cut_is_as_large_as_its_labels_weight_says() {
        let mix = mixing(MixupCutmix { mixup_alpha: 0.0, ..MixupCutmix::default() });
        let mut areas = 0.0;
        for position in 0..2000 {
            let drawn = mix.draw(3, 1, position);
            let [top, left, bottom, right] = drawn.cut;
            assert!(top <= bottom && bottom <= 32 && left <= right && right <= 48, "{drawn:?}");
            let area = f64::from((bottom - top) * (right - left)) / (32.0 * 48.0);
            assert!((f64::from(drawn.label_weight) + area - 1.0).abs() < 1e-6 && drawn.weight == 1.0);
            areas += area;
        }
        assert!((0.2..0.5).contains(&(areas / 2000.0)), "boxes are cut off at the edges: {areas}");
    }

    #[test]
    fn shares_are_kept_and_draws_belong_to_the_step() {
        let mix = mixing(MixupCutmix { probability: 0.5, ..MixupCutmix::default() });
        let drawn: Vec<Drawn> = (0..4000).map(|p| mix.draw(7, 2, p)).collect();
        let plain = drawn.iter().filter(|d| d.partner(0, 4) == 0).count();
        let cut = drawn.iter().filter(|d| d.cut[2] > d.cut[0]).count();
        assert!(plain.abs_diff(2000) < 160 && cut.abs_diff(1000) < 160, "{plain} {cut}");
        assert_eq!(mix.draw(7, 2, 9), drawn[9]);
        assert_ne!(mix.draw(7, 3, 9), drawn[9]);
    }

    #[test]
    fn misfits_are_named() {
        for (mix, word) in [
            (MixupCutmix { mixup_alpha: -1.0, ..MixupCutmix::default() }, "mixup_alpha"),
            (MixupCutmix { cutmix_alpha: f64::NAN, ..MixupCutmix::default() }, "cutmix_alpha"),
            (MixupCutmix { probability: 1.5, ..MixupCutmix::default() }, "probability"),
            (MixupCutmix { mixup_alpha: 0.0, cutmix_alpha: 0.0, ..MixupCutmix::default() }, "both 0"),
        ] {
            assert!(mix.compile((8, 8)).unwrap_err().to_string().contains(word));
        }
    }
}
