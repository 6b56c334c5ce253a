//! The content of one image: a gradient, shapes with edges, and noise of a photographic spectrum over all.
//!
//! ```text
//! seed ─▶ Scene {gradient, shapes, noise offsets} ─▶ row by row: colour + gain × noise ─▶ RGB
//! ```
//! Cost: about 2 ms for 400×350.

use crate::draw::Draw;
use crate::noise::{ONE_SIGMA, Offset, PLANES, SIDE, Tiles};

/// Minimum and maximum number of ellipses, and of straight edges.
const ELLIPSES: (u32, u32) = (6, 18);
const EDGES: (u32, u32) = (1, 3);
/// Standard deviation of the lightness noise in levels of 0–255, drawn uniformly per image. With quality 95 a 400×350
/// image has 110 KB on average, as `tests/suite/pictures.rs` measures.
const CONTRAST: (f32, f32) = (18.0, 84.0);
/// Colour noise as a share of the lightness noise: in photographs, channels are strongly correlated.
const COLOUR_SHARE: f32 = 0.25;
/// Layers of noise with independent offsets; two give 2^40 different images from one tile.
const LAYERS: usize = 2;

impl Draw {
    fn count(&mut self, (low, high): (u32, u32)) -> u64 {
        u64::from(low) + self.below(u64::from(high - low + 1))
    }

    fn colour(&mut self) -> [f32; 3] {
        let light = self.real(40.0, 215.0);
        std::array::from_fn(|_| light + self.real(-35.0, 35.0))
    }

    /// Returns a position, uniformly distributed along a tile's side.
    fn place(&mut self) -> usize {
        (self.word() as usize) % SIDE // SIDE is a power of two: no bias
    }

    fn offset(&mut self) -> Offset {
        Offset { x: self.place(), y: self.place() }
    }
}

/// A region with one colour and one strength of texture.
struct Shape {
    outline: Outline,
    colour: [f32; 3],
    gain: f32,
}

enum Outline {
    /// Centre, radii, and the shift to the right of a row's centre per row down.
    Ellipse { x: f32, y: f32, rx: f32, ry: f32, lean: f32 },
    /// Everything to the right of the line x = left + lean × y.
    Edge { left: f32, lean: f32 },
}

impl Outline {
    /// Returns where the shape begins and ends in row `y`.
    fn span(&self, y: f32) -> Option<(f32, f32)> {
        match *self {
            Self::Ellipse { x, y: centre, rx, ry, lean } => {
                let up = (y - centre) / ry;
                let half = rx * (1.0 - up * up).max(0.0).sqrt();
                let middle = x + lean * (y - centre);
                (half > 0.0).then_some((middle - half, middle + half))
            }
            Self::Edge { left, lean } => Some((left + lean * y, f32::INFINITY)),
        }
    }
}

/// The content of one image.
pub(crate) struct Scene {
    colour: [f32; 3],
    slope_x: [f32; 3],
    slope_y: [f32; 3],
    shapes: Vec<Shape>,
    contrast: f32,
    offsets: [[Offset; LAYERS]; PLANES],
}

/// Buffers of one thread: colour (3 planes) and gain of one row.
#[derive(Default)]
pub(crate) struct Rows {
    colour: [Vec<f32>; 3],
    gain: Vec<f32>,
}

impl Scene {
    /// Draws a scene for an image of this size.
    pub(crate) fn new(draw: &mut Draw, width: u32, height: u32) -> Self {
        let (width, height) = (width as f32, height as f32);
        let contrast = draw.real(CONTRAST.0, CONTRAST.1);
        let mut shapes = Vec::new();
        for _ in 0..draw.count(EDGES) {
            let outline = Outline::Edge { left: draw.real(0.0, width), lean: draw.real(-1.0, 1.0) };
            shapes.push(Shape { outline, colour: draw.colour(), gain: draw.real(0.3, 1.5) });
        }
        for _ in 0..draw.count(ELLIPSES) {
            let size = draw.real(0.02, 0.3);
            let outline = Outline::Ellipse {
                x: draw.real(0.0, width),
                y: draw.real(0.0, height),
                rx: size * width * draw.real(0.5, 1.5),
                ry: size * height * draw.real(0.5, 1.5),
                lean: draw.real(-0.7, 0.7),
            };
            shapes.push(Shape { outline, colour: draw.colour(), gain: draw.real(0.2, 1.6) });
        }
        Self {
            colour: draw.colour(),
            slope_x: std::array::from_fn(|_| draw.real(-50.0, 50.0) / width),
            slope_y: std::array::from_fn(|_| draw.real(-50.0, 50.0) / height),
            shapes,
            contrast,
            offsets: std::array::from_fn(|_| std::array::from_fn(|_| draw.offset())),
        }
    }

    /// Paints `rgb`, u8 `[height, width, 3]`.
    pub(crate) fn paint(&self, rgb: &mut [u8], width: usize, rows: &mut Rows) {
        let tiles = Tiles::shared();
        for (y, out) in rgb.chunks_exact_mut(3 * width).enumerate() {
            self.colour_row(y, width, rows);
            for left in (0..width).step_by(SIDE) {
                let right = width.min(left + SIDE);
                let noise = self.offsets.each_ref().map(|layers| layers.map(|offset| (offset, left, y)));
                let noise: [[&[i16]; LAYERS]; PLANES] = std::array::from_fn(|plane| {
                    noise[plane].map(|(offset, x, y)| &tiles.row(plane, offset, x, y)[..right - left])
                });
                mix(&mut out[3 * left..3 * right], rows, left, noise);
            }
        }
    }

    /// Computes colour and gain of row `y` before the noise. Later shapes cover earlier ones.
    fn colour_row(&self, y: usize, width: usize, rows: &mut Rows) {
        let down = y as f32;
        rows.gain.clear();
        rows.gain.resize(width, self.contrast);
        for (channel, row) in rows.colour.iter_mut().enumerate() {
            let start = self.colour[channel] + self.slope_y[channel] * down;
            row.clear();
            row.extend((0..width).map(|x| start + self.slope_x[channel] * x as f32));
        }
        for shape in &self.shapes {
            let Some((start, end)) = shape.outline.span(down) else { continue };
            let (start, end) = (start.clamp(0.0, width as f32), end.clamp(0.0, width as f32));
            #[expect(clippy::cast_possible_truncation, reason = "clamped to the row")]
            let (first, last) = (start.ceil() as usize, end as usize);
            if first >= last {
                continue;
            }
            rows.gain[first..last].fill(self.contrast * shape.gain);
            for (row, colour) in rows.colour.iter_mut().zip(shape.colour) {
                row[first..last].fill(colour);
                if first > 0 {
                    let share = first as f32 - start; // the edge pixel is partly covered by the shape
                    row[first - 1] += share * (colour - row[first - 1]);
                }
                if last < width {
                    let share = end - last as f32;
                    row[last] += share * (colour - row[last]);
                }
            }
        }
    }
}

/// Writes one run of pixels: colour plus noise. Lightness noise is added to all channels. The two colour noises shift
/// red against green, and blue against both.
#[expect(clippy::cast_possible_truncation, reason = "float to u8 saturates: the clamp to 0–255")]
fn mix(out: &mut [u8], rows: &Rows, left: usize, noise: [[&[i16]; LAYERS]; PLANES]) {
    const LIGHT: f32 = std::f32::consts::FRAC_1_SQRT_2 / ONE_SIGMA; // two layers: variances add
    const COLOUR: f32 = LIGHT * COLOUR_SHARE;
    let [light, warm, blue] = noise;
    let [red_row, green_row, blue_row] = rows.colour.each_ref().map(|row| &row[left..]);
    for (x, pixel) in out.chunks_exact_mut(3).enumerate() {
        let sum = |layers: [&[i16]; LAYERS]| f32::from(layers[0][x]) + f32::from(layers[1][x]);
        let gain = rows.gain[left + x];
        let light = LIGHT * sum(light);
        let warm = COLOUR * sum(warm);
        let blue = COLOUR * sum(blue);
        pixel[0] = (red_row[x] + gain * (light + warm) + 0.5) as u8;
        pixel[1] = (green_row[x] + gain * (light - 0.5 * warm - 0.3 * blue) + 0.5) as u8;
        pixel[2] = (blue_row[x] + gain * (light - 0.5 * warm + blue) + 0.5) as u8;
    }
}
