//! NVIDIA's run-time compiler, loaded at run time. This is our own loader because cudarc's only knows the names of CUDA 12
//! and earlier. Python environments also store the library next to torch, outside the system's search path.

use super::libraries;
use feedstock_base::{Error, ErrorKind, Result};
use libloading::Library;
use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null;

/// Names for the system's loader, newest first.
const NAMES: [&str; 5] =
    ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "libnvrtc.so.11.2", "nvrtc64_120_0.dll"];

/// What to compile for: the device's architecture if the compiler knows it. For a newer device it is the newest known
/// architecture, as PTX, which the driver translates.
pub(super) struct Target {
    pub(super) option: String,
    is_final: bool,
}

impl Target {
    pub(super) fn kind(&self) -> &'static str {
        if self.is_final { "cubin" } else { "ptx" }
    }
}

type Program = *mut c_void;

/// The compiler's functions.
pub(super) struct Compiler {
    library: Library,
    /// Libraries that it looks up by name alone, kept loaded so that it finds them.
    _builtins: Vec<Library>,
}

/// Whether a driver of this version loads the output of a compiler of that version: machine code up to the same major version,
/// and PTX up to the same version.
fn fits(compiler: (u32, u32), driver: Option<(u32, u32)>, is_final: bool) -> bool {
    driver.is_none_or(|driver| if is_final { compiler.0 <= driver.0 } else { compiler <= driver })
}

impl Compiler {
    /// Loads the file that `FEEDSTOCK_NVRTC` names. If the variable is unset, loads the first compiler, offered or with a
    /// usual name, whose output for a device of `capability` this driver loads. A name also finds a library that the process
    /// has already loaded, as torch does.
    ///
    /// # Errors
    /// `BadConfig` if there is none, or if the named one cannot be used.
    pub(super) fn find(capability: u32, driver: Option<(u32, u32)>) -> Result<Self> {
        let named = libraries::named("FEEDSTOCK_NVRTC");
        Self::choose(named.as_deref(), &libraries::candidates("libnvrtc", &NAMES), capability, driver)
    }

    fn choose(
        named: Option<&OsStr>,
        candidates: &[OsString],
        capability: u32,
        driver: Option<(u32, u32)>,
    ) -> Result<Self> {
        let config = |message: String| Error::new(ErrorKind::BadConfig, message);
        if let Some(named) = named {
            let unusable = |why: String| {
                let file = Path::new(named).display();
                config(format!(
                    "FEEDSTOCK_NVRTC names {file}, which cannot be used: {why}; correct it or unset it"
                ))
            };
            let compiler = Self::load(named).map_err(|e| unusable(e.to_string()))?;
            return match compiler.misfit(capability, driver).map_err(|e| unusable(e.to_string()))? {
                None => Ok(compiler),
                Some(misfit) => Err(unusable(misfit)),
            };
        }
        let mut misfits = Vec::new();
        for name in candidates {
            let Ok(compiler) = Self::load(name) else { continue };
            match compiler.misfit(capability, driver) {
                Ok(None) => return Ok(compiler),
                Ok(Some(misfit)) => misfits.push(misfit),
                Err(error) => misfits.push(error.to_string()),
            }
        }
        Err(config(match misfits.first() {
            None => "finishing on the GPU needs NVIDIA's run-time compiler, and libnvrtc was not found; install the CUDA \
                     toolkit or the Python package nvidia-cuda-nvrtc (torch brings it), or name its file in \
                     FEEDSTOCK_NVRTC"
                .to_owned(),
            Some(misfit) => format!(
                "finishing on the GPU needs a run-time compiler that fits the GPU and its driver: {misfit}; update the \
                 driver, or install libnvrtc of its version and name its file in FEEDSTOCK_NVRTC"
            ),
        }))
    }

    fn load(name: &OsStr) -> Result<Self, libloading::Error> {
        let builtins = builtins_beside(Path::new(name));
        Ok(Self { library: libraries::load(name)?, _builtins: builtins })
    }

    /// Returns why the driver cannot load the output for such a device, or `None` if it can.
    fn misfit(&self, capability: u32, driver: Option<(u32, u32)>) -> Result<Option<String>> {
        let Some((major, minor)) = driver else { return Ok(None) };
        let version = self.version()?;
        let is_final = self.target(capability)?.is_final;
        Ok((!fits(version, driver, is_final)).then(|| {
            format!("libnvrtc is of CUDA {}.{}, the driver of CUDA {major}.{minor}", version.0, version.1)
        }))
    }

    /// # Safety
    /// `F` is the type of the function of that name.
    unsafe fn function<F: Copy>(&self, name: &str) -> Result<F> {
        // SAFETY: the caller's contract. The library stays loaded as long as `self`.
        let found = unsafe { self.library.get::<F>(name.as_bytes()) };
        found.map(|function| *function).map_err(|e| {
            Error::new(
                ErrorKind::BadConfig,
                format!("this libnvrtc has no {name} ({e}); install CUDA 11.2 or later"),
            )
        })
    }

    /// Returns its version, as (12, 6).
    pub(super) fn version(&self) -> Result<(u32, u32)> {
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: the type is the one that NVRTC declares. Writes two numbers.
        unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
                self.function("nvrtcVersion")?;
            done("querying the version", version(&raw mut major, &raw mut minor))?;
        }
        Ok((u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)))
    }

    /// Returns what to compile for on a device of `capability`.
    pub(super) fn target(&self, capability: u32) -> Result<Target> {
        let mut count: c_int = 0;
        let known: Vec<c_int>;
        // SAFETY: the types are those that NVRTC declares. The first returns how many numbers the second writes.
        unsafe {
            let counts: unsafe extern "C" fn(*mut c_int) -> c_int =
                self.function("nvrtcGetNumSupportedArchs")?;
            let list: unsafe extern "C" fn(*mut c_int) -> c_int = self.function("nvrtcGetSupportedArchs")?;
            done("querying architectures", counts(&raw mut count))?;
            let mut numbers = vec![0; usize::try_from(count).unwrap_or(0)];
            done("querying architectures", list(numbers.as_mut_ptr()))?;
            known = numbers;
        }
        let known: Vec<u32> = known.into_iter().filter_map(|number| u32::try_from(number).ok()).collect();
        if known.contains(&capability) {
            return Ok(Target { option: format!("--gpu-architecture=sm_{capability}"), is_final: true });
        }
        match known.iter().filter(|number| **number < capability).max() {
            Some(number) => {
                Ok(Target { option: format!("--gpu-architecture=compute_{number}"), is_final: false })
            }
            None => {
                let message = format!(
                    "the GPU's compute capability {}.{} is older than what this libnvrtc compiles for ({known:?}); install \
                     an older CUDA toolkit",
                    capability / 10,
                    capability % 10
                );
                Err(Error::new(ErrorKind::BadConfig, message))
            }
        }
    }

    /// Compiles `source` to an image that the driver loads.
    pub(super) fn compile(&self, source: &str, options: &[&str], target: &Target) -> Result<Vec<u8>> {
        let nul = |e: std::ffi::NulError| Error::new(ErrorKind::Bug, format!("the kernels' source: {e}"));
        let source = CString::new(source).map_err(nul)?;
        let options: Vec<CString> =
            options.iter().map(|option| CString::new(*option)).collect::<Result<_, _>>().map_err(nul)?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: the types are those that NVRTC declares, and the arguments outlive the calls.
        unsafe {
            let create: unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> c_int = self.function("nvrtcCreateProgram")?;
            let compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int =
                self.function("nvrtcCompileProgram")?;
            let destroy: unsafe extern "C" fn(*mut Program) -> c_int =
                self.function("nvrtcDestroyProgram")?;
            let made = create(&raw mut program, source.as_ptr(), c"finish.cu".as_ptr(), 0, null(), null());
            done("creating a program", made)?;
            let count = c_int::try_from(pointers.len()).unwrap_or(0);
            let image = match compile(program, count, pointers.as_ptr()) {
                0 => {
                    let names = match target.is_final {
                        true => ("nvrtcGetCUBINSize", "nvrtcGetCUBIN"),
                        false => ("nvrtcGetPTXSize", "nvrtcGetPTX"),
                    };
                    self.output(program, names)
                }
                failed => {
                    let log = self.output(program, ("nvrtcGetProgramLogSize", "nvrtcGetProgramLog"));
                    let log = log.map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default();
                    let message =
                        format!("the finishing kernels do not compile (NVRTC error {failed}): {log}");
                    Err(Error::new(ErrorKind::Bug, message))
                }
            };
            destroy(&raw mut program);
            image
        }
    }

    /// # Safety
    /// `program` is valid. The names are those of the functions that return an output's size and the output.
    unsafe fn output(&self, program: Program, (size, get): (&str, &str)) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the caller's contract: the first returns how many bytes the second writes.
        unsafe {
            let size: unsafe extern "C" fn(Program, *mut usize) -> c_int = self.function(size)?;
            let get: unsafe extern "C" fn(Program, *mut u8) -> c_int = self.function(get)?;
            done("querying a size", size(program, &raw mut bytes))?;
            let mut output = vec![0; bytes];
            done("fetching a result", get(program, output.as_mut_ptr()))?;
            Ok(output)
        }
    }
}

/// Loads the other half of the compiler, which is stored next to it. The compiler does not look there.
fn builtins_beside(file: &Path) -> Vec<Library> {
    let folder = file.parent().map(std::fs::read_dir);
    let Some(Ok(entries)) = folder else { return Vec::new() };
    let is_builtins = |name: &str| name.starts_with("libnvrtc-builtins.so") && !name.contains(".alt.");
    let files = entries.flatten().filter(|entry| is_builtins(&entry.file_name().to_string_lossy()));
    // SAFETY: NVIDIA's library of headers has no initialisers.
    files.filter_map(|entry| unsafe { Library::new(entry.path()) }.ok()).collect()
}

fn done(what: &str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        failed => Err(Error::new(ErrorKind::Bug, format!("NVRTC, {what}: error {failed}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_loads_code_of_its_own_major_version_and_text_of_its_own_version() {
        let driver = Some((12, 4));
        for (compiler, is_final, fit) in [
            ((12, 4), true, true),
            ((12, 9), true, true),
            ((11, 8), true, true),
            ((13, 0), true, false),
            ((12, 4), false, true),
            ((12, 5), false, false),
            ((11, 8), false, true),
        ] {
            assert_eq!(fits(compiler, driver, is_final), fit, "{compiler:?} {is_final}");
        }
        assert!(fits((13, 0), None, true), "for any driver");
    }

    #[test]
    fn a_compiler_that_is_named_is_taken_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("libnvrtc.so.12");
        std::fs::write(&file, b"not a library").unwrap();
        let error = Compiler::choose(Some(file.as_os_str()), &[], 80, None).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        let text = error.to_string();
        assert!(
            text.contains("FEEDSTOCK_NVRTC names") && text.contains("libnvrtc.so.12, which cannot be used"),
            "{text}"
        );
        // An unusable file that was only offered is skipped.
        let names = NAMES.map(OsString::from);
        let with_junk: Vec<OsString> = std::iter::once(file.into_os_string()).chain(names.clone()).collect();
        let found = Compiler::choose(None, &with_junk, 80, None).map(|_| ());
        assert_eq!(found.is_ok(), Compiler::choose(None, &names, 80, None).is_ok());
    }

    #[test]
    fn a_compiler_newer_than_the_driver_is_refused() {
        let Ok(compiler) = Compiler::find(80, None) else {
            println!("SKIPPED: no libnvrtc (name its file in FEEDSTOCK_NVRTC)");
            return;
        };
        assert_eq!(compiler.misfit(80, Some((99, 0))).unwrap(), None);
        let misfit = compiler.misfit(80, Some((10, 2))).unwrap().unwrap();
        assert!(misfit.contains("the driver of CUDA 10.2"), "{misfit}");
    }
}
