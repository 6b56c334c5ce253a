//! Weighted mixing of data sets: languages, sources, easy and hard samples.

use crate::catalog::{Catalog, Content, Union, UnionInput};
use crate::dataset::{Opened, place_hash};
use crate::plan::{Plan, PlanInput, Selection, Shuffle, Stop};
use crate::{Dataset, Error, ErrorKind, Result, SourceSpec};
use arrow::array::BooleanBufferBuilder;
use arrow::buffer::BooleanBuffer;
use datafusion::logical_expr::ScalarUDF;
use std::sync::Arc;

/// How a data set is mixed of its parts.
pub(crate) struct Mix {
    /// Weights and filters, in the order of the parts.
    parts: Vec<(f64, Option<Arc<str>>)>,
    stop: Stop,
}

impl Dataset {
    /// What this data set is called in a mix; default its URI.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Mixes data sets: of every so many positions (a power of two between 1,024 and 65,536), each part has a share
    /// that is its weight's, exactly; `stop` says when an epoch ends.
    ///
    /// The result is a data set of the parts' samples one after another, sample ids counting on. Its columns are the
    /// parts' chosen ones by name: null where a part lacks one, widened where number or text types differ; and a column
    /// `dataset` with each part's name ([`named`](Self::named)). Filters of the parts hold, and the mix can be filtered
    /// on. Each part is read with its own storage options and disk cache; [`Dataset::storage`] and
    /// [`Dataset::disk_cache`] are those of the first (that has one).
    ///
    /// Weights are shares of samples, not of bytes or seconds. A part of less than about a thousandth of the mix has its
    /// share rounded to a number of samples in 65,536; where that is more than 1 % off, a note of the catalog and a
    /// warning tell so. Each part has its own order, with its share of the
    /// shuffle window; a part that repeats is shuffled anew each time.
    ///
    /// # Errors
    /// `BadConfig` for no parts, a part that is itself a mix, parts of one name, a weight that is not a finite number
    /// above zero or too small to be given a place, and columns of one name that do not go together.
    pub fn mix(parts: Vec<(Self, f64)>, stop: Stop) -> Result<Self> {
        if parts.is_empty() {
            return Err(Error::config("a mix of no data sets holds nothing"));
        }
        let weights: Vec<f64> = parts.iter().map(|(_, weight)| *weight).collect();
        let names: Vec<String> = parts.iter().map(|(part, _)| part.name_in_mix().to_owned()).collect();
        let rounded = Plan::check_weights(&weights, &|part| names[part].clone())?;
        if let Some((nested, _)) = parts.iter().find(|(part, _)| part.mix.is_some()) {
            return Err(Error::config(format!(
                "{}: mix its parts with the others in one call",
                nested.uri()
            )));
        }
        let described =
            parts.iter().map(|(part, weight)| (part.clone().named(part.name_in_mix()).spec(), *weight));
        let source = SourceSpec::Mix { parts: described.collect(), stop };
        let selection = concat_selections(&parts);
        let filters = parts.iter().map(|(part, weight)| (*weight, part.filter_sql.clone())).collect();
        let mut functions: Vec<Arc<ScalarUDF>> = Vec::new();
        for (part, _) in &parts {
            for function in &part.opened.functions {
                if !functions.iter().any(|known| known.name() == function.name()) {
                    functions.push(function.clone());
                }
            }
        }
        let places: Vec<[u8; 8]> = parts.iter().map(|(part, _)| part.place_hash().to_le_bytes()).collect();
        let storage = parts[0].0.opened.storage.clone();
        let cache = parts.iter().find_map(|(part, _)| part.opened.cache.clone());
        let inputs = parts.into_iter().map(|(part, _)| UnionInput {
            name: part.name_in_mix().to_owned(),
            opened: part.opened,
            columns: part.columns,
        });
        let mut catalog = Union::catalog(inputs.collect())?;
        for (part, asked, given) in rounded {
            let note = format!(
                "{}: its weight is a share of {asked:.2e} of the mix, its samples are one of {given:.2e}: so small a share \
                 is rounded to a number of samples in 65,536",
                names[part]
            );
            tracing::warn!("{note}");
            catalog.notes.push(note);
        }
        let selection = selection.map(|bits| Arc::new(Selection::from_bools(bits, catalog.block_starts())));
        let columns = (0..catalog.schema().fields().len()).collect();
        let place_hash = place_hash(&catalog, &places);
        let catalog = Arc::new(catalog);
        let opened = Arc::new(Opened { catalog, storage, cache, functions, source, place_hash });
        let mix = Some(Arc::new(Mix { parts: filters, stop }));
        Ok(Self { opened, selection, filter_sql: None, columns, name: None, mix })
    }

    fn name_in_mix(&self) -> &str {
        self.name.as_deref().unwrap_or(self.uri())
    }

    /// The plan of a mix.
    pub(crate) fn mixed_plan(&self, mix: &Mix, shuffle: &Shuffle) -> Result<Plan> {
        let Content::Union(union) = &self.catalog().content else {
            return Err(Error::new(ErrorKind::Bug, "a mix without parts"));
        };
        let parts = union.catalogs().zip(&mix.parts).map(|((catalog, first), (weight, own))| {
            let mut input = PlanInput::of(catalog);
            input.selection = self.selection().and_then(|kept| part_of(kept, catalog, first));
            input.filter = match (own, self.filter_sql()) {
                (Some(own), Some(all)) => Some(format!("({own}) AND ({all})")),
                (own, all) => own.as_deref().or(all).map(str::to_owned),
            };
            (input, *weight)
        });
        let name = |part: usize| union.names().nth(part).unwrap_or_default().to_owned();
        Plan::mixed_of(parts.collect(), mix.stop, shuffle, &name)
    }
}

/// The kept samples of a part whose samples start at `first` of the mix; `None` where all are.
fn part_of(kept: &Selection, catalog: &Catalog, first: u64) -> Option<Selection> {
    let bits = kept.bits().slice(index(first), index(catalog.samples()));
    (bits.count_set_bits() < bits.len()).then(|| Selection::from_bools(bits, catalog.block_starts()))
}

/// One bit a sample of all parts; `None` where no part is filtered.
fn concat_selections(parts: &[(Dataset, f64)]) -> Option<BooleanBuffer> {
    if parts.iter().all(|(part, _)| part.selection().is_none()) {
        return None;
    }
    let mut bits = BooleanBufferBuilder::new(0);
    for (part, _) in parts {
        match part.selection() {
            Some(kept) => bits.append_buffer(kept.bits()),
            None => bits.append_n(index(part.catalog().samples()), true),
        }
    }
    Some(bits.finish())
}

#[expect(clippy::cast_possible_truncation, reason = "the samples' bits are held in memory")]
fn index(n: u64) -> usize {
    n as usize
}
