//! NVIDIA's JPEG decoder, loaded at run time. It uses the GPU's JPEG engines if there are any, else its ordinary cores.
//!
//! Source: NVIDIA nvJPEG documentation (CUDA 12.6 and 13). These declarations mirror its header.

use super::fault::fault;
use super::handle::handle;
use super::libraries;
use crate::driver::{Decoder, Jpeg};
use crate::handles::StreamId;
use cudarc::driver::sys;
use feedstock_base::{Error, ErrorKind, Result};
use std::ffi::{OsStr, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

/// Names for the system's loader, newest first.
const NAMES: [&str; 3] = ["libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so"];

type Handle = *mut c_void;
type JpegState = *mut c_void;
type Status = c_int;

const SUCCESS: Status = 0;
const ALLOCATOR_FAILURE: Status = 5;
/// Errors of the call or of the machine, not of an image. All other codes have been seen for damaged or unusual images, which
/// the CPU then decodes or rejects.
const OURS: [Status; 3] = [1, ALLOCATOR_FAILURE, 7];

const BACKEND_GPU_HYBRID: c_int = 2;
const BACKEND_HARDWARE: c_int = 3;

/// Interpolates colours, as libjpeg-turbo does, instead of repeating them. This flag exists since CUDA 12.1. It is required,
/// since a run must not depend on the library that it finds.
const INTERPOLATED: c_uint = 1 << 5;

/// One plane of RGB, RGB, …
const OUTPUT_RGB_INTERLEAVED: c_int = 5;

/// The destination of an image: its planes, and the bytes from one line to the next.
#[repr(C)]
#[derive(Clone, Copy)]
struct Image {
    channel: [*mut u8; 4],
    pitch: [usize; 4],
}

type Create = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void, c_uint, *mut Handle) -> Status;
type Destroy = unsafe extern "C" fn(Handle) -> Status;
type CreateState = unsafe extern "C" fn(Handle, *mut JpegState) -> Status;
type DestroyState = unsafe extern "C" fn(JpegState) -> Status;
type Initialize = unsafe extern "C" fn(Handle, JpegState, c_int, c_int, c_int) -> Status;
type DecodeBatched = unsafe extern "C" fn(
    Handle,
    JpegState,
    *const *const u8,
    *const usize,
    *mut Image,
    *mut c_void,
) -> Status;
type ImageInfo =
    unsafe extern "C" fn(Handle, *const u8, usize, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> Status;
type EngineInfo = unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint) -> Status;

struct Functions {
    create: Create,
    destroy: Destroy,
    create_state: CreateState,
    destroy_state: DestroyState,
    initialize: Initialize,
    decode_batched: DecodeBatched,
    image_info: ImageInfo,
    /// Since CUDA 11.8.
    engine_info: Option<EngineInfo>,
    _library: libloading::Library,
}

impl Functions {
    fn load(name: &OsStr) -> Result<Self, libloading::Error> {
        let library = libraries::load(name)?;
        // SAFETY: the types are those that nvJPEG declares, and the library stays loaded as long as the functions.
        unsafe {
            Ok(Self {
                create: *library.get(b"nvjpegCreateEx")?,
                destroy: *library.get(b"nvjpegDestroy")?,
                create_state: *library.get(b"nvjpegJpegStateCreate")?,
                destroy_state: *library.get(b"nvjpegJpegStateDestroy")?,
                initialize: *library.get(b"nvjpegDecodeBatchedInitialize")?,
                decode_batched: *library.get(b"nvjpegDecodeBatched")?,
                image_info: *library.get(b"nvjpegGetImageInfo")?,
                engine_info: library.get(b"nvjpegGetHardwareDecoderInfo").ok().map(|function| *function),
                _library: library,
            })
        }
    }
}

/// The library and its handle for one device, whose context must be current at every call.
pub(super) struct Library {
    functions: Functions,
    handle: Handle,
}

// SAFETY: nvJPEG's handles may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens the file that `FEEDSTOCK_NVJPEG` names. If the variable is unset, opens the first library that starts, among
    /// those offered and those with a usual name.
    ///
    /// # Errors
    /// `BadConfig` if there is none.
    pub(super) fn open() -> Result<Self> {
        let named = libraries::named("FEEDSTOCK_NVJPEG");
        Self::choose(named.as_deref(), &libraries::candidates("libnvjpeg", &NAMES))
    }

    fn choose(named: Option<&OsStr>, candidates: &[std::ffi::OsString]) -> Result<Self> {
        let config = |message: String| Error::new(ErrorKind::BadConfig, message);
        if let Some(named) = named {
            return Self::start(named).map_err(|why| {
                config(format!(
                    "FEEDSTOCK_NVJPEG names {}, which cannot be used: {why}; correct it or unset it",
                    Path::new(named).display()
                ))
            });
        }
        let mut found = None;
        for name in candidates {
            match Self::start(name) {
                Ok(library) => return Ok(library),
                Err(Unusable::Missing(_)) if !Path::new(name).exists() => {}
                Err(why) => found = found.or(Some(why)),
            }
        }
        Err(config(match found {
            None => "decoding on the GPU needs NVIDIA's JPEG decoder, and libnvjpeg was not found; install the CUDA toolkit \
                     or the Python package nvidia-nvjpeg (nvidia-nvjpeg-cu12 for CUDA 12), or name its file in \
                     FEEDSTOCK_NVJPEG"
                .to_owned(),
            Some(why) => format!(
                "NVIDIA's JPEG decoder does not start: {why}; install a libnvjpeg of CUDA 12.1 or later that is no newer than \
                 the driver, and name its file in FEEDSTOCK_NVJPEG"
            ),
        }))
    }

    fn start(name: &OsStr) -> Result<Self, Unusable> {
        let functions = Functions::load(name).map_err(Unusable::Missing)?;
        let mut this = Self { functions, handle: null_mut() };
        this.create(BACKEND_HARDWARE)
            .or_else(|_| this.create(BACKEND_GPU_HYBRID))
            .map_err(Unusable::Refused)?;
        let file = Path::new(name).display();
        match this.engines() {
            0 => tracing::warn!(
                "nvJPEG ({file}) decodes on the GPU's ordinary cores and slows the model down: this GPU has no JPEG engine"
            ),
            engines => tracing::info!("nvJPEG ({file}) decodes on {engines} JPEG engines of the GPU"),
        }
        Ok(this)
    }

    fn create(&mut self, backend: c_int) -> Result<(), Status> {
        let mut handle = null_mut();
        // SAFETY: without allocators, nvJPEG uses its defaults. Writes a handle.
        done(unsafe {
            (self.functions.create)(backend, null_mut(), null_mut(), INTERPOLATED, &raw mut handle)
        })?;
        let before = std::mem::replace(&mut self.handle, handle);
        if !before.is_null() {
            // SAFETY: made by an earlier call and no longer used.
            unsafe { (self.functions.destroy)(before) };
        }
        match backend == BACKEND_HARDWARE && self.engines() == 0 {
            true => self.create(BACKEND_GPU_HYBRID),
            false => Ok(()),
        }
    }

    /// Returns the number of JPEG engines. A library that cannot report it counts as 1 engine, since the hardware backend was
    /// accepted.
    fn engines(&self) -> c_uint {
        let (mut engines, mut cores) = (0, 0);
        match self.functions.engine_info {
            // SAFETY: the handle is valid. Writes two numbers.
            Some(info) => match unsafe { info(self.handle, &raw mut engines, &raw mut cores) } {
                SUCCESS => engines,
                _ => 0,
            },
            None => 1,
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: made by `create`, and destroyed once, after all states.
            unsafe { (self.functions.destroy)(self.handle) };
        }
    }
}

/// A decoder for one batch at a time.
pub(super) struct Nvjpeg {
    library: Arc<Library>,
    state: JpegState,
    /// The number of images that the state is initialised for.
    ready_for: usize,
}

// SAFETY: a state may be used from any thread, by one thread at a time.
unsafe impl Send for Nvjpeg {}

impl Nvjpeg {
    pub(super) fn new(library: &Arc<Library>) -> Result<Self> {
        let mut state = null_mut();
        // SAFETY: the handle is valid. Writes a state.
        let status = unsafe { (library.functions.create_state)(library.handle, &raw mut state) };
        done(status).map_err(|status| failed("creating a decoder", status))?;
        Ok(Self { library: library.clone(), state, ready_for: 0 })
    }

    /// Decodes all of them, or none.
    ///
    /// # Safety
    /// As [`Decoder::decode`].
    unsafe fn decode_all(&mut self, pictures: &[&Jpeg], stream: *mut c_void) -> Status {
        let Library { functions, handle } = self.library.as_ref();
        if self.ready_for != pictures.len() {
            self.ready_for = 0;
            let Ok(count) = c_int::try_from(pictures.len()) else { return OURS[0] };
            // SAFETY: handle and state are valid. nvJPEG now ignores the number of threads.
            let status =
                unsafe { (functions.initialize)(*handle, self.state, count, 1, OUTPUT_RGB_INTERLEAVED) };
            if status != SUCCESS {
                return status;
            }
            self.ready_for = pictures.len();
        }
        let data: Vec<*const u8> =
            pictures.iter().map(|picture| picture.bytes.0.as_ptr().cast_const()).collect();
        let lengths: Vec<usize> = pictures.iter().map(|picture| picture.length).collect();
        let mut images: Vec<Image> = pictures.iter().map(|picture| image(picture)).collect();
        // SAFETY: the state is initialised for this number of images. The caller's contract covers the memory they point to.
        let status = unsafe {
            (functions.decode_batched)(
                *handle,
                self.state,
                data.as_ptr(),
                lengths.as_ptr(),
                images.as_mut_ptr(),
                stream,
            )
        };
        if status != SUCCESS {
            self.ready_for = 0; // a state that failed must be initialised again
        }
        status
    }

    /// Whether the decoder reads the same size from the header as feedstock did: the destination has room for no more.
    ///
    /// # Safety
    /// The image's bytes are valid.
    unsafe fn agrees(&self, picture: &Jpeg) -> bool {
        let Library { functions, handle } = self.library.as_ref();
        let (mut components, mut sampling) = (0, 0);
        let (mut widths, mut heights) = ([0; 4], [0; 4]);
        // SAFETY: the bytes are valid. Writes two numbers, and two arrays of four.
        let status = unsafe {
            (functions.image_info)(
                *handle,
                picture.bytes.0.as_ptr(),
                picture.length,
                &raw mut components,
                &raw mut sampling,
                widths.as_mut_ptr(),
                heights.as_mut_ptr(),
            )
        };
        let size = (u32::try_from(widths[0]), u32::try_from(heights[0]));
        status == SUCCESS && matches!(components, 1 | 3) && size == (Ok(picture.size.0), Ok(picture.size.1))
    }
}

impl Decoder for Nvjpeg {
    unsafe fn decode(&mut self, pictures: &[Jpeg], stream: StreamId) -> Result<Vec<usize>> {
        let stream: *mut c_void = handle(stream.0);
        // SAFETY: the caller's contract.
        let (good, mut refused): (Vec<usize>, Vec<usize>) =
            (0..pictures.len()).partition(|index| unsafe { self.agrees(&pictures[*index]) });
        if good.is_empty() {
            return Ok(refused);
        }
        let batch: Vec<&Jpeg> = good.iter().map(|index| &pictures[*index]).collect();
        // SAFETY: the caller's contract.
        match unsafe { self.decode_all(&batch, stream) } {
            SUCCESS => return Ok(refused),
            status if OURS.contains(&status) => return Err(failed("decoding a batch", status)),
            _ => {}
        }
        // One image failed the batch, so each is decoded alone. A state may be reused only once its work has finished.
        for (index, picture) in good.into_iter().zip(batch) {
            // SAFETY: the stream is the caller's.
            let code = unsafe { sys::cuStreamSynchronize(stream.cast()) };
            if code != sys::CUresult::CUDA_SUCCESS {
                return Err(fault("waiting for nvJPEG", format!("{code:?}")));
            }
            // SAFETY: the caller's contract.
            match unsafe { self.decode_all(&[picture], stream) } {
                SUCCESS => {}
                status if OURS.contains(&status) => return Err(failed("decoding an image", status)),
                _ => refused.push(index),
            }
        }
        refused.sort_unstable();
        Ok(refused)
    }
}

impl Drop for Nvjpeg {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed once. Its owner has waited for its work.
        unsafe { (self.library.functions.destroy_state)(self.state) };
    }
}

fn image(picture: &Jpeg) -> Image {
    Image {
        channel: [handle(picture.to.0), null_mut(), null_mut(), null_mut()],
        pitch: [picture.pitch, 0, 0, 0],
    }
}

/// Why a library cannot be used.
enum Unusable {
    Missing(libloading::Error),
    Refused(Status),
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing(error) => error.fmt(f),
            Self::Refused(status) => f.write_str(&says(*status)),
        }
    }
}

fn done(status: Status) -> Result<(), Status> {
    if status == SUCCESS { Ok(()) } else { Err(status) }
}

fn failed(what: &str, status: Status) -> Error {
    match status {
        ALLOCATOR_FAILURE => Error::new(
            ErrorKind::BadConfig,
            format!(
                "nvJPEG, {what}: the device is out of memory; lower the batch size, nvjpeg or the model's memory use"
            ),
        ),
        status => fault(&format!("nvJPEG, {what}"), says(status)),
    }
}

/// Returns nvJPEG's name for an error.
fn says(status: Status) -> String {
    let name = match status {
        1 => "NOT_INITIALIZED",
        2 => "INVALID_PARAMETER",
        3 => "BAD_JPEG",
        4 => "JPEG_NOT_SUPPORTED",
        5 => "ALLOCATOR_FAILURE",
        6 => "EXECUTION_FAILED",
        7 => "ARCH_MISMATCH",
        8 => "INTERNAL_ERROR",
        9 => "IMPLEMENTATION_NOT_SUPPORTED",
        10 => "INCOMPLETE_BITSTREAM",
        _ => "UNKNOWN",
    };
    format!("NVJPEG_STATUS_{name} ({status})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[test]
    fn a_library_that_does_not_load_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("libnvjpeg.so.13").into_os_string();
        std::fs::write(&file, b"not a library").unwrap();
        let error = |named: Option<&OsStr>, candidates: &[OsString]| {
            let error = Library::choose(named, candidates).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::BadConfig);
            error.to_string()
        };
        assert!(error(Some(&file), &[]).contains("FEEDSTOCK_NVJPEG names"));
        assert!(error(None, std::slice::from_ref(&file)).contains("does not start"));
        let missing = OsString::from("libnvjpeg-that-does-not-exist.so");
        assert!(error(None, &[missing]).contains("was not found"));
    }
}
