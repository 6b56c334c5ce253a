//! Handles of libjpeg-turbo (its tj3 API).

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as tj;

use feedstock_base::{Error, Result};

/// A compressor, decompressor or transformer.
pub(super) struct Handle(NonNull<c_void>);

// SAFETY: a handle is used by one thread at a time (`&mut`) and holds no thread-local state; error texts are copied
// out of it before it can move.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle came from tj3Init and is destroyed once.
        unsafe { tj::tj3Destroy(self.0.as_ptr()) }
    }
}

impl Handle {
    pub(super) fn new(kind: tj::TJINIT) -> Result<Self> {
        // SAFETY: no preconditions.
        let handle = unsafe { tj::tj3Init(kind as c_int) };
        NonNull::new(handle).map(Self).ok_or_else(|| Error::bug("tj3Init failed"))
    }

    pub(super) fn raw(&self) -> *mut c_void {
        self.0.as_ptr()
    }

    /// Returns the error text of the call that returned `status`, if it is not 0.
    pub(super) fn check(&self, status: c_int) -> std::result::Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the handle is valid; the text is NUL-terminated and copied before the next call.
        let text = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.raw())) };
        Err(text.to_string_lossy().into_owned())
    }

    pub(super) fn set(&self, parameter: tj::TJPARAM, value: c_int) -> Result<()> {
        // SAFETY: the handle is valid.
        let status = unsafe { tj::tj3Set(self.raw(), parameter as c_int, value) };
        self.check(status).map_err(|text| Error::bug(format!("libjpeg-turbo refuses {parameter}: {text}")))
    }

    pub(super) fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the handle is valid.
        unsafe { tj::tj3Get(self.raw(), parameter as c_int) }
    }
}
