//! Scale factors, and the scaled lines in the order of the transforms.

use std::sync::LazyLock;

use super::bits::Bits;
use super::side_info::{Block, Channel, LINES};
use super::tables::{LONG_BANDS, PRE_EMPHASIS, SCALE_FACTOR_BITS, SHORT_BANDS};

/// The subbands that are processed together: the lower half of all 32. They fill two AVX registers of f32.
pub(super) const SUBBANDS: usize = 16;

/// Lines of a subband, and its samples in a granule.
pub(super) const SUBBAND_LINES: usize = 18;

/// One line of every subband, or one sample.
pub(super) type Row = [f32; SUBBANDS];

/// A granule: row i has line i of every subband.
pub(super) type Rows = [Row; SUBBAND_LINES];

/// Scale factors of a long block's bands, or of a short block's with the three windows of each band adjacent.
pub(super) type ScaleFactors = [u8; SCALE_FACTORS];

/// Three windows of 13 bands; long blocks have 22.
pub(super) const SCALE_FACTORS: usize = 39;

/// Groups of a long block's bands. Each has new scale factors, or those of the previous granule.
const GROUPS: [(usize, usize); 4] = [(0, 6), (6, 11), (11, 16), (16, 21)];

/// The gain that changes nothing, in quarters of an octave.
const UNIT_GAIN: i32 = 210;

/// The smallest gain: that of 0, with the largest values of subblocks and scale factors.
const LEAST_GAIN: i32 = -UNIT_GAIN - 8 * 7 - 4 * (15 + 3);

/// 2 to the power of quarters, from [`LEAST_GAIN`] on.
static GAINS: LazyLock<Vec<f32>> = LazyLock::new(|| {
    #[expect(clippy::cast_possible_truncation, reason = "to single precision, once")]
    let gain = |quarters: i32| libm::exp2(f64::from(quarters) / 4.0) as f32;
    (LEAST_GAIN..=255 - UNIT_GAIN).map(gain).collect()
});

/// Returns 2^(quarters / 4).
fn gain(quarters: i32) -> f32 {
    GAINS[(quarters - LEAST_GAIN).cast_unsigned() as usize]
}

/// Reads a channel's scale factors over those of its previous granule.
pub(super) fn read(bits: &mut Bits<'_>, channel: &Channel, shared: [bool; 4], factors: &mut ScaleFactors) {
    let (lower, upper) = SCALE_FACTOR_BITS[channel.scale_factor_bits];
    #[expect(clippy::cast_possible_truncation, reason = "at most 4 bits")]
    let mut take = |factor: &mut u8, bits_each: u32| *factor = bits.take(bits_each) as u8;
    if channel.block == Block::Short {
        let (low, high) = factors.split_at_mut(18);
        low.iter_mut().for_each(|factor| take(factor, lower));
        high[..18].iter_mut().for_each(|factor| take(factor, upper));
        // The highest band has none.
        high[18..].fill(0);
        return;
    }
    for (((from, to), shared), bits_each) in GROUPS.into_iter().zip(shared).zip([lower, lower, upper, upper])
    {
        if !shared {
            factors[from..to].iter_mut().for_each(|factor| take(factor, bits_each));
        }
    }
    factors[21..].fill(0);
}

/// Stores the lines below `limit`, times their scales and `share`, in their rows. Rows of other subbands stay unchanged.
#[inline(always)]
pub(super) fn place(
    channel: &Channel,
    factors: &ScaleFactors,
    (rate, share): (usize, f32),
    lines: &[f32; LINES],
    limit: usize,
    rows: &mut Rows,
) {
    let global = channel.global_gain - UNIT_GAIN;
    if channel.block != Block::Short {
        for ((bounds, factor), emphasis) in LONG_BANDS[rate].windows(2).zip(factors).zip(PRE_EMPHASIS) {
            let emphasis = if channel.pre_emphasis { emphasis } else { 0 };
            let gain = gain(global - channel.scale * i32::from(factor + emphasis)) * share;
            let (from, to) = (usize::from(bounds[0]), usize::from(bounds[1]).min(limit));
            if from >= to {
                break;
            }
            for (at, line) in (from..to).zip(&lines[from..to]) {
                rows[at % SUBBAND_LINES][at / SUBBAND_LINES] = line * gain;
            }
        }
        return;
    }
    // The bits have a band's first window, then its second and third. The transform takes lines of all three in turn.
    for (bounds, factors) in SHORT_BANDS[rate].windows(2).zip(factors.chunks_exact(3)) {
        let (from, width) = (usize::from(bounds[0]), usize::from(bounds[1] - bounds[0]));
        if 3 * from >= limit {
            break;
        }
        for (window, (factor, subblock)) in factors.iter().zip(channel.subblock_gain).enumerate() {
            let gain = gain(global - 8 * subblock - channel.scale * i32::from(*factor)) * share;
            let here = &lines[3 * from + window * width..][..width];
            for (at, line) in (3 * from + window..).step_by(3).zip(here) {
                if at < limit {
                    rows[at % SUBBAND_LINES][at / SUBBAND_LINES] = line * gain;
                }
            }
        }
    }
}

/// Returns the end of the lines that must be read for those below `limit`: a short block's bands are read whole.
pub(super) fn read_limit(channel: &Channel, rate: usize, limit: usize) -> usize {
    let whole = |band: &&u16| 3 * usize::from(**band) >= limit;
    match channel.block {
        Block::Short => SHORT_BANDS[rate].iter().find(whole).map_or(LINES, |band| 3 * usize::from(*band)),
        _ => limit,
    }
}
