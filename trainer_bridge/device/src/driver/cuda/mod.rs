//! CUDA's driver, found at run time: one binary for machines with and without it.

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

/// The first driver with all that is called here, and the oldest that cudarc's bindings were made for.
const LEAST_DRIVER: c_int = 11_020;

/// Opens CUDA's device `ordinal`; its compiled kernels are kept in the folder `kernels`, if there is one.
///
/// # Errors
/// `BadConfig` where there are devices, but not this one, or the driver is too old or does not start; `Retryable` where it
/// fails later.
pub(crate) fn find(ordinal: u32, kernels: Option<PathBuf>) -> Result<Found> {
    // SAFETY: looks for the library by name; loading the driver runs NVIDIA's own initialisers.
    if !unsafe { sys::is_culib_present() } {
        return Ok(Found::Absent("no CUDA driver is installed".to_owned()));
    }
    // SAFETY: the first call of the driver's; may be repeated.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => {}
        CUresult::CUDA_ERROR_NO_DEVICE => {
            return Ok(Found::Absent("the CUDA driver finds no device".to_owned()));
        }
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            return Ok(Found::Absent("libcuda is a stub, for building only".to_owned()));
        }
        CUresult::CUDA_ERROR_NOT_INITIALIZED => {
            let message = "CUDA cannot be started in this process; where its parent had started it before fork(), that is \
                           CUDA's rule: use the 'spawn' or 'forkserver' method, or start CUDA in the child only";
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        failed => {
            let message = format!(
                "the CUDA driver does not start: {}; see what nvidia-smi says, reinstall or restart the driver, or use \
                 device=\"cpu\"",
                says(failed)
            );
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
    }
    let (mut version, mut devices) = (0, 0);
    // SAFETY: both write a number where they are told to.
    unsafe {
        check("asking for the driver's version", sys::cuDriverGetVersion(&raw mut version))?;
        check("counting devices", sys::cuDeviceGetCount(&raw mut devices))?;
    }
    if version < LEAST_DRIVER {
        let message = format!("the CUDA driver is of version {version}, below {LEAST_DRIVER}; update it");
        return Err(Error::new(ErrorKind::BadConfig, message));
    }
    let devices = u32::try_from(devices).unwrap_or(0);
    if ordinal >= devices {
        let message = format!(
            "there is no cuda:{ordinal}: the process sees {devices} devices (CUDA_VISIBLE_DEVICES may hide more); \
             device=\"cuda\" is that of LOCAL_RANK"
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

/// What the driver calls an error.
fn says(code: CUresult) -> String {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: writes the address of a static text, or null.
    let known = unsafe { sys::cuGetErrorString(code, &raw mut text) } == CUresult::CUDA_SUCCESS;
    match known && !text.is_null() {
        // SAFETY: the driver's static text.
        true => format!("{} ({code:?})", unsafe { CStr::from_ptr(text) }.to_string_lossy()),
        false => format!("{code:?}"),
    }
}

fn check(what: &str, code: CUresult) -> Result<()> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            let message = format!(
                "{what}: the device has no memory left; lower the batch size or the depth, or leave the model less"
            );
            Err(Error::new(ErrorKind::BadConfig, message))
        }
        failed => Err(fault(what, says(failed))),
    }
}

/// One device, in the context that all libraries of the process share (the primary one).
struct Cuda {
    ordinal: u32,
    name: String,
    bus_id: Option<String>,
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Compute capability, as 90.
    capability: u32,
    /// The CUDA version that the driver is made for, as (12, 6).
    driver: (u32, u32),
    /// Where compiled kernels are kept.
    kernel_cache: Option<PathBuf>,
    kernels: Mutex<Option<Arc<Kernels>>>,
    decoder: Mutex<Option<Arc<Library>>>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Cuda {}
// SAFETY: as above; the driver synchronises itself.
unsafe impl Sync for Cuda {}

/// The device's context as the thread's current one, and its calls no matter of a capture, until dropped.
///
/// A program that captures a graph on another thread (or on this one, for feedstock's calls on its own streams) forbids,
/// unless told otherwise, what is done here: allocating, locking pages and asking for events. None of it belongs to the
/// capture.
struct Current {
    pushed: bool,
    mode: CUstreamCaptureMode,
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: the mode is what it was before; the context was pushed by `Cuda::current` on this thread.
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
        // SAFETY: each writes where it is told to, within the sizes that it is told.
        unsafe {
            check("opening the device", sys::cuDeviceGet(&raw mut device, number))?;
            for (part, attribute) in parts.iter_mut().zip([
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            ]) {
                check(
                    "asking for the device's capability",
                    sys::cuDeviceGetAttribute(part, attribute, device),
                )?;
            }
        }
        let mut string = |get: unsafe fn(*mut c_char, c_int, sys::CUdevice) -> CUresult| {
            // SAFETY: a text of at most 256 bytes, its end marked by a zero.
            let got = unsafe { get(text.as_mut_ptr(), 256, device) } == CUresult::CUDA_SUCCESS;
            // SAFETY: as above.
            got.then(|| unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
        };
        let name = string(sys::cuDeviceGetName).unwrap_or_default();
        let bus_id = string(sys::cuDeviceGetPCIBusId);
        // SAFETY: retained once, released when this is dropped.
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

    /// Makes the context current on this thread, if it is not, leaving the thread's own for later.
    fn current(&self) -> Result<Current> {
        let (mut now, mut mode) = (null_mut(), CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        // SAFETY: writes a handle; the context is retained, and popped when the guard is dropped; the mode is exchanged in
        // place, and back then.
        unsafe {
            check("asking for the thread's context", sys::cuCtxGetCurrent(&raw mut now))?;
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

    /// nvJPEG, with a handle of this device.
    fn decoder(&self) -> Result<Arc<Library>> {
        let mut decoder = self.decoder.lock().unwrap_or_else(PoisonError::into_inner); // stored whole
        if let Some(opened) = &*decoder {
            return Ok(opened.clone());
        }
        let _current = self.current()?;
        Ok(decoder.insert(Arc::new(Library::open()?)).clone())
    }

    fn kernels(&self) -> Result<Arc<Kernels>> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner); // stored whole
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
        // SAFETY: the context is retained; the mode is exchanged for good, since the thread is ours: what libraries allocate on
        // it belongs to no capture either.
        unsafe {
            check("entering the device's context", sys::cuCtxSetCurrent(self.context))?;
            check("setting the thread's capture mode", sys::cuThreadExchangeStreamCaptureMode(&raw mut mode))
        }
    }

    fn allocate_host(&self, bytes: usize) -> Result<HostAddress> {
        let _current = self.current()?;
        let mut start = null_mut();
        // Portable: any device may copy from it. Not write-combined: ops and substitutes read it back.
        let code = unsafe {
            // SAFETY: writes an address.
            sys::cuMemHostAlloc(&raw mut start, bytes, sys::CU_MEMHOSTALLOC_PORTABLE)
        };
        match (code, NonNull::new(start.cast())) {
            (CUresult::CUDA_SUCCESS, Some(start)) => Ok(HostAddress(start)),
            // What is left of memory, and what may be locked of it; anything else is no lack of either.
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
        // SAFETY: the first writes two numbers (0 and 0 where there are no priorities), the second a handle.
        unsafe {
            let code = sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest);
            check("asking for the priorities of streams", code)?;
            let priority = if is_urgent { greatest } else { least };
            let code = sys::cuStreamCreateWithPriority(&raw mut stream, flags, priority);
            check("making a stream", code)?;
        }
        Ok(StreamId(number(stream)))
    }

    fn check_stream(&self, stream: StreamId) -> Result<()> {
        let _current = self.current()?;
        let mut context = null_mut();
        // SAFETY: the stream is its user's word; writes a handle.
        let code = unsafe { sys::cuStreamGetCtx(stream_of(stream), &raw mut context) };
        if code == CUresult::CUDA_SUCCESS && context == self.context {
            return Ok(());
        }
        let says = if code == CUresult::CUDA_SUCCESS { "of another context".to_owned() } else { says(code) };
        let message = format!(
            "stream {:#x} is none of {} in the primary context ({says}); batches are used on streams of their own device",
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
        // Without times, which cost; whoever waits sleeps instead of spinning.
        let flags =
            CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        // SAFETY: writes a handle.
        unsafe { check("making an event", sys::cuEventCreate(&raw mut event, flags))? };
        Ok(EventId(number(event)))
    }

    unsafe fn free_event(&self, event: EventId) {
        if let Ok(_current) = self.current() {
            // SAFETY: the caller's contract; the driver keeps what is pending until it has passed.
            unsafe { sys::cuEventDestroy_v2(handle(event.0)) };
        }
    }

    fn record(&self, event: EventId, stream: StreamId) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: both handles live: the event is ours, the stream its user's word.
        let code = unsafe { sys::cuEventRecord(handle(event.0), stream_of(stream)) };
        check("recording an event", code)
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: as above.
        let code = unsafe { sys::cuStreamWaitEvent(stream_of(stream), handle(event.0), 0) };
        check("having a stream wait for an event", code)
    }

    fn synchronize(&self, event: EventId) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the event lives.
        check("waiting for an event", unsafe { sys::cuEventSynchronize(handle(event.0)) })
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the stream lives.
        check("waiting for a stream", unsafe { sys::cuStreamSynchronize(stream_of(stream)) })
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool> {
        let _current = self.current()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream lives; writes a state.
        let code = unsafe { sys::cuStreamIsCapturing(stream_of(stream), &raw mut status) };
        if code == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
            return Ok(true); // the legacy default stream, while another is captured
        }
        check("asking whether a stream is captured", code)?;
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
        // SAFETY: the caller's contract; waited for below, so the borrow outlives the copy.
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
        // SAFETY: the function takes one structure by value, whose twin this is; the caller's contract for what it points to.
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
