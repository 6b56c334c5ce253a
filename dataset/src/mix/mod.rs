//! Weighted mixing of data sets: languages, sources, easy and hard samples.

mod composition;
mod concat;
mod schema;
mod union;

use crate::catalog::Catalog;
use crate::catalog::index;
use crate::dataset::{Composition, Mix};
use crate::planning::plan_input;
use crate::steps::{joined, text, text_after};
use crate::{Dataset, Error, Result, SourceSpec};
use feedstock_plan::{Plan, Selection, Shuffle, Stop};
use std::sync::Arc;

impl Dataset {
    /// Mixes data sets by weight. The order consists of cycles of 2ᵏ positions (1,024 to 65,536), and each part has exactly
    /// its share of every cycle. `stop` decides when an epoch ends.
    ///
    /// The result is a data set of the parts' samples in sequence; sample ids continue from part to part. Its columns are the
    /// parts' chosen columns by name, null where a part lacks one, widened where number or text types differ. A column
    /// `dataset` has each part's name ([`named`](Self::named)). Filters of the parts stay in effect, and the mix can be
    /// filtered further. A part may be a concatenation ([`concat`](Self::concat)), with one weight and one order. Each part is
    /// read with its own storage options and disk cache. [`Dataset::storage`] returns those of the first part;
    /// [`Dataset::disk_cache`] that of the first part that has one.
    ///
    /// Weights are shares of samples, not of bytes or seconds. The share of a part below about a thousandth of the mix is
    /// rounded to a number of samples in 65,536. If that is off by more than 1 %, a note of the catalog and a warning state
    /// it. Each part has its own order, with its share of the shuffle window; a part that repeats is shuffled anew each time.
    ///
    /// ```
    /// use feedstock_dataset::{Dataset, Shuffle, Stop};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("en/1.jpg", "a"), ("en/2.jpg", "bb"), ("de/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let open = async |part: &str| {
    /// #     let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// #     let path = folder.path().join(part);
    /// #     Dataset::open_with(path.to_str().unwrap(), OpenOptions { catalog, ..OpenOptions::default() }).await
    /// # };
    /// # futures::executor::block_on(async {
    /// let (en, de) = (open("en").await?.named("en"), open("de").await?.named("de"));
    /// let mix = Dataset::mix(vec![(en, 3.0), (de, 1.0)], Stop::Never)?; // three English samples to one German
    /// let mut order = mix.plan(&Shuffle::seeded(7))?.epoch(0);
    /// let cycle = (0..1_024).map(|p| order.sample_at(feedstock_dataset::Position(p)).sample.0);
    /// assert_eq!(cycle.filter(|sample| *sample < 2).count(), 768); // samples 0 and 1 are English
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for no parts, a part that is itself a mix, parts of the same name, a weight that is not a finite number
    /// above zero or is too small to get a place, and columns of the same name whose types do not fit.
    pub fn mix(parts: Vec<(Self, f64)>, stop: Stop) -> Result<Self> {
        if parts.is_empty() {
            return Err(Error::config("a mix must have at least 1 data set; got none"));
        }
        let weights: Vec<f64> = parts.iter().map(|(_, weight)| *weight).collect();
        let names: Vec<String> = parts.iter().map(|(part, _)| part.part_name().to_owned()).collect();
        let rounded = Plan::check_weights(&weights, &|part| names[part].clone())?;
        if let Some((nested, _)) =
            parts.iter().find(|(part, _)| matches!(part.composition, Composition::Mix(_)))
        {
            return Err(Error::config(format!(
                "{}: mix its parts with the others in one call",
                nested.uri()
            )));
        }
        let described = parts.iter().map(|(part, weight)| (part.part_spec(), *weight)).collect();
        let source = SourceSpec::Mix { parts: described, stop };
        let composition = Composition::Mix(Arc::new(Mix { parts: parts.clone(), stop }));
        let notes: Vec<String> = rounded
            .into_iter()
            .map(|(part, asked, given)| {
                format!(
                    "{}: its weight is a share of {asked:.2e} of the mix, but its samples are a share of {given:.2e}, because \
                     so small a share is rounded to a number of samples in 65,536",
                    names[part]
                )
            })
            .collect();
        for note in &notes {
            tracing::warn!("{note}");
        }
        let parts: Vec<&Self> = parts.iter().map(|(part, _)| part).collect();
        Self::joined("mix", &parts, (source, composition), notes)
    }

    /// Plans a mix.
    pub(crate) fn mixed_plan(&self, mix: &Mix, shuffle: &Shuffle) -> Result<Plan> {
        let mut first = 0;
        let parts = mix.parts().map(|(part, weight)| {
            let catalog = part.catalog();
            let mut input = plan_input(catalog);
            input.selection = self.selection().and_then(|kept| part_of(kept, catalog, first));
            input.filter = match &part.composition {
                Composition::Concat(_) => text_after(part.selection_text(), &self.steps),
                Composition::Stored | Composition::Mix(_) => text(&joined(&part.steps, &self.steps)),
            };
            first += catalog.samples();
            (input, weight)
        });
        let name = |part: usize| mix.parts[part].0.part_name().to_owned();
        Plan::mixed_named(parts.collect(), mix.stop, shuffle, &name)
    }
}

/// Returns the kept samples of a part whose samples start at `first` of the mix; `None` if all are kept.
fn part_of(kept: &Selection, catalog: &Catalog, first: u64) -> Option<Selection> {
    let bits = kept.bits().slice(index(first), index(catalog.samples()));
    (bits.count_set_bits() < bits.len()).then(|| Selection::from_bools(bits, catalog.block_starts()))
}
