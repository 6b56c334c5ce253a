//! Deterministic sample data in common layouts, so that tests, examples and benches need no download.
//!
//! ```text
//! (seed, index) ─▶ scene ─▶ pixels ─▶ JPEG ─┐
//! (seed, index) ─▶ label, name ────────────┴▶ layouts: parquet · folder · webdataset · ipc · ilsvrc
//! ```
//! Every byte is a pure function of the options. The same options write the same files on any machine with any number
//! of threads. A sample has the same name, label and JPEG bytes in every layout.
//!
//! The images have the statistics that matter to decoders: a 1/f amplitude spectrum, correlated colour channels,
//! edges and gradients, 4:2:0 JPEG at [`DEFAULT_QUALITY`]. A 400×350 image has about 110 KB on average (`cargo test
//! -p feedstock-synth --test suite pictures -- --nocapture` prints it). One core makes more than 150 images per
//! second.
//!
//! ```
//! use feedstock_synth::{ImagenetOptions, Layout};
//!
//! let folder = tempfile::tempdir()?;
//! let options = ImagenetOptions { samples: 20, layout: Layout::Folder, width: 64, height: 32, ..ImagenetOptions::default() };
//! let written = options.write(folder.path(), &mut |_| {})?;
//! assert_eq!((written.samples, written.files, written.classes), (20, 20, 20));
//!
//! let error = options.write(folder.path(), &mut |_| {}).unwrap_err(); // the folder is not empty
//! assert_eq!(error.kind(), feedstock_synth::ErrorKind::BadConfig);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod common_voice;
mod draw;
mod error;
mod imagenet;
mod imagenet_options;
mod jpeg;
mod layouts;
mod mark;
mod names;
mod noise;
mod output;
mod painter;
mod parallel;
mod progress;
mod range;
mod scene;
mod speech;

pub use common_voice::CommonVoiceSummary;
pub use error::{Error, ErrorKind, Result};
pub use imagenet::Summary;
pub use imagenet_options::{Compression, DEFAULT_QUALITY, ImagenetOptions, Layout};
pub use mark::{MARK_HEIGHT, MARK_WIDTH, read_mark};
pub use painter::{Painter, Sample, picture};
pub use progress::{Progress, ProgressFn};
pub use speech::options::{CommonVoiceLayout, CommonVoiceOptions, Voice};
pub use speech::{Clip, Locale, Narrator, Split, clip};
