//! Synthetic data sets in every layout, whose samples take much memory while they are decoded, or claim to.

use arrow::array::{ArrayRef, BinaryArray, Int64Array};
use arrow::ipc::writer::FileWriter;
use arrow::record_batch::RecordBatch;
use feedstock_dataset::Layout;
use feedstock_testkit::tar_member;
use parquet::arrow::ArrowWriter;
use proptest::prelude::*;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// The columns of a Common Voice table.
const HEADER: &str = "client_id\tpath\tsentence_id\tsentence\tsentence_domain\tup_votes\tdown_votes\tage\tgender\taccents\t\
                      variant\tlocale\tsegment";

/// A kind of sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Sample {
    /// A PNG of one colour, with this number of pixels per side.
    Png(u32),
    /// The same with random pixels.
    Noise(u32),
    /// A progressive JPEG with this side and number of scans.
    Progressive(u16, usize),
    /// A WebP of one pixel with this number of groups of Huffman codes.
    WebP(u32),
    /// A WAV of this many seconds.
    Wav(u32),
    /// A real MP3 of 2 s, repeated this number of times.
    Mp3(usize),
    /// An Ogg Vorbis audio clip with this number of large codebooks.
    Vorbis(u32),
    /// An M4A that states durations for this number of packets.
    M4a(u32),
    /// Bytes that are neither an image nor an audio clip.
    Damaged,
}

/// A data set.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) layout: Layout,
    pub(crate) is_audio: bool,
    pub(crate) samples: Vec<Sample>,
}

impl Files {
    pub(crate) fn column(&self) -> &'static str {
        match (self.layout, self.is_audio) {
            (Layout::HfParquet | Layout::ArrowIpc, _) => "value",
            (_, true) => "audio",
            (_, false) => "image",
        }
    }

    pub(crate) fn ops(&self) -> &'static str {
        match self.is_audio {
            true => "decode_audio,resample:16000,log_mel:80,feature_major",
            false => "decode_image:scaled=false,resize:224x224:filter=bicubic",
        }
    }

    pub(crate) fn write(&self, folder: &Path) {
        let samples: Vec<Vec<u8>> =
            self.samples.iter().enumerate().map(|(index, sample)| sample.bytes(index)).collect();
        let extension = match self.layout {
            Layout::CommonVoice | Layout::CommonVoiceTar | Layout::CommonVoiceHf => "mp3", // for any bytes
            _ if self.is_audio => "wav",
            _ => "png",
        };
        let named = samples.into_iter().enumerate();
        let named: Vec<(String, Vec<u8>)> =
            named.map(|(index, bytes)| (format!("{index:05}.{extension}"), bytes)).collect();
        let put = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        let names = || named.iter().map(|(name, _)| name.as_str());
        match self.layout {
            Layout::Folder => named.iter().for_each(|(name, bytes)| put(&format!("class/{name}"), bytes)),
            Layout::WebDataset => put("shard-00000.tar", &tar(&named)),
            Layout::IlsvrcTar => {
                let class = ("n00000001.tar".to_owned(), tar(&named));
                put("ILSVRC2012_img_train.tar", &tar(&[class]));
            }
            Layout::Manifest => {
                named.iter().for_each(|(name, bytes)| put(name, bytes));
                put(
                    "list.csv",
                    names().fold("path\n".to_owned(), |list, name| list + name + "\n").as_bytes(),
                );
            }
            Layout::CommonVoice => {
                named.iter().for_each(|(name, bytes)| put(&format!("de/clips/{name}"), bytes));
                put("de/train.tsv", table(names()).as_bytes());
            }
            Layout::CommonVoiceTar => {
                let list = ("cv/de/train.tsv".to_owned(), table(names()).into_bytes());
                let clips = named.iter().map(|(name, bytes)| (format!("cv/de/clips/{name}"), bytes.clone()));
                put("cv-corpus-de.tar", &tar(&[list].into_iter().chain(clips).collect::<Vec<_>>()));
            }
            Layout::CommonVoiceHf => {
                put("audio/de/train/de_train_0.tar", &tar(&named));
                put("transcript/de/train.tsv", table(names()).as_bytes());
            }
            Layout::HfParquet => {
                let file = File::create(folder.join("data.parquet")).unwrap();
                let batches: Vec<RecordBatch> = named.into_iter().map(|(_, bytes)| row(bytes)).collect();
                let mut writer = ArrowWriter::try_new(file, batches[0].schema(), None).unwrap();
                for batch in batches {
                    writer.write(&batch).unwrap();
                    writer.flush().unwrap();
                }
                writer.close().unwrap();
            }
            Layout::ArrowIpc => {
                let batches: Vec<RecordBatch> = named.into_iter().map(|(_, bytes)| row(bytes)).collect();
                let file = File::create(folder.join("data.arrow")).unwrap();
                let mut writer = FileWriter::try_new(file, &batches[0].schema()).unwrap();
                batches.iter().for_each(|batch| writer.write(batch).unwrap());
                writer.finish().unwrap();
            }
            Layout::Pair | Layout::Coco => unreachable!("they are not among the layouts of these files"),
        }
    }
}

fn row(bytes: Vec<u8>) -> RecordBatch {
    let values: ArrayRef = Arc::new(BinaryArray::from_iter_values([bytes]));
    let label: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    RecordBatch::try_from_iter([("value", values), ("label", label)]).unwrap()
}

fn table<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.fold(format!("{HEADER}\n"), |table, name| {
        table + &format!("a\t{name}\tb\tsome words\t\t2\t0\t\t\t\t\tde\t\n")
    })
}

impl Sample {
    fn bytes(self, index: usize) -> Vec<u8> {
        match self {
            Self::Png(side) => png(side, |at| (at / 999 + index) as u8),
            Self::Noise(side) => {
                let mut state = index as u64 * 2 + 1;
                png(side, |_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99_991);
                    (state >> 56) as u8
                })
            }
            Self::Progressive(side, scans) => crate::hostile::progressive(side, scans),
            Self::WebP(groups) => crate::hostile::webp_of_groups(groups),
            Self::Wav(seconds) => {
                crate::common::speech::wav(seconds * crate::common::speech::RATE, index as u32)
            }
            Self::Mp3(times) => {
                let path = "/../ops/tests/golden/audio/48k_mono_untagged.mp3";
                let clip = std::fs::read(format!("{}{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
                clip.repeat(times)
            }
            Self::Vorbis(books) => crate::hostile::vorbis_of_codebooks(books),
            Self::M4a(packets) => crate::hostile::mp4_of_durations(packets, 1, 1),
            Self::Damaged => vec![index as u8; 5000],
        }
    }
}

/// Returns a PNG whose bytes are made by `value`.
pub(crate) fn png(side: u32, value: impl FnMut(usize) -> u8) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, side, side);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    let pixels: Vec<u8> = (0..side as usize * side as usize * 3).map(value).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    out
}

fn tar(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar: Vec<u8> = members.iter().flat_map(|(name, bytes)| tar_member(name, bytes)).collect();
    tar.extend([0; 1024]);
    tar
}

/// Returns the description of each data set, and the number of its bad samples with a budget of 512 MiB and 16 MiB of decoder
/// memory.
pub(crate) fn large() -> Vec<(&'static str, Files, usize)> {
    let files = |layout, kinds: [Sample; 4]| Files {
        layout,
        is_audio: matches!(kinds[0], Sample::Wav(_)),
        samples: kinds.repeat(4),
    };
    let small = Sample::Noise(300);
    let png = Sample::Png(6500);
    let progressive = |side, scans| Sample::Progressive(side, scans);
    let clip = Sample::Wav(590);
    vec![
        ("PNGs of 42 megapixels in a folder", files(Layout::Folder, [png, small, png, small]), 0),
        ("PNGs of 42 megapixels in Parquet", files(Layout::HfParquet, [png, small, png, Sample::Damaged]), 4),
        (
            "progressive JPEGs with coefficients of 155 MB in a tar",
            files(Layout::WebDataset, [progressive(5000, 20), small, progressive(5000, 20), small]),
            0,
        ),
        (
            "progressive JPEGs that take 600 MB",
            files(Layout::Folder, [progressive(8000, 8), small, progressive(8000, 8), small]),
            8,
        ),
        (
            "audio clips of ten minutes of Common Voice",
            files(Layout::CommonVoice, [clip, Sample::Wav(2), clip, Sample::Damaged]),
            4,
        ),
    ]
}

pub(crate) fn any_files() -> impl Strategy<Value = Files> {
    let image = prop_oneof![
        2 => (1000u32..7000).prop_map(Sample::Png),
        1 => (100u32..2000).prop_map(Sample::Noise),
        2 => (500u16..6000, 2usize..12).prop_map(|(side, scans)| Sample::Progressive(side, scans)),
        1 => (1u32..2600).prop_map(Sample::WebP),
        1 => Just(Sample::Damaged),
    ];
    let clip = prop_oneof![
        3 => (1u32..599).prop_map(Sample::Wav),
        2 => (1usize..200).prop_map(Sample::Mp3),
        1 => (1u32..60).prop_map(Sample::Vorbis),
        1 => (1u32..300_000).prop_map(Sample::M4a),
        1 => Just(Sample::Damaged),
    ];
    // Those with options read files as folders do.
    let with_options = |layout: &Layout| matches!(layout, Layout::Pair | Layout::Coco);
    let layouts = Layout::ALL.map(|(layout, _)| layout);
    let layouts: Vec<Layout> = layouts.into_iter().filter(|layout| !with_options(layout)).collect();
    let is_speech = |layout: &Layout| {
        matches!(layout, Layout::CommonVoice | Layout::CommonVoiceTar | Layout::CommonVoiceHf)
    };
    let with = |layouts: Vec<Layout>, is_audio, first, sample: BoxedStrategy<Sample>| {
        (prop::sample::select(layouts), prop::collection::vec(sample, 3..11)).prop_map(
            move |(layout, mut samples)| {
                samples.insert(0, first); // layouts look at the first sample
                samples.truncate(samples.len() / 2 * 2); // so that no batch of two is short
                Files { layout, is_audio, samples }
            },
        )
    };
    let images = layouts.iter().copied().filter(|layout| !is_speech(layout)).collect();
    let clips = layouts.iter().copied().filter(|layout| *layout != Layout::IlsvrcTar).collect();
    prop_oneof![
        1 => with(images, false, Sample::Noise(64), image.boxed()),
        1 => with(clips, true, Sample::Wav(1), clip.boxed()),
    ]
}
