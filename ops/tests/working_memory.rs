//! Measures the memory that chains take while they run, and compares it with their prediction from the header.
//!
//! The test replaces `malloc` itself, because codecs in C do not use Rust's allocator.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests fail by panicking"
)]

#[path = "support/hostile.rs"]
mod hostile;
#[path = "support/mod.rs"]
mod support;

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use feedstock_ops::image::{View, ViewRows, Views};
use feedstock_ops::{ChainSpec, Noise, RaggedRow, Resources, SampleSeed, Scratch};
use support::{Dice, Jpeg, golden, picture};

/// Begins far above 0: memory of other alignments is freed here, but not counted before.
static LIVE: AtomicUsize = AtomicUsize::new(1 << 40);
static PEAK: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(pointer: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(pointer: *mut c_void);
    fn malloc_usable_size(pointer: *mut c_void) -> usize;
}

fn count(pointer: *mut c_void) -> *mut c_void {
    // SAFETY: null or from the functions below.
    let bytes = unsafe { malloc_usable_size(pointer) };
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
    pointer
}

fn forget(pointer: *mut c_void) {
    // SAFETY: null or from the functions below.
    LIVE.fetch_sub(unsafe { malloc_usable_size(pointer) }, Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: no preconditions.
    count(unsafe { __libc_malloc(size) })
}

#[unsafe(no_mangle)]
extern "C" fn calloc(number: usize, size: usize) -> *mut c_void {
    // SAFETY: no preconditions.
    count(unsafe { __libc_calloc(number, size) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(pointer: *mut c_void, size: usize) -> *mut c_void {
    forget(pointer);
    // SAFETY: the caller's contract.
    count(unsafe { __libc_realloc(pointer, size) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(pointer: *mut c_void) {
    forget(pointer);
    // SAFETY: the caller's contract.
    unsafe { __libc_free(pointer) }
}

/// Above this, a prediction is at most [`FACTOR`] times the measurement. Below it, the decoders' fixed parts dominate.
const LARGE_BYTES: u64 = 12 << 20;
const FACTOR: f64 = 2.5;

/// The memory that it takes to read a header and to reject the file.
const REFUSAL_BYTES: u64 = 256 << 10;

/// The rows of a sample's views.
struct Rows(Vec<Vec<u8>>);

impl ViewRows for Rows {
    fn row(&mut self, view: usize) -> feedstock_ops::Result<&mut [u8]> {
        Ok(&mut self.0[view])
    }
}

/// Returns an impulse response that is far longer than a transform.
fn rooms() -> Resources {
    let clips = [200_000].map(|length| (0..length).map(|i| 1.0 / (1 + i) as f32).collect());
    Resources::new().with_impulse_responses("rooms", Noise { sample_rate: 16_000, clips: clips.to_vec() })
}

struct Checked {
    failures: Vec<String>,
    large: usize,
}

impl Checked {
    /// Runs the chain on `bytes` with the memory that it requests, and compares the memory that it takes. An earlier run
    /// allocates the row, so that only working memory is measured.
    fn check(&mut self, name: &str, ops: &str, bytes: &[u8]) {
        let chain = ChainSpec::parse(ops).unwrap().compile_with(&rooms()).unwrap();
        let seed = SampleSeed::new(7, 0, bytes.len() as u64);
        let (mut fixed, mut ragged) = (vec![0; chain.output().bytes()], RaggedRow::new());
        self.check_run(name, ops, &mut |scratch| match chain.output().is_ragged() {
            true => chain.apply_ragged(bytes, seed, scratch, &mut ragged),
            false => chain.apply(bytes, seed, scratch, &mut fixed),
        });
    }

    /// The same for views of an image.
    fn check_views(&mut self, name: &str, decode: &str, views: &[View], bytes: &[u8]) {
        let decode = decode.parse::<ChainSpec>().unwrap().0.remove(0);
        let compiled = Views::compile(&decode, views).unwrap();
        let seed = SampleSeed::new(7, 0, bytes.len() as u64);
        let mut rows = Rows(compiled.outputs().map(|output| vec![0; output.bytes()]).collect());
        let names = views.iter().map(|view| view.name.as_str()).collect::<Vec<_>>().join(" + ");
        self.check_run(name, &names, &mut |scratch| compiled.apply(bytes, seed, scratch, &mut rows));
    }

    fn check_run(
        &mut self,
        name: &str,
        ops: &str,
        run: &mut dyn FnMut(&mut Scratch) -> feedstock_ops::Result<()>,
    ) {
        let unbounded = run(&mut Scratch::new());
        let (mut scratch, mut allowed, mut runs) = (Scratch::new(), 0, 0);
        let outcome = loop {
            scratch.allow(allowed);
            let before = LIVE.load(Relaxed);
            PEAK.store(before, Relaxed);
            let outcome = run(&mut scratch);
            let measured = (PEAK.load(Relaxed) - before) as u64;
            let needed = scratch.take_needed();
            self.compare(
                &format!("{name}, {ops}, run {runs}"),
                measured,
                allowed,
                needed.is_none() && runs == 1,
            );
            match needed {
                None => break outcome,
                Some(needed) => assert!(needed > allowed && runs < 2, "{name}: {needed} after {allowed}"),
            }
            (allowed, runs) = (needed.unwrap_or_default(), runs + 1);
        };
        let text =
            |outcome: &feedstock_ops::Result<()>| outcome.as_ref().map_err(ToString::to_string).copied();
        assert_eq!(text(&outcome), text(&unbounded), "{name}, {ops}");
    }

    /// Compares the measurement with the prediction, which was allowed. `is_usual` is true if the header is right.
    fn compare(&mut self, what: &str, measured: u64, allowed: u64, is_usual: bool) {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!("{what}: {:.1} of {:.1} MiB", mib(measured), mib(allowed));
        // Groups of Huffman codes count with their worst case, six times the size of these.
        let is_large = measured > LARGE_BYTES && is_usual && !what.contains("groups");
        self.large += usize::from(is_large);
        let is_loose = is_large && allowed as f64 > FACTOR * measured as f64;
        if measured > allowed.max(REFUSAL_BYTES) || is_loose {
            self.failures.push(format!("{what}: {measured} bytes measured, {allowed} predicted"));
        }
    }
}

const IMAGE_CHAINS: [&str; 13] = [
    "decode_image,resize:224x224",
    "decode_image:scaled=false,resize:224x224:filter=bicubic",
    "decode_image,random_resized_crop:224:scale=0.05..0.3,horizontal_flip,normalize,to_chw",
    "decode_image:scaled=false,random_resized_crop:224:filter=lanczos",
    "decode_image:exif_orientation=true,resize:600,center_crop:512",
    "decode_image,random_crop:64:pad_if_needed=true,trivial_augment",
    "decode_image,center_crop:3000,rand_augment",
    "decode_image,pad:200:padding_mode=reflect,random_crop:512,random_apply:[gaussian_blur:51:9..9,rotate:30]:1",
    "decode_image,gaussian_blur:23,vertical_flip:1,center_crop:2900",
    "decode_image,rotate:30..60:expand=true,random_crop:512:pad_if_needed=true,normalize",
    "decode_image,random_crop:700:pad_if_needed=true,timm_rand_augment:num_layers=4:probability=1",
    "decode_image:mode=rgba,pad:100,random_crop:512:pad_if_needed=true,rotate:30:interpolation=bilinear",
    "decode_image,resize:900x800,random_apply:[aug_mix]:1,rand_augment",
];

/// Views whose names are their ops: of a training recipe, and those that take most of each buffer.
fn views() -> Vec<(&'static str, Vec<View>)> {
    let view = |ops: &str| View::new(ops, ops.parse::<ChainSpec>().unwrap());
    vec![
        (
            "decode_image",
            vec![
                view("random_resized_crop:224:scale=0.4..1:filter=bicubic,horizontal_flip,normalize,to_chw"),
                view("random_resized_crop:96:scale=0.05..0.4,gaussian_blur:23:2..2").count(8),
            ],
        ),
        (
            "decode_image:exif_orientation=true",
            vec![
                view("resize:64x64"),
                view("center_crop:3000,rotate:20"),
                view("gaussian_blur:23,resize:900:filter=lanczos,center_crop:512").count(2),
                view("pad:200:padding_mode=reflect,random_crop:512"),
            ],
        ),
        (
            "decode_image",
            vec![view(
                "horizontal_flip:0,random_crop:600:pad_if_needed=true,resize:64,resize:2000x2000,to_chw",
            )],
        ),
    ]
}

/// Returns a PNG of these pixels.
fn png(pixels: &[u8], size: (u32, u32), color: png::ColorType, depth: png::BitDepth) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, size.0, size.1);
    encoder.set_color(color);
    encoder.set_depth(depth);
    encoder.set_compression(png::Compression::Fast);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    out
}

fn images() -> Vec<(String, Vec<u8>)> {
    let (width, height) = (2800, 2100);
    let rgb = picture(width, height, 3);
    let jpeg = |jpeg: Jpeg| jpeg.encode(&rgb, width, height);
    let cmyk: Vec<u8> = rgb.chunks(3).flat_map(|rgb| [rgb[0], rgb[1], rgb[2], 200]).collect();
    let mut cut = jpeg(Jpeg::default());
    cut.truncate(cut.len() - 2);
    let mut damaged = jpeg(Jpeg::default());
    let middle = damaged.len() / 2;
    damaged.splice(middle..middle, [0xFF, 0xD0]);
    let deep: Vec<u8> = rgb.iter().flat_map(|value| [*value, 7]).collect();
    let rgba: Vec<u8> = rgb.chunks(3).flat_map(|rgb| [rgb[0], rgb[1], rgb[2], 9]).collect();
    let grey: Vec<u8> = rgb.chunks(3).map(|rgb| rgb[0]).collect();
    let size = (width, height);
    let mut broken = png(&rgb, size, png::ColorType::Rgb, png::BitDepth::Eight);
    let end = broken.len() - 16;
    broken[end] ^= 1; // the image data's checksum
    let webp = |pixels: &[u8], color| {
        let mut out = Vec::new();
        image_webp::WebPEncoder::new(&mut out).encode(pixels, width, height, color).unwrap();
        out
    };
    let made = [
        ("baseline JPEG", jpeg(Jpeg::default())),
        ("progressive JPEG", jpeg(Jpeg { progressive: true, ..Jpeg::default() })),
        ("CMYK JPEG", Jpeg::default().encode_as(&cmyk, width, height, turbojpeg_sys::TJPF_TJPF_CMYK)),
        ("JPEG without its end", cut),
        ("damaged JPEG", damaged),
        ("hostile progressive JPEG", hostile::progressive(2800, 20)),
        ("PNG", png(&rgb, size, png::ColorType::Rgb, png::BitDepth::Eight)),
        ("PNG of 16 bits", png(&deep, size, png::ColorType::Rgb, png::BitDepth::Sixteen)),
        ("PNG with alpha", png(&rgba, size, png::ColorType::Rgba, png::BitDepth::Eight)),
        ("grey PNG", png(&grey, size, png::ColorType::Grayscale, png::BitDepth::Eight)),
        ("damaged PNG", broken),
        ("lossless WebP", webp(&rgb, image_webp::ColorType::Rgb8)),
        ("lossless WebP with alpha", webp(&rgba, image_webp::ColorType::Rgba8)),
        ("WebP of groups", hostile::webp_of_groups(2600)),
        ("WebP of groups of alpha", hostile::webp_alpha_of_groups(2600, false)),
        ("animated WebP of groups", hostile::webp_alpha_of_groups(2600, true)),
    ];
    made.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

/// Returns all files of a golden folder.
fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(format!("tests/golden/{folder}")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let wanted = |name: &String| !["json", "f32", "expected.png"].iter().any(|end| name.ends_with(end));
    names.filter(wanted).map(|name| (name.clone(), golden(&format!("{folder}/{name}")))).collect()
}

const AUDIO_CHAINS: [&str; 6] = [
    "decode_audio",
    "decode_audio,resample:16000",
    "decode_audio,resample:16000,trim_silence,speed_perturb,log_mel:80,spec_augment,feature_major",
    "decode_audio,resample:48000,pad_seconds:60,mfcc:40",
    "decode_audio,resample:16000,random_crop_seconds:1,pad_seconds:1,log_mel:80",
    "decode_audio,resample:16000,time_shift,bass_biquad:6,g711,reverb:rooms",
];

fn clips() -> Vec<(String, Vec<u8>)> {
    let mut clips = files("audio");
    let repeated = |name: &str, times: usize| golden(&format!("audio/{name}")).repeat(times);
    clips.push(("long MP3".to_owned(), repeated("48k_mono_untagged.mp3", 70)));
    clips.push(("MP3 whose header counts a fortieth".to_owned(), repeated("44k_stereo_vbr.mp3", 40)));
    clips.push(("long AAC".to_owned(), repeated("16k_mono.aac", 90)));
    let mut dice = Dice(5);
    let samples: Vec<u8> = (0..4_000_000).flat_map(|_| (dice.next() as i16).to_le_bytes()).collect();
    let mut wav = golden("audio/8k_s16.wav");
    wav.truncate(44);
    wav.extend(&samples);
    let size = (wav.len() as u32 - 44).to_le_bytes();
    wav[40..44].copy_from_slice(&size);
    clips.push(("long WAV".to_owned(), wav));
    // A FLAC whose header states a tenth of its samples.
    let mut liar = golden("audio/44k_stereo.flac");
    let packed = u64::from_be_bytes(liar[18..26].try_into().unwrap());
    let fewer = packed & !0xF_FFFF_FFFF | ((packed & 0xF_FFFF_FFFF) / 10);
    liar[18..26].copy_from_slice(&fewer.to_be_bytes());
    clips.push(("lying FLAC".to_owned(), liar));
    clips.push(("Vorbis of codebooks".to_owned(), hostile::vorbis_of_codebooks(60)));
    clips.push(("hostile MP3".to_owned(), hostile::mp3_headers_and_padding(1 << 20)));
    clips.push(("hostile M4A".to_owned(), hostile::mp4_of_durations(200_000, 1, 1)));
    clips
}

/// Returns an MP3 whose tag counts `frames` frames, far more than the file has.
fn mp3_counting(frames: u32) -> Vec<u8> {
    let mut mp3 = golden("audio/44k_stereo_vbr.mp3");
    let tag = mp3.windows(4).position(|four| four == b"Xing" || four == b"Info").unwrap();
    assert_eq!(mp3[tag + 7] & 1, 1, "the tag has a count");
    mp3[tag + 8..tag + 12].copy_from_slice(&frames.to_be_bytes());
    mp3
}

/// One test, since others would allocate at the same time.
#[test]
fn no_chain_takes_more_than_was_predicted_of_it() {
    let mut checked = Checked { failures: Vec::new(), large: 0 };
    for (name, bytes) in images().into_iter().chain(files("decode")) {
        // Hostile files take seconds with any chain.
        let is_slow = ["hostile", "groups"].iter().any(|word| name.contains(word));
        let chains = &IMAGE_CHAINS[..if is_slow { 2 } else { IMAGE_CHAINS.len() }];
        chains.iter().for_each(|ops| checked.check(&name, ops, &bytes));
        for (decode, views) in &views()[..if is_slow { 1 } else { 2 }] {
            checked.check_views(&name, decode, views, &bytes);
        }
    }
    for (name, bytes) in clips() {
        AUDIO_CHAINS.iter().for_each(|ops| checked.check(&name, ops, &bytes));
    }
    // The frames that are missing become silence, if the op allows it.
    for ops in ["decode_audio", "decode_audio:max_lost_share=0.9", "decode_audio:max_lost_share=1"] {
        checked.check("MP3 whose tag counts 8000 frames", ops, &mp3_counting(8000));
    }
    let text = "a text of some words, as a transcript may have them; ".repeat(20_000);
    checked.check("text", "tokenize_chars:\"abcdefghijklmnopqrstuvwxyz ,;\"", text.as_bytes());
    assert!(checked.failures.is_empty(), "{:#?}", checked.failures);
    assert!(checked.large > 60, "{} large ones", checked.large);
}
