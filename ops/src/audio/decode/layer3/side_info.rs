//! A frame's information about its granules, after the header: ISO 11172-3, 2.4.1.7.

use super::bits::{Bits, PADDING};
use super::tables::LONG_BANDS;

/// Lines of a granule.
pub(super) const LINES: usize = 576;

/// The most bytes: those of two channels.
const MAX_BYTES: usize = 32;

/// How a granule's lines become samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    Long,
    /// Between a long block and short ones.
    Start,
    Short,
    /// Between short blocks and a long one.
    Stop,
}

/// One channel of a granule.
#[derive(Debug, Clone)]
pub(super) struct Channel {
    /// Bits of its scale factors and lines.
    pub(super) bits: usize,
    /// Lines that are coded as pairs.
    pub(super) big_values: usize,
    pub(super) global_gain: i32,
    pub(super) scale_factor_bits: usize,
    pub(super) block: Block,
    /// The codes of the three regions, and where the first two end.
    pub(super) codes: [usize; 3],
    pub(super) ends: [usize; 2],
    pub(super) subblock_gain: [i32; 3],
    pub(super) pre_emphasis: bool,
    /// The quarters of an octave by which a scale factor lowers the gain.
    pub(super) scale: i32,
    pub(super) quadruples: usize,
}

/// A frame's side information.
pub(super) struct SideInfo {
    /// The bytes of earlier frames with which its main data begin.
    pub(super) main_data_begin: usize,
    /// By channel, the groups of scale factors that the second granule shares with the first.
    pub(super) shared: [[bool; 4]; 2],
    /// The channels of both granules.
    pub(super) granules: [[Option<Channel>; 2]; 2],
}

impl SideInfo {
    /// Reads all of `bytes`. Returns `None` if the standard has no such frame, or its blocks are mixed.
    pub(super) fn read(bytes: &[u8], channels: usize, rate: usize) -> Option<Self> {
        let mut padded = [0; MAX_BYTES + PADDING];
        padded.get_mut(..bytes.len()).filter(|_| bytes.len() <= MAX_BYTES)?.copy_from_slice(bytes);
        let bits = &mut Bits::new(&padded);
        let main_data_begin = bits.take(9) as usize;
        bits.skip(if channels == 1 { 5 } else { 3 });
        let mut shared = [[false; 4]; 2];
        for groups in shared.iter_mut().take(channels) {
            groups.iter_mut().for_each(|group| *group = bits.flag());
        }
        let mut granules = [const { [const { None }; 2] }; 2];
        for granule in &mut granules {
            for channel in granule.iter_mut().take(channels) {
                *channel = Some(Channel::read(bits, rate)?);
            }
        }
        Some(Self { main_data_begin, shared, granules })
    }
}

impl Channel {
    fn read(bits: &mut Bits<'_>, rate: usize) -> Option<Self> {
        let length = bits.take(12) as usize;
        let big_values = 2 * bits.take(9) as usize;
        let global_gain = bits.take(8).cast_signed();
        let scale_factor_bits = bits.take(4) as usize;
        let (mut block, mut codes, mut subblock_gain) = (Block::Long, [0; 3], [0; 3]);
        let ends;
        if bits.flag() {
            block = [None, Some(Block::Start), Some(Block::Short), Some(Block::Stop)][bits.take(2) as usize]?;
            let mixed = bits.flag();
            codes[..2].iter_mut().for_each(|code| *code = bits.take(5) as usize);
            subblock_gain.iter_mut().for_each(|gain| *gain = bits.take(3).cast_signed());
            if mixed {
                return None;
            }
            // Eight long bands, or three short ones of three windows, at every rate.
            ends = [36, LINES];
        } else {
            codes.iter_mut().for_each(|code| *code = bits.take(5) as usize);
            let first = bits.take(4) as usize + 1;
            let second = first + bits.take(3) as usize + 1;
            ends = [first, second].map(|band| LONG_BANDS[rate][band.min(22)].into());
        }
        let pre_emphasis = bits.flag();
        let scale = if bits.flag() { 4 } else { 2 };
        let quadruples = bits.take(1) as usize;
        (big_values <= LINES).then_some(Self {
            bits: length,
            big_values,
            global_gain,
            scale_factor_bits,
            block,
            codes,
            ends,
            subblock_gain,
            pre_emphasis,
            scale,
            quadruples,
        })
    }
}
