//! Catalogs on their way between machines: read whole, checked, and stored with the index last.

use super::index::{INDEX, Index, Table, VERSION, read_index};
use super::load::load_index;
use super::place::Place;
use super::save::{replace_index, table_file};
use super::{files, identity};
use crate::catalog::Catalog;
use crate::format;
use crate::{Allow, Error, ErrorKind, Result, Storage};
use bytes::Bytes;

/// Limit on a catalog that is received: those of ImageNet in tars take about 100 MB.
pub(crate) const MAX_BYTES: u64 = 256 << 20;

/// Every table that a catalog may have. The names of an index from outside may be any text.
const TABLES: [&str; 9] =
    ["added", "blocks", "objects", "places", "samples", "schema", "source", "unit_index", "units"];

/// A stored catalog as it travels: an index, and the tables that it names.
pub(crate) struct Parcel {
    index: Index,
}

impl Parcel {
    /// Reads the index of a stored catalog.
    ///
    /// # Errors
    /// `BadConfig` for a layout whose archives were unpacked on this machine; storage's errors.
    pub(crate) async fn of(place: &Place, storage: &Storage) -> Result<Self> {
        Self { index: read_index(&place.file(INDEX), storage).await? }.with_known_tables()?.of_originals()
    }

    /// Takes an index that another machine sent.
    ///
    /// # Errors
    /// `BadConfig` for one of another version, one over [`MAX_BYTES`], and a layout whose archives were unpacked there.
    pub(crate) fn received(json: &[u8]) -> Result<Self> {
        let index: Index =
            serde_json::from_slice(json).map_err(|e| refused(&format!("its index does not parse: {e}")))?;
        if index.version != VERSION {
            return Err(refused(&format!("it has version {}, this program reads {VERSION}", index.version)));
        }
        Self { index }.with_known_tables()?.within_limit()?.of_originals()
    }

    fn with_known_tables(self) -> Result<Self> {
        match self.index.tables.keys().find(|name| !TABLES.contains(&name.as_str())) {
            Some(name) => Err(refused(&format!("a catalog has no table {name:?}"))),
            None => Ok(self),
        }
    }

    /// Refuses a catalog over [`MAX_BYTES`].
    pub(crate) fn within_limit(self) -> Result<Self> {
        match self.sizes().fold(0, u64::saturating_add) {
            0..=MAX_BYTES => Ok(self),
            bytes => Err(refused(&format!("it has {bytes} bytes, and at most {MAX_BYTES} are sent"))),
        }
    }

    /// Refuses a catalog of copies, which only the machine that made them has.
    fn of_originals(self) -> Result<Self> {
        match format::of(self.index.layout).reads_copies() {
            true => Err(refused("its archives were unpacked on the machine that built it")),
            false => Ok(self),
        }
    }

    /// Returns the sizes of the tables, in the order in which they are sent.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> {
        self.index.tables.values().map(|table| table.bytes)
    }

    /// Returns the index in the form in which it is sent.
    pub(crate) fn index(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(&self.index)
            .map_err(|e| Error::new(ErrorKind::Bug, "the catalog's index is not JSON").with_source(e))
    }

    /// Reads one table. Those on a local disk are mapped.
    pub(crate) async fn read(&self, number: usize, place: &Place, storage: &Storage) -> Result<Bytes> {
        let (name, table) = self.table(number)?;
        let stored = files::read(&place.file(&table.file), table.bytes, storage).await;
        let bytes = stored.map_err(|why| Error::new(ErrorKind::Gone, why))?.bytes;
        check(name, table, &bytes).map(|()| bytes)
    }

    /// Stores one table.
    pub(crate) async fn write(
        &self,
        number: usize,
        bytes: Bytes,
        place: &Place,
        storage: &Storage,
    ) -> Result<()> {
        let (name, table) = self.table(number)?;
        check(name, table, &bytes)?;
        storage.write(&place.file(&table.file), bytes).await
    }

    /// Stores the index, once all tables are there.
    pub(crate) async fn finish(&self, place: &Place, storage: &Storage) -> Result<()> {
        replace_index(&self.index, place, storage).await
    }

    /// Computes the hashes of the tables at `place` anew, and checks that a reader of `allow` may read every object.
    ///
    /// # Errors
    /// `BadConfig` if the catalog is not the one that its index states; `Denied` for an object that may not be read.
    pub(crate) async fn verify(&self, place: &Place, allow: &Allow, storage: &Storage) -> Result<()> {
        let catalog: Catalog =
            load_index(self.index.clone(), place, storage).await.map_err(|why| refused(&why))?;
        let (objects, allow) = (catalog.objects.clone(), allow.clone());
        let checked = move || (0..objects.len()).try_for_each(|i| allow.check(&objects.get(i).uri));
        let checked = tokio::task::spawn_blocking(checked).await; // paths are resolved, millions of them in seconds
        checked
            .map_err(|e| Error::new(ErrorKind::Retryable, format!("checking objects was ended: {e}")))??;
        let identity =
            identity::identity(catalog.layout, None, &catalog.objects, &catalog.content, storage).await?;
        let blocks = identity::blocks(&catalog.blocks, catalog.block_bytes)?;
        match (Some(identity), Some(blocks)) == (self.index.identity, self.index.blocks) {
            true => Ok(()),
            false => Err(refused("its tables do not have the hashes that its index states")),
        }
    }

    fn table(&self, number: usize) -> Result<(&str, &Table)> {
        let table = self.index.tables.iter().nth(number);
        let table = table.map(|(name, table)| (name.as_str(), table));
        table.ok_or_else(|| Error::new(ErrorKind::Bug, format!("a catalog has no table {number}")))
    }
}

/// Whether `place` has a catalog, of the form that this release makes, of the files whose listing has this hash.
pub(crate) async fn has(place: &Place, listing: u64, storage: &Storage) -> bool {
    read_index(&place.file(INDEX), storage).await.is_ok_and(|index| {
        let columns_version = format::of(index.layout).columns_version();
        (index.version, index.columns_version, index.fingerprint) == (VERSION, columns_version, listing)
    })
}

/// Copies the catalog at `from` to `to`.
pub(crate) async fn copy(from: &Place, to: &Place, storage: &Storage) -> Result<()> {
    let parcel = Parcel::of(from, storage).await?;
    for number in 0..parcel.sizes().count() {
        let bytes = parcel.read(number, from, storage).await?;
        parcel.write(number, bytes, to, storage).await?;
    }
    parcel.finish(to, storage).await
}

/// Checks that a table has the bytes that its name is a hash of.
fn check(name: &str, table: &Table, bytes: &[u8]) -> Result<()> {
    match table.file == table_file(name, bytes) && table.bytes == bytes.len() as u64 {
        true => Ok(()),
        false => Err(refused(&format!("its table {name} is damaged"))),
    }
}

fn refused(why: &str) -> Error {
    Error::config(format!("a catalog cannot be taken over: {why}"))
}
