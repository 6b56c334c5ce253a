//! Bytes to tensors: decoding and augmentation as pure functions of (bytes, parameters, seed), written into
//! memory that the caller provides.
//!
//! ```text
//! encoded bytes ─▶ decode_image ─▶ random_resized_crop ─▶ horizontal_flip ─▶ out: &mut [u8], a row of a slot
//!                  └── one fused stage: only the crop is decoded ──┘
//! ```
//! A [`ChainSpec`] describes a chain (JSON, the command line, or the constructors below); compiled once into a
//! [`Chain`], it is shared by all threads. Each thread keeps a [`Scratch`] with its codec handles and buffers, so
//! that nothing is allocated per sample once the buffers have grown. No I/O, no async, no global state.
//!
//! ```
//! use feedstock_ops::{ChainSpec, decode_image, horizontal_flip, random_resized_crop};
//!
//! # fn main() -> feedstock_ops::Result<()> {
//! let chain = ChainSpec::from([decode_image(), random_resized_crop(224), horizontal_flip(0.5)]).compile()?;
//! assert_eq!(chain.output().shape, [224, 224, 3]);
//! let same: ChainSpec = "decode_image,random_resized_crop:224,horizontal_flip".parse()?;
//! assert_eq!(same.compile()?.output(), chain.output());
//! # Ok(())
//! # }
//! ```
//!
//! Costs: 224×224×3 u8 is 147 KiB a sample. `cargo bench -p feedstock-ops --bench decode_chain` prints what the
//! fused chain makes beside bare libjpeg-turbo.

mod chain;
mod error;
#[cfg(test)]
mod golden;
mod scratch;
mod seed;
mod spec;

#[cfg(feature = "image")]
pub mod image;

#[cfg(all(feature = "datafusion", feature = "image"))]
mod sql;

pub use chain::{Chain, ChainSpec, Op};
pub use error::{Error, ErrorKind, Result};
pub use scratch::Scratch;
pub use seed::{Generator, SampleSeed};
pub use spec::{DType, Layout, TensorSpec};

#[cfg(feature = "image")]
pub use image::{
    center_crop, color_jitter, decode_image, horizontal_flip, normalize, rand_augment, random_crop,
    random_erasing, random_resized_crop, resize, to_chw, to_f32, trivial_augment,
};

#[cfg(all(feature = "datafusion", feature = "image"))]
pub use sql::sql_functions;
