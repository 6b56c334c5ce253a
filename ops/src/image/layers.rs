//! The layers of an image with alpha after the chain (`sample.rs`), and how they are joined.

use super::buffer::Buffer;
use super::convert::Convert;
use crate::spec::{DType, Layout};

/// How layers are joined.
pub(crate) struct Layers {
    /// The conversion of the four channels.
    pub(super) joined: Convert,
    /// True if an op averages pixels. Colours are then weighted by their alpha, as in Pillow: else a transparent pixel's
    /// colour would show in its neighbours.
    pub(super) averages: bool,
}

/// The layers of one sample, dense and of the chain's size.
#[derive(Default)]
pub(super) struct LayerBuffers {
    pub(super) alpha: Buffer,
    pub(super) colors: Buffer,
}

impl LayerBuffers {
    pub(super) fn kept_bytes(&self) -> usize {
        self.alpha.kept_bytes() + self.colors.kept_bytes()
    }
}

impl Layers {
    /// Writes colours and alpha, both in three channels, as four.
    pub(super) fn join(&self, colors: &[u8], alpha: &[u8], is_weighted: bool, out: &mut [u8]) {
        let Convert { dtype, layout, scale: [scale, ..], .. } = self.joined;
        let pixels = alpha.len() / 3;
        for (at, (color, alpha)) in colors.as_chunks::<3>().0.iter().zip(alpha.as_chunks::<3>().0).enumerate()
        {
            let alpha = alpha[0];
            let [r, g, b] = if is_weighted { color.map(|value| unweighted(value, alpha)) } else { *color };
            for (channel, value) in [r, g, b, alpha].into_iter().enumerate() {
                let element = if layout == Layout::Chw { channel * pixels + at } else { at * 4 + channel };
                match dtype {
                    DType::F32 => {
                        let value = (f32::from(value) * scale).to_ne_bytes();
                        out[element * 4..element * 4 + 4].copy_from_slice(&value);
                    }
                    _ => out[element] = value,
                }
            }
        }
    }
}

/// Returns the colour of a value that was multiplied by its alpha, rounded down as by Pillow.
fn unweighted(value: u8, alpha: u8) -> u8 {
    match alpha {
        0 | u8::MAX => value,
        _ => u8::try_from(u32::from(value) * 255 / u32::from(alpha)).unwrap_or(u8::MAX),
    }
}
