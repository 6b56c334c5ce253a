//! Faults that tests inject into chains (feature `faults`): code that a sample runs before its first op, inside of what
//! guards ops. It may panic, as a defective op does, or block, as one that does not end.

use std::sync::{Arc, Mutex, PoisonError};

type Fault = Arc<dyn Fn() + Send + Sync>;

/// The encoded bytes of a sample, and what happens to it.
static INJECTED: Mutex<Vec<(Vec<u8>, Fault)>> = Mutex::new(Vec::new());

/// Injects `fault` into each chain of this process that is applied to exactly these bytes, until the returned value is
/// dropped.
///
/// ```
/// use feedstock_ops::{Chain, ErrorKind, SampleSeed, Scratch, faults};
///
/// let _injected = faults::inject(b"cat.jpg", || panic!("out of cats"));
/// let (chain, mut row) = (Chain::parse("decode_image,resize:8x8")?, [0; 8 * 8 * 3]);
/// let error = chain.apply(b"cat.jpg", SampleSeed::new(0, 0, 0), &mut Scratch::new(), &mut row).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::BadSample);
/// assert!(error.to_string().contains("out of cats"));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
pub fn inject(encoded: impl Into<Vec<u8>>, fault: impl Fn() + Send + Sync + 'static) -> Injected {
    let encoded = encoded.into();
    injected().push((encoded.clone(), Arc::new(fault)));
    Injected { encoded }
}

/// A fault that is in effect. Dropping this removes it.
#[derive(Debug)]
#[must_use]
pub struct Injected {
    encoded: Vec<u8>,
}

impl Drop for Injected {
    fn drop(&mut self) {
        injected().retain(|(encoded, _)| *encoded != self.encoded);
    }
}

/// Runs what was injected for these bytes.
pub(crate) fn meet(encoded: &[u8]) {
    let fault = injected().iter().find(|(bytes, _)| bytes == encoded).map(|(_, fault)| fault.clone());
    if let Some(fault) = fault {
        fault(); // without the lock: other samples go on
    }
}

fn injected() -> std::sync::MutexGuard<'static, Vec<(Vec<u8>, Fault)>> {
    INJECTED.lock().unwrap_or_else(PoisonError::into_inner) // every change is a single push or retain
}
