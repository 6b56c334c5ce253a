//! Features or waveforms of audio clips as PNG files: time to the right, high frequencies at the top.

use super::picture::{encode, floats, stretch};
use crate::failure::{Failure, Outcome};
use feedstock_ops::{DType, Layout, TensorSpec};

/// Maximum number of columns in the image of a waveform, and its number of rows.
const WAVE_COLUMNS: usize = 800;
const WAVE_ROWS: usize = 96;
/// From quiet to loud: black, violet, red, orange, pale yellow.
const COLOURS: [[u8; 3]; 5] = [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]];

/// Encodes one audio clip's tensor as a PNG: f32, `[T]`, `[T, features]` or `[features, T]`.
///
/// `length` is that of the ragged axis, if there is one. Values are scaled so that the minimum is black and the maximum pale yellow.
pub(super) fn png(bytes: &[u8], spec: &TensorSpec, length: usize) -> Outcome<Vec<u8>> {
    let shape = spec.shape_at(length);
    if spec.dtype != DType::F32 {
        return Err(Failure::config(format!(
            "the result of --ops has type {:?}; preview shows audio as f32",
            spec.dtype
        )));
    }
    match (shape.as_slice(), spec.layout) {
        (&[samples], Layout::T) => wave(&floats(bytes), samples),
        (&[frames, features], Layout::Tf) => {
            heat(bytes, frames, features, |frame, feature| frame * features + feature)
        }
        (&[features, frames], Layout::Ft) => {
            heat(bytes, frames, features, |frame, feature| feature * frames + frame)
        }
        (shape, layout) => Err(Failure::config(format!(
            "the result of --ops has shape {shape:?} ({layout:?}); preview shows waveforms and features over time"
        ))),
    }
}

/// Returns whether the result is audio that a page can show.
pub(super) fn is_sound(spec: &TensorSpec) -> bool {
    matches!(spec.layout, Layout::T | Layout::Tf | Layout::Ft) && spec.dtype == DType::F32
}

fn heat(
    bytes: &[u8],
    frames: usize,
    features: usize,
    at: impl Fn(usize, usize) -> usize,
) -> Outcome<Vec<u8>> {
    if frames == 0 || features == 0 {
        return encoded(&[0; 3], 1, 1); // no frame is left of the audio clip
    }
    let levels = stretch(bytes);
    let mut pixels = Vec::with_capacity(3 * frames * features);
    for feature in (0..features).rev() {
        pixels.extend((0..frames).flat_map(|frame| colour(levels[at(frame, feature)])));
    }
    encoded(&pixels, frames, features)
}

fn colour(level: u8) -> [u8; 3] {
    let (place, share) = (usize::from(level) * 4 / 256, usize::from(level) * 4 % 256);
    let (low, high) = (COLOURS[place], COLOURS[(place + 1).min(4)]);
    std::array::from_fn(|channel| {
        let mixed = usize::from(low[channel]) * (256 - share) + usize::from(high[channel]) * share;
        u8::try_from(mixed / 256).unwrap_or(u8::MAX)
    })
}

/// Draws each column from the minimum to the maximum of its samples.
fn wave(samples: &[f32], length: usize) -> Outcome<Vec<u8>> {
    let columns = length.clamp(1, WAVE_COLUMNS);
    let peak = samples.iter().fold(1e-6_f32, |peak, sample| peak.max(sample.abs()));
    let mut pixels = vec![0; 3 * columns * WAVE_ROWS];
    for column in 0..columns {
        let part = &samples[column * length / columns..(column + 1) * length / columns];
        let (least, most) = part
            .iter()
            .fold((0.0_f32, 0.0_f32), |(least, most), sample| (least.min(*sample), most.max(*sample)));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 … 95: float to int saturates"
        )]
        let row = |value: f32| ((0.5 - 0.5 * value / peak) * (WAVE_ROWS - 1) as f32).round() as usize;
        for row in row(most)..=row(least).min(WAVE_ROWS - 1) {
            let pixel = 3 * (row * columns + column);
            pixels[pixel..pixel + 3].copy_from_slice(&COLOURS[3]);
        }
    }
    encoded(&pixels, columns, WAVE_ROWS)
}

fn encoded(pixels: &[u8], width: usize, height: usize) -> Outcome<Vec<u8>> {
    encode(pixels, width, height)
        .map_err(|e| Failure::bug(format!("cannot encode a PNG of {width}×{height} px: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    fn decoded(png_bytes: &[u8]) -> (u32, u32, Vec<u8>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(png_bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        (reader.info().width, reader.info().height, pixels)
    }

    #[test]
    fn time_goes_right_and_frequency_up_in_either_layout() {
        // Two frames of three features; the second frame's highest feature is the loudest.
        let (tf, ft) = ([0.0, 1.0, 2.0, 3.0, 4.0, 8.0], [0.0, 3.0, 1.0, 4.0, 2.0, 8.0]);
        let spec = |shape: [usize; 2], layout| TensorSpec::new(DType::F32, shape, layout);
        let one = decoded(&png(&bytes(&tf), &spec([2, 3], Layout::Tf), 2).unwrap());
        let other = decoded(&png(&bytes(&ft), &spec([3, 2], Layout::Ft), 2).unwrap());
        assert_eq!(one, other);
        assert_eq!((one.0, one.1), (2, 3));
        assert_eq!(one.2[3..6], colour(255)); // top right
        assert_eq!(one.2[12..15], colour(0)); // bottom left
    }

    #[test]
    fn a_waveform_fills_its_range_and_an_empty_audio_clip_is_not_a_bug() {
        let spec = TensorSpec::new(DType::F32, [4], Layout::T);
        let (width, height, pixels) = decoded(&png(&bytes(&[0.5, -0.5, 0.0, 0.0]), &spec, 4).unwrap());
        assert_eq!((width, height as usize), (4, WAVE_ROWS));
        assert_eq!(pixels[..3], COLOURS[3]);
        assert_eq!(pixels[9..12], [0; 3]);
        assert!(png(&[], &TensorSpec::new(DType::F32, [0, 80], Layout::Tf).ragged(0), 0).is_ok());
        assert!(png(&[], &TensorSpec::new(DType::I64, [0], Layout::T).ragged(0), 0).is_err());
    }
}
