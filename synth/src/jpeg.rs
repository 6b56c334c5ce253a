//! JPEG encoding with libjpeg-turbo, with one reusable encoder per thread.

use crate::{Error, ErrorKind, Result};
use std::ffi::CStr;
use turbojpeg_sys as tj;

/// A libjpeg-turbo compressor for 4:2:0 baseline JPEG.
pub(crate) struct Encoder {
    handle: tj::tjhandle,
    buffer: Vec<u8>,
}

impl Encoder {
    /// Creates an encoder of `quality` 1–100.
    pub(crate) fn new(quality: u8) -> Result<Self> {
        // SAFETY: no preconditions; a null handle is checked below.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as i32) };
        if handle.is_null() {
            return Err(Error::new(
                ErrorKind::Bug,
                "libjpeg-turbo cannot create a compressor: out of memory",
            ));
        }
        let encoder = Self { handle, buffer: Vec::new() };
        encoder.set(tj::TJPARAM_TJPARAM_QUALITY, i32::from(quality))?;
        encoder.set(tj::TJPARAM_TJPARAM_SUBSAMP, tj::TJSAMP_TJSAMP_420)?;
        encoder.set(tj::TJPARAM_TJPARAM_NOREALLOC, 1)?;
        Ok(encoder)
    }

    fn set(&self, parameter: tj::TJPARAM, value: i32) -> Result<()> {
        // SAFETY: the handle lives as long as self.
        match unsafe { tj::tj3Set(self.handle, parameter as i32, value) } {
            0 => Ok(()),
            _ => Err(self.last_error()),
        }
    }

    /// Encodes `rgb`, u8 `[height, width, 3]` without padding, as a JPEG.
    pub(crate) fn encode(&mut self, rgb: &[u8], width: u32, height: u32) -> Result<Vec<u8>> {
        assert_eq!(rgb.len() as u64, 3 * u64::from(width) * u64::from(height), "rows without padding");
        let (width, height) = (width.cast_signed(), height.cast_signed());
        // SAFETY: no preconditions; 0 means that the size is out of range.
        let capacity = unsafe { tj::tj3JPEGBufSize(width, height, tj::TJSAMP_TJSAMP_420) };
        if capacity == 0 {
            return Err(self.last_error());
        }
        self.buffer.resize(self.length(capacity)?, 0);
        let mut start = self.buffer.as_mut_ptr();
        let mut size = capacity;
        // SAFETY: `rgb` holds height rows of 3 × width bytes (asserted). The buffer has the worst case's size, and
        // NOREALLOC prevents the library from replacing it.
        let answer = unsafe {
            tj::tj3Compress8(
                self.handle,
                rgb.as_ptr(),
                width,
                0,
                height,
                tj::TJPF_TJPF_RGB,
                &raw mut start,
                &raw mut size,
            )
        };
        match answer {
            0 => Ok(self.buffer[..self.length(size)?].to_vec()),
            _ => Err(self.last_error()),
        }
    }

    fn length(&self, size: u64) -> Result<usize> {
        usize::try_from(size).map_err(|_| Error::new(ErrorKind::Bug, format!("a JPEG of {size} bytes")))
    }

    fn last_error(&self) -> Error {
        // SAFETY: the library returns a NUL-terminated string that lives as long as the handle.
        let words = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.handle)) }.to_string_lossy().into_owned();
        Error::new(ErrorKind::Bug, format!("libjpeg-turbo rejects a sample image: {words}"))
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        // SAFETY: the handle came from tj3Init and is destroyed once.
        unsafe { tj::tj3Destroy(self.handle) };
    }
}
