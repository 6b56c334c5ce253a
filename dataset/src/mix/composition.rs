//! What mixes and concatenations have in common: stored data sets joined end to end and opened as one.
//!
//! ```text
//! concat([a, concat([b, c])]) ─▶ stored parts a, b, c ─▶ union catalog: a's samples, b's, c's
//! ```
//! A concatenation among the parts contributes its stored parts, so a union catalog is one level deep.

use super::union::union_catalog;
use crate::catalog::{Content, StoredPart, UnionInput, index};
use crate::dataset::Composition;
use crate::open::{Opened, place_hash};
use crate::{Dataset, DatasetSpec, Error, Result, Selection, SourceSpec};
use arrow::array::BooleanBufferBuilder;
use arrow::buffer::BooleanBuffer;
use datafusion::logical_expr::ScalarUDF;
use std::collections::HashMap;
use std::sync::Arc;

impl Dataset {
    /// Names this data set as a part of a mix or a concatenation; default its URI.
    ///
    /// A concatenation with a name passes it to all of its samples when it becomes a part. Without a name, its parts keep
    /// theirs.
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # std::fs::write(folder.path().join("1.jpg"), "a").unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let english = Dataset::open_with(uri, options).await?.named("en");
    /// let all = Dataset::concat(vec![english])?; // every sample has the value `en` in the column `dataset`
    /// assert_eq!(all.filter("dataset = 'en'").await?.len(), 1);
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Returns its name in errors when it is a part.
    pub(crate) fn part_name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.uri())
    }

    /// Returns the stored data sets that it consists of, as parts of a union.
    fn stored(&self) -> Vec<UnionInput> {
        let Content::Union(union) = &self.catalog().content else {
            let stored = StoredPart {
                catalog: self.opened.catalog.clone(),
                storage: self.opened.storage.clone(),
                cache: self.opened.cache.clone(),
                place_hash: self.opened.place_hash,
            };
            return vec![UnionInput {
                name: self.part_name().to_owned(),
                stored,
                columns: self.columns.clone(),
            }];
        };
        let named = |input: UnionInput| UnionInput {
            name: self.name.as_deref().map_or(input.name, str::to_owned),
            ..input
        };
        union.inputs(&self.columns).map(named).collect()
    }

    /// Returns its description as a part, with its name here: another process may resolve the URI differently.
    pub(crate) fn part_spec(&self) -> DatasetSpec {
        match &self.composition {
            Composition::Stored => self.clone().named(self.part_name()).spec(),
            Composition::Mix(_) | Composition::Concat(_) => self.spec(),
        }
    }

    /// Opens `parts` as one data set; `what` it is ("mix", "concatenation") is named in errors.
    ///
    /// # Errors
    /// `BadConfig` for parts of the same name, a part with weights, a concatenation with other columns than its parts', and
    /// for columns of the same name whose types do not fit.
    pub(crate) fn joined(
        what: &str,
        parts: &[&Self],
        (source, composition): (SourceSpec, Composition),
        notes: Vec<String>,
    ) -> Result<Self> {
        if let Some(weighted) = parts.iter().find(|part| part.selection().is_some_and(Selection::is_repeated))
        {
            return Err(Error::config(format!(
                "{}: a data set with weights cannot be part of a {what}; concatenate first, then call weights or balanced",
                weighted.part_name()
            )));
        }
        if let Some(derived) = parts.iter().find(|part| part.catalog().is_derived_union()) {
            return Err(Error::config(format!(
                "{}: a concatenation with with_column, rename or join cannot be part of a {what}; call them on its parts, or \
                 on the {what}",
                derived.part_name()
            )));
        }
        let inputs: Vec<Vec<UnionInput>> = parts.iter().map(|part| part.stored()).collect();
        check_names(what, &inputs)?;
        let inputs: Vec<UnionInput> = inputs.into_iter().flatten().collect();
        let places: Vec<Vec<u8>> = inputs.iter().map(place_of).collect();
        let mut functions: Vec<Arc<ScalarUDF>> = Vec::new();
        for function in parts.iter().flat_map(|part| &part.opened.functions) {
            if !functions.iter().any(|known| known.name() == function.name()) {
                functions.push(function.clone());
            }
        }
        let storage = parts[0].opened.storage.clone();
        let cache = parts.iter().find_map(|part| part.opened.cache.clone());
        let mut catalog = union_catalog(what, inputs)?;
        catalog.notes.extend(notes);
        let selection = joined_selection(parts);
        let selection = selection.map(|bits| Arc::new(Selection::from_bools(bits, catalog.block_starts())));
        let columns = (0..catalog.schema().fields().len()).collect();
        let place_hash = place_hash(&catalog, &places);
        let catalog = Arc::new(catalog);
        let opened = Arc::new(Opened {
            catalog,
            storage,
            stored_at: None,
            is_catalog_kept: false,
            published_as: None,
            cache,
            functions,
            source,
            place_hash,
        });
        let (steps, others) = (Arc::default(), Arc::default());
        Ok(Self { opened, selection, steps, others, columns, name: None, composition })
    }
}

/// Rejects a name that samples of two parts would share.
fn check_names(what: &str, parts: &[Vec<UnionInput>]) -> Result<()> {
    let mut known: HashMap<&str, usize> = HashMap::new();
    for (part, inputs) in parts.iter().enumerate() {
        for input in inputs {
            if *known.entry(&input.name).or_insert(part) != part {
                return Err(Error::config(format!(
                    "two parts of the {what} have the name {}; give them different names with Dataset::named",
                    input.name
                )));
            }
        }
    }
    Ok(())
}

/// Returns what the rows of a part depend on: its place, name and columns.
fn place_of(input: &UnionInput) -> Vec<u8> {
    let fields = input.stored.catalog.schema().fields();
    let columns: Vec<&str> = input.columns.iter().map(|&column| fields[column].name().as_str()).collect();
    format!("{} {:?} {columns:?}", input.stored.place_hash, input.name).into_bytes()
}

/// Returns one bit a sample of all parts; `None` if no part is filtered.
fn joined_selection(parts: &[&Dataset]) -> Option<BooleanBuffer> {
    if parts.iter().all(|part| part.selection().is_none()) {
        return None;
    }
    let mut bits = BooleanBufferBuilder::new(0);
    for part in parts {
        match part.selection() {
            Some(kept) => bits.append_buffer(kept.bits()),
            None => bits.append_n(index(part.catalog().samples()), true),
        }
    }
    Some(bits.finish())
}
