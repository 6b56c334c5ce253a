//! What is done to which samples, in which order: all that a plan and its chains are made of, here or in another process.
//!
//! ```text
//! Recipe ──spec()──▶ RecipeSpec (JSON) ──to another process──▶ open() ──▶ Recipe: the same plan, the same chains
//! ```

use crate::resources::Loaded;
use crate::run::columns::{check_mapped, unmapped};
use crate::run::job::Map;
use crate::{Error, ErrorKind, Result};
use arrow::datatypes::SchemaRef;
use feedstock_dataset::{
    Carried, Cursor, Dataset, DatasetSpec, Fingerprint, Left, Lengths, OpenOptions, Plan, Rest, Shuffle,
    StepShape,
};
use feedstock_ops::{ChainSpec, OPS_VERSION, Resources, Salt};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};

/// One mapped column, as described.
///
/// ```
/// # use feedstock_ingest::{MapSpec, Recipe};
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
/// let map = |output: &str, key: Option<&str>| MapSpec {
///     column: "image".into(),
///     output: output.into(),
///     ops: "decode_image,random_resized_crop:32".parse().unwrap(),
///     pad_value: 0.0,
///     key: key.map(str::to_owned),
///     joint: None,
/// };
/// let mut recipe = Recipe::new(dataset);
/// recipe.maps = vec![map("first", None), map("second", None), map("third", Some("a")), map("fourth", Some("a"))];
/// let salts: Vec<_> = recipe.compile()?.iter().map(|map| map.chain.salt()).collect();
/// assert_ne!(salts[0], salts[1]); // two different crops of each image
/// assert_eq!(salts[2], salts[3]); // twice the same crop
/// # Ok::<(), feedstock_ingest::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapSpec {
    /// The column that is read.
    pub column: String,
    /// The name of the result.
    pub output: String,
    /// What is done to each sample.
    pub ops: ChainSpec,
    /// The value that short rows are padded with.
    pub pad_value: f64,
    /// What its random draws are named by: maps with equal keys draw the same for a sample. `None`: the first map of a
    /// column draws without a name, every further one by its output's. Left out of the JSON where it is `None`, so that
    /// descriptions and hashes of recipes without keys stay the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The name of the joint map that it belongs to: images and masks, which must have one size. Left out of the JSON likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joint: Option<String>,
}

impl MapSpec {
    /// The salt of its draws; `is_further` where an earlier map reads the same column.
    fn salt(&self, is_further: bool) -> Result<Salt> {
        match &self.key {
            Some(key) if key.is_empty() => {
                let message = format!("the key of the map to '{}' must not be empty", self.output);
                Err(Error::new(ErrorKind::BadConfig, message))
            }
            Some(key) => Ok(Salt::of_key(key)),
            None if is_further => Ok(Salt::of_output(&self.output)),
            None => Ok(Salt::default()),
        }
    }
}

/// The lengths that a plan uses, and how it uses them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByLength {
    /// The numeric column of lengths.
    pub column: Option<String>,
    /// Whether samples of similar length are put into one batch.
    pub bucketed: bool,
    /// Samples of a bucketing window.
    pub window: Option<u64>,
}

/// The description of a recipe.
///
/// ```
/// use feedstock_ingest::{MapSpec, Recipe, RecipeSpec};
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
/// #     Ok(MapSpec { column: "image".into(), output: "image".into(), ops: ops.parse()?, pad_value: 0.0, key: None, joint: None })
/// # };
/// let mut recipe = Recipe::new(dataset);
/// recipe.maps.push(map("decode_image,resize:32x32")?);
/// let sent = serde_json::to_string(&recipe.spec()).unwrap();
///
/// let spec: RecipeSpec = serde_json::from_str(&sent).unwrap(); // in another process
/// let same = futures::executor::block_on(spec.open(&own))?; // `own` returns its OpenOptions
/// assert_eq!(same.dataset.catalog().content_hash(), recipe.dataset.catalog().content_hash());
/// assert_eq!(same.ops_hash()?, recipe.ops_hash()?);
/// # Ok::<(), feedstock_ingest::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeSpec {
    /// The data set, filtered.
    pub dataset: DatasetSpec,
    /// The mapped columns.
    pub maps: Vec<MapSpec>,
    /// The order.
    pub shuffle: Shuffle,
    /// Lengths, and bucketing by them.
    pub by_length: ByLength,
    /// Seed of the ops' randomness.
    pub seed: u64,
    /// What is left of an epoch that began with other data; left out of the JSON where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<Rest>,
}

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

    /// Returns the same recipe with the rest of `epoch`, which began with the orders `carried`, the oldest first. The rest is
    /// the samples that those orders had left, in their order, as far as the data set still has them and its filter keeps
    /// them. Reads the catalogs of the earlier data; blocks while it does.
    ///
    /// # Errors
    /// `Gone` where such a catalog is not kept; `BadConfig` where a cursor is of another seed, shuffle, mix or bucketing.
    pub fn carrying(&self, epoch: u64, carried: Vec<Carried>, shape: &StepShape) -> Result<Self> {
        let mut left: Vec<Left> = Vec::new();
        let mut before: Option<Dataset> = None;
        for (at, Carried { fingerprint, position }) in carried.iter().enumerate() {
            let dataset = futures::executor::block_on(self.dataset.as_of(fingerprint))?;
            let then = self.as_saved(fingerprint).over(dataset.clone());
            let plan = then.whole_plan(shape).map_err(as_they_were)?;
            left = match before {
                None => {
                    let cursor = Cursor { fingerprint: fingerprint.clone(), ..plan.cursor(epoch, *position) };
                    plan.left_after(&cursor)?
                }
                Some(older) => {
                    plan.fingerprint().check_settings(fingerprint)?;
                    let found = still_there(&left, &older, &dataset, &plan)?;
                    Rest::new(epoch, carried[..at].to_vec(), &found)?.left_from(*position)
                }
            };
            before = Some(dataset);
        }
        let plan = self.whole_plan(shape)?;
        if let Some(older) = before {
            let of = left.len();
            left = still_there(&left, &older, &self.dataset, &plan)?;
            if left.len() < of {
                tracing::warn!(
                    "{} of the {of} samples that were left of epoch {epoch} are left out: their files were removed or \
                     replaced, or the filter no longer keeps them",
                    of - left.len()
                );
            }
        }
        let rest = Rest::new(epoch, carried, &left)?;
        Ok(Self { rest: Some(Arc::new(rest)), ..self.clone() })
    }

    /// The same over another version of the data.
    fn over(&self, dataset: Dataset) -> Self {
        Self { dataset, rest: None, lengths: Arc::default(), ..self.clone() }
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
    /// #     Ok(MapSpec { column: "image".into(), output: "image".into(), ops: ops.parse()?, pad_value: 0.0, key: None, joint: None })
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
    /// `BadConfig` for a column that does not exist or holds neither encoded bytes nor text, two maps of one output, an empty
    /// key, or a chain that does not compile; storage's errors.
    pub fn compile(&self) -> Result<Vec<Map>> {
        let reader = self.dataset.block_reader(); // of the chosen columns only
        check_mapped(reader.schema(), self.maps.iter().map(|map| map.column.as_str()))?;
        let needs = self.maps.iter().flat_map(|map| map.ops.needs());
        let resources = self.resources.load(&self.dataset, needs)?;
        let mut maps: Vec<Map> = Vec::new();
        for map in &self.maps {
            let MapSpec { column, output, ops, .. } = map;
            if maps.iter().any(|map| map.output == *output) {
                let message = format!(
                    "two maps have the output '{output}'; put all its ops into one, or name the results with map_as"
                );
                return Err(Error::new(ErrorKind::BadConfig, message));
            }
            let is_further = maps.iter().any(|map| map.column == *column);
            let chain = Arc::new(ops.compile_with(&resources)?.with_salt(map.salt(is_further)?));
            let partner =
                self.maps[..maps.len()].iter().position(|m| m.joint.is_some() && m.joint == map.joint);
            maps.push(Map { column: column.clone(), output: output.clone(), chain, partner });
        }
        Ok(maps)
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
    /// #     Ok(MapSpec { column: "image".into(), output: "image".into(), ops: ops.parse()?, pad_value: 0.0, key: None, joint: None })
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
        }
    }
}

/// Adds what to do if a file of the former data was removed.
fn as_they_were(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Gone => error.with_note(
            " (of the data as they were when the state was saved; lengths that are columns of the files need all files of \
             then: without them, load the state with on_change=next_epoch)",
        ),
        _ => error,
    }
}

/// Those of `left`, samples of `older`, that `newer` has and whose filter keeps, as its samples.
fn still_there(left: &[Left], older: &Dataset, newer: &Dataset, plan: &Plan) -> Result<Vec<Left>> {
    let same = futures::executor::block_on(newer.samples_of(older))?;
    let found = left.iter().filter_map(|left| Some(Left { sample: same.newer(left.sample)?, ..*left }));
    Ok(found.filter(|left| plan.is_selected(left.sample)).collect())
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
            ..Recipe::new(self.dataset.open(options).await?)
        })
    }

    /// Returns every URI that it names: of data sets, and of what the ops refer to.
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
    /// #     Ok(MapSpec { column: "image".into(), output: "image".into(), ops: ops.parse()?, pad_value: 0.0, key: None, joint: None })
    /// # };
    /// let mut recipe = Recipe::new(dataset);
    /// recipe.maps.push(map("tokenize:'s3://b/tokenizer.json'")?);
    /// assert_eq!(recipe.spec().uris()[1..], ["s3://b/tokenizer.json"]); // a worker must allow all of them
    /// # Ok::<(), feedstock_ingest::Error>(())
    /// ```
    pub fn uris(&self) -> Vec<String> {
        let mut uris: Vec<String> = self.dataset.uris().into_iter().map(str::to_owned).collect();
        uris.extend(self.maps.iter().flat_map(|map| map.ops.needs()).map(|need| need.uri().to_owned()));
        uris
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

    #[test]
    fn a_map_without_a_key_is_described_as_before_there_were_keys() {
        let map: MapSpec = serde_json::from_str(OLD).unwrap();
        assert_eq!(map.key, None);
        assert_eq!(serde_json::to_string(&map).unwrap(), OLD);
        let keyed = MapSpec { key: Some("pair".into()), ..map };
        let json = serde_json::to_string(&keyed).unwrap();
        assert_eq!(serde_json::from_str::<MapSpec>(&json).unwrap(), keyed);
    }
}
