//! The devices that batches go to: their drivers, the memory on both sides of a copy, and the kernels that finish batches.
//!
//! ```text
//! driver ── memory (page-locked blocks, a ring of device buffers, events) ── tensors (which streams use a batch, until when)
//!    └───── kernels (their arguments) ◀── finish (the last steps of a column, and their draws)
//! ```
//! A device implements [`driver::Driver`]:
//!
//! - CUDA (feature `cuda`), found at run time;
//! - host memory ([`driver::Host`]), for machines without a GPU;
//! - a simulated device (feature `simulated`) for tests. It completes work late and out of order, and finds races.
//!
//! `feedstock-trainer-bridge` decides which batches are copied there, and when.
//!
//! ```
//! use feedstock_device::Device;
//! use feedstock_device::memory::Buffers;
//! use feedstock_device::open::OpenedDevice;
//!
//! let opened = OpenedDevice::new(Device::host(), false);
//! assert_eq!(opened.place().to_string(), "cpu");
//! let (buffers, _reaping) = Buffers::new(opened.driver(), 2)?;
//! let (index, start) = buffers.take(4096)?.expect("they are not closed");
//! assert_eq!(start.0 % 256, 0);
//! buffers.give_back(index, Vec::new());
//! # Ok::<(), feedstock_base::Error>(())
//! ```

pub mod driver;
pub mod finish;
pub mod handles;
pub mod kernels;
pub mod memory;
pub mod open;
pub mod tensor;

mod element;
mod numa;
mod place;

#[cfg(feature = "cuda")]
pub use driver::cuda::{compile_kernels, offer_libraries};
pub use element::{Element, Real};
pub use open::Device;
pub use place::Place;
