//! Image tensors as PNG files.

use crate::failure::{Failure, Outcome};
use feedstock_ops::{DType, Layout, TensorSpec};

const CHANNELS: usize = 3;
const WITH_ALPHA: usize = 4;

/// Encodes each image of one sample's tensor: one, or those along an axis of images before the others.
pub(super) fn pngs(tensor: &[u8], spec: &TensorSpec) -> Outcome<Vec<Vec<u8>>> {
    let axes = if spec.layout == Layout::Hw { 2 } else { 3 };
    if spec.shape.len() != axes + 1 {
        return Ok(vec![png(tensor, spec)?]);
    }
    let image = TensorSpec::new(spec.dtype, &spec.shape[1..], spec.layout);
    tensor.chunks_exact(image.bytes().max(1)).map(|tensor| png(tensor, &image)).collect()
}

/// Encodes an image as a PNG: u8, u16 or f32, `[h, w, c]` or `[c, h, w]` with 1, 3 or 4 channels, or a mask
/// `[h, w]`. Transparent pixels are shown on white.
///
/// The high byte of u16 values is shown. f32 values are scaled so that the minimum becomes 0 and the maximum 255, because normalised
/// values have no colours. Each class of a mask has another colour; class 0 is black.
fn png(tensor: &[u8], spec: &TensorSpec) -> Outcome<Vec<u8>> {
    let (height, width, channels) = match (spec.shape.as_slice(), spec.layout) {
        (&[height, width, channels @ (1 | CHANNELS | WITH_ALPHA)], Layout::Hwc)
        | (&[channels @ (1 | CHANNELS | WITH_ALPHA), height, width], Layout::Chw) => {
            (height, width, channels)
        }
        (&[height, width], Layout::Hw) => (height, width, 1),
        (shape, layout) => {
            return Err(Failure::config(format!(
                "the result of --ops has shape {shape:?} ({layout:?}); preview shows images of shape [h, w, c] or [c, h, w] \
                 with 1, 3 or 4 channels, and masks [h, w]"
            )));
        }
    };
    let values = match spec.dtype {
        DType::U8 => tensor.to_vec(),
        DType::U16 => {
            tensor.as_chunks().0.iter().map(|bytes| u16::from_ne_bytes(*bytes).to_be_bytes()[0]).collect()
        }
        DType::F32 => stretch(tensor),
        other => {
            return Err(Failure::config(format!(
                "the result of --ops has type {other:?}; preview shows u8, u16 and f32"
            )));
        }
    };
    let pixels = match (channels, spec.layout) {
        (_, Layout::Hw) => values.iter().flat_map(|class| colour(*class)).collect(),
        (1, _) => values.iter().flat_map(|value| [*value; CHANNELS]).collect(),
        (WITH_ALPHA, Layout::Chw) => on_white(&interleave(&values, channels)),
        (WITH_ALPHA, _) => on_white(&values),
        (_, Layout::Chw) => interleave(&values, channels),
        _ => values,
    };
    encode(&pixels, width, height)
        .map_err(|e| Failure::bug(format!("cannot encode a PNG of {width}×{height} px: {e}")))
}

/// Returns the colour of a class of a mask. The factors are odd, so classes with one colour are 256 apart.
fn colour(class: u8) -> [u8; CHANNELS] {
    [37_u8, 91, 151].map(|factor| class.wrapping_mul(factor))
}

/// Returns a tensor's elements.
pub(super) fn floats(tensor: &[u8]) -> Vec<f32> {
    tensor.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

/// Scales f32 values to bytes: the minimum becomes 0, the maximum 255.
pub(super) fn stretch(tensor: &[u8]) -> Vec<u8> {
    let values = floats(tensor);
    let (least, most) = values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), value| {
        (least.min(*value), most.max(*value))
    });
    let scale = if most > least { 255.0 / (most - least) } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, reason = "float to u8 saturates")]
    values.iter().map(|value| ((value - least) * scale + 0.5) as u8).collect()
}

fn interleave(planes: &[u8], channels: usize) -> Vec<u8> {
    let pixels = planes.len() / channels;
    (0..pixels).flat_map(|at| (0..channels).map(move |channel| planes[channel * pixels + at])).collect()
}

/// Returns the RGB of pixels with alpha on a white background.
fn on_white(rgba: &[u8]) -> Vec<u8> {
    let shown = |value: u8, alpha: u8| {
        let sum = u32::from(value) * u32::from(alpha) + 255 * u32::from(u8::MAX - alpha);
        u8::try_from((sum + 127) / 255).unwrap_or(u8::MAX)
    };
    let pixels = rgba.as_chunks::<WITH_ALPHA>().0.iter();
    pixels.flat_map(|&[r, g, b, alpha]| [r, g, b].map(|value| shown(value, alpha))).collect()
}

/// Encodes RGB pixels as a PNG.
pub(super) fn encode(
    pixels: &[u8],
    width: usize,
    height: usize,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, u32::try_from(width)?, u32::try_from(height)?);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    encoder.write_header()?.write_image_data(pixels)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(png_bytes: &[u8]) -> Vec<u8> {
        let mut reader = png::Decoder::new(std::io::Cursor::new(png_bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        pixels
    }

    #[test]
    fn u8_and_f32_of_either_layout_show_the_same_pixels() {
        let hwc: [u8; 6] = [0, 10, 20, 30, 40, 255]; // one row, two pixels
        let chw: [u8; 6] = [0, 30, 10, 40, 20, 255];
        let spec = |dtype, shape: [usize; 3], layout| TensorSpec::new(dtype, shape, layout);
        let png_hwc = png(&hwc, &spec(DType::U8, [1, 2, 3], Layout::Hwc)).unwrap();
        let png_chw = png(&chw, &spec(DType::U8, [3, 1, 2], Layout::Chw)).unwrap();
        let floats: Vec<u8> =
            chw.iter().flat_map(|&v| ((f32::from(v) - 100.0) / 50.0).to_ne_bytes()).collect();
        let png_f32 = png(&floats, &spec(DType::F32, [3, 1, 2], Layout::Chw)).unwrap();
        assert_eq!(decoded(&png_hwc), hwc);
        assert_eq!(decoded(&png_chw), hwc);
        assert_eq!(decoded(&png_f32), hwc);
    }

    #[test]
    fn transparent_pixels_are_white() {
        let hwc: [u8; 8] = [10, 20, 30, 255, 0, 100, 200, 0];
        let chw: [u8; 8] = [10, 0, 20, 100, 30, 200, 255, 0];
        let spec = |shape: [usize; 3], layout| TensorSpec::new(DType::U8, shape, layout);
        let shown = [10, 20, 30, 255, 255, 255];
        assert_eq!(decoded(&png(&hwc, &spec([1, 2, 4], Layout::Hwc)).unwrap()), shown);
        assert_eq!(decoded(&png(&chw, &spec([4, 1, 2], Layout::Chw)).unwrap()), shown);
    }

    #[test]
    fn tensors_that_are_not_images_are_rejected() {
        assert!(png(&[0; 160], &TensorSpec::new(DType::U8, [80, 1, 2], Layout::Hwc)).is_err());
        assert!(png(&[0; 80], &TensorSpec::new(DType::U8, [80], Layout::T)).is_err());
    }

    #[test]
    fn each_image_of_a_tensor_is_shown() {
        let two: [u8; 12] = [0, 10, 20, 30, 40, 255, 7, 8, 9, 1, 2, 3];
        let spec = |shape: &[usize]| TensorSpec::new(DType::U8, shape, Layout::Hwc);
        for images in [spec(&[2, 1, 2, 3]), spec(&[1, 2, 3]).list()] {
            let shown: Vec<_> = pngs(&two, &images).unwrap().iter().map(|image| decoded(image)).collect();
            assert_eq!(shown, [&two[..6], &two[6..]]);
        }
        assert_eq!(pngs(&two[..6], &spec(&[1, 2, 3])).unwrap().len(), 1);
        assert!(pngs(&[], &spec(&[1, 2, 3]).list()).unwrap().is_empty());
        let masks = TensorSpec::new(DType::U8, [2, 1, 1], Layout::Hw);
        assert_eq!(pngs(&[0, 1], &masks).unwrap().len(), 2);
    }

    #[test]
    fn one_channel_is_grey_and_classes_have_colours() {
        let gray = png(&[7, 9], &TensorSpec::new(DType::U8, [1, 2, 1], Layout::Hwc)).unwrap();
        assert_eq!(decoded(&gray), [7, 7, 7, 9, 9, 9]);
        let wide = [7_u16 << 8 | 255, 9 << 8].map(u16::to_ne_bytes).concat();
        assert_eq!(png(&wide, &TensorSpec::new(DType::U16, [1, 2, 1], Layout::Hwc)).unwrap(), gray);
        let mask = png(&[0, 1], &TensorSpec::new(DType::U8, [1, 2], Layout::Hw)).unwrap();
        assert_eq!(decoded(&mask), [0, 0, 0, 37, 91, 151]);
    }
}
