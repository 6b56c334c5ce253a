//! How a recipe is described to another process.

use crate::functions::FunctionsSpec;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{DatasetSpec, Rest, Shuffle};
use feedstock_ops::image::Annotation;
use feedstock_ops::{ChainSpec, Salt};
use serde::{Deserialize, Serialize};

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
///     key: key.map(str::to_owned),
///     ..MapSpec::new("image", output, "decode_image,random_resized_crop:32".parse().unwrap())
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
    /// The name of the joint map that it belongs to: images and masks, which must have one size, and what follows them. Left
    /// out of the JSON likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joint: Option<String>,
    /// What follows the image of the joint map: boxes or keypoints that the column holds, or the matrix of its geometry. `ops` are
    /// then those of the image without its decoder. Left out of the JSON likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotation: Option<Annotation>,
    /// The output of the boxes of the same joint map along which the column has values: those of dropped boxes are dropped.
    /// Such a map has no ops. Left out of the JSON likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub along: Option<String>,
    /// The views of which the result is one, or several: they are decoded together. Left out of the JSON likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<ViewSpec>,
    /// The most images of a sample, if the column has lists of images; `None`: [`Chain::MAX_IMAGES`](feedstock_ops::Chain::MAX_IMAGES).
    /// Left out of the JSON likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_images: Option<u32>,
}

/// What makes a map one of several views of an image.
///
/// ```
/// use feedstock_ingest::{MapSpec, Recipe, ViewSpec};
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
/// let view = |output: &str, ops: &str, count: Option<u32>| MapSpec {
///     view: Some(ViewSpec { of: "crops".to_owned(), count }),
///     ..MapSpec::new("image", output, ops.parse().unwrap())
/// };
/// let mut recipe = Recipe::new(dataset);
/// recipe.maps = vec![
///     view("global", "decode_image,random_resized_crop:32", None),
///     view("local", "decode_image,random_resized_crop:16", Some(8)),
/// ];
/// let shapes: Vec<_> = recipe.compile()?.iter().map(|map| map.chain.output().shape.clone()).collect();
/// assert_eq!(shapes, [vec![32, 32, 3], vec![8, 16, 16, 3]]);
/// # Ok::<(), feedstock_ingest::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewSpec {
    /// The name that all views of one decoded image have in common. Their maps have one column and one decoder.
    pub of: String,
    /// The number of images of a row; `None`: one, without an axis of views.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

impl MapSpec {
    /// Creates a map of `column` alone, to the tensor `output`, which is padded with zeros.
    pub fn new(column: &str, output: &str, ops: ChainSpec) -> Self {
        Self {
            column: column.to_owned(),
            output: output.to_owned(),
            ops,
            pad_value: 0.0,
            key: None,
            joint: None,
            annotation: None,
            along: None,
            view: None,
            max_images: None,
        }
    }

    /// The salt of its draws; `is_further` where an earlier map reads the same column.
    pub(super) fn salt(&self, is_further: bool) -> Result<Salt> {
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
/// #     Ok(MapSpec::new("image", "image", ops.parse()?))
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
    /// Python functions that run on each row; left out of the JSON where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub functions: Option<FunctionsSpec>,
}

impl RecipeSpec {
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
    /// #     Ok(MapSpec::new("image", "image", ops.parse()?))
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
    fn a_recipe_without_functions_is_described_as_before_there_were_functions() {
        let source = r#""source":{"uri":{"uri":"memory://a","layout":null,"split":null,"durations":"never","block_bytes":1}}"#;
        let rest = r#""filter":null,"columns":null,"name":null"#;
        let old = format!(
            r#"{{"dataset":{{{source},{rest}}},"maps":[],"shuffle":{},"by_length":{},"seed":0}}"#,
            serde_json::to_string(&Shuffle::none()).unwrap(),
            serde_json::to_string(&ByLength::default()).unwrap()
        );
        let spec: RecipeSpec = serde_json::from_str(&old).unwrap();
        assert_eq!(spec.functions, None);
        assert_eq!(serde_json::to_string(&spec).unwrap(), old);
        let with = RecipeSpec { functions: Some(FunctionsSpec::default()), ..spec };
        let json = serde_json::to_string(&with).unwrap();
        assert_eq!(serde_json::from_str::<RecipeSpec>(&json).unwrap(), with);
    }

    #[test]
    fn a_map_without_a_key_is_described_as_before_there_were_keys() {
        let map: MapSpec = serde_json::from_str(OLD).unwrap();
        assert_eq!(map.key, None);
        assert_eq!(serde_json::to_string(&map).unwrap(), OLD);
        let joint = r#","joint":"image+boxes","annotation":{"kind":"keypoints"}}"#;
        let annotated: MapSpec = serde_json::from_str(&OLD.replace('}', joint)).unwrap();
        assert_eq!(annotated.annotation.unwrap().name(), "keypoints");
        assert!(serde_json::from_str::<MapSpec>(&OLD.replace('}', r#","of_a_later_version":1}"#)).is_err());
        let one_of = OLD.replace('}', r#","view":{"of":"crops","count":8}}"#);
        let view: MapSpec = serde_json::from_str(&one_of).unwrap();
        assert_eq!(view.view, Some(ViewSpec { of: "crops".into(), count: Some(8) }));
        assert_eq!(serde_json::to_string(&view).unwrap(), one_of);
        let keyed = MapSpec { key: Some("pair".into()), ..map };
        let json = serde_json::to_string(&keyed).unwrap();
        assert_eq!(serde_json::from_str::<MapSpec>(&json).unwrap(), keyed);
    }
}
