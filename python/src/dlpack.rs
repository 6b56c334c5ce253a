//! DLPack: a tensor's memory for numpy, torch, JAX and others, without a copy.
//!
//! Follows the C header of DLPack 1.0 (<https://dmlc.github.io/dlpack/latest/c_api.html>) and its Python protocol: a
//! capsule named `dltensor` or, for consumers that request version 1, `dltensor_versioned`. The consumer renames the
//! capsule and calls the deleter when it is done. A capsule without a consumer frees the tensor when it is dropped.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

const CPU: i32 = 1;
const CUDA: i32 = 2;
const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// The CPU's memory, as DLPack numbers devices.
pub(crate) const HOST: (i32, i32) = (CPU, 0);

/// Returns the device of memory in `place`.
pub(crate) fn device(place: feedstock::device::Place) -> (i32, i32) {
    match place {
        feedstock::device::Place::Cuda(ordinal) => (CUDA, i32::try_from(ordinal).unwrap_or(i32::MAX)),
        _ => HOST,
    }
}

/// The kind of a type, and its bits: DLPack's `DLDataTypeCode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ElementType {
    pub(crate) code: Code,
    pub(crate) bits: u8,
}

/// DLPack's `DLDataTypeCode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    Int = 0,
    UInt = 1,
    Float = 2,
    Bfloat = 4,
    Bool = 6,
}

/// Memory that is lent for reading and writing: its address, its type and shape, and its owner, which keeps it alive. The
/// library neither reads nor writes it while it is lent.
#[derive(Clone)]
pub(crate) struct Lent {
    pub(crate) start: *mut u8,
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<i64>,
    /// Elements from one entry of an axis to the next; `None` for dense rows.
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) device: (i32, i32),
    pub(crate) owner: Arc<dyn std::any::Any + Send + Sync>,
}

// SAFETY: the memory belongs to `owner`, which may be sent and shared.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DLTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DLTensor,
}

/// Returns the strides of dense rows.
pub(crate) fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// What a capsule keeps alive.
struct Context {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _owner: Arc<dyn std::any::Any + Send + Sync>,
}

impl Context {
    fn new(lent: &Lent) -> PyResult<(*mut Self, DLTensor)> {
        let shape = lent.shape.clone();
        let strides = lent.strides.clone().unwrap_or_else(|| row_major(&shape));
        let ndim = i32::try_from(shape.len()).map_err(|e| PyBufferError::new_err(e.to_string()))?;
        let mut context = Box::new(Self { shape, strides, _owner: lent.owner.clone() });
        let tensor = DLTensor {
            data: lent.start.cast(),
            device: Device { kind: lent.device.0, id: lent.device.1 },
            ndim,
            dtype: DataType { code: lent.element.code as u8, bits: lent.element.bits, lanes: 1 },
            shape: context.shape.as_mut_ptr(),
            strides: context.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        Ok((Box::into_raw(context), tensor))
    }
}

/// Returns a capsule over `lent`, which stays alive until the consumer releases it.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    lent: &Lent,
    max_version: Option<(u32, u32)>,
) -> PyResult<Bound<'py, PyAny>> {
    let (context, tensor) = Context::new(lent)?;
    let context = context.cast();
    // SAFETY: the pointers are boxes just made, with the names that their destructors expect. These free unconsumed boxes.
    let capsule = unsafe {
        if max_version.is_some_and(|(major, _)| major >= 1) {
            let managed = ManagedVersioned {
                major: 1,
                minor: 0,
                context,
                deleter: Some(free_versioned),
                flags: 0,
                tensor,
            };
            let managed = Box::into_raw(Box::new(managed)).cast();
            ffi::PyCapsule_New(managed, VERSIONED.as_ptr(), Some(drop_versioned))
        } else {
            let managed =
                Box::into_raw(Box::new(Managed { tensor, context, deleter: Some(free_plain) })).cast();
            ffi::PyCapsule_New(managed, PLAIN.as_ptr(), Some(drop_plain))
        }
    };
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

unsafe extern "C" fn free_plain(managed: *mut Managed) {
    // SAFETY: made by `capsule`, and freed once: by its consumer or by its destructor.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Context>()));
    }
}

unsafe extern "C" fn free_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as above.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Context>()));
    }
}

unsafe extern "C" fn drop_plain(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is being dropped; a capsule with its first name was not consumed.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            free_plain(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            free_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
