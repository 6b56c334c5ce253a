//! Resource usage of this process: CPU time and peak memory.

use std::time::Duration;

/// CPU time of all threads, and peak resident memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) peak_rss_bytes: u64,
}

impl Usage {
    /// Returns the kernel's current values.
    pub(crate) fn now() -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: getrusage fills the struct, for which all zeroes are a valid value.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
            usage.assume_init()
        };
        let span = |time: libc::timeval| {
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            let micros = u64::try_from(time.tv_usec).unwrap_or(0);
            Duration::from_secs(seconds) + Duration::from_micros(micros)
        };
        let peak = u64::try_from(usage.ru_maxrss).unwrap_or(0);
        // Linux reports kilobytes, macOS bytes.
        let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
        Self { cpu: span(usage.ru_utime) + span(usage.ru_stime), peak_rss_bytes: peak * unit }
    }
}
