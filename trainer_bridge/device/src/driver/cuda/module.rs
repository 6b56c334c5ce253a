//! The finishing kernels on a device: compiled at their first use, stored on disk and loaded.
//!
//! The cache has one file for each (source, options, architecture, compiler): `$FEEDSTOCK_CACHE/kernels/<hash>.cubin`, or
//! under the user's cache folder. Files can be deleted at any time, since they can be compiled again.

use super::fault::fault;
use super::nvrtc;
use cudarc::driver::sys::{self, CUresult};
use feedstock_base::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::ffi::CString;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

const SOURCE: &str = include_str!("../../kernels/finish.cu");

/// Options in addition to the architecture. Products and sums are rounded separately, as on the CPU.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// The kernels, loaded into the current context.
pub(super) struct Kernels {
    module: sys::CUmodule,
    entries: Mutex<HashMap<String, Function>>,
}

#[derive(Clone, Copy)]
struct Function(sys::CUfunction);

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}
// SAFETY: as above.
unsafe impl Send for Function {}

impl Kernels {
    /// Loads the kernels into the current context, of a device with this compute capability (90 for 9.0). `driver` is the
    /// CUDA version that the driver supports.
    pub(super) fn load(capability: u32, driver: (u32, u32), cache: Option<&Path>) -> Result<Self> {
        let image = image(capability, Some(driver), cache)?;
        let mut module = null_mut();
        // SAFETY: the compiler made the image: a whole cubin, or text that ends with a zero.
        let code = unsafe { sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) };
        match code {
            CUresult::CUDA_SUCCESS => Ok(Self { module, entries: Mutex::default() }),
            // The image does not fit the driver: a restart would not help.
            failed @ (CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUresult::CUDA_ERROR_INVALID_PTX
            | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUresult::CUDA_ERROR_INVALID_IMAGE) => {
                let message = format!(
                    "the driver (CUDA {}.{}) does not load the finishing kernels ({failed:?}); update it, or name another \
                     libnvrtc in FEEDSTOCK_NVRTC",
                    driver.0, driver.1
                );
                Err(Error::new(ErrorKind::BadConfig, message))
            }
            failed => Err(fault("loading the finishing kernels", format!("{failed:?}"))),
        }
    }

    pub(super) fn entry(&self, name: &str) -> Result<sys::CUfunction> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Function(known)) = entries.get(name) {
            return Ok(*known);
        }
        let bug = |what: String| Error::new(ErrorKind::Bug, format!("the kernel {name}: {what}"));
        let text = CString::new(name).map_err(|e| bug(e.to_string()))?;
        let mut function = null_mut();
        // SAFETY: the module is loaded. Writes a handle.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut function, self.module, text.as_ptr()) };
        if code != CUresult::CUDA_SUCCESS {
            return Err(bug(format!("{code:?}")));
        }
        entries.insert(name.to_owned(), Function(function));
        Ok(function)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, and unloaded once.
        unsafe { sys::cuModuleUnload(self.module) };
    }
}

/// Returns the compiled kernels for a driver of this version (`None`: any version), from the cache if it has them.
fn image(capability: u32, driver: Option<(u32, u32)>, cache: Option<&Path>) -> Result<Vec<u8>> {
    let compiler = nvrtc::Compiler::find(capability, driver)?;
    let target = compiler.target(capability)?;
    let options: Vec<&str> = OPTIONS.into_iter().chain([target.option.as_str()]).collect();
    let (major, minor) = compiler.version()?;
    let key = hash(&[SOURCE, &options.join(" "), &format!("{major}.{minor}")]);
    let file = cache.map(|folder| folder.join(format!("{key:016x}.{}", target.kind())));
    if let Some(bytes) = file.as_deref().and_then(read) {
        return Ok(bytes);
    }
    let bytes = compiler.compile(SOURCE, &options, &target)?;
    if let Some(file) = &file
        && let Err(error) = write(file, &bytes)
    {
        tracing::info!("the compiled kernels cannot be stored in {}: {error}", file.display());
    }
    Ok(bytes)
}

/// Returns the file's content if it is complete: its last 8 bytes are a hash of the others.
fn read(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(file).ok()?;
    let told = bytes.split_off(bytes.len().checked_sub(8)?);
    (told == hash_bytes(&bytes).to_le_bytes()).then_some(bytes)
}

/// Writes the file under another name first, so that no process reads half of it.
fn write(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let part = file.with_extension(format!("{}.part", std::process::id()));
    let folder = file.parent().unwrap_or(file);
    std::fs::create_dir_all(folder)?;
    std::fs::write(&part, [bytes, &hash_bytes(bytes).to_le_bytes()].concat())?;
    std::fs::rename(&part, file)
}

fn hash(parts: &[&str]) -> u64 {
    hash_bytes(parts.join("\0").as_bytes())
}

/// Returns the 64-bit FNV-1a hash. It only distinguishes sources, and complete files from truncated ones.
fn hash_bytes(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Compiles the finishing kernels for GPUs of compute capability `capability` (90 for 9.0) and stores them in `cache`.
/// Returns their size in bytes.
///
/// The machine needs no GPU. In a container image, this spares the first batch the compilation.
///
/// # Errors
/// `BadConfig` if NVIDIA's run-time compiler is not installed or does not support such a GPU.
pub fn compile_kernels(capability: u32, cache: Option<&Path>) -> Result<usize> {
    image(capability, None, cache).map(|bytes| bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_gives_back_whole_files_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kernels/one.cubin");
        assert_eq!(read(&file), None);
        write(&file, b"image").unwrap();
        assert_eq!(read(&file).unwrap(), b"image");
        let mut cut = std::fs::read(&file).unwrap();
        cut[1] ^= 1;
        std::fs::write(&file, &cut).unwrap();
        assert_eq!(read(&file), None);
        std::fs::write(&file, &cut[..4]).unwrap();
        assert_eq!(read(&file), None);
    }

    #[test]
    fn the_kernels_compile_for_every_gpu_that_the_compiler_knows() {
        let Ok(compiler) = nvrtc::Compiler::find(80, None) else {
            println!(
                "SKIPPED: no libnvrtc (name its file in FEEDSTOCK_NVRTC), so finish.cu is not compiled for GPUs"
            );
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        for capability in [75, 80, 90] {
            let target = compiler.target(capability).unwrap();
            assert_eq!(target.kind(), "cubin");
            let first = image(capability, None, Some(dir.path())).unwrap();
            assert!(first.starts_with(b"\x7fELF"), "{capability}");
            assert!(image(capability, None, Some(dir.path())).unwrap() == first, "kept");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
        let newer = image(999, None, None).unwrap();
        assert!(
            String::from_utf8_lossy(&newer).contains(".target sm_"),
            "PTX for a driver that supports the GPU"
        );
        assert_eq!(newer.last(), Some(&0), "PTX ends with a zero");
        assert_eq!(image(10, None, None).unwrap_err().kind(), ErrorKind::BadConfig);
    }
}
