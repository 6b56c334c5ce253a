//! Panics of libraries on bytes from outside, returned as errors.
//!
//! parquet 59 and arrow 59 assert some properties of a file instead of returning an error. A damaged file must not end the
//! process, and its error must name it.

use crate::{Error, ObjectRef, Result};
use futures::FutureExt;
use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code on bytes from outside and returns a panic as an error.
pub(crate) fn guarded<T, E: Display>(run: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(described(panic.as_ref())),
    }
}

/// Runs work on the bytes of `object` and returns a panic as the error of a damaged object.
pub(crate) async fn guarding<T>(object: &ObjectRef, work: impl Future<Output = Result<T>>) -> Result<T> {
    // Nothing that the work shares with others stays half-changed: it owns what it builds.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => {
            let (uri, what) = (&object.uri, described(panic.as_ref()));
            Err(Error::damage(format!("{uri}: {what}; the file is damaged: copy it again")))
        }
    }
}

fn described(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    match text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)) {
        Some(text) => format!("it cannot be decoded ({text})"),
        None => "it cannot be decoded".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_the_damage_of_its_object() {
        let object = ObjectRef { uri: "x.parquet".into(), size: 3, etag: None };
        let work = async { Ok::<u8, Error>([1, 2][std::hint::black_box(2)]) };
        let error = futures::executor::block_on(guarding(&object, work)).unwrap_err();
        assert!(error.is_damage() && error.message().contains("x.parquet"), "{error}");
        let other = async { Err::<(), _>(Error::config("an option")) };
        assert!(!futures::executor::block_on(guarding(&object, other)).unwrap_err().is_damage());
    }
}
