//! Lists of images of a sample: joined in a batch without padding, here and from workers, with good and bad lists.

use crate::common::open;
use crate::common::pictures::jpegs;
use crate::fleet::{Whole, at, batches, worker};
use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, ListArray, StringArray, StructArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields, Int64Type, Schema, UInt8Type};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Rank, Shuffle, Tail};
use feedstock_ops::image::View;
use feedstock_ops::{
    Chain, ChainSpec, DType, Op, SampleSeed, Scratch, decode_audio, decode_image, horizontal_flip,
    random_resized_crop, resample, resize,
};
use feedstock_trainer_bridge::{
    Batch, BatchSize, DeviceOptions, ErrorKind, Finish, OnError, PictureFinish, Pipeline,
};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use std::path::Path;
use std::sync::Arc;

const SAMPLES: usize = 60;
const SIDE: usize = 16;
const IMAGE_BYTES: usize = SIDE * SIDE * 3;

type Lists = Vec<Option<Vec<Option<Vec<u8>>>>>;

/// Lists of 0 to 4 images.
fn lists() -> Lists {
    let images = jpegs(7);
    let image = |sample: usize, number: usize| Some(images[(sample * 3 + number) % images.len()].clone());
    (0..SAMPLES)
        .map(|sample| Some((0..count(sample)).map(|number| image(sample, number)).collect()))
        .collect()
}

fn count(sample: usize) -> usize {
    sample * 7 % 5
}

/// Writes one file whose row `i` is sample `i`, as Hugging Face writes `Sequence(Image())`.
fn write(folder: &Path, lists: &Lists) {
    let items = || lists.iter().flatten().flatten();
    let fields = Fields::from(vec![
        Field::new("bytes", DataType::Binary, true),
        Field::new("path", DataType::Utf8, true),
    ]);
    let bytes: ArrayRef = Arc::new(BinaryArray::from_iter(items().map(Option::as_deref)));
    let paths: ArrayRef =
        Arc::new(StringArray::from_iter(items().map(|image| image.is_none().then_some("gone.jpg"))));
    let structs = StructArray::new(fields.clone(), vec![bytes, paths], None);
    let item = Arc::new(Field::new("element", DataType::Struct(fields), true));
    let offsets = OffsetBuffer::from_lengths(lists.iter().map(|list| list.as_ref().map_or(0, Vec::len)));
    let nulls = NullBuffer::from_iter(lists.iter().map(Option::is_some));
    let images = ListArray::new(item, offsets, Arc::new(structs), Some(nulls));
    let ids = Int64Array::from_iter_values(0..lists.len() as i64);
    let schema = Arc::new(Schema::new(vec![
        Field::new("images", images.data_type().clone(), true),
        Field::new("label", DataType::Int64, false),
    ]));
    let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(images), Arc::new(ids)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(9)).build();
    let file = std::fs::File::create(folder.join("train.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn chain() -> [Op; 3] {
    [decode_image(), random_resized_crop(SIDE as u32), horizontal_flip(0.5)]
}

fn pipeline(folder: &Path) -> Pipeline {
    open(folder)
        .map("images", chain())
        .shuffle(Shuffle::seeded(7))
        .batch(BatchSize::global(8))
        .tail(Tail::Pad)
        .epochs(1)
        .threads(2)
        .slots(20) // tests keep all batches
}

fn made(pipeline: &Pipeline) -> Vec<Batch> {
    pipeline.rank(Rank::new(0, 1)).start().unwrap().map(Result::unwrap).collect()
}

fn data(lists: &Lists) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), lists);
    folder
}

fn error_of(pipeline: &Pipeline) -> String {
    let batches = pipeline.rank(Rank::new(0, 1)).start().unwrap();
    let error = batches.map(|batch| batch.err()).find_map(|error| error).unwrap();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    error.message().to_owned()
}

#[test]
fn a_batch_has_the_images_of_its_rows_one_after_another() {
    let lists = lists();
    let folder = data(&lists);
    let one = ChainSpec::from(chain()).compile().unwrap();
    let mut scratch = Scratch::new();
    let mut rows = 0;
    for batch in made(&pipeline(folder.path())) {
        let images = &batch["images"];
        let lengths = images.lengths().unwrap();
        let total: usize = lengths.iter().sum();
        assert_eq!(images.shape(), [total, SIDE, SIDE, 3]);
        assert_eq!((images.dtype(), images.is_list(), images.padded_axis()), (DType::U8, true, None));
        assert_eq!(images.bytes().len(), total * IMAGE_BYTES);
        let column = batch.column("images_length").unwrap().as_primitive::<Int64Type>();
        assert_eq!(column.values().iter().map(|&length| length as usize).collect::<Vec<_>>(), lengths);
        assert!(batch.column("images").is_none(), "encoded images do not ride along");
        let mut joined = Vec::new();
        for (row, sample) in batch.sample_ids().iter().enumerate() {
            let stored = lists[sample.0 as usize].as_ref().unwrap();
            assert_eq!(lengths[row], stored.len());
            let seed = SampleSeed::new(7, batch.epoch(), sample.0);
            for (number, encoded) in (0..).zip(stored.iter().flatten()) {
                let mut out = vec![0; IMAGE_BYTES];
                one.apply(encoded, seed.image(number), &mut scratch, &mut out).unwrap();
                joined.extend(out);
            }
            assert_eq!(images.row(row), &joined[joined.len() - stored.len() * IMAGE_BYTES..]);
            rows += 1;
        }
        assert!(images.bytes() == joined);
    }
    assert_eq!(rows, SAMPLES.next_multiple_of(8));
}

#[test]
fn batches_without_any_image_have_an_empty_tensor() {
    let folder = data(&vec![Some(Vec::new()); 8]);
    let batch =
        made(&pipeline(folder.path()).map_as("images", "small", [decode_image(), resize([4, 4])])).remove(0);
    assert_eq!(batch["images"].shape(), [0, SIDE, SIDE, 3]);
    assert_eq!((batch["images"].bytes().len(), batch["images"].row(3).len()), (0, 0));
    assert_eq!(batch["small"].lengths().unwrap(), [0; 8]);
    let rows = batch.to_record_batch().unwrap();
    assert_eq!(rows["images"].as_list::<i32>().value(2).len(), 0);
}

#[test]
fn workers_make_the_same_lists_and_a_run_resumes_in_them() {
    let folder = data(&lists());
    let fleet = [worker(folder.path()), worker(folder.path())];
    let pipeline = pipeline(folder.path()).map_as("images", "second", chain());
    for world_size in [1, 3] {
        let alone = batches(&pipeline, world_size);
        assert_eq!(batches(&pipeline.clone().workers(at(&fleet)), world_size), alone);
    }
    let whole: Vec<Whole> = made(&pipeline).iter().map(Whole::of).collect();
    let mut loader = pipeline.loader(Rank::new(0, 1)).unwrap();
    for expected in &whole[..3] {
        assert_eq!(Whole::of(&loader.next().unwrap().unwrap()), *expected);
    }
    let mut resumed = pipeline.loader(Rank::new(0, 1)).unwrap();
    resumed.load_state(loader.state()).unwrap();
    assert_eq!(Whole::of(&resumed.next().unwrap().unwrap()), whole[3]);
}

#[test]
fn arrow_has_lists_of_tensors() {
    let folder = data(&lists());
    for batch in made(&pipeline(folder.path())) {
        let rows = batch.to_record_batch().unwrap();
        let schema = rows.schema();
        let DataType::List(item) = schema.field_with_name("images").unwrap().data_type() else {
            panic!("{schema:?}");
        };
        assert_eq!(item.metadata()["ARROW:extension:name"], "arrow.fixed_shape_tensor");
        assert_eq!(item.metadata()["ARROW:extension:metadata"], r#"{"shape":[16,16,3]}"#);
        let lists = rows["images"].as_list::<i32>();
        for row in 0..batch.len() {
            let images = lists.value(row);
            assert_eq!(images.len(), batch["images"].lengths().unwrap()[row]);
            let images = images.as_fixed_size_list();
            let pixels: Vec<u8> = (0..images.len())
                .flat_map(|image| images.value(image).as_primitive::<UInt8Type>().values().to_vec())
                .collect();
            assert_eq!(pixels, batch["images"].row(row));
        }
    }
}

#[test]
fn a_bad_list_is_a_bad_sample_that_names_the_image() {
    let good = lists();
    let broken = |change: &dyn Fn(&mut Lists)| {
        let mut lists = good.clone();
        change(&mut lists);
        data(&lists)
    };
    let message = |folder: &tempfile::TempDir| error_of(&pipeline(folder.path()));
    let damaged = broken(&|lists| lists[8].as_mut().unwrap()[0] = Some(b"not an image".to_vec()));
    let found = message(&damaged);
    assert!(
        found.contains("train.parquet row 8") && found.contains("(sample 8): image 0 of the list: "),
        "{found}"
    );
    let null = message(&broken(&|lists| lists[4] = None));
    assert!(null.contains("(sample 4): the list is null; correct the file or set on_error=skip"), "{null}");
    let gone = message(&broken(&|lists| lists[9].as_mut().unwrap()[2] = None));
    assert!(gone.contains("(sample 9): image 2 of the list: its bytes are null"), "{gone}");
    assert!(gone.contains("('gone.jpg')"), "{gone}");
    let many = error_of(&pipeline(data(&good).path()).max_images("images", 3));
    assert!(many.contains("the list has 4 images, over max_images (3); raise the limit"), "{many}");

    // A substitute has the images of another row.
    let worker = worker(damaged.path());
    let skipping = pipeline(damaged.path()).on_error(OnError::Skip { max_fraction: 0.5 });
    let mut replaced = 0;
    for batch in made(&skipping) {
        let images = &batch["images"];
        for row in batch.substitutes() {
            assert!(!batch.valid()[*row] && batch.sample_ids()[*row].0 == 8);
            let near = [row.wrapping_sub(1), row + 1];
            let near = near.iter().filter(|near| **near < batch.len());
            let mut near = near.map(|near| (images.lengths().unwrap()[*near], images.row(*near)));
            assert!(near.any(|near| near == (images.lengths().unwrap()[*row], images.row(*row))));
            replaced += 1;
        }
    }
    assert!(replaced > 0);
    assert_eq!(batches(&skipping.clone().workers(at([&worker])), 1), batches(&skipping, 1));
}

#[test]
fn large_images_of_a_list_borrow_memory() {
    let image = crate::memory_files::png(600, |byte| (byte * 7) as u8);
    let small = crate::memory_files::png(40, |byte| byte as u8);
    let list = |sample: usize| {
        let images = [&small, &image, &small, &image].map(|image| Some(image.clone()));
        Some(images[..sample % 5].to_vec())
    };
    let folder = data(&(0..20).map(list).collect());
    let usual = pipeline(folder.path());
    let narrow = usual.clone().decoder_memory(1 << 20).budget_bytes(32 << 20);
    assert_eq!(batches(&narrow, 1), batches(&usual, 1));
}

#[test]
fn what_lists_cannot_be_is_named_at_the_start() {
    let folder = data(&lists());
    let start = |pipeline: Pipeline| {
        let error = pipeline.rank(Rank::new(0, 1)).start().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        error.message().to_owned()
    };
    let plain = || open(folder.path()).batch(BatchSize::global(8));
    let view = plain().views("images", decode_image(), [View::new("v", [resize([8, 8])])]);
    assert!(start(view).starts_with("the view 'v' is of 'images', which has lists of images"));
    let audio = plain().map("images", [decode_audio(), resample(16_000)]);
    assert!(start(audio).contains("only images can be in lists"));
    let label = start(plain().map("label", chain()));
    assert!(label.ends_with("; lists of images in: images"), "{label}");
    assert!(start(plain().map("images", [decode_image()])).contains("no fixed output size"));

    let on = |device: DeviceOptions| start(pipeline(folder.path()).device(device));
    let finish = Finish::Picture(PictureFinish::default());
    assert!(
        on(DeviceOptions::host().finish("images", finish)).starts_with("finish of 'images', which has lists")
    );
    assert!(
        on(DeviceOptions::host().fixed_addresses(true)).starts_with("fixed addresses: 'images' has lists")
    );
    assert!(on(DeviceOptions::host().nvjpeg(0.5)).starts_with("nvjpeg: 'images' has lists of images"));
    assert_eq!(Chain::MAX_IMAGES, 256);
}

#[test]
fn a_device_gets_lists_as_they_are() {
    let folder = data(&lists());
    let usual = pipeline(folder.path()).map_as("images", "small", [decode_image(), resize([4, 4])]);
    let on_device = usual.clone().device(DeviceOptions::host());
    let mut found = on_device.rank(Rank::new(0, 1)).start().unwrap();
    for expected in made(&usual) {
        let batch = found.next().unwrap().unwrap();
        for name in ["images", "small"] {
            let tensor = batch.device_tensor(name).unwrap();
            assert_eq!(tensor.shape(), expected[name].shape());
            assert_eq!((tensor.lengths(), tensor.padded_axis()), (expected[name].lengths(), None));
            let bytes = expected[name].bytes();
            let start = std::ptr::with_exposed_provenance::<u8>(tensor.address() as usize);
            // SAFETY: the batch is in host memory and holds its tensors.
            assert!(unsafe { std::slice::from_raw_parts(start, bytes.len()) } == bytes);
        }
        assert_eq!(batch.device_tensor("images_length").unwrap().shape(), [batch.len()]);
    }
}
