//! Compiles `finish.cu` for the host with `shim.h`, and checks that it makes the same bytes as the definition in `host.rs`.
//! A GPU differs in the compiler and in the conversion to half precision, which is one instruction there.

use super::grid::BLOCK_THREADS;
use crate::driver::host;
use crate::element::Real;
use crate::handles::Address;
use crate::kernels::{
    BY_DATA_SET, BY_UTTERANCE, CropArguments, CropRow, FeatureArguments, Launch, Mask, PictureArguments,
    PictureRow,
};
use feedstock_ops::{Generator, SampleSeed};
use libloading::Library;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const REALS: [Real; 3] = [Real::F32, Real::F16, Real::BF16];

/// The kernels as functions of (arguments, blocks in x, blocks in y, threads).
struct Shimmed {
    library: Library,
    _dir: tempfile::TempDir,
}

impl Shimmed {
    fn compile() -> Option<Self> {
        let named = std::env::var("CXX").ok();
        let compilers = named.as_deref().into_iter().chain(["c++", "g++", "clang++"]);
        let works = |compiler: &&str| Command::new(compiler).arg("--version").output().is_ok();
        let Some(compiler) = compilers.into_iter().find(works) else {
            println!(
                "SKIPPED: no C++ compiler (CXX, c++, g++ or clang++), so finish.cu is not run on the host"
            );
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let sources = Path::new("src/kernels").canonicalize().unwrap();
        let mut program = "#include \"shim.h\"\n#include \"finish.cu\"\n".to_owned();
        for name in entries() {
            writeln!(
                program,
                "extern \"C\" void run_{name}(const void* a, u32 x, u32 y, u32 t) {{ run_grid({name}, a, x, y, t); }}"
            )
            .unwrap();
        }
        let (source, library) = (dir.path().join("shimmed.cpp"), dir.path().join("shimmed.so"));
        std::fs::write(&source, program).unwrap();
        let output = Command::new(compiler)
            .args(["-std=c++17", "-O1", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-ffp-contract=off"])
            .args(["-shared", "-fPIC", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-I"])
            .arg(&sources)
            .arg(&source)
            .arg("-o")
            .arg(&library)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // SAFETY: just built, without initialisers.
        let library = unsafe { Library::new(&library) }.unwrap();
        Some(Self { library, _dir: dir })
    }

    fn run(&self, launch: &Launch) {
        type Run = unsafe extern "C" fn(*const std::ffi::c_void, u32, u32, u32);
        let grid = launch.grid();
        // SAFETY: the function has this type. The arguments have the layout of the kernel's and point to memory of these tests.
        unsafe {
            let run = self.library.get::<Run>(format!("run_{}", launch.entry()).as_bytes()).unwrap();
            run(launch.arguments(), grid.x, grid.y, BLOCK_THREADS);
        }
    }
}

fn entries() -> Vec<String> {
    let mut names = Vec::new();
    for real in ["f32", "f16", "bf16"] {
        names.extend(
            ["planes", "last"]
                .into_iter()
                .flat_map(|layout| [8, 4, 1].map(|pixels| format!("pictures_{real}_{layout}_{pixels}"))),
        );
        names.extend([4, 1].map(|neighbours| format!("features_{real}_{neighbours}")));
    }
    names.retain(|name| name != "pictures_f32_last_8"); // words too far apart: see grid.rs
    names.extend(["crops", "pictures_f32_last_words"].map(str::to_owned));
    names.extend(["feature_chunks", "feature_statistics", "feature_row_means"].map(str::to_owned));
    names
}

/// Memory that kernels may write, aligned as on a device.
#[derive(Clone)]
struct Block(Vec<u128>);

impl Block {
    fn new(bytes: usize) -> Self {
        Self(vec![0x5a5a_5a5a_5a5a_5a5a_5a5a_5a5a_5a5a_5a5a; bytes.div_ceil(16)])
    }

    fn of<T: Copy>(values: &[T]) -> Self {
        let mut block = Self::new(size_of_val(values));
        // SAFETY: the block is large enough, and nothing else refers to it.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), block.0.as_mut_ptr().cast(), values.len()) };
        block
    }

    fn address(&mut self) -> Address {
        Address(self.0.as_mut_ptr().expose_provenance() as u64)
    }
}

/// Runs both and compares their output.
fn same(shimmed: &Shimmed, launch: &dyn Fn(Address) -> Launch, bytes: usize) -> Block {
    let (mut ours, mut theirs) = (Block::new(bytes), Block::new(bytes));
    let (here, there) = (launch(ours.address()), launch(theirs.address()));
    // SAFETY: the arguments point to blocks of these tests, which are large enough.
    unsafe { host::run(&here) };
    shimmed.run(&there);
    assert!(ours.0 == theirs.0, "{}", here.entry());
    assert!(bytes == 0 || ours.0 != Block::new(bytes).0, "something was written");
    ours
}

fn rows(generator: &mut Generator, count: u32, (height, width): (u32, u32)) -> Vec<PictureRow> {
    (0..count)
        .map(|row| {
            let partner = if generator.chance(0.5) { (row + count - 1) % count } else { row };
            let (top, left) = (generator.below(height), generator.below(width));
            let is_cut = generator.chance(0.5);
            let [bottom, right] =
                [height, width].map(|side| if is_cut { generator.below(side + 1) } else { 0 });
            let weight = if is_cut { 1.0 } else { generator.unit() as f32 };
            PictureRow { partner, mirrored: generator.below(2), weight, cut: [top, left, bottom, right] }
        })
        .collect()
}

#[test]
fn pictures_are_the_definitions_to_the_bit() {
    let Some(shimmed) = Shimmed::compile() else { return };
    let mut generator = SampleSeed::new(1, 2, 3).op(0);
    for (count, height, width) in [(3, 5, 24), (2, 7, 12), (4, 3, 13), (1, 1, 1), (1, 2, 8), (2, 33, 64)] {
        let bytes = (count * height * width * 3) as usize;
        let mut input = Block::of(&(0..bytes).map(|_| generator.next_u64() as u8).collect::<Vec<_>>());
        let mut plan = Block::of(&rows(&mut generator, count, (height, width)));
        let (scale, bias) = feedstock_ops::image::Normalize::default().scale_and_bias();
        let (input, plan) = (input.address(), plan.address());
        for (real, planes) in REALS.into_iter().flat_map(|real| [(real, true), (real, false)]) {
            for mixes in [0, 1] {
                let launch = |output: Address| {
                    let rows = count;
                    let arguments =
                        PictureArguments { input, output, plan, rows, height, width, mixes, scale, bias };
                    Launch::Pictures { real, planes, arguments }
                };
                same(&shimmed, &launch, bytes * real.bytes());
            }
        }
    }
}

#[test]
fn crops_are_the_definitions_to_the_bit() {
    let Some(shimmed) = Shimmed::compile() else { return };
    let mut generator = SampleSeed::new(1, 2, 6).op(0);
    for (height, width) in [(8, 8), (5, 13), (1, 1), (16, 3)] {
        let (stride, lines) = (160, 40);
        let mut pictures =
            Block::of(&(0..stride * lines * 3).map(|_| generator.next_u64() as u8).collect::<Vec<_>>());
        let mut within = |first: u32, most: u32| first + generator.below(most - first + 1);
        // Enlarged and reduced, whole views and fractions of them, and one view of a single pixel.
        let mut crop = |row: u32| {
            let (across, down) = (within(1, 50), within(1, 40));
            let view = [within(0, 50 - across), within(0, 40 - down), across, down];
            let [across, down] = [f64::from(across), f64::from(down)];
            let window = match row {
                0 => [0.0, 0.0, across, down],
                _ => [across * 0.1, down * 0.25, across * 0.7, down * 0.6],
            };
            let source = u64::from(row % 3) * u64::from(stride * lines);
            CropRow { source, row, mirrored: row % 2, stride, view, upended: row / 2 % 2, window }
        };
        let mut crops = Block::of(&(0..7).map(&mut crop).collect::<Vec<_>>());
        let (arena, crops) = (pictures.address(), crops.address());
        let launch = |output: Address| {
            Launch::Crops(CropArguments { arena, crops, output, count: 7, height, width, unused: 0 })
        };
        same(&shimmed, &launch, (7 * height * width * 3) as usize);
    }
}

#[test]
fn features_are_the_definitions_to_the_bit() {
    let Some(shimmed) = Shimmed::compile() else { return };
    let mut generator = SampleSeed::new(1, 2, 4).op(0);
    for (rows, frames, features) in [(3_u32, 70_u32, 8_u32), (2, 129, 5), (2, 64, 80), (1, 1, 1)] {
        let elements = (rows * frames * features) as usize;
        let mut input =
            Block::of(&(0..elements).map(|_| generator.normal() as f32 * 3.0 - 7.0).collect::<Vec<_>>());
        let lengths: Vec<u32> =
            (0..rows).map(|row| if row == 0 { frames } else { generator.below(frames + 1) }).collect();
        let mut mask = |is_time: u32, most: u32| {
            let start = generator.below(most);
            Mask { is_time, start, end: start + generator.below(most - start + 1) }
        };
        let masks: Vec<Mask> =
            (0..rows).flat_map(|_| [mask(0, features), mask(1, frames), mask(1, frames)]).collect();
        let scales: Vec<[f32; 2]> = (0..features).map(|f| [0.5 + f as f32, 1.0 - f as f32 / 7.0]).collect();
        let (mut lengths, mut masks, mut scales) =
            (Block::of(&lengths), Block::of(&masks), Block::of(&scales));
        let chunk_count = frames.div_ceil(64);
        for (normalize, feature_major, mask_with_mean) in
            [0, BY_UTTERANCE, BY_DATA_SET].into_iter().flat_map(|n| [(n, 0, 1), (n, 1, 0)])
        {
            let mut arguments = FeatureArguments {
                input: input.address(),
                output: Address::NULL,
                lengths: lengths.address(),
                chunks: Address::NULL,
                stats: Address::NULL,
                row_means: Address::NULL,
                scales: scales.address(),
                masks: masks.address(),
                rows,
                frames,
                features,
                feature_major,
                chunk_count,
                masks_per_row: 3,
                normalize,
                normalize_vars: 1,
                epsilon: 1e-7,
                mask_value: -2.5,
                mask_with_mean,
            };
            let sizes =
                [rows * chunk_count * features * 16, rows * features * 16, rows * 4].map(|n| n as usize);
            let a = arguments;
            let mut chunks =
                same(&shimmed, &|to| Launch::FeatureChunks(FeatureArguments { chunks: to, ..a }), sizes[0]);
            arguments.chunks = chunks.address();
            let a = arguments;
            let mut stats = same(
                &shimmed,
                &|to| Launch::FeatureStatistics(FeatureArguments { stats: to, ..a }),
                sizes[1],
            );
            arguments.stats = stats.address();
            let a = arguments;
            let mut means = same(
                &shimmed,
                &|to| Launch::FeatureRowMeans(FeatureArguments { row_means: to, ..a }),
                sizes[2],
            );
            arguments.row_means = means.address();
            for real in REALS {
                let launch =
                    |output| Launch::Features { real, arguments: FeatureArguments { output, ..arguments } };
                same(&shimmed, &launch, elements * real.bytes());
            }
        }
    }
}

/// `finish.cu` and `half.rs` both implement the conversions. This compares them for every exponent.
#[test]
fn conversions_agree_on_values_of_every_size() {
    let Some(shimmed) = Shimmed::compile() else { return };
    let mut generator = SampleSeed::new(1, 2, 5).op(0);
    let values: Vec<f32> = (0..400_000).map(|_| f32::from_bits(generator.next_u64() as u32)).collect();
    let (mut input, mut lengths) = (Block::of(&values), Block::of(&[0_u32])); // all padding: only converted
    for real in [Real::F16, Real::BF16] {
        let (input, lengths) = (input.address(), lengths.address());
        let launch = |output: Address| {
            let arguments = FeatureArguments {
                input,
                output,
                lengths,
                chunks: Address::NULL,
                stats: Address::NULL,
                row_means: Address::NULL,
                scales: Address::NULL,
                masks: Address::NULL,
                rows: 1,
                frames: 5000,
                features: 80,
                feature_major: 0,
                chunk_count: 0,
                masks_per_row: 0,
                normalize: 0,
                normalize_vars: 0,
                epsilon: 0.0,
                mask_value: 0.0,
                mask_with_mean: 0,
            };
            Launch::Features { real, arguments }
        };
        same(&shimmed, &launch, values.len() * real.bytes());
    }
}
