//! Devices that batches go to: what drives them, the memory on both sides of a copy, and the kernels that finish batches.
//!
//! ```text
//! driver ── memory (page-locked blocks, a ring of device buffers, events) ── tensors (who uses a batch, until when)
//!    └───── kernels (their arguments) ◀── finish (what becomes of a column, and its draws)
//! ```
//! A device is whatever implements [`driver::Driver`]: CUDA (feature `cuda`, found at run time), host memory
//! ([`driver::Host`], where there is no GPU), and, with the feature `simulated`, one for tests that completes work late and
//! out of order and finds races. What copies batches there, and when, is the business of `feedstock-trainer-bridge`.
//!
//! ```
//! use feedstock_device::Device;
//! use feedstock_device::memory::Buffers;
//! use feedstock_device::open::OpenedDevice;
//!
//! let opened = OpenedDevice::new(Device::host(), false);
//! assert_eq!(opened.place().to_string(), "cpu");
//! let (buffers, _reaping) = Buffers::new(opened.driver(), 2)?;
//! let (index, start) = buffers.take(4096)?.expect("nobody closed them");
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
