//! Counts the allocations of ops once their buffers have grown.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests fail by panicking"
)]

#[path = "support/speech.rs"]
mod speech;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use feedstock_ops::image::{View, ViewRows, Views};
use feedstock_ops::text::Tokenize;
use feedstock_ops::{
    Chain, ChainSpec, Noise, RaggedRow, Resources, Result, SampleSeed, Scratch, decode_image,
};
use speech::{golden, tone};

/// Counts this thread's allocations.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: it passes everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of a chain's allocations for its 21st … 40th audio clip.
fn allocations(text: &str, bytes: &[u8]) -> usize {
    let clips = vec![tone(16_000, 9000, 700.0, 0.3), tone(16_000, 90_000, 1900.0, 0.1)];
    let rooms = vec![tone(16_000, 400, 300.0, 0.5), tone(16_000, 70_000, 30.0, 0.5)];
    let resources = Resources::new()
        .with_noise("noise", Noise { sample_rate: 16_000, clips })
        .with_impulse_responses("rooms", Noise { sample_rate: 16_000, clips: rooms });
    let chain = ChainSpec::parse(text).unwrap().compile_with(&resources).unwrap();
    let (mut scratch, mut row) = (Scratch::new(), RaggedRow::new());
    let mut before = 0;
    for sample in 0..40 {
        if sample == 20 {
            before = COUNT.get();
        }
        chain.apply_ragged(bytes, SampleSeed::new(1, 0, sample), &mut scratch, &mut row).unwrap();
    }
    COUNT.get() - before
}

#[test]
fn ops_add_no_allocation_to_the_decoders() {
    let bytes = golden("five_seconds.mp3");
    let decoding = allocations("decode_audio,resample:16000", &bytes);
    assert_eq!(decoding, 0, "at half its rate, an audio clip is decoded in reused buffers");
    for ops in [
        "log_mel:80,spec_augment,utterance_mvn,global_mvn:0:1",
        "mfcc:40,feature_major",
        "time_shift:wrap=false,lowpass_biquad:3400,equalizer_biquad:200..4000:-6..6,g711:a_law,reverb:rooms",
        "trim_silence,random_crop_seconds:3,pad_seconds:3.5,volume,add_noise:noise,speed_perturb,utterance_mvn",
    ] {
        let all = allocations(&format!("decode_audio,resample:16000,{ops}"), &bytes);
        // speed_perturb may draw its longest result late: its buffers then grow once more.
        let growth = if ops.contains("speed_perturb") { 4 } else { 0 };
        assert!(all <= decoding + growth, "{ops}: {all}, {decoding} of them by the decoder");
    }
}

/// The rows of a sample's views.
struct Rows(Vec<Vec<u8>>);

impl ViewRows for Rows {
    fn row(&mut self, view: usize) -> Result<&mut [u8]> {
        Ok(&mut self.0[view])
    }
}

#[test]
fn views_add_no_allocation_to_one_decoder() {
    let bytes = std::fs::read("tests/golden/scene.png").unwrap();
    let crop = |name: &str, size: u32| {
        let ops = format!(
            "random_resized_crop:{size}:filter=bicubic,random_apply:[color_jitter:0.4:0.4],gaussian_blur:5"
        );
        View::new(name, ops.parse::<ChainSpec>().unwrap())
    };
    let allocations = |views: &[View]| {
        let views = Views::compile(&decode_image(), views).unwrap();
        let mut rows = Rows(views.outputs().map(|output| vec![0; output.bytes()]).collect());
        let (mut scratch, mut before) = (Scratch::new(), 0);
        for _ in 0..2 {
            before = COUNT.get(); // in the first round, buffers grow
            for sample in 0..20 {
                views.apply(&bytes, SampleSeed::new(1, 0, sample), &mut scratch, &mut rows).unwrap();
            }
        }
        COUNT.get() - before
    };
    let one = allocations(&[crop("a", 64)]);
    let ten = allocations(&[crop("a", 64), crop("b", 64), crop("c", 32).count(8)]);
    assert!(ten <= one, "{ten} for ten views, {one} for one");
}

/// The library's truncation would make an encoding of each part that it cuts off: here one for each token.
#[test]
fn what_is_cut_off_of_a_text_is_not_allocated() {
    const URI: &str = "s3://models/small/tokenizer.json";
    let (text, op) = ("fox ".repeat(100_000), Tokenize::new(URI).max_tokens(3).truncate(true));
    let resources = Resources::new().with_file(URI, golden("tokenizer.json"));
    let compile = |op: Tokenize| ChainSpec::from([op.into()]).compile_with(&resources).unwrap();
    let (cut, whole) = (compile(op), compile(Tokenize::new(URI)));
    let run = |chain: &Chain| {
        let before = COUNT.get();
        let mut row = RaggedRow::new();
        chain.apply_ragged(text.as_bytes(), SampleSeed::new(1, 0, 0), &mut Scratch::new(), &mut row).unwrap();
        let ids: Vec<i64> =
            row.bytes().chunks_exact(8).map(|x| i64::from_ne_bytes(x.try_into().unwrap())).collect();
        (COUNT.get() - before, ids)
    };
    let ((all, ids), (three, first)) = (run(&whole), run(&cut));
    assert_eq!(first, [ids[0], ids[1], ids[ids.len() - 1]]);
    assert!(three <= all + 100, "{three} allocations for three tokens, {all} for all");
}
