//! What is done to which samples, in which order: all that a plan and its chains are made of, here or in another process.
//!
//! ```text
//! Recipe ──spec()──▶ RecipeSpec (JSON) ──to another process──▶ open() ──▶ Recipe: the same plan, the same chains
//! ```

mod carrying;
mod joint;
mod lists;
mod spec;
mod views;

pub use spec::{ByLength, MapSpec, RecipeSpec, ViewSpec};

use crate::functions::{FunctionsSpec, RowExecutor};
use crate::resources::Loaded;
use crate::run::columns::{check_mapped, unmapped};
use crate::run::job::Map;
use crate::{Error, ErrorKind, Result};
use arrow::datatypes::SchemaRef;
use feedstock_dataset::{Cursor, Dataset, Fingerprint, Lengths, OpenOptions, Plan, Rest, Shuffle, StepShape};
use feedstock_ops::image::Annotation;
use feedstock_ops::{OPS_VERSION, Resources};
use std::sync::{Arc, Mutex, PoisonError};

/// A data set, the chains of its columns, and its order. Cheap to clone; clones share what was loaded for them.
#[derive(Clone)]
pub struct Recipe {
    /// The data set, filtered.
    pub dataset: Dataset,
    /// The mapped columns.
    pub maps: Vec<MapSpec>,
    /// The order.
    pub shuffle: Shuffle,
    /// Lengths, and bucketing by them.
    pub by_length: ByLength,
    /// Seed of the ops' randomness; `None`: the shuffle's.
    pub seed: Option<u64>,
    /// What is left of an epoch that began with other data: see [`carrying`](Self::carrying).
    pub rest: Option<Arc<Rest>>,
    /// Python functions that run on each row where rows are made by workers. They are not part of
    /// [`ops_hash`](Self::ops_hash): a cursor is valid with any functions.
    pub functions: Option<Arc<FunctionsSpec>>,
    /// What runs them in this process, if it makes rows too. It is not part of the description.
    pub executor: Option<Arc<dyn RowExecutor>>,
    resources: Loaded,
    /// The lengths last read, shared by the clones.
    lengths: Arc<Mutex<Option<Lengths>>>,
}

impl Recipe {
    /// Creates a recipe of the data set's own order, without maps.
    pub fn new(dataset: Dataset) -> Self {
        Self {
            dataset,
            maps: Vec::new(),
            shuffle: Shuffle::none(),
            by_length: ByLength::default(),
            seed: None,
            rest: None,
            functions: None,
            executor: None,
            resources: Loaded::default(),
            lengths: Arc::default(),
        }
    }

    /// Sets loaded resources that the ops refer to by URI.
    pub fn give(&mut self, resources: Resources) {
        self.resources = Loaded::given(resources);
    }

    /// Returns the ops' seed.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(self.shuffle.seed())
    }

    /// Returns the same recipe with the order of a cursor, as far as the shuffle leaves it open: see [`Shuffle::as_saved`].
    #[must_use]
    pub fn as_saved(&self, saved: &Fingerprint) -> Self {
        Self { shuffle: self.shuffle.as_saved(saved), ..self.clone() }
    }

    /// Returns the order, for steps of this shape: only bucketed batches for each rank depend on it. Reads the column of lengths,
    /// if one was named; blocks while it does.
    ///
    /// ```
    /// use feedstock_dataset::{Position, Rank, Shuffle, StepShape, StepSize, Tail};
    /// use feedstock_ingest::Recipe;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let own = || OpenOptions {
    /// #     catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
    /// #     ..OpenOptions::default()
    /// # };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, own()))?; // 16 images with labels
    /// let mut recipe = Recipe::new(dataset);
    /// recipe.shuffle = Shuffle::seeded(7);
    /// let shape = StepShape { size: StepSize::Rows(6), rank: Rank::new(0, 1), tail: Tail::Drop };
    /// let plan = recipe.plan(&shape)?;
    /// assert_eq!((plan.len(), plan.steps_left(0, Position(0), &shape)), (16, 2));
    /// # Ok::<(), feedstock_ingest::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` where lanes or window are out of range, a sample has no length, or one exceeds the total of a batch:
    /// it is named.
    pub fn plan(&self, shape: &StepShape) -> Result<Plan> {
        let plan = self.whole_plan(shape)?;
        match &self.rest {
            Some(rest) => Ok(plan.with_rest(rest.clone())?),
            None => Ok(plan),
        }
    }

    /// The order of epochs that begin with the current data.
    fn whole_plan(&self, shape: &StepShape) -> Result<Plan> {
        let plan = self.dataset.plan(&self.shuffle)?;
        let Some(column) = &self.by_length.column else { return Ok(plan) };
        let lengths = self.lengths(column)?;
        let plan = plan.with_lengths(&lengths)?;
        // Before bucketing, which knows samples by number only.
        shape.check(&plan, &|sample| self.dataset.catalog().describe_sample(sample))?;
        match self.by_length.bucketed {
            true => Ok(plan.bucketed(&lengths, self.by_length.window, shape.size)?),
            false => Ok(plan),
        }
    }

    fn lengths(&self, column: &str) -> Result<Lengths> {
        let mut known = self.lengths.lock().unwrap_or_else(PoisonError::into_inner); // stored whole
        if let Some(lengths) = known.as_ref().filter(|lengths| lengths.column() == column) {
            return Ok(lengths.clone());
        }
        let (dataset, name) = (self.dataset.clone(), column.to_owned());
        let lengths = self.dataset.io().block_on(async move { dataset.lengths(&name).await })?;
        Ok(known.insert(lengths).clone())
    }

    /// Compiles the chains, after loading what they refer to. Blocks while it loads.
    ///
    /// ```
    /// use feedstock_ingest::{MapSpec, Recipe};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let own = || OpenOptions {
    /// #     catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
    /// #     ..OpenOptions::default()
    /// # };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, own()))?; // 16 images with labels
    /// # let map = |ops: &str| -> feedstock_ingest::Result<MapSpec> {
    /// #     Ok(MapSpec::new("image", "image", ops.parse()?))
    /// # };
    /// let mut recipe = Recipe::new(dataset);
    /// recipe.maps = vec![map("decode_image,resize:32x32")?];
    /// assert_eq!(recipe.compile()?[0].chain.output().shape, [32, 32, 3]);
    ///
    /// recipe.maps.push(map("decode_image,resize:64x64")?);
    /// let error = recipe.compile().err().unwrap();
    /// assert!(error.message().starts_with("two maps have the output 'image'"));
    /// # Ok::<(), feedstock_ingest::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a column that does not exist or holds neither encoded bytes nor text (boxes, keypoints: lists of numbers),
    /// two maps of one output, an empty key, boxes without an image, a crop by boxes without boxes, a transform of a column that its
    /// joint map does not decode, views of several columns or decoders, a view with the name of a column, lists of images in views,
    /// joint maps or together with functions, or a chain that does not compile; storage's errors.
    pub fn compile(&self) -> Result<Vec<Map>> {
        let reader = self.dataset.block_reader(); // of the chosen columns only
        let schema = reader.schema();
        let decoded = self.maps.iter().filter(|map| map.decodes());
        check_mapped(schema, decoded.map(|map| map.column.as_str()))?;
        let needs = self.maps.iter().flat_map(|map| map.ops.needs());
        let resources = self.resources.load(&self.dataset, needs)?;
        lists::check(&self.maps, schema)?;
        let views = views::compile(&self.maps, schema)?;
        let mut maps: Vec<Map> = Vec::new();
        for (index, map) in self.maps.iter().enumerate() {
            let MapSpec { column, output, ops, annotation, .. } = map;
            if let Some(first) = maps.iter().position(|map| map.output == *output) {
                views::check_outputs([&self.maps[first], map])?;
                let message = format!(
                    "two maps have the output '{output}'; put all its ops into one, or name the results with map_as"
                );
                return Err(Error::new(ErrorKind::BadConfig, message));
            }
            let partner = joint::partner(&self.maps, index)?;
            let along = joint::boxes_of(&self.maps, index)?;
            let crop_boxes = joint::crop_boxes(&self.maps, along.unwrap_or(index))?;
            // Boxes and keypoints draw what their image draws.
            let drawn = partner.filter(|_| annotation.is_some()).unwrap_or(index);
            let salt = self.maps[drawn].salt(joint::is_further(&self.maps, drawn))?;
            let chain = match (along, annotation) {
                (Some(boxes), _) => maps[boxes].chain.along(joint::dtype_along(schema, column)?)?,
                (None, Some(annotation)) => {
                    match annotation {
                        Annotation::Transform => joint::check_transformed(&self.maps, index, partner)?,
                        _ => joint::check_lists(schema, column, annotation)?,
                    }
                    ops.compile_annotation(annotation)?.with_salt(salt)
                }
                (None, None) => match &views[index] {
                    Some(views) => views.chain(index)?,
                    None => lists::chain_of(map, schema, ops.compile_with(&resources)?.with_salt(salt))?,
                },
            };
            let (column, output, views) = (column.clone(), output.clone(), views[index].clone());
            maps.push(Map { column, output, chain: Arc::new(chain), partner, along, crop_boxes, views });
        }
        match maps.iter().find(|map| map.chain.reads_lists()).filter(|_| self.functions.is_some()) {
            Some(map) => Err(lists::with_functions(&map.output)),
            None => Ok(maps),
        }
    }

    /// Returns the unmapped columns, which are delivered along with the results of `maps`.
    ///
    /// # Errors
    /// `BadConfig` for a map of a column that does not exist or cannot be mapped.
    pub fn unmapped(&self, maps: &[Map]) -> Result<SchemaRef> {
        unmapped(self.dataset.block_reader().schema(), &self.dataset, maps)
    }

    /// Returns a hash of the chains and of [`OPS_VERSION`]. It is not part of the order; cursors store it, so that changed ops
    /// are logged.
    ///
    /// ```
    /// use feedstock_ingest::{MapSpec, Recipe};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let own = || OpenOptions {
    /// #     catalog: CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() },
    /// #     ..OpenOptions::default()
    /// # };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, own()))?; // 16 images with labels
    /// # let map = |ops: &str| -> feedstock_ingest::Result<MapSpec> {
    /// #     Ok(MapSpec::new("image", "image", ops.parse()?))
    /// # };
    /// let mut recipe = Recipe::new(dataset);
    /// recipe.maps = vec![map("decode_image,resize:32x32")?];
    /// let saved = recipe.ops_hash()?;
    /// recipe.maps = vec![map("decode_image,resize:32x32:filter=bicubic")?];
    /// assert_ne!(recipe.ops_hash()?, saved); // a loader that resumes logs it
    /// # Ok::<(), feedstock_ingest::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Bug` where they cannot be written down.
    pub fn ops_hash(&self) -> Result<u64> {
        hash_of(&self.maps, OPS_VERSION)
    }

    /// Returns its description, for another process.
    pub fn spec(&self) -> RecipeSpec {
        RecipeSpec {
            dataset: self.dataset.spec(),
            maps: self.maps.clone(),
            shuffle: self.shuffle.clone(),
            by_length: self.by_length.clone(),
            seed: self.seed(),
            rest: self.rest.as_deref().cloned(),
            functions: self.functions.as_deref().cloned(),
        }
    }
}

fn hash_of(maps: &[MapSpec], ops_version: u32) -> Result<u64> {
    let text = serde_json::to_string(&(ops_version, maps))
        .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot describe the ops: {e}")))?;
    Ok(Cursor::hash_ops(&text))
}

impl RecipeSpec {
    /// Opens the data set. `options` returns what a description does not hold: storage, caches, functions.
    ///
    /// # Errors
    /// As [`DatasetSpec::open`].
    pub async fn open(&self, options: &(dyn Fn() -> OpenOptions + Sync)) -> Result<Recipe> {
        Ok(Recipe {
            maps: self.maps.clone(),
            shuffle: self.shuffle.clone(),
            by_length: self.by_length.clone(),
            seed: Some(self.seed),
            rest: self.rest.clone().map(Arc::new),
            functions: self.functions.clone().map(Arc::new),
            ..Recipe::new(self.dataset.open(options).await?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = r#"{"column":"image","output":"view","ops":[],"pad_value":0.0}"#;

    #[test]
    fn ops_of_another_version_have_another_hash() {
        let maps: Vec<MapSpec> = vec![serde_json::from_str(OLD).unwrap()];
        let without_version = Cursor::hash_ops(&format!("[{OLD}]")); // in cursors of earlier releases
        let hashes = [1, OPS_VERSION, OPS_VERSION + 1].map(|version| hash_of(&maps, version).unwrap());
        assert_eq!(hash_of(&maps, OPS_VERSION).unwrap(), hashes[1]);
        assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2]);
        assert!(!hashes.contains(&without_version));
    }
}
