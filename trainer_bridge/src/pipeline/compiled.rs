//! What a pipeline means for a run: its order, compiled chains, columns and hash.

use super::Pipeline;
use crate::nulls::NullRule;
use crate::padding::Fill;
use crate::sink::length_column;
use crate::slots::Column;
use crate::staging::{DeviceOptions, DevicePlan, MappedColumn};
use crate::{Error, ErrorKind, Result};
use arrow::datatypes::Field;
use feedstock_dataset::{Carried, Cursor, Dataset, Plan, Rank, Rest, StepShape};
use feedstock_device::finish::Finish;
use feedstock_ingest::{Engine, Map, RecipeSpec, default_threads};
use feedstock_ops::Chain;
use std::sync::PoisonError;

impl Pipeline {
    /// Returns the pipeline's description for other processes. Ranks send it to workers, and Flight clients can, too.
    ///
    /// ```
    /// use feedstock_dataset::Shuffle;
    /// use feedstock_ops::{decode_image, resize};
    /// use feedstock_trainer_bridge::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.map("image", [decode_image(), resize([32, 32])]).shuffle(Shuffle::seeded(7));
    /// let text = serde_json::to_value(pipeline.spec()).unwrap();
    /// assert_eq!(text["maps"][0]["ops"][1]["size"], serde_json::json!([32, 32]));
    /// assert_eq!(text["seed"], 7); // the shuffle's
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    pub fn spec(&self) -> RecipeSpec {
        self.recipe.spec()
    }

    /// Returns the data set, with its filter.
    pub fn dataset(&self) -> &Dataset {
        &self.recipe.dataset
    }

    /// Returns the order for ranks of this world size. It depends on the world size only for bucketed batches per rank. Reads
    /// the column of lengths, if one was named.
    ///
    /// ```
    /// use feedstock_dataset::{Rank, Shuffle};
    /// use feedstock_trainer_bridge::{BatchSize, Dataset};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(4));
    /// let (alone, of_four) = (pipeline.plan(Rank::new(0, 1))?, pipeline.plan(Rank::new(3, 4))?);
    /// assert_eq!(alone.fingerprint(), of_four.fingerprint()); // one order for every world size
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if lanes or window are out of range, or a sample, which is named, has no length or exceeds a batch's total.
    pub fn plan(&self, rank: Rank) -> Result<Plan> {
        self.recipe.plan(&self.shape(rank)?)
    }

    /// Returns the compiled chain of the column `output`, with its resources loaded. Previews and measurements run it outside
    /// the pipeline.
    ///
    /// ```
    /// use feedstock_ops::{decode_image, resize};
    /// use feedstock_trainer_bridge::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let images = feedstock_synth::ImagenetOptions { samples: 16, width: 64, height: 32, ..Default::default() };
    /// # images.write(folder.path(), &mut |_| {}).unwrap();
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// let dataset = futures::executor::block_on(Dataset::open_with(uri, options))?; // 16 images with labels
    /// let pipeline = dataset.map_as("image", "small", [decode_image(), resize([8, 8])]);
    /// assert_eq!(pipeline.chain("small")?.output().shape, [8, 8, 3]);
    /// assert_eq!(pipeline.chain("image").unwrap_err().message(), "no map has the output 'image'");
    /// # Ok::<(), feedstock_trainer_bridge::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if no map has this output, or a chain does not compile.
    pub fn chain(&self, output: &str) -> Result<Chain> {
        let (maps, _) = self.compile()?;
        let map = maps.into_iter().find(|map| map.output == output);
        let map =
            map.ok_or_else(|| Error::new(ErrorKind::BadConfig, format!("no map has the output '{output}'")))?;
        Ok(Chain::clone(&map.chain))
    }

    /// Returns the same pipeline with the rest of `epoch`, which began with other data.
    pub(crate) fn carrying(&self, epoch: u64, carried: Vec<Carried>, rank: Rank) -> Result<Self> {
        let recipe = self.recipe.carrying(epoch, carried, &self.shape(rank)?)?;
        Ok(Self { recipe, ..self.clone() })
    }

    /// Returns the same pipeline with the order of `cursor`, as far as its shuffle leaves the order open.
    pub(crate) fn as_saved(&self, cursor: &Cursor) -> Self {
        Self { recipe: self.recipe.as_saved(&cursor.fingerprint), ..self.clone() }
    }

    /// Returns the same pipeline with whole epochs of the current data.
    pub(crate) fn carrying_nothing(&self) -> Self {
        let mut pipeline = self.clone();
        pipeline.recipe.rest = None;
        pipeline
    }

    /// Returns the rest of an epoch that began with other data, if the order has one.
    pub(crate) fn rest(&self) -> Option<&Rest> {
        self.recipe.rest.as_deref()
    }

    pub(crate) fn shape(&self, rank: Rank) -> Result<StepShape> {
        match self.batch.over(rank) {
            Some(size) => Ok(StepShape { size, rank, tail: self.tail }),
            None => {
                let message = format!(
                    "the batch size of each rank times {} ranks must be below 2^64 rows; lower it",
                    rank.world_size
                );
                Err(Error::new(ErrorKind::BadConfig, message))
            }
        }
    }

    /// Returns the compiled chains and the columns that they make.
    pub(crate) fn compile(&self) -> Result<(Vec<Map>, Vec<Column>)> {
        let config = |message: String| Error::new(ErrorKind::BadConfig, message);
        let maps = self.recipe.compile()?;
        let mut columns: Vec<Column> = Vec::new();
        for (map, described) in maps.iter().zip(&self.recipe.maps) {
            let (spec, pad_value) = (map.chain.output().clone(), described.pad_value);
            let fill = Fill::new(pad_value, spec.dtype).ok_or_else(|| {
                config(format!(
                    "{}: {pad_value} is not a value of {:?}, so it cannot pad its rows",
                    map.output, spec.dtype
                ))
            })?;
            columns.push(Column { name: map.output.clone(), spec, fill, is_deferred: false });
        }
        let reader = self.recipe.dataset.block_reader(); // reads only the chosen columns
        let is_read = |name: &str| maps.iter().any(|map| map.column == name);
        for (Map { output, column, .. }, described) in maps.iter().zip(&self.recipe.maps) {
            if output != column && !is_read(output) && reader.schema().field_with_name(output).is_ok() {
                // Results of a joint map have fixed names.
                let advice = match described.joint {
                    Some(_) => "rename that column, or leave it out",
                    None => "give the result another name with map_as, or leave that column out",
                };
                return Err(config(format!(
                    "the result of '{column}' goes into the column '{output}', which already exists; {advice} with \
                     Dataset::columns"
                )));
            }
        }
        let taken = |name: &str| {
            maps.iter().any(|map| map.output == name) || reader.schema().field_with_name(name).is_ok()
        };
        for column in columns.iter().filter(|column| column.spec.is_ragged()) {
            let lengths = length_column(&column.name);
            if taken(&lengths) {
                return Err(config(format!(
                    "the lengths of '{}' go into the column '{lengths}', which already exists; give the result another name \
                     with map_as, or leave that column out with Dataset::columns",
                    column.name
                )));
            }
        }
        Ok((maps, columns))
    }

    /// Returns the forms of the unmapped columns of numbers.
    pub(crate) fn null_rules(&self, maps: &[Map], columns: &[Column]) -> Result<Vec<NullRule>> {
        let along = self.recipe.unmapped(maps)?;
        let along: Vec<&Field> = along.fields().iter().map(AsRef::as_ref).collect();
        let is_taken = |name: &str| {
            along.iter().any(|field| field.name() == name)
                || columns.iter().any(|column| {
                    column.name == name || column.spec.is_ragged() && length_column(&column.name) == name
                })
        };
        NullRule::of_columns(&self.nulls, &self.recipe.dataset, &along, &is_taken)
    }

    /// Returns the device's part, checked against the columns that the chains make.
    pub(crate) fn prepare_device(
        &self,
        options: &DeviceOptions,
        maps: &[Map],
        columns: &[Column],
        nulls: &[NullRule],
    ) -> Result<DevicePlan> {
        if options.nvjpeg > 0.0 && self.workers.is_some() {
            let message = "nvjpeg: workers decode on their CPUs; leave out nvjpeg or the workers";
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        self.check_joint(options)?;
        self.check_views(options)?;
        check_lists(options, columns)?;
        let mapped: Vec<MappedColumn<'_>> = columns
            .iter()
            .zip(&self.recipe.maps)
            .zip(maps)
            .map(|((column, described), map)| MappedColumn {
                name: &column.name,
                spec: &column.spec,
                ops: described.ops.0.len(),
                chain: &map.chain,
            })
            .collect();
        let reader = self.recipe.dataset.block_reader(); // reads only the chosen columns
        let along = reader.schema();
        let is_taken = |name: &str| {
            mapped.iter().any(|column| column.name == name)
                || along.field_with_name(name).is_ok()
                || nulls.iter().any(|rule| rule.mask() == Some(name))
        };
        let has_numbers = |name: &str| {
            nulls.iter().any(|rule| rule.column == name && !rule.is_list() || rule.mask() == Some(name))
                || columns.iter().any(|column| column.spec.is_ragged() && length_column(&column.name) == name)
        };
        DevicePlan::new(options, &mapped, self.recipe.seed(), &is_taken, &has_numbers)
    }

    /// Refuses what a device would do to one member of a joint map only.
    fn check_joint(&self, options: &DeviceOptions) -> Result<()> {
        if options.nvjpeg > 0.0
            && let Some(map) = self.recipe.maps.iter().find(|map| map.joint.is_some())
        {
            let message =
                format!("nvjpeg: '{}' is mapped jointly, which only CPUs do; leave out nvjpeg", map.output);
            return Err(Error::new(ErrorKind::BadConfig, message));
        }
        for (name, finish) in &options.finish {
            let is_joint = self.recipe.maps.iter().any(|map| map.output == *name && map.joint.is_some());
            if is_joint && let Finish::Picture(finish) = finish {
                let what = match (finish.flip > 0.0, &finish.mix) {
                    (true, _) => {
                        "flip would mirror it and not the other columns of its joint map; put horizontal_flip into the joint map"
                    }
                    (false, Some(_)) => {
                        "mix would mix it and not the other columns of its joint map; leave mix out"
                    }
                    (false, None) => continue,
                };
                return Err(Error::new(
                    ErrorKind::BadConfig,
                    format!("finish of '{name}', which is mapped jointly: {what}"),
                ));
            }
        }
        Ok(())
    }

    /// Refuses what a device cannot do to views.
    fn check_views(&self, options: &DeviceOptions) -> Result<()> {
        let view = self.recipe.maps.iter().find(|map| map.view.is_some());
        match view.filter(|_| options.nvjpeg > 0.0) {
            Some(map) => Err(Error::config(format!(
                "nvjpeg: '{}' is a view of '{}', and views are decoded by CPUs; leave out nvjpeg",
                map.output, map.column
            ))),
            None => Ok(()),
        }
    }

    /// Returns the hash of the ops for cursors, including finishing and decoding on a device.
    pub(crate) fn ops_hash(&self) -> Result<u64> {
        let ops = self.recipe.ops_hash()?;
        match self.device.as_ref().filter(|options| !options.finish.is_empty() || options.nvjpeg > 0.0) {
            None => Ok(ops),
            Some(options) => {
                let finish: std::collections::BTreeMap<_, _> =
                    options.finish.iter().map(|(name, finish)| (name, finish)).collect();
                let described = match options.nvjpeg > 0.0 {
                    false => serde_json::to_string(&(ops, finish)),
                    true => serde_json::to_string(&(ops, finish, options.nvjpeg)),
                };
                let text = described
                    .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot describe the finish: {e}")))?;
                Ok(Cursor::hash_ops(&text))
            }
        }
    }

    pub(crate) fn engine(&self) -> Result<Engine> {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner); // a single store
        let engine = match &mut *engine {
            Some(engine) => engine,
            none => none.insert(Engine::new(self.threads.unwrap_or_else(default_threads))?),
        };
        let engine = engine.clone().decoder_memory(self.decoder_memory);
        Ok(match self.row_index_bytes {
            Some(bytes) => engine.row_index_bytes(bytes),
            None => engine,
        })
    }
}

/// Refuses what a device cannot do to lists of images.
fn check_lists(options: &DeviceOptions, columns: &[Column]) -> Result<()> {
    let lists = || columns.iter().filter(|column| column.spec.is_list()).map(|column| &column.name);
    let Some(list) = lists().next() else { return Ok(()) };
    let problem = if options.nvjpeg > 0.0 {
        format!("nvjpeg: '{list}' has lists of images, which CPUs decode; leave out nvjpeg")
    } else if options.fixed_addresses {
        format!("fixed addresses: '{list}' has lists of images, so batches differ in shape; leave them out")
    } else if let Some((name, _)) = options.finish.iter().find(|(name, _)| lists().any(|list| list == name)) {
        format!(
            "finish of '{name}', which has lists of images: a device finishes single images; put the ops into the map"
        )
    } else {
        return Ok(());
    };
    Err(Error::config(problem))
}
