//! Batches on a device: their tensors, and the streams that use them.

mod batch;
#[cfg(feature = "cuda")]
mod cuda_slice;
mod fixed;
mod hold;
mod lent;
mod owner;
mod stream;
mod view;

pub use batch::DeviceBatch;
#[cfg(feature = "cuda")]
pub use cuda_slice::TensorView;
pub use fixed::FixedBuffer;
pub use hold::Hold;
pub use lent::use_address_on;
pub use owner::{InPlace, Owner};
pub use stream::StreamHandle;
pub use view::{Column, DeviceTensor};
