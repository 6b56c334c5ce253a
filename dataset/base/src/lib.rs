//! What all crates of feedstock share: the error, the ids, the page size, the printable form of URLs, and how real
//! stores answer.
//!
//! ```
//! use feedstock_base::{Error, ErrorKind};
//!
//! let error = Error::bad_sample("the JPEG header is missing").context("train-0042.parquet row 17");
//! assert_eq!(error.kind(), ErrorKind::BadSample);
//! assert_eq!(error.to_string(), "train-0042.parquet row 17: the JPEG header is missing");
//! ```

mod error;
mod http_url;
mod ids;
mod pages;
mod redact;
mod store_profile;

pub use error::{Error, ErrorKind, Result, SampleContext};
pub use http_url::{HttpUrl, is_http};
pub use ids::{BlockId, Lane, Position, Rank, SampleId};
pub use pages::PAGE_BYTES;
pub use redact::{hide_urls, shown};
pub use store_profile::{Fate, StoreProfile};
