//! The ops that `bench` and `preview` run on a column: their flags, their compiled chains, and runs of these on rows of blocks,
//! without a pipeline.
//!
//! ```text
//! --ops, --view ─▶ parse ─▶ GivenOps ─▶ on(data set) ─▶ ColumnOps ─┬─▶ pipeline ─▶ Pipeline
//!                                                                  └─▶ compile ──▶ Chains ─▶ run(row of a block)
//! ```

use super::failure::{Failure, Outcome};
use super::medium::Medium;
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Field;
use clap::Args;
use feedstock_dataset::Dataset;
use feedstock_ingest::images::{EncodedImages, is_list_of_images};
use feedstock_ops::image::{View, ViewRows, Views};
use feedstock_ops::{
    Chain, ChainSpec, Error, ImageList, Op, RaggedRow, SampleSeed, Scratch, TensorSpec, decode_image,
};
use feedstock_trainer_bridge as bridge;
use feedstock_trainer_bridge::Pipeline;

/// The decoder of views without --ops.
const DECODER: &str = "decode_image";

/// The ops, and the column of encoded samples.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct ChainArgs {
    /// The ops, in the syntax that `feedstock ops` describes [default:
    /// decode_image,random_resized_crop:224,horizontal_flip; for audio: decode_audio,resample:16000,log_mel:80]. With
    /// --view, only the decoder [default: decode_image].
    #[arg(long)]
    ops: Option<String>,
    /// A view of each image: the tensor NAME, which OPS make of the image that --ops decodes once. With *N, N images with
    /// independent random numbers, at most 1,024. Can be repeated.
    #[arg(long, value_name = "NAME[*N]=OPS")]
    view: Vec<String>,
    /// The column of encoded images or audio, or of lists of images [default: the only column of images or audio; if there
    /// is none, the only column of lists].
    #[arg(long)]
    column: Option<String>,
    /// For a column of lists of images, the most images of a sample. A sample with more is unusable [default: 256].
    #[arg(long, value_name = "N")]
    max_images: Option<u32>,
}

/// The ops as given.
pub(crate) enum GivenOps {
    /// Those of one result.
    Chain(ChainSpec),
    /// Those of several views of an image.
    Views {
        /// Decodes the image.
        decode: Op,
        /// The views as described.
        views: Vec<View>,
        /// The same views.
        compiled: Views,
    },
}

impl ChainArgs {
    /// Reads the ops, before the data set is opened; `None`: the usual ones of its column.
    pub(crate) fn parse(&self) -> Outcome<Option<GivenOps>> {
        let given = self.ops.as_deref().map(str::parse::<ChainSpec>).transpose()?;
        if self.view.is_empty() {
            return Ok(given.map(GivenOps::Chain));
        }
        let decode = match given {
            None => decode_image(),
            Some(given) => decoder(given)?,
        };
        let views = self.view.iter().map(|text| view(text)).collect::<Outcome<Vec<View>>>()?;
        let compiled = Views::compile(&decode, &views).map_err(|error| error.context("--view"))?;
        Ok(Some(GivenOps::Views { decode, views, compiled }))
    }

    /// Finds the column, and checks that the ops fit it.
    pub(crate) fn on(&self, given: Option<GivenOps>, dataset: &Dataset) -> Outcome<ColumnOps<'_>> {
        let column = encoded_column(dataset, self.column.as_deref())?;
        let schema = dataset.catalog().schema();
        let has_lists = schema.field_with_name(&column).is_ok_and(has_lists);
        if !has_lists && self.max_images.is_some() {
            let text = format!("--max-images is for columns of lists of images; `{column}` has none");
            return Err(Failure::config(text));
        }
        let usual = if has_lists { Medium::Picture } else { Medium::of(&column) }.default_ops();
        let ops = match given {
            None => GivenOps::Chain(usual.parse()?),
            Some(given) => given,
        };
        if let GivenOps::Views { views, .. } = &ops {
            if has_lists {
                return Err(Failure::config(format!(
                    "--view is for columns of single images, and `{column}` has lists of images; leave --view out, and put its ops \
                     into --ops"
                )));
            }
            if let Some(view) = views.iter().find(|view| schema.field_with_name(&view.name).is_ok()) {
                return Err(Failure::config(format!(
                    "--view {}: the data set has a column with this name; give the view another name",
                    view.name
                )));
            }
        }
        let text = self.ops.as_deref().unwrap_or(match &ops {
            GivenOps::Chain(_) => usual,
            GivenOps::Views { .. } => DECODER,
        });
        Ok(ColumnOps { args: self, column, ops, text })
    }
}

/// Returns the decoder of views.
fn decoder(given: ChainSpec) -> Outcome<Op> {
    let names = given.0.iter().map(Op::name).collect::<Vec<_>>().join(",");
    given.0.into_iter().next().filter(|_| names == DECODER).ok_or_else(|| {
        Failure::config(format!(
            "with --view, --ops has only the decoder: {DECODER} and its parameters; got {names}. Put all other ops into each --view"
        ))
    })
}

/// Reads `NAME=OPS` or `NAME*N=OPS`. OPS may have both marks.
fn view(text: &str) -> Outcome<View> {
    let form = || {
        Failure::config(format!(
            "--view must be NAME=OPS or NAME*N=OPS, such as local*8=random_resized_crop:96; got `{text}`"
        ))
    };
    let (head, ops) = text.split_once('=').ok_or_else(form)?;
    let (name, count) = match head.rsplit_once('*') {
        Some((name, count)) => (name.trim(), Some(count.trim())),
        None => (head.trim(), None),
    };
    // Without a name, the first equals sign is that of a parameter: random_resized_crop:96:scale=0.2..1.
    if name.is_empty() || name.contains([':', ',']) || ops.trim().is_empty() {
        return Err(form());
    }
    let spec: ChainSpec =
        ops.parse().map_err(|error: Error| Failure::from(error.context(format!("--view {name}"))))?;
    if let Some(op) = spec.0.iter().find(|op| op.name().starts_with("decode_")) {
        return Err(Failure::config(format!(
            "--view {name}: the image is decoded once, by --ops [default: {DECODER}]; leave {} out",
            op.name()
        )));
    }
    let view = View::new(name, spec);
    match count {
        None => Ok(view),
        Some(count) => match count.parse() {
            Ok(count) => Ok(view.count(count)),
            Err(_) => Err(Failure::config(format!(
                "--view {name}: the number of images, after *, must be an integer, 1 … 1024; got `{count}`"
            ))),
        },
    }
}

/// A column and the ops that it goes through.
pub(crate) struct ColumnOps<'a> {
    args: &'a ChainArgs,
    column: String,
    ops: GivenOps,
    /// What --ops has, or its default.
    text: &'a str,
}

impl<'a> ColumnOps<'a> {
    /// Returns the ops as text; those of the decoder if there are views.
    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    /// Returns a pipeline of the data set with these ops.
    pub(crate) fn pipeline(&self, dataset: &Dataset) -> Pipeline {
        let dataset = bridge::Dataset::from(dataset.clone());
        match &self.ops {
            GivenOps::Views { decode, views, .. } => {
                dataset.views(&self.column, decode.clone(), views.clone())
            }
            GivenOps::Chain(spec) => {
                let pipeline = dataset.map(&self.column, spec.clone());
                match self.args.max_images {
                    Some(images) => pipeline.max_images(&self.column, images),
                    None => pipeline,
                }
            }
        }
    }

    /// Returns the chains of `pipeline`, which [`pipeline`](Self::pipeline) has made, with their resources loaded.
    pub(crate) fn compile(&self, pipeline: &Pipeline) -> Outcome<Chains> {
        let column = self.column.clone();
        match &self.ops {
            GivenOps::Chain(_) => {
                let chain = pipeline.chain(&column)?;
                let output =
                    ChainOutput { view: None, ops: self.text.to_owned(), spec: chain.output().clone() };
                let outputs = vec![output];
                let bare = if chain.reads_lists() { Bare::List(chain) } else { Bare::Chain(chain) };
                Ok(Chains { column, bare, outputs })
            }
            GivenOps::Views { views, compiled, .. } => {
                if let Some(first) = views.first() {
                    pipeline.chain(&first.name)?; // checks all views as a rank does
                }
                let texts = self.args.view.iter().filter_map(|text| text.split_once('='));
                let outputs =
                    views.iter().zip(texts).zip(compiled.outputs()).map(|((view, (_, ops)), spec)| {
                        ChainOutput { view: Some(view.name.clone()), ops: ops.to_owned(), spec: spec.clone() }
                    });
                Ok(Chains { column, outputs: outputs.collect(), bare: Bare::Views(compiled.clone()) })
            }
        }
    }
}

/// One tensor that the chains make of a sample.
pub(crate) struct ChainOutput {
    /// The name of its view; `None` without views.
    pub(crate) view: Option<String>,
    /// The ops as text, of a view those after the decoder.
    pub(crate) ops: String,
    pub(crate) spec: TensorSpec,
}

/// The compiled chains of a column. They run without a pipeline and make what a pipeline makes.
pub(crate) struct Chains {
    column: String,
    bare: Bare,
    outputs: Vec<ChainOutput>,
}

enum Bare {
    /// Of one encoded value.
    Chain(Chain),
    /// Of a list of images.
    List(Chain),
    /// Of one encoded image, which is decoded once.
    Views(Views),
}

impl Chains {
    /// Returns the name of the column that they read.
    pub(crate) fn column(&self) -> &str {
        &self.column
    }

    /// Returns the tensors that they make, at least one.
    pub(crate) fn outputs(&self) -> &[ChainOutput] {
        &self.outputs
    }

    /// Returns what the chains read in one row of a block; `None` if it is null.
    pub(crate) fn stored<'a>(&self, rows: &'a RecordBatch, row: usize) -> Outcome<Option<Stored<'a>>> {
        let lacks = || Failure::bug(format!("a block has no encoded bytes in the column {}", self.column));
        let values = rows.column_by_name(&self.column).ok_or_else(lacks)?;
        if values.is_null(row) {
            return Ok(None);
        }
        Ok(Some(match self.bare {
            Bare::List(_) => Stored::Images(EncodedImages::of(rows, &self.column, row)?),
            _ => Stored::Bytes(values.as_binary_view_opt().ok_or_else(lacks)?.value(row)),
        }))
    }

    /// Returns memory for runs on one thread.
    pub(crate) fn memory(&self) -> ChainMemory {
        let rows = self.outputs.iter().map(|output| vec![0; output.spec.bytes()]).collect();
        ChainMemory { scratch: Scratch::default(), fixed: FixedRows(rows), ragged: RaggedRow::new() }
    }

    /// Runs the chains on one sample. [`results`](Self::results) returns what they made.
    ///
    /// # Errors
    /// `BadSample` for what a pipeline would skip.
    pub(crate) fn run(
        &self,
        stored: &Stored<'_>,
        seed: SampleSeed,
        memory: &mut ChainMemory,
    ) -> Result<(), Error> {
        let ChainMemory { scratch, fixed, ragged } = memory;
        match (&self.bare, stored) {
            (Bare::List(chain), Stored::Images(images)) => chain.apply_list(images, seed, scratch, ragged),
            (Bare::Views(views), Stored::Bytes(encoded)) => views.apply(encoded, seed, scratch, fixed),
            (Bare::Chain(chain), Stored::Bytes(encoded)) if chain.output().is_ragged() => {
                chain.apply_ragged(encoded, seed, scratch, ragged)
            }
            (Bare::Chain(chain), Stored::Bytes(encoded)) => {
                chain.apply(encoded, seed, scratch, fixed.row(0)?)
            }
            (Bare::List(_), Stored::Bytes(_)) | (Bare::Chain(_) | Bare::Views(_), Stored::Images(_)) => {
                Err(Error::bug("a chain is given a value of another column"))
            }
        }
    }

    /// Returns the results of the last run: each output with its bytes and the length of its ragged axis, if it has one.
    pub(crate) fn results<'a>(
        &'a self,
        memory: &'a ChainMemory,
    ) -> impl Iterator<Item = (&'a ChainOutput, &'a [u8], usize)> {
        let ChainMemory { fixed, ragged, .. } = memory;
        self.outputs.iter().zip(&fixed.0).map(|(output, row)| match output.spec.is_ragged() {
            true => (output, ragged.bytes(), ragged.length()),
            false => (output, row.as_slice(), 0),
        })
    }
}

/// What the chains read of one sample.
pub(crate) enum Stored<'a> {
    /// One encoded image or audio file.
    Bytes(&'a [u8]),
    /// A list of encoded images.
    Images(EncodedImages),
}

impl Stored<'_> {
    /// Returns the encoded bytes, without the images of a list that have none.
    pub(crate) fn files(&self) -> Vec<&[u8]> {
        match self {
            Self::Bytes(encoded) => vec![*encoded],
            Self::Images(images) => {
                (0..images.count()).filter_map(|number| images.image(number).ok()).collect()
            }
        }
    }
}

/// The memory of one thread, with the results of the last sample.
pub(crate) struct ChainMemory {
    scratch: Scratch,
    fixed: FixedRows,
    ragged: RaggedRow,
}

/// A row for each output; empty for ragged ones.
struct FixedRows(Vec<Vec<u8>>);

impl ViewRows for FixedRows {
    fn row(&mut self, view: usize) -> Result<&mut [u8], Error> {
        self.0.get_mut(view).map(Vec::as_mut_slice).ok_or_else(|| Error::bug("there is no row for a view"))
    }
}

/// Returns whether a column has lists of encoded images.
pub(crate) fn has_lists(field: &Field) -> bool {
    is_list_of_images(field.data_type())
}

/// Returns the named column of encoded samples or of lists of images, or the only one.
pub(crate) fn encoded_column(dataset: &Dataset, named: Option<&str>) -> Outcome<String> {
    let payloads = dataset.catalog().payload_columns().iter().map(String::as_str);
    let payloads: Vec<&str> = payloads.collect();
    let fields = dataset.catalog().schema().fields();
    let lists: Vec<&str> =
        fields.iter().filter(|field| has_lists(field)).map(|field| field.name().as_str()).collect();
    match (named, payloads.as_slice(), lists.as_slice()) {
        (Some(name), ..) if payloads.contains(&name) || lists.contains(&name) => Ok(name.to_owned()),
        (None, [only], _) | (None, [], [only]) => Ok((*only).to_owned()),
        (None, [], []) => Err(Failure::config(format!(
            "{} has no column of encoded images or audio, and none of lists of images",
            dataset.uri()
        ))),
        _ => Err(Failure::config(format!(
            "{}: set --column to a column of encoded images or audio, or of lists of images; the columns are: {}",
            dataset.uri(),
            [payloads.as_slice(), &lists].concat().join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::BAD_CONFIG;
    use arrow::array::{ArrayRef, BinaryArray, ListArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::DataType;
    use arrow::ipc::writer::FileWriter;
    use feedstock_dataset::{Block, BlockId, CatalogOptions, CatalogStore, OpenOptions};
    use feedstock_ops::Salt;
    use futures::executor::block_on;
    use std::path::Path;
    use std::sync::Arc;
    use tempfile::TempDir;

    const CROP: &str = "random_resized_crop:24:scale=0.2..1,horizontal_flip";

    fn args(ops: Option<&str>, views: &[&str]) -> ChainArgs {
        let view = views.iter().map(|view| (*view).to_owned()).collect();
        ChainArgs { ops: ops.map(str::to_owned), view, ..ChainArgs::default() }
    }

    fn of_column(column: &str) -> ChainArgs {
        ChainArgs { column: Some(column.to_owned()), ..ChainArgs::default() }
    }

    fn open(folder: &Path) -> Dataset {
        let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
        let options = OpenOptions { catalog, ..OpenOptions::default() };
        block_on(Dataset::open_with(folder.to_str().unwrap(), options)).unwrap()
    }

    fn first_block(dataset: &Dataset) -> Block {
        block_on(dataset.block_reader().fetch(BlockId(0), u64::MAX)).unwrap()
    }

    fn png(value: u8) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, 8, 8);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&[value; 8 * 8 * 3]).unwrap();
        out
    }

    /// Returns a folder with three samples. Each of `columns` has lists of 2, 0 and 1 images, or one image.
    fn three_samples(columns: &[(&str, bool)]) -> TempDir {
        let images = [png(10), png(20), png(30)];
        let images: ArrayRef = Arc::new(BinaryArray::from_iter_values(images.iter().map(Vec::as_slice)));
        let item = Arc::new(Field::new("item", DataType::Binary, true));
        let lists: ArrayRef =
            Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([2, 0, 1]), images.clone(), None));
        let rows = columns.iter().map(|(name, is_list)| (*name, if *is_list { &lists } else { &images }));
        let rows = RecordBatch::try_from_iter(rows.map(|(name, array)| (name, array.clone()))).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join("train.arrow")).unwrap();
        let mut writer = FileWriter::try_new(file, &rows.schema()).unwrap();
        writer.write(&rows).unwrap();
        writer.finish().unwrap();
        folder
    }

    #[track_caller]
    fn refusal<T>(outcome: Outcome<T>) -> String {
        match outcome {
            Err(Failure::Told { code: BAD_CONFIG, message }) => message,
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("it is accepted"),
        }
    }

    #[test]
    fn a_view_has_a_name_perhaps_a_number_of_images_and_ops() {
        let one = view(&format!("local*8={CROP}")).unwrap();
        assert_eq!((one.name.as_str(), one.count), ("local", Some(8)));
        assert_eq!(one.ops, CROP.parse().unwrap());
        let other = view(" a * 2 = resize:8x8,random_apply:[solarize:128]:0.2").unwrap();
        assert_eq!((other.name.as_str(), other.count, other.ops.0.len()), ("a", Some(2), 2));
        assert_eq!(view("a=resize:8x8").unwrap().count, None);
        assert_eq!(view("a*b*3=resize:8x8").unwrap().name, "a*b");
    }

    #[test]
    fn wrong_views_are_explained() {
        let form = "--view must be NAME=OPS or NAME*N=OPS, such as local*8=random_resized_crop:96; got `";
        for text in ["resize:8x8", "=resize:8x8", "*2=resize:8x8", "a=", "random_crop:8:padding=2,solarize:9"]
        {
            assert_eq!(refusal(view(text)), format!("{form}{text}`"));
        }
        let refused = |ops: Option<&str>, views: &[&str]| refusal(args(ops, views).parse());
        for (views, expected) in [
            (
                ["a*two=resize:8x8"],
                "--view a: the number of images, after *, must be an integer, 1 … 1024; got `two`",
            ),
            (["a*0=resize:8x8"], "--view: view 'a': the number of images must be 1 … 1024; got 0"),
            (
                ["a=decode_image,resize:8x8"],
                "--view a: the image is decoded once, by --ops [default: decode_image]; leave",
            ),
            (["a=resise:8x8"], "--view a: op 0: `resise` is not an op (did you mean resize?"),
            (["a=horizontal_flip"], "--view: view 'a': the chain has no fixed output size"),
        ] {
            let message = refused(None, &views);
            assert!(message.starts_with(expected), "{message}");
        }
        let twice = refused(None, &["a=resize:8x8", "a=resize:9x9"]);
        assert_eq!(
            twice,
            "--view: each view must have a name, and another one than the other views; got 'a'"
        );
        for ops in ["decode_image,resize:8x8", "resize:8x8", "decode_audio"] {
            let message = refused(Some(ops), &["a=resize:8x8"]);
            assert!(
                message.starts_with("with --view, --ops has only the decoder: decode_image and"),
                "{message}"
            );
            assert!(message.ends_with("Put all other ops into each --view"), "{message}");
        }
    }

    #[test]
    fn views_draw_by_their_names_as_maps_with_keys_do() {
        let folder = tempfile::tempdir().unwrap();
        let images =
            feedstock_synth::ImagenetOptions { samples: 6, width: 96, height: 80, ..Default::default() };
        images.write(folder.path(), &mut |_| {}).unwrap();
        let dataset = open(folder.path());
        let views = ["one", "local*3"].map(|view| format!("{view}={CROP}"));
        let args = args(Some("decode_image:scaled=false"), &views.each_ref().map(String::as_str));
        let ops = args.on(args.parse().unwrap(), &dataset).unwrap();
        let bare = ops.compile(&ops.pipeline(&dataset)).unwrap();
        let shapes: Vec<&[usize]> = bare.outputs().iter().map(|output| &output.spec.shape[..]).collect();
        assert_eq!(shapes, [&[24, 24, 3][..], &[3, 24, 24, 3]]);
        assert_eq!((ops.text(), bare.outputs()[1].ops.as_str()), ("decode_image:scaled=false", CROP));

        let decode = decoder("decode_image:scaled=false".parse().unwrap()).unwrap();
        let views = Views::compile(&decode, &views.map(|text| view(&text).unwrap())).unwrap();
        let alone = Chain::parse(&format!("decode_image:scaled=false,{CROP}")).unwrap();
        let (block, mut memory, mut scratch) = (first_block(&dataset), bare.memory(), Scratch::new());
        for row in 0..block.rows.num_rows() {
            let seed = SampleSeed::new(7, 2, block.sample(row).0);
            let stored = bare.stored(&block.rows, row).unwrap().unwrap();
            bare.run(&stored, seed, &mut memory).unwrap();
            for (index, (output, made, _)) in bare.results(&memory).enumerate() {
                let mut expected = vec![0; made.len()];
                views.chain(index).apply(stored.files()[0], seed, &mut scratch, &mut expected).unwrap();
                assert_eq!(made, expected);
                let name = output.view.as_deref().unwrap();
                for (number, expected) in expected.chunks_exact_mut(24 * 24 * 3).enumerate() {
                    let chain = alone.clone().with_salt(Salt::of_key(&format!("{name}/{number}")));
                    chain.apply(stored.files()[0], seed, &mut scratch, expected).unwrap();
                }
                assert_eq!(made, expected, "{name}");
            }
        }
    }

    #[test]
    fn ops_run_on_all_images_of_a_list() {
        let folder = three_samples(&[("pages", true)]);
        let dataset = open(folder.path());
        let args = args(Some("decode_image,center_crop:4x4"), &[]);
        let ops = args.on(args.parse().unwrap(), &dataset).unwrap();
        let bare = ops.compile(&ops.pipeline(&dataset)).unwrap();
        let (block, mut memory) = (first_block(&dataset), bare.memory());
        let made: Vec<(usize, Vec<u8>)> = (0..3)
            .map(|row| {
                let stored = bare.stored(&block.rows, row).unwrap().unwrap();
                bare.run(&stored, SampleSeed::new(7, 0, row as u64), &mut memory).unwrap();
                let (output, made, length) = bare.results(&memory).next().unwrap();
                assert!(output.spec.is_list() && output.view.is_none());
                (length, made.to_vec())
            })
            .collect();
        let pixels = |values: &[u8]| values.iter().flat_map(|value| [*value; 4 * 4 * 3]).collect::<Vec<u8>>();
        assert_eq!(made, [(2, pixels(&[10, 20])), (0, Vec::new()), (1, pixels(&[30]))]);

        let few = ChainArgs { max_images: Some(1), ..args.clone() };
        let ops = few.on(few.parse().unwrap(), &dataset).unwrap();
        let bare = ops.compile(&ops.pipeline(&dataset)).unwrap();
        let stored = bare.stored(&block.rows, 0).unwrap().unwrap();
        let error = bare.run(&stored, SampleSeed::new(7, 0, 0), &mut memory).unwrap_err();
        assert!(error.message().contains("max_images (1)"), "{error}");
    }

    #[test]
    fn the_only_column_of_images_is_found_and_others_are_named() {
        let image = ("image", false);
        for (columns, named, expected) in [
            (&[image, ("pages", true)][..], None, "image"),
            (&[image, ("pages", true)], Some("pages"), "pages"),
            (&[("pages", true)], None, "pages"),
        ] {
            let folder = three_samples(columns);
            assert_eq!(encoded_column(&open(folder.path()), named).unwrap(), expected);
        }
        let ambiguous = three_samples(&[("a", true), ("b", true)]);
        for named in [None, Some("c")] {
            let message = refusal(encoded_column(&open(ambiguous.path()), named));
            assert!(message.ends_with("or of lists of images; the columns are: a, b"), "{message}");
        }
    }

    #[test]
    fn ops_must_fit_the_column() {
        let folder = three_samples(&[("image", false), ("pages", true)]);
        let dataset = open(folder.path());
        let refused = |args: ChainArgs| refusal(args.on(args.parse().unwrap(), &dataset));
        let view = || vec!["a=resize:8x8".to_owned()];
        let lists = refused(ChainArgs { view: view(), ..of_column("pages") });
        assert!(
            lists.starts_with("--view is for columns of single images, and `pages` has lists"),
            "{lists}"
        );
        let taken = refused(args(None, &["image=resize:8x8"]));
        assert_eq!(
            taken,
            "--view image: the data set has a column with this name; give the view another name"
        );
        let single = refused(ChainArgs { max_images: Some(3), ..of_column("image") });
        assert_eq!(single, "--max-images is for columns of lists of images; `image` has none");
        let both = of_column("pages");
        let usual = both.on(both.parse().unwrap(), &dataset).unwrap();
        assert_eq!(usual.text(), Medium::Picture.default_ops());
    }
}
