//! Images for the tests, made here and encoded with libjpeg-turbo.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::ffi::c_int;
use std::path::PathBuf;
use std::time::Duration;

use turbojpeg_sys as tj;

pub fn golden(name: &str) -> Vec<u8> {
    let path: PathBuf = ["tests", "golden", name].iter().collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn references() -> serde_json::Value {
    serde_json::from_slice(&golden("references.json")).unwrap()
}

/// Returns the largest and the mean difference.
pub fn most_and_mean(a: &[u8], b: &[u8]) -> (u8, f64) {
    assert_eq!(a.len(), b.len());
    let most = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0);
    let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a.abs_diff(*b))).sum();
    (most, sum / a.len() as f64)
}

/// Returns the CPU time of this thread.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Those that libjpeg-turbo can write.
pub const SUBSAMPLINGS: [tj::TJSAMP; 7] = [
    tj::TJSAMP_TJSAMP_444,
    tj::TJSAMP_TJSAMP_422,
    tj::TJSAMP_TJSAMP_420,
    tj::TJSAMP_TJSAMP_440,
    tj::TJSAMP_TJSAMP_411,
    tj::TJSAMP_TJSAMP_441,
    tj::TJSAMP_TJSAMP_GRAY,
];

/// A small generator (SplitMix64), so that the tests' images are always the same.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound)) as u32
    }

    /// Returns a number in −1 … 1.
    pub fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Returns noise with about a 1/f spectrum (octaves of interpolated grids), hard edges and saturated colours.
pub fn picture(width: u32, height: u32, seed: u64) -> Vec<u8> {
    textured_picture(width, height, seed, 2.2, 0.75)
}

/// Returns the same with octaves of `strength` × cell^`slope`.
pub fn textured_picture(width: u32, height: u32, seed: u64, strength: f32, slope: f32) -> Vec<u8> {
    let mut dice = Dice(seed);
    let (w, h) = (width as usize, height as usize);
    let mut planes = [vec![110_f32; w * h], vec![0_f32; w * h], vec![0_f32; w * h]];
    for (channel, plane) in planes.iter_mut().enumerate() {
        let mut cell = 64;
        while cell >= 1 {
            let strength = (cell as f32).powf(slope) * strength * if channel == 0 { 1.0 } else { 0.4 };
            let columns = w / cell + 2;
            let grid: Vec<f32> = (0..columns * (h / cell + 2)).map(|_| dice.signed() * strength).collect();
            for y in 0..h {
                for x in 0..w {
                    let (gx, gy) = (x / cell, y / cell);
                    let (fx, fy) = ((x % cell) as f32 / cell as f32, (y % cell) as f32 / cell as f32);
                    let at = |dx: usize, dy: usize| grid[(gy + dy) * columns + gx + dx];
                    let top = at(0, 0) + (at(1, 0) - at(0, 0)) * fx;
                    let bottom = at(0, 1) + (at(1, 1) - at(0, 1)) * fx;
                    plane[y * w + x] += top + (bottom - top) * fy;
                }
            }
            cell /= 2;
        }
    }
    for _ in 0..6 {
        let (x0, y0) = (dice.below(width) as usize, dice.below(height) as usize);
        let (dx, dy) = (dice.below(width / 3 + 1) as usize, dice.below(height / 3 + 1) as usize);
        let shift = [dice.signed() * 90.0, dice.signed() * 90.0, dice.signed() * 90.0];
        for y in y0..(y0 + dy).min(h) {
            for x in x0..(x0 + dx).min(w) {
                for (plane, shift) in planes.iter_mut().zip(shift) {
                    plane[y * w + x] += shift;
                }
            }
        }
    }
    (0..w * h)
        .flat_map(|i| {
            let (y, a, b) = (planes[0][i], planes[1][i], planes[2][i]);
            [y + a, y - 0.5 * a - 0.3 * b, y + b].map(|value| value.clamp(0.0, 255.0) as u8)
        })
        .collect()
}

#[derive(Clone, Copy)]
pub struct Jpeg {
    pub subsampling: tj::TJSAMP,
    pub quality: i32,
    pub progressive: bool,
    pub optimize: bool,
    pub arithmetic: bool,
    pub restart_blocks: i32,
}

impl Default for Jpeg {
    fn default() -> Self {
        Self {
            subsampling: tj::TJSAMP_TJSAMP_420,
            quality: 90,
            progressive: false,
            optimize: false,
            arithmetic: false,
            restart_blocks: 0,
        }
    }
}

impl Jpeg {
    /// Encodes dense pixels: RGB, or CMYK (as YCCK) if `format` is TJPF_CMYK.
    pub fn encode_as(self, pixels: &[u8], width: u32, height: u32, format: tj::TJPF) -> Vec<u8> {
        let samples = if format == tj::TJPF_TJPF_CMYK { 4 } else { 3 };
        assert_eq!(pixels.len(), (width * height * samples) as usize);
        // SAFETY: the handle is new, and the sizes match. The buffer is libjpeg-turbo's and is freed with tj3Free.
        unsafe {
            let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as c_int);
            let set = |parameter: tj::TJPARAM, value: i32| {
                assert_eq!(tj::tj3Set(handle, parameter as c_int, value), 0, "{parameter} {value}");
            };
            set(tj::TJPARAM_TJPARAM_SUBSAMP, self.subsampling);
            set(tj::TJPARAM_TJPARAM_QUALITY, self.quality);
            set(tj::TJPARAM_TJPARAM_PROGRESSIVE, self.progressive.into());
            set(tj::TJPARAM_TJPARAM_OPTIMIZE, self.optimize.into());
            set(tj::TJPARAM_TJPARAM_ARITHMETIC, self.arithmetic.into());
            set(tj::TJPARAM_TJPARAM_RESTARTBLOCKS, self.restart_blocks);
            let (mut buffer, mut length) = (std::ptr::null_mut(), 0);
            let status = tj::tj3Compress8(
                handle,
                pixels.as_ptr(),
                width as c_int,
                0,
                height as c_int,
                format as c_int,
                &mut buffer,
                &mut length,
            );
            assert_eq!(status, 0);
            let bytes = std::slice::from_raw_parts(buffer, length as usize).to_vec();
            tj::tj3Free(buffer.cast());
            tj::tj3Destroy(handle);
            bytes
        }
    }

    pub fn encode(self, rgb: &[u8], width: u32, height: u32) -> Vec<u8> {
        self.encode_as(rgb, width, height, tj::TJPF_TJPF_RGB)
    }
}

/// Decodes a whole JPEG with libjpeg-turbo alone.
pub fn turbo_decode(bytes: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut rgb = vec![0; (width * height * 3) as usize];
    // SAFETY: the handle is new, and the buffer has room for the image.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int);
        let status = tj::tj3Decompress8(
            handle,
            bytes.as_ptr(),
            bytes.len() as tj::size_t,
            rgb.as_mut_ptr(),
            0,
            tj::TJPF_TJPF_RGB as c_int,
        );
        assert_eq!(status, 0);
        tj::tj3Destroy(handle);
    }
    rgb
}
