//! Tensors for programs that use cudarc.

use super::stream::StreamHandle;
use super::view::DeviceTensor;
use crate::place::Place;
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr};
use feedstock_base::{Error, ErrorKind, Result};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

/// A tensor as a slice of cudarc, for kernels and libraries that take one. It keeps the batch's memory alive. Dropping it
/// frees no memory.
pub struct TensorView<T: DeviceRepr> {
    slice: ManuallyDrop<CudaSlice<T>>,
    _tensor: DeviceTensor,
}

impl<T: DeviceRepr> Deref for TensorView<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T: DeviceRepr> Drop for TensorView<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here. Leaking only returns the address: the memory is the batch's.
        let _address = unsafe { ManuallyDrop::take(&mut self.slice) }.leak();
    }
}

impl DeviceTensor {
    /// Returns its elements as a slice of cudarc for work on `stream`, in memory order ([`strides`](Self::strides)).
    ///
    /// # Errors
    /// `BadConfig` if the tensor is in host memory or on another device than the stream, or if `T` differs in size from its
    /// elements. Otherwise as [`use_on`](Self::use_on).
    pub fn cuda_slice<T: DeviceRepr>(&self, stream: &Arc<CudaStream>) -> Result<TensorView<T>> {
        let config = |message: String| Error::new(ErrorKind::BadConfig, message);
        let ordinal = stream.context().ordinal();
        if self.place() != Place::Cuda(u32::try_from(ordinal).unwrap_or(u32::MAX)) {
            return Err(config(format!("{self:?} is not on the stream's device, cuda:{ordinal}")));
        }
        if size_of::<T>() != self.column.element.bytes() {
            return Err(config(format!("{self:?} has elements of {} bytes", self.column.element.bytes())));
        }
        self.use_on(StreamHandle(stream.cu_stream().expose_provenance() as u64))?;
        let elements = self.byte_len() / self.column.element.bytes();
        // SAFETY: `elements` elements are stored there. Any bits are valid for a device's types. The view never frees them.
        let slice = unsafe { stream.upgrade_device_ptr::<T>(self.start.0, elements) };
        Ok(TensorView { slice: ManuallyDrop::new(slice), _tensor: self.clone() })
    }
}
