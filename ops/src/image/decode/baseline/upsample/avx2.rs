//! Rows of pixels on AVX2, 32 pixels at a time in 16-bit lanes.
//!
//! Even and odd pixels stay in separate vectors until the end: a sample's two pixels come out of the triangle filter
//! like that, 32 bytes of luma fall into them with a mask and a shift, and the shuffle that interleaves the channels
//! brings the pixels together again at no cost.

use std::arch::x86_64::*;

use super::arithmetic::{Arithmetic, Row, Sums, plain_sum};

/// Pixels at a time, and the chroma samples that they take at half the columns.
const PIXELS: usize = 32;
const SAMPLES: usize = PIXELS / 2;
/// Samples with one of context on each side.
const CONTEXT: usize = SAMPLES + 2;
const BYTES: usize = PIXELS * 3;

/// Even and odd pixels, 16 bits each.
type Pixels = [__m256i; 2];

/// Proof that there is AVX2: where it is not known, none can be made.
pub(super) struct Lanes(());

impl Lanes {
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn new() -> Self {
        Self(())
    }
}

impl Arithmetic for Lanes {
    #[inline(always)]
    fn sum(&self, near: &[u8], far: Option<&[u8]>, sums: &mut [u16]) {
        // SAFETY: the feature is there, or this were not.
        unsafe { sum(near, far, sums) }
    }

    #[inline(always)]
    fn write(&mut self, row: Row<'_>, out: &mut [u8]) {
        // SAFETY: as above.
        unsafe { write(row, out) }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn sum(near: &[u8], far: Option<&[u8]>, sums: &mut [u16]) {
    if near.len() < SAMPLES {
        return plain_sum(near, far, sums);
    }
    if let Some(far) = far {
        for start in starts::<SAMPLES>(near.len()) {
            let (near, far) = (load_samples(part(near, start)), load_samples(part(far, start)));
            let sum = _mm256_add_epi16(_mm256_add_epi16(near, near), _mm256_add_epi16(near, far));
            store_sums(part_mut(sums, start), sum);
        }
    } else {
        for start in starts::<SAMPLES>(near.len()) {
            store_sums(part_mut(sums, start), load_samples(part(near, start)));
        }
    }
}

/// Writes a row of pixels.
#[target_feature(enable = "avx2")]
#[inline]
fn write(row: Row<'_>, out: &mut [u8]) {
    if out.len() >= BYTES {
        return write_wide(row, out);
    }
    let (mut rgb, width) = ([0; BYTES], out.len() / 3);
    match row {
        Row::Grey { luma } => write_wide(Row::Grey { luma: &padded(luma) }, &mut rgb),
        Row::Full { luma, cb, cr } => {
            write_wide(Row::Full { luma: &padded(luma), cb: &padded(cb), cr: &padded(cr) }, &mut rgb);
        }
        // The padding after the sums is enough.
        Row::Halved { luma, cb, cr, sums } => {
            write_wide(Row::Halved { luma: &padded(luma), cb, cr, sums }, &mut rgb);
        }
    }
    out.copy_from_slice(&rgb[..width * 3]);
}

fn padded(samples: &[u8]) -> [u8; PIXELS] {
    let mut out = [0; PIXELS];
    out[..samples.len()].copy_from_slice(samples);
    out
}

/// Writes a row of at least 32 pixels.
#[target_feature(enable = "avx2")]
#[inline]
fn write_wide(row: Row<'_>, out: &mut [u8]) {
    match row {
        Row::Grey { luma } => {
            for start in starts::<PIXELS>(luma.len()) {
                let [even, odd] = split(part(luma, start));
                let luma = _mm256_packus_epi16(even, odd);
                interleave(luma, luma, luma, part_mut(out, start * 3));
            }
        }
        Row::Full { luma, cb, cr } => {
            for start in starts::<PIXELS>(luma.len()) {
                let (cb, cr) = (centred(part(cb, start)), centred(part(cr, start)));
                to_rgb(split(part(luma, start)), cb, cr, part_mut(out, start * 3));
            }
        }
        Row::Halved { luma, cb, cr, sums: Sums { odd, of_two_rows: true } } => {
            write_halved::<true>(luma, cb, cr, odd, out);
        }
        Row::Halved { luma, cb, cr, sums: Sums { odd, of_two_rows: false } } => {
            write_halved::<false>(luma, cb, cr, odd, out);
        }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn write_halved<const OF_TWO_ROWS: bool>(luma: &[u8], cb: &[u16], cr: &[u16], odd: bool, out: &mut [u8]) {
    for start in starts::<PIXELS>(luma.len()) {
        let at = start + usize::from(odd);
        let (cb, cr, odd) = (part(cb, at / 2), part(cr, at / 2), at % 2 == 1);
        let (cb, cr) = (widen::<OF_TWO_ROWS>(cb, odd), widen::<OF_TWO_ROWS>(cr, odd));
        to_rgb(split(part(luma, start)), cb, cr, part_mut(out, start * 3));
    }
}

/// Where parts of a row start; the last overlaps the one before it as far as it must.
#[inline(always)]
fn starts<const LENGTH: usize>(width: usize) -> impl Iterator<Item = usize> {
    (0..width.div_ceil(LENGTH)).map(move |part| (part * LENGTH).min(width - LENGTH))
}

#[inline(always)]
fn part<T, const LENGTH: usize>(of: &[T], start: usize) -> &[T; LENGTH] {
    let (parts, _) = of[start..start + LENGTH].as_chunks();
    &parts[0]
}

#[inline(always)]
fn part_mut<T, const LENGTH: usize>(of: &mut [T], start: usize) -> &mut [T; LENGTH] {
    let (parts, _) = of[start..start + LENGTH].as_chunks_mut();
    &mut parts[0]
}

#[target_feature(enable = "avx2")]
#[inline]
fn words(value: i16) -> __m256i {
    _mm256_set1_epi16(value)
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 bytes are read from an array of 32.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 16 sums from the `at`th on.
#[target_feature(enable = "avx2")]
#[inline]
fn load_sums(sums: &[u16; CONTEXT], at: usize) -> __m256i {
    let sums = &sums[at..at + SAMPLES];
    // SAFETY: 32 bytes are read from a slice of 16 u16.
    unsafe { _mm256_loadu_si256(sums.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load_samples(samples: &[u8; SAMPLES]) -> __m256i {
    // SAFETY: 16 bytes are read from an array of 16.
    _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(samples.as_ptr().cast()) })
}

#[target_feature(enable = "avx2")]
#[inline]
fn store_sums(sums: &mut [u16; SAMPLES], value: __m256i) {
    // SAFETY: 32 bytes are written to an array of 16 u16.
    unsafe { _mm256_storeu_si256(sums.as_mut_ptr().cast(), value) };
}

#[target_feature(enable = "avx2")]
#[inline]
fn split(bytes: &[u8; PIXELS]) -> Pixels {
    let bytes = load(bytes);
    [_mm256_and_si256(bytes, words(0xFF)), _mm256_srli_epi16::<8>(bytes)]
}

/// Whole chroma samples, less 128.
#[target_feature(enable = "avx2")]
#[inline]
fn centred(samples: &[u8; PIXELS]) -> Pixels {
    let [even, odd] = split(samples);
    [_mm256_sub_epi16(even, words(128)), _mm256_sub_epi16(odd, words(128))]
}

/// The triangle filter along the row, less 128; `odd` where the first pixel is the second of its sample (`sums[1]`).
#[target_feature(enable = "avx2")]
#[inline]
fn widen<const OF_TWO_ROWS: bool>(sums: &[u16; CONTEXT], odd: bool) -> Pixels {
    let (before, here, after) = (load_sums(sums, 0), load_sums(sums, 1), load_sums(sums, 2));
    // 3·near + far, rounded: with what is to be taken off, (v − 128·16 + 8) >> 4 is ((v + 8) >> 4) − 128.
    let weigh = |near, far, first_of_two| {
        let sum = _mm256_add_epi16(_mm256_add_epi16(near, near), _mm256_add_epi16(near, far));
        if OF_TWO_ROWS {
            let rounding = if first_of_two { 8 } else { 7 };
            _mm256_srai_epi16::<4>(_mm256_add_epi16(sum, words(rounding - 128 * 16)))
        } else {
            let rounding = if first_of_two { 1 } else { 2 };
            _mm256_srai_epi16::<2>(_mm256_add_epi16(sum, words(rounding - 128 * 4)))
        }
    };
    if odd {
        [weigh(here, after, false), weigh(after, here, true)]
    } else {
        [weigh(here, before, true), weigh(here, after, false)]
    }
}

/// JFIF's YCbCr → RGB, chroma less 128.
#[target_feature(enable = "avx2")]
#[inline]
fn to_rgb(luma: Pixels, cb: Pixels, cr: Pixels, out: &mut [u8; BYTES]) {
    let channel =
        |even, odd| _mm256_packus_epi16(_mm256_add_epi16(luma[0], even), _mm256_add_epi16(luma[1], odd));
    let red = channel(red(cr[0]), red(cr[1]));
    let green = channel(green(cb[0], cr[0]), green(cb[1], cr[1]));
    let blue = channel(blue(cb[0]), blue(cb[1]));
    interleave(red, green, blue, out);
}

/// (91 881·cr + 2¹⁵) >> 16. `mulhrs` gives (a·b + 2¹⁴) >> 15, and half of 91 881 − 2¹⁶ is 13 172½: that the half more
/// changes none of the 256 results was tried.
#[target_feature(enable = "avx2")]
#[inline]
fn red(cr: __m256i) -> __m256i {
    _mm256_add_epi16(cr, _mm256_mulhrs_epi16(cr, words(13_173)))
}

/// (116 130·cb + 2¹⁵) >> 16, where 116 130 = 2·2¹⁶ − 2·7471.
#[target_feature(enable = "avx2")]
#[inline]
fn blue(cb: __m256i) -> __m256i {
    _mm256_add_epi16(_mm256_add_epi16(cb, cb), _mm256_mulhrs_epi16(cb, words(-7471)))
}

/// (−22 554·cb − 46 802·cr + 2¹⁵) >> 16: with both halved the sum of 32 bits is to be divided by 2¹⁵ and rounded; 14 of
/// these bits go now, the last, with the rounding, in `mulhrs` by a half.
#[target_feature(enable = "avx2")]
#[inline]
fn green(cb: __m256i, cr: __m256i) -> __m256i {
    let weights = _mm256_unpacklo_epi16(words(-11_277), words(-23_401));
    let sum = |pairs| _mm256_srai_epi32::<14>(_mm256_madd_epi16(pairs, weights));
    let (low, high) = (sum(_mm256_unpacklo_epi16(cb, cr)), sum(_mm256_unpackhi_epi16(cb, cr)));
    _mm256_mulhrs_epi16(_mm256_packs_epi32(low, high), words(1 << 14))
}

/// Where a lane's 16 samples of a channel, even pixels before odd ones, go among its 48 bytes: (3·pixel + channel)
/// modulo 16 is another for each.
const fn places(channel: usize) -> [u8; 32] {
    let mut places = [0; 32];
    let mut pixel = 0_u8;
    while pixel < 16 {
        let place = (3 * pixel as usize + channel) % 16;
        places[place] = pixel / 2 + 8 * (pixel % 2);
        places[place + 16] = places[place];
        pixel += 1;
    }
    places
}

/// Every third byte of a lane, from the `first` on.
const fn thirds(first: usize) -> [u8; 32] {
    let mut bytes = [0; 32];
    let mut at = first;
    while at < 16 {
        bytes[at] = 0xFF;
        bytes[at + 16] = 0xFF;
        at += 3;
    }
    bytes
}

/// Stores 32 pixels; in each lane of a channel even pixels stand before odd ones.
#[target_feature(enable = "avx2")]
#[inline]
fn interleave(red: __m256i, green: __m256i, blue: __m256i, out: &mut [u8; BYTES]) {
    const PLACES: [[u8; 32]; 3] = [places(0), places(1), places(2)];
    const THIRDS: [[u8; 32]; 3] = [thirds(0), thirds(1), thirds(2)];
    let red = _mm256_shuffle_epi8(red, load(&PLACES[0]));
    let green = _mm256_shuffle_epi8(green, load(&PLACES[1]));
    let blue = _mm256_shuffle_epi8(blue, load(&PLACES[2]));
    // Byte p of a lane's kth 16 bytes is of channel (k + p) modulo 3.
    let sixteen = |k: usize| {
        let two = _mm256_blendv_epi8(red, green, load(&THIRDS[(4 - k) % 3]));
        _mm256_blendv_epi8(two, blue, load(&THIRDS[(5 - k) % 3]))
    };
    let (a, b, c) = (sixteen(0), sixteen(1), sixteen(2));
    let stores = [
        _mm256_permute2x128_si256::<0x20>(a, b),
        _mm256_blend_epi32::<0b1111_0000>(c, a),
        _mm256_permute2x128_si256::<0x31>(b, c),
    ];
    let (out, _) = out.as_chunks_mut::<32>();
    for (out, value) in out.iter_mut().zip(stores) {
        // SAFETY: 32 bytes are written to an array of 32.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), value) };
    }
}
