//! What is opened at one URI, or made of several data sets: a catalog, and what its blocks are read with.

use super::spec::SourceSpec;
use crate::catalog::Catalog;
use crate::stored::Place;
use crate::{DiskCache, Storage};
use datafusion::logical_expr::ScalarUDF;
use std::hash::Hasher;
use std::sync::Arc;

/// An opened data set, whatever is chosen of it.
pub(crate) struct Opened {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) storage: Storage,
    /// Where the catalog is kept; `None` in memory only, and for what is made of several data sets.
    pub(crate) stored_at: Option<Place>,
    /// Whether it is stored there. A cache folder that is full or read-only costs time and is not an error.
    pub(crate) is_catalog_kept: bool,
    pub(crate) cache: Option<DiskCache>,
    pub(crate) functions: Vec<Arc<ScalarUDF>>,
    /// What was opened, for another process.
    pub(crate) source: SourceSpec,
    /// A hash of the content and of the place that it is read from.
    pub(crate) place_hash: u64,
}

/// A hash of a catalog's content, its ETags included, and of the places that it is read from.
pub(crate) fn place_hash<P: AsRef<[u8]>>(catalog: &Catalog, places: impl IntoIterator<Item = P>) -> u64 {
    let mut hasher = twox_hash::XxHash64::with_seed(0);
    hasher.write_u64(catalog.hashes().identity);
    hasher.write_u64(catalog.hashes().blocks);
    hasher.write_u64(catalog.listing); // a file that is rewritten with an equal size changes it
    for place in places {
        let place = place.as_ref();
        hasher.write_u64(place.len() as u64);
        hasher.write(place);
    }
    hasher.finish()
}
