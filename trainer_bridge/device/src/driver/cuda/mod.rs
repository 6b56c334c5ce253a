//! CUDA's driver, loaded at run time: one binary serves machines with and without it.

mod fault;
mod grid;
mod handle;
mod libraries;
mod module;
mod nvjpeg;
mod nvrtc;
mod pci;
#[cfg(test)]
mod shim_tests;

pub use libraries::offer_libraries;
pub use module::compile_kernels;

use super::{Decoder, Driver, Found};
use crate::handles::{Address, EventId, HostAddress, StreamId};
use crate::kernels::Launch;
use crate::place::Place;
use cudarc::driver::sys::{
    self, CUdevice_attribute, CUevent_flags, CUresult, CUstream_flags, CUstreamCaptureMode,
    CUstreamCaptureStatus,
};
use fault::fault;
use feedstock_base::{Error, ErrorKind, Result};
use grid::BLOCK_THREADS;
use handle::{handle, number};
use module::Kernels;
use nvjpeg::{Library, Nvjpeg};
use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

/// The oldest driver that has every function called here. It is also the oldest that cudarc's bindings support.
const LEAST_DRIVER: c_int = 11_020;

/// Opens CUDA's device `ordinal`. Compiled kernels are stored in the folder `kernels`, if one is given.
///
/// # Errors
/// - `BadConfig` if there are devices but not this one, or the driver is too old or does not start.
/// - `Retryable` if the driver fails later.
pub(crate) fn find(ordinal: u32, kernels: Option<PathBuf>) -> Result<Found> {
    // SAFETY: looks up the library by name. Loading the driver runs only NVIDIA's initialisers.
    if !unsafe { sys::is_culib_present() } {
        return Ok(Found::Absent("no CUDA driver is installed".to_owned()));
    }
    // SAFETY: the first call to the driver. It may be repeated.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => {}
        CUresult::CUDA_ERROR_NO_DEVICE => {
            return Ok(Found::Absent("the CUDA driver finds no device".to_owned()));
        }
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            return Ok(Found::Absent("libcuda is a stub, for building only".to_owned()));
        }
        CUresult::CUDA_ERROR_NOT_INITIALIZED => {
            let message = "CUDA cannot be initialized in this process; if its parent initialized CUDA before fork(), use the \
                           'spawn' or 'forkserver' method, or initialize CUDA only in the child";
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        failed => {
            let message = format!(
                "the CUDA driver does not start: {}; run nvidia-smi to check it, reinstall or restart the driver, or use \
                 device=\"cpu\"",
                says(failed)
            );
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
    }
    let (mut version, mut devices) = (0, 0);
    // SAFETY: both write one number to the given address.
    unsafe {
        check("querying the driver's version", sys::cuDriverGetVersion(&raw mut version))?;
        check("counting devices", sys::cuDeviceGetCount(&raw mut devices))?;
    }
    if version < LEAST_DRIVER {
        let message = format!("the CUDA driver's version is {version}, below {LEAST_DRIVER}; update it");
        return Err(Error::new(ErrorKind::BadConfig, message));
    }
    let devices = u32::try_from(devices).unwrap_or(0);
    if ordinal >= devices {
        let message = format!(
            "there is no cuda:{ordinal}: the process sees {devices} devices (CUDA_VISIBLE_DEVICES may hide more); \
             device=\"cuda\" picks the device of LOCAL_RANK"
        );
        return Err(Error::new(ErrorKind::BadConfig, message));
    }
    let cuda = Cuda::open(ordinal, version, kernels)?;
    let node = cuda.bus_id.as_deref().and_then(pci::node_of);
    tracing::info!(
        device = cuda.name,
        node = node.is_some(),
        "batches go to cuda:{ordinal}, copied from page-locked memory"
    );
    Ok(Found::Device(Arc::new(cuda), node))
}

/// Returns the driver's text for an error.
fn says(code: CUresult) -> String {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: writes the address of a static string, or null.
    let known = unsafe { sys::cuGetErrorString(code, &raw mut text) } == CUresult::CUDA_SUCCESS;
    match known && !text.is_null() {
        // SAFETY: a static string of the driver.
        true => format!("{} ({code:?})", unsafe { CStr::from_ptr(text) }.to_string_lossy()),
        false => format!("{code:?}"),
    }
}

fn check(what: &str, code: CUresult) -> Result<()> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            let message = format!(
                "{what}: the device is out of memory; lower the batch size, the depth or the model's memory use"
            );
            Err(Error::new(ErrorKind::BadConfig, message))
        }
        failed => Err(fault(what, says(failed))),
    }
}

/// One device, in the primary context, which all libraries of the process share.
struct Cuda {
    ordinal: u32,
    name: String,
    bus_id: Option<String>,
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Compute capability, as 90.
    capability: u32,
    /// The CUDA version that the driver supports, as (12, 6).
    driver: (u32, u32),
    /// The folder for compiled kernels.
    kernel_cache: Option<PathBuf>,
    kernels: Mutex<Option<Arc<Kernels>>>,
    decoder: Mutex<Option<Arc<Library>>>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Cuda {}
// SAFETY: as above. The driver synchronises its calls.
unsafe impl Sync for Cuda {}

/// While it lives, the device's context is current on this thread, and the thread's calls are exempt from graph captures.
///
/// By default, a program that captures a graph on any thread forbids other calls: allocating, locking pages and querying
/// events. feedstock's calls are not part of the capture.
struct Current {
    pushed: bool,
    mode: CUstreamCaptureMode,
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: `Cuda::current` saved the mode and pushed the context on this thread.
        unsafe {
            sys::cuThreadExchangeStreamCaptureMode(&raw mut self.mode);
            if self.pushed {
                sys::cuCtxPopCurrent_v2(&raw mut popped);
            }
        }
    }
}

fn stream_of(stream: StreamId) -> sys::CUstream {
    handle(stream.0)
}

impl Cuda {
    fn open(ordinal: u32, version: c_int, kernel_cache: Option<PathBuf>) -> Result<Self> {
        let (mut device, mut context) = (0, null_mut());
        let mut text = [0 as c_char; 256];
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let mut parts = [0 as c_int; 2];
        // SAFETY: each writes to the given address, within the given size.
        unsafe {
            check("opening the device", sys::cuDeviceGet(&raw mut device, number))?;
            for (part, attribute) in parts.iter_mut().zip([
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            ]) {
                check(
                    "querying the device's capability",
                    sys::cuDeviceGetAttribute(part, attribute, device),
                )?;
            }
        }
        let mut string = |get: unsafe fn(*mut c_char, c_int, sys::CUdevice) -> CUresult| {
            // SAFETY: writes a string of at most 256 bytes, including the final zero.
            let got = unsafe { get(text.as_mut_ptr(), 256, device) } == CUresult::CUDA_SUCCESS;
            // SAFETY: as above.
            got.then(|| unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
        };
        let name = string(sys::cuDeviceGetName).unwrap_or_default();
        let bus_id = string(sys::cuDeviceGetPCIBusId);
        // SAFETY: retained once, and released when `self` is dropped.
        unsafe {
            check("opening the device's context", sys::cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        }
        let capability = u32::try_from(parts[0] * 10 + parts[1]).unwrap_or(0);
        let version = u32::try_from(version).unwrap_or(0);
        let driver = (version / 1000, version % 1000 / 10);
        let (kernels, decoder) = (Mutex::default(), Mutex::default());
        Ok(Self {
            ordinal,
            name,
            bus_id,
            device,
            context,
            capability,
            driver,
            kernel_cache,
            kernels,
            decoder,
        })
    }

    /// Makes the context current on this thread until the guard is dropped, which restores the previous context.
    fn current(&self) -> Result<Current> {
        let (mut now, mut mode) = (null_mut(), CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        // SAFETY: writes a handle. The context is retained. The guard pops the context and restores the mode when dropped.
        unsafe {
            check("querying the thread's context", sys::cuCtxGetCurrent(&raw mut now))?;
            let pushed = now != self.context;
            if pushed {
                check("entering the device's context", sys::cuCtxPushCurrent_v2(self.context))?;
            }
            let code = sys::cuThreadExchangeStreamCaptureMode(&raw mut mode);
            if code != CUresult::CUDA_SUCCESS && pushed {
                sys::cuCtxPopCurrent_v2(&raw mut now);
            }
            check("setting the thread's capture mode", code)?;
            Ok(Current { pushed, mode })
        }
    }

    /// Returns nvJPEG with a handle for this device.
    fn decoder(&self) -> Result<Arc<Library>> {
        let mut decoder = self.decoder.lock().unwrap_or_else(PoisonError::into_inner); // a single store
        if let Some(opened) = &*decoder {
            return Ok(opened.clone());
        }
        let _current = self.current()?;
        Ok(decoder.insert(Arc::new(Library::open()?)).clone())
    }

    fn kernels(&self) -> Result<Arc<Kernels>> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner); // a single store
        if let Some(loaded) = &*kernels {
            return Ok(loaded.clone());
        }
        let loaded = Arc::new(Kernels::load(self.capability, self.driver, self.kernel_cache.as_deref())?);
        Ok(kernels.insert(loaded).clone())
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if let Ok(_current) = self.current() {
            drop(self.kernels.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            drop(self.decoder.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
        // SAFETY: retained once in `open`.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

impl Driver for Cuda {
    fn place(&self) -> Place {
        Place::Cuda(self.ordinal)
    }

    fn adopt_thread(&self) -> Result<()> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the context is retained. The mode stays changed because the thread is ours: libraries that allocate on it are
        // not part of a capture either.
        unsafe {
            check("entering the device's context", sys::cuCtxSetCurrent(self.context))?;
            check("setting the thread's capture mode", sys::cuThreadExchangeStreamCaptureMode(&raw mut mode))
        }
    }

    fn allocate_host(&self, bytes: usize) -> Result<HostAddress> {
        let _current = self.current()?;
        let mut start = null_mut();
        // Portable, so that any device can copy from it. Not write-combined, because ops and substitutes read it back.
        let code = unsafe {
            // SAFETY: writes an address.
            sys::cuMemHostAlloc(&raw mut start, bytes, sys::CU_MEMHOSTALLOC_PORTABLE)
        };
        match (code, NonNull::new(start.cast())) {
            (CUresult::CUDA_SUCCESS, Some(start)) => Ok(HostAddress(start)),
            // Out of memory, or over the limit of locked memory. Other codes have other causes.
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, _) => {
                Err(Error::new(ErrorKind::BadConfig, says(CUresult::CUDA_ERROR_OUT_OF_MEMORY)))
            }
            (code, _) => Err(fault(&format!("page-locking {bytes} bytes"), says(code))),
        }
    }

    unsafe fn free_host(&self, memory: HostAddress) {
        if let Ok(_current) = self.current() {
            // SAFETY: the caller's contract.
            unsafe { sys::cuMemFreeHost(memory.0.as_ptr().cast()) };
        }
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let _current = self.current()?;
        let mut start = 0;
        // SAFETY: writes an address.
        let code = unsafe { sys::cuMemAlloc_v2(&raw mut start, bytes) };
        check(&format!("allocating {bytes} bytes on {} for a batch", self.place()), code)?;
        Ok(Address(start))
    }

    unsafe fn free(&self, memory: Address) {
        if let Ok(_current) = self.current() {
            // SAFETY: the caller's contract.
            unsafe { sys::cuMemFree_v2(memory.0) };
        }
    }

    fn load_kernels(&self) -> Result<()> {
        let _current = self.current()?;
        self.kernels().map(|_| ())
    }

    fn load_decoder(&self) -> Result<()> {
        self.decoder().map(drop)
    }

    fn new_decoder(&self) -> Result<Box<dyn Decoder>> {
        let (decoder, _current) = (self.decoder()?, self.current()?);
        Ok(Box::new(Nvjpeg::new(&decoder)?))
    }

    fn new_stream(&self, is_urgent: bool) -> Result<StreamId> {
        let _current = self.current()?;
        let (mut stream, mut least, mut greatest) = (null_mut(), 0, 0);
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the first writes two numbers (both 0 on devices without priorities), the second a handle.
        unsafe {
            let code = sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest);
            check("querying stream priorities", code)?;
            let priority = if is_urgent { greatest } else { least };
            let code = sys::cuStreamCreateWithPriority(&raw mut stream, flags, priority);
            check("creating a stream", code)?;
        }
        Ok(StreamId(number(stream)))
    }

    fn check_stream(&self, stream: StreamId) -> Result<()> {
        let _current = self.current()?;
        let mut context = null_mut();
        // SAFETY: the user vouches for the stream. Writes a handle.
        let code = unsafe { sys::cuStreamGetCtx(stream_of(stream), &raw mut context) };
        if code == CUresult::CUDA_SUCCESS && context == self.context {
            return Ok(());
        }
        let says = if code == CUresult::CUDA_SUCCESS { "of another context".to_owned() } else { says(code) };
        let message = format!(
            "stream {:#x} is not a stream of {} in the primary context ({says}); use a stream of the batch's device",
            stream.0,
            self.place()
        );
        Err(Error::new(ErrorKind::BadConfig, message))
    }

    unsafe fn free_stream(&self, stream: StreamId) {
        if let Ok(_current) = self.current() {
            // SAFETY: the caller's contract.
            unsafe { sys::cuStreamDestroy_v2(stream_of(stream)) };
        }
    }

    fn new_event(&self) -> Result<EventId> {
        let _current = self.current()?;
        let mut event = null_mut();
        // No timestamps, which cost time. A waiting thread sleeps instead of spinning.
        let flags =
            CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        // SAFETY: writes a handle.
        unsafe { check("creating an event", sys::cuEventCreate(&raw mut event, flags))? };
        Ok(EventId(number(event)))
    }

    unsafe fn free_event(&self, event: EventId) {
        if let Ok(_current) = self.current() {
            // SAFETY: the caller's contract. The driver keeps a pending event until it has passed.
            unsafe { sys::cuEventDestroy_v2(handle(event.0)) };
        }
    }

    fn record(&self, event: EventId, stream: StreamId) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: both handles are valid: the event is ours, and the user vouches for the stream.
        let code = unsafe { sys::cuEventRecord(handle(event.0), stream_of(stream)) };
        check("recording an event", code)
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: as above.
        let code = unsafe { sys::cuStreamWaitEvent(stream_of(stream), handle(event.0), 0) };
        check("making a stream wait for an event", code)
    }

    fn synchronize(&self, event: EventId) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the event is valid.
        check("waiting for an event", unsafe { sys::cuEventSynchronize(handle(event.0)) })
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the stream is valid.
        check("waiting for a stream", unsafe { sys::cuStreamSynchronize(stream_of(stream)) })
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool> {
        let _current = self.current()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is valid. Writes a state.
        let code = unsafe { sys::cuStreamIsCapturing(stream_of(stream), &raw mut status) };
        if code == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
            return Ok(true); // the legacy default stream, while another stream is captured
        }
        check("querying whether a stream is captured", code)?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    unsafe fn copy_in(&self, to: Address, from: HostAddress, bytes: usize, stream: StreamId) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the caller's contract.
        let code =
            unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, from.0.as_ptr().cast(), bytes, stream_of(stream)) };
        check("copying a batch to the device", code)
    }

    unsafe fn copy_within(&self, to: Address, from: Address, bytes: usize, stream: StreamId) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the caller's contract.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, stream_of(stream)) };
        check("copying a batch to its fixed place", code)
    }

    unsafe fn copy_out(&self, to: &mut [u8], from: Address, stream: StreamId) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the caller's contract. The wait below makes the borrow outlive the copy.
        let code =
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from.0, to.len(), stream_of(stream)) };
        check("copying a tensor from the device", code)?;
        self.synchronize_stream(stream)
    }

    unsafe fn launch(&self, launch: &Launch, stream: StreamId) -> Result<()> {
        let _current = self.current()?;
        let function = self.kernels()?.entry(&launch.entry())?;
        let grid = launch.grid();
        let mut parameters = [launch.arguments().cast_mut()];
        // SAFETY: the function takes one structure by value, and this one has the same layout. The caller's contract covers
        // the memory that it points to.
        let code = unsafe {
            sys::cuLaunchKernel(
                function,
                grid.x,
                grid.y,
                1,
                BLOCK_THREADS,
                1,
                1,
                0,
                stream_of(stream),
                parameters.as_mut_ptr(),
                null_mut(),
            )
        };
        check("starting a finishing kernel", code)
    }
}
