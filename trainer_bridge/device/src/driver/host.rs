//! Host memory as a device, which every machine has. Every call does its work at once. The kernels here define what
//! `kernels/finish.cu` computes, and run on machines without a GPU.

use super::{Decoder, Driver};
use crate::element::Real;
use crate::handles::{Address, EventId, HostAddress, StreamId};
use crate::kernels::half::{bf16_bits, f16_bits};
use crate::kernels::{
    BY_DATA_SET, BY_UTTERANCE, CHUNK_FRAMES, CropArguments, CropRow, FeatureArguments, Launch, Mask,
    PictureArguments, PictureRow,
};
use crate::place::Place;
use feedstock_base::{Error, ErrorKind, PAGE_BYTES, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// Host memory as a device: every call finishes its work before it returns.
#[derive(Default)]
pub struct Host {
    /// The layouts of all allocations.
    sizes: Mutex<HashMap<usize, Layout>>,
}

impl Host {
    fn take(&self, bytes: usize) -> Result<NonNull<u8>> {
        let none = || Error::new(ErrorKind::BadConfig, format!("no memory for {bytes} bytes of a batch"));
        let layout = Layout::from_size_align(bytes.max(1), PAGE_BYTES).map_err(|_| none())?;
        // SAFETY: the size is not 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(none)?;
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        sizes.insert(memory.addr().get(), layout);
        Ok(memory)
    }

    /// # Safety
    /// As [`Driver::free`].
    unsafe fn give(&self, address: usize) {
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layout) = sizes.remove(&address) {
            // SAFETY: allocated by `take` with this layout. The caller frees it once.
            unsafe { dealloc(std::ptr::with_exposed_provenance_mut(address), layout) };
        }
    }
}

/// Returns a pointer to `address` in host memory.
pub(super) fn pointer<T>(address: Address) -> *mut T {
    #[expect(clippy::cast_possible_truncation, reason = "an address of this machine")]
    std::ptr::with_exposed_provenance_mut(address.0 as usize)
}

impl Driver for Host {
    fn place(&self) -> Place {
        Place::Host
    }

    fn adopt_thread(&self) -> Result<()> {
        Ok(())
    }

    fn allocate_host(&self, bytes: usize) -> Result<HostAddress> {
        self.take(bytes).map(HostAddress)
    }

    unsafe fn free_host(&self, memory: HostAddress) {
        // SAFETY: the caller's contract.
        unsafe { self.give(memory.0.addr().get()) }
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.take(bytes).map(|memory| Address(memory.as_ptr().expose_provenance() as u64))
    }

    unsafe fn free(&self, memory: Address) {
        // SAFETY: the caller's contract.
        unsafe { self.give(pointer::<u8>(memory).addr()) }
    }

    fn load_kernels(&self) -> Result<()> {
        Ok(())
    }

    fn load_decoder(&self) -> Result<()> {
        self.new_decoder().map(drop)
    }

    fn new_decoder(&self) -> Result<Box<dyn Decoder>> {
        Err(Error::new(ErrorKind::Bug, "host memory has no decoder: CPUs decode earlier"))
    }

    fn new_stream(&self, _: bool) -> Result<StreamId> {
        Ok(StreamId(0))
    }

    fn check_stream(&self, _: StreamId) -> Result<()> {
        Ok(())
    }

    unsafe fn free_stream(&self, _: StreamId) {}

    fn new_event(&self) -> Result<EventId> {
        Ok(EventId(0))
    }

    unsafe fn free_event(&self, _: EventId) {}

    fn record(&self, _: EventId, _: StreamId) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _: StreamId, _: EventId) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self, _: EventId) -> Result<()> {
        Ok(())
    }

    fn synchronize_stream(&self, _: StreamId) -> Result<()> {
        Ok(())
    }

    fn is_capturing(&self, _: StreamId) -> Result<bool> {
        Ok(false)
    }

    unsafe fn copy_in(&self, to: Address, from: HostAddress, bytes: usize, _: StreamId) -> Result<()> {
        // SAFETY: the caller's contract: both are valid for `bytes` bytes, and nothing else uses the target.
        unsafe { std::ptr::copy_nonoverlapping(from.0.as_ptr(), pointer(to), bytes) };
        Ok(())
    }

    unsafe fn copy_within(&self, to: Address, from: Address, bytes: usize, _: StreamId) -> Result<()> {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(pointer::<u8>(from), pointer(to), bytes) };
        Ok(())
    }

    unsafe fn copy_out(&self, to: &mut [u8], from: Address, _: StreamId) -> Result<()> {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(pointer::<u8>(from), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch, _: StreamId) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { run(launch) };
        Ok(())
    }
}

/// Runs a kernel on host memory.
///
/// # Safety
/// As [`Driver::launch`]. The arguments' addresses are in host memory.
pub(super) unsafe fn run(launch: &Launch) {
    // SAFETY: the caller's contract.
    unsafe {
        match launch {
            Launch::Crops(a) => crops(a),
            Launch::Pictures { real, planes, arguments } => pictures(*real, *planes, arguments),
            Launch::FeatureChunks(a) => feature_chunks(a),
            Launch::FeatureStatistics(a) => feature_statistics(a),
            Launch::FeatureRowMeans(a) => feature_row_means(a),
            Launch::Features { real, arguments } => features(*real, arguments),
        }
    }
}

/// # Safety
/// `count` elements are stored there. Nothing writes or frees them while the slice is used.
unsafe fn values<'a, T>(address: Address, count: usize) -> &'a [T] {
    match address == Address::NULL || count == 0 {
        true => &[],
        // SAFETY: the caller's contract.
        false => unsafe { std::slice::from_raw_parts(pointer::<T>(address), count) },
    }
}

/// # Safety
/// As [`values`], and nothing else reads them.
unsafe fn values_mut<'a, T>(address: Address, count: usize) -> &'a mut [T] {
    match address == Address::NULL || count == 0 {
        true => &mut [],
        // SAFETY: the caller's contract.
        false => unsafe { std::slice::from_raw_parts_mut(pointer::<T>(address), count) },
    }
}

fn put(real: Real, out: &mut [u8], index: usize, value: f32) {
    match real {
        Real::F32 => out[index * 4..index * 4 + 4].copy_from_slice(&value.to_ne_bytes()),
        Real::F16 => out[index * 2..index * 2 + 2].copy_from_slice(&f16_bits(value).to_ne_bytes()),
        Real::BF16 => out[index * 2..index * 2 + 2].copy_from_slice(&bf16_bits(value).to_ne_bytes()),
    }
}

/// The source pixels of a result pixel, and the triangle that weights them: Pillow's antialiased bilinear filter.
struct Triangle {
    center: f64,
    narrow: f64,
    pixels: std::ops::Range<u32>,
    total: f32,
}

impl Triangle {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 0 … limit")]
    fn new([first, length]: [f64; 2], count: u32, limit: u32, index: u32) -> Self {
        let scale = length / f64::from(count);
        let wide = if scale < 1.0 { 1.0 } else { scale };
        let center = first + (f64::from(index) + 0.5) * scale;
        let (from, to) = (center - wide + 0.5, center + wide + 0.5);
        let pixels = (if from > 0.0 { from as u32 } else { 0 })..(if to < f64::from(limit) {
            to as u32
        } else {
            limit
        });
        let mut this = Self { center, narrow: 1.0 / wide, pixels, total: 0.0 };
        this.total = this.pixels.clone().fold(0.0, |total, at| total + this.weight(at));
        this
    }

    fn weight(&self, at: u32) -> f32 {
        let apart = ((f64::from(at) - self.center + 0.5) * self.narrow).abs();
        if apart < 1.0 { single(1.0 - apart) } else { 0.0 }
    }
}

/// Rounds a level and clamps it to 255, to be stored.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a level, never negative")]
fn whole_level(value: f32) -> u8 {
    (value + 0.5) as u8
}

unsafe fn crops(a: &CropArguments) {
    // SAFETY: the caller's contract: `count` crops are stored there.
    let list = unsafe { values::<CropRow>(a.crops, a.count as usize) };
    for crop in list {
        let [view_left, view_top, view_width, view_height] = crop.view;
        let [left, top, width, height] = crop.window;
        let source = a.arena.0 + crop.source;
        let level = |x: u32, y: u32, c: u32| {
            let at = u64::from(view_top + y) * u64::from(crop.stride) + u64::from(view_left + x) * 3;
            // SAFETY: the caller's contract: the view is within the image.
            f32::from(unsafe { *pointer::<u8>(Address(source + at + u64::from(c))) })
        };
        for (y, x) in (0..a.height).flat_map(|y| (0..a.width).map(move |x| (y, x))) {
            let down = Triangle::new([top, height], a.height, view_height, y);
            let along = Triangle::new([left, width], a.width, view_width, x);
            let to_x = if crop.mirrored != 0 { a.width - 1 - x } else { x };
            let to_y = if crop.upended != 0 { a.height - 1 - y } else { y };
            for c in 0..3 {
                let column = |at: u32| {
                    let sum = down.pixels.clone().fold(0.0, |sum, y| sum + level(at, y, c) * down.weight(y));
                    f32::from(whole_level(sum / down.total))
                };
                let sum = along.pixels.clone().fold(0.0, |sum, at| sum + column(at) * along.weight(at));
                let pixel = (u64::from(crop.row) * u64::from(a.height) + u64::from(to_y))
                    * u64::from(a.width)
                    + u64::from(to_x);
                let to = Address(a.output.0 + pixel * 3 + u64::from(c));
                // SAFETY: the caller's contract: the row is stored there, and nothing else uses it.
                unsafe { *pointer::<u8>(to) = whole_level(sum / along.total) };
            }
        }
    }
}

unsafe fn pictures(real: Real, planes: bool, a: &PictureArguments) {
    let [rows, height, width] = [a.rows as usize, a.height as usize, a.width as usize];
    let pixels = height * width;
    // SAFETY: the caller's contract: each address has `rows` rows.
    let (input, plan, out) = unsafe {
        (
            values::<u8>(a.input, rows * pixels * 3),
            values::<PictureRow>(a.plan, rows),
            values_mut::<u8>(a.output, rows * pixels * 3 * real.bytes()),
        )
    };
    let value = |row: usize, y: usize, x: usize, c: usize| {
        let x = if plan[row].mirrored != 0 { width - 1 - x } else { x };
        f32::from(input[(row * pixels + y * width + x) * 3 + c]) * a.scale[c] + a.bias[c]
    };
    for (row, mix) in plan.iter().enumerate() {
        let ([top, left, bottom, right], partner) = (mix.cut.map(|side| side as usize), mix.partner as usize);
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let cut = (top..bottom).contains(&y) && (left..right).contains(&x);
            for c in 0..3 {
                let mut made = value(row, y, x, c);
                if partner != row {
                    let other = value(partner, y, x, c);
                    made = if cut { other } else { made * mix.weight + other * (1.0 - mix.weight) };
                }
                let pixel = y * width + x;
                let index =
                    if planes { (row * 3 + c) * pixels + pixel } else { (row * pixels + pixel) * 3 + c };
                put(real, out, index, made);
            }
        }
    }
}

/// The sizes of a column of features, and the layout of its elements.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    frames: usize,
    features: usize,
    chunks: usize,
    feature_major: bool,
}

impl Sizes {
    fn of(a: &FeatureArguments) -> Self {
        Self {
            rows: a.rows as usize,
            frames: a.frames as usize,
            features: a.features as usize,
            chunks: a.chunk_count as usize,
            feature_major: a.feature_major != 0,
        }
    }

    fn elements(self) -> usize {
        self.rows * self.frames * self.features
    }

    fn at(self, row: usize, frame: usize, feature: usize) -> usize {
        let inside =
            if self.feature_major { feature * self.frames + frame } else { frame * self.features + feature };
        row * self.frames * self.features + inside
    }

    /// Returns the frames of this chunk in a row of `length` frames.
    fn chunk(chunk: usize, length: u32) -> std::ops::Range<usize> {
        let begin = chunk * CHUNK_FRAMES as usize;
        begin..(begin + CHUNK_FRAMES as usize).min(length as usize).max(begin)
    }
}

unsafe fn feature_chunks(a: &FeatureArguments) {
    let sizes = Sizes::of(a);
    // SAFETY: the caller's contract.
    let (input, lengths, out) = unsafe {
        (
            values::<f32>(a.input, sizes.elements()),
            values::<u32>(a.lengths, sizes.rows),
            values_mut::<[f64; 2]>(a.chunks, sizes.rows * sizes.chunks * sizes.features),
        )
    };
    for (row, length) in lengths.iter().enumerate() {
        for (chunk, feature) in (0..sizes.chunks).flat_map(|c| (0..sizes.features).map(move |f| (c, f))) {
            let frames = Sizes::chunk(chunk, *length);
            let of = |frame: usize| f64::from(input[sizes.at(row, frame, feature)]);
            let total = |terms: f64, term: f64| terms + term; // from +0, as in the kernels: `sum` begins at −0
            let sum = frames.clone().map(of).fold(0.0, total);
            let mean = if frames.is_empty() { 0.0 } else { sum / frames.len() as f64 };
            let squares = frames.map(|frame| (of(frame) - mean) * (of(frame) - mean)).fold(0.0, total);
            out[(row * sizes.chunks + chunk) * sizes.features + feature] = [sum, squares];
        }
    }
}

unsafe fn feature_statistics(a: &FeatureArguments) {
    let sizes = Sizes::of(a);
    // SAFETY: the caller's contract.
    let (chunks, lengths, out) = unsafe {
        (
            values::<[f64; 2]>(a.chunks, sizes.rows * sizes.chunks * sizes.features),
            values::<u32>(a.lengths, sizes.rows),
            values_mut::<[f64; 2]>(a.stats, sizes.rows * sizes.features),
        )
    };
    for (row, length) in lengths.iter().enumerate() {
        for feature in 0..sizes.features {
            let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
            for chunk in (0..sizes.chunks).filter(|chunk| !Sizes::chunk(*chunk, *length).is_empty()) {
                let [sum, apart_squares] = chunks[(row * sizes.chunks + chunk) * sizes.features + feature];
                let more = Sizes::chunk(chunk, *length).len() as f64;
                let apart: f64 = sum / more - mean;
                squares += apart_squares + apart * apart * count * more / (count + more);
                mean += apart * more / (count + more);
                count += more;
            }
            let divides = a.normalize_vars != 0 && count > 0.0;
            let scale = if divides { 1.0 / (squares / count + a.epsilon).sqrt() } else { 1.0 };
            out[row * sizes.features + feature] = [mean, scale];
        }
    }
}

unsafe fn feature_row_means(a: &FeatureArguments) {
    let sizes = Sizes::of(a);
    // SAFETY: the caller's contract.
    let (stats, scales, out) = unsafe {
        (
            values::<[f64; 2]>(a.stats, sizes.rows * sizes.features),
            values::<[f32; 2]>(a.scales, sizes.features),
            values_mut::<f32>(a.row_means, sizes.rows),
        )
    };
    for (mean, stats) in out.iter_mut().zip(stats.chunks_exact(sizes.features)) {
        let of = |(feature, [mean, _]): (usize, &[f64; 2])| match a.normalize {
            BY_UTTERANCE => 0.0,
            BY_DATA_SET => mean * f64::from(scales[feature][0]) + f64::from(scales[feature][1]),
            _ => *mean,
        };
        *mean = single(stats.iter().enumerate().map(of).sum::<f64>() / sizes.features as f64);
    }
}

unsafe fn features(real: Real, a: &FeatureArguments) {
    let sizes = Sizes::of(a);
    // SAFETY: the caller's contract.
    let (input, lengths, stats, scales, row_means, masks, out) = unsafe {
        (
            values::<f32>(a.input, sizes.elements()),
            values::<u32>(a.lengths, sizes.rows),
            values::<[f64; 2]>(a.stats, sizes.rows * sizes.features),
            values::<[f32; 2]>(a.scales, sizes.features),
            values::<f32>(a.row_means, sizes.rows),
            values::<Mask>(a.masks, sizes.rows * a.masks_per_row as usize),
            values_mut::<u8>(a.output, sizes.elements() * real.bytes()),
        )
    };
    for row in 0..sizes.rows {
        let masks = &masks[row * a.masks_per_row as usize..][..a.masks_per_row as usize];
        for (frame, feature) in (0..sizes.frames).flat_map(|t| (0..sizes.features).map(move |f| (t, f))) {
            let at = sizes.at(row, frame, feature);
            let mut value = input[at];
            if frame < lengths[row] as usize {
                value = match a.normalize {
                    BY_UTTERANCE => {
                        let [mean, scale] = stats[row * sizes.features + feature];
                        single((f64::from(value) - mean) * scale)
                    }
                    BY_DATA_SET => value * scales[feature][0] + scales[feature][1],
                    _ => value,
                };
                let masked = masks.iter().any(|mask| {
                    let along = if mask.is_time == 0 { feature } else { frame };
                    (mask.start as usize..mask.end as usize).contains(&along)
                });
                if masked {
                    value = if a.mask_with_mean == 0 { a.mask_value } else { row_means[row] };
                }
            }
            put(real, out, at, value);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "to single precision, once")]
fn single(value: f64) -> f32 {
    value as f32
}
