//! The layers of an image with alpha, each in three channels, as all images between ops.

/// What is decoded of an image that may have alpha.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// The colours, whatever their alpha is.
    Colors,
    /// The colours, each multiplied by its alpha: Pillow's mode `RGBa`, whose pixels may be averaged.
    Weighted,
    /// The alpha, in three equal channels.
    Alpha,
}

impl Layer {
    /// Replaces `pixels` of 1, 2, 3 or 4 channels (grey, grey + alpha, RGB, RGBA) by three channels of the layer, in place.
    pub(super) fn take(self, buffer: &mut [u8], pixels: usize, channels: usize) {
        let mut take = |pixel: usize| {
            let at = pixel * channels;
            let (color, alpha) = match buffer[at..at + channels] {
                [grey] => ([grey; 3], u8::MAX),
                [grey, alpha] => ([grey; 3], alpha),
                [r, g, b, alpha] => ([r, g, b], alpha),
                [r, g, b, ..] => ([r, g, b], u8::MAX),
                [] => return,
            };
            let value = match self {
                Self::Colors => color,
                Self::Weighted => color.map(|value| weighted(value, alpha)),
                Self::Alpha => [alpha; 3],
            };
            buffer[pixel * 3..pixel * 3 + 3].copy_from_slice(&value);
        };
        match channels {
            3 if self != Self::Alpha => {}
            // Backwards: a pixel's three bytes never reach a source byte that is still needed.
            1 | 2 => (0..pixels).rev().for_each(take),
            _ => (0..pixels).for_each(&mut take),
        }
    }
}

/// Returns value · alpha / 255, rounded.
fn weighted(value: u8, alpha: u8) -> u8 {
    let product = u32::from(value) * u32::from(alpha) + 128;
    (((product >> 8) + product) >> 8).to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_taken_in_place() {
        let taken = |layer: Layer, channels: usize, stored: &[u8]| {
            let pixels = stored.len() / channels;
            let mut buffer = stored.to_vec();
            buffer.resize(pixels * channels.max(3), 0);
            layer.take(&mut buffer, pixels, channels);
            buffer.truncate(pixels * 3);
            buffer
        };
        let rgba = [10, 20, 30, 0, 40, 50, 60, 128, 70, 80, 90, 255];
        assert_eq!(taken(Layer::Colors, 4, &rgba), [10, 20, 30, 40, 50, 60, 70, 80, 90]);
        assert_eq!(taken(Layer::Weighted, 4, &rgba), [0, 0, 0, 20, 25, 30, 70, 80, 90]);
        assert_eq!(taken(Layer::Alpha, 4, &rgba), [0, 0, 0, 128, 128, 128, 255, 255, 255]);
        let grey = [200, 128, 100, 255];
        assert_eq!(taken(Layer::Colors, 2, &grey), [200, 200, 200, 100, 100, 100]);
        assert_eq!(taken(Layer::Weighted, 2, &grey), [100, 100, 100, 100, 100, 100]);
        assert_eq!(taken(Layer::Alpha, 2, &grey), [128, 128, 128, 255, 255, 255]);
        assert_eq!(taken(Layer::Colors, 1, &[7, 9]), [7, 7, 7, 9, 9, 9]);
        assert_eq!(taken(Layer::Alpha, 3, &[1, 2, 3, 4, 5, 6]), [255; 6]);
    }
}
