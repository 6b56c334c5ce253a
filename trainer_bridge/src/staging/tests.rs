//! Whole runs with a device that finishes late and out of order: no races, no leaks, and every byte is right.

use super::options::DeviceOptions;
use crate::{Batch, BatchSize, Dataset, ErrorKind, Loader, Next, Pipeline, RankIterator, Result};
use feedstock_dataset::{CatalogOptions, CatalogStore, Cursor, OpenOptions, Rank, Shuffle};
use feedstock_device::Device;
use feedstock_device::Place;
use feedstock_device::driver::{Driver, Host, Simulated};
use feedstock_device::finish::{Finish, FinishType, MixupCutmix, PictureFinish, PictureLayout};
use feedstock_device::handles::{Address, StreamId};
use feedstock_device::tensor::{DeviceTensor, StreamHandle, use_address_on};
use feedstock_ops::image::View;
use feedstock_ops::{SampleSeed, decode_image, random_resized_crop};
use feedstock_synth::{ImagenetOptions, Layout};
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::executor::block_on;

const SAMPLES: u64 = 48;
const ROWS: u64 = 8;

pub(super) fn pictures() -> (tempfile::TempDir, Pipeline) {
    let dir = tempfile::tempdir().unwrap();
    let options = ImagenetOptions {
        samples: SAMPLES,
        seed: 5,
        layout: Layout::Parquet,
        width: 96,
        height: 80,
        ..ImagenetOptions::default()
    };
    options.write(dir.path(), &mut |_| {}).unwrap();
    let pipeline = open(dir.path())
        .map("image", [decode_image(), random_resized_crop(16)])
        .shuffle(Shuffle::seeded(7))
        .batch(BatchSize::global(ROWS))
        .epochs(2)
        .threads(2);
    (dir, pipeline)
}

pub(super) fn open(dir: &Path) -> Dataset {
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions { catalog, ..OpenOptions::default() };
    block_on(Dataset::open_with(dir.to_str().unwrap(), options)).unwrap()
}

/// Starts a run to this driver's device.
pub(super) fn run(
    pipeline: &Pipeline,
    options: DeviceOptions,
    driver: Arc<dyn Driver>,
) -> Result<RankIterator> {
    let builder = pipeline.clone().device(options).rank(Rank::new(0, 1));
    let prepared = builder.prepare()?;
    let opened = prepared.device.as_ref().unwrap().open_on(Device::of(driver))?;
    builder.run(prepared, Some(opened))
}

/// Makes a loader to this driver's device.
fn loader(pipeline: &Pipeline, options: DeviceOptions, driver: Arc<Simulated>) -> Result<Loader> {
    let device = Device::of(driver);
    Loader::with_device(pipeline.clone().device(options), Rank::new(0, 1), |prepared| {
        prepared.open_on(device)
    })
}

/// Streams of the caller.
pub(super) const MAIN: u64 = 11;
const SIDE: u64 = 12;
const THIRD: u64 = 13;

/// Returns every tensor of every batch of two epochs, from a run in host memory.
pub(super) fn expected(pipeline: &Pipeline, options: &DeviceOptions) -> Vec<HashMap<String, Vec<u8>>> {
    let mut batches = run(pipeline, options.clone(), Arc::new(Host::default())).unwrap();
    let tensors = |batch: &Batch| -> HashMap<String, Vec<u8>> {
        let bytes = |t: &DeviceTensor| (t.name().to_owned(), t.to_host(StreamHandle(0)).unwrap());
        batch.device_tensors().iter().map(bytes).collect()
    };
    (0..2).flat_map(|_| batches.by_ref().map(|batch| tensors(&batch.unwrap())).collect::<Vec<_>>()).collect()
}

pub(super) fn finished() -> Finish {
    let mut finish = PictureFinish::default();
    (finish.dtype, finish.layout, finish.flip) = (FinishType::BF16, PictureLayout::ChannelsLast, 0.5);
    finish.mix = Some(MixupCutmix::default());
    Finish::Picture(finish)
}

/// Waits until the reaper has released everything, and checks that nothing is left and no rule was violated.
pub(super) fn assert_clean(driver: &Arc<Simulated>) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let (violations, left) = driver.finish();
        assert!(violations.is_empty(), "{violations:#?}");
        if left == [0; 3] {
            return;
        }
        assert!(Instant::now() < until, "device allocations, host allocations and streams left: {left:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the cursor after each of a run's batches, without a device.
pub(super) fn plain(pipeline: &Pipeline) -> Vec<Cursor> {
    let mut batches = pipeline.rank(Rank::new(0, 1)).start().unwrap();
    let mut cursors = Vec::new();
    for _ in 0..2 {
        while let Some(batch) = batches.next() {
            drop(batch.unwrap());
            cursors.push(batches.state());
        }
    }
    cursors
}

/// Returns the next batch, of any epoch.
pub(super) fn next(batches: &mut RankIterator) -> Batch {
    let batch = batches.next().or_else(|| batches.next());
    batch.unwrap().unwrap()
}

/// Makes `stream` use all of a batch, at some later time.
pub(super) fn consume(driver: &Simulated, batch: &Batch, expected: &HashMap<String, Vec<u8>>, stream: u64) {
    batch.use_on(StreamHandle(stream)).unwrap();
    for (name, bytes) in expected {
        let tensor = batch.device_tensor(name).unwrap();
        driver.read_later(Address(tensor.address()), bytes.clone(), StreamId(stream));
    }
}

#[test]
fn whenever_work_completes_every_byte_arrives_and_nothing_races() {
    let (_dir, pipeline) = pictures();
    let cursors = plain(&pipeline);
    for options in [DeviceOptions::cuda(0), DeviceOptions::cuda(0).finish("image", finished())] {
        let expected = expected(&pipeline, &options);
        assert_eq!((expected.len(), cursors.len()), (12, 12));
        for seed in 0..24 {
            let mut dice = SampleSeed::new(seed, 1, 0).op(0);
            let driver = Simulated::new(seed);
            let depth = 1 + dice.below(3) as usize;
            let mut batches = run(&pipeline, options.clone().depth(depth), driver.clone()).unwrap();
            let mut held: VecDeque<Batch> = VecDeque::new();
            for (step, expected) in expected.iter().enumerate() {
                let batch = next(&mut batches);
                let state = Cursor { ops: cursors[step].ops, ..batches.state() };
                assert_eq!(state, cursors[step], "batches that are only on the device do not count");
                assert!(batch.device_tensors().iter().all(|tensor| tensor.place() == Place::Cuda(0)));
                for stream in MAIN..=MAIN + u64::from(dice.below(2)) {
                    consume(&driver, &batch, expected, stream);
                }
                held.push_back(batch);
                // One buffer is left for the batch that comes next.
                while held.len() > depth || (!held.is_empty() && dice.chance(0.6)) {
                    held.pop_front();
                }
            }
            assert!(batches.next().is_none() && batches.next().is_none());
            assert!(batches.ledger().check().is_ok());
            drop(batches);
            drop(held);
            assert_clean(&driver);
        }
    }
}

#[test]
fn a_run_that_is_dropped_in_its_middle_leaves_nothing() {
    let (_dir, pipeline) = pictures();
    for seed in 0..24 {
        let driver = Simulated::new(seed);
        let options = DeviceOptions::cuda(0).finish("image", finished());
        let expected = expected(&pipeline, &options);
        let mut batches = run(&pipeline, options, driver.clone()).unwrap();
        let kept = next(&mut batches);
        consume(&driver, &kept, &expected[0], MAIN);
        drop(batches);
        consume(&driver, &kept, &expected[0], SIDE); // a batch outlives its loader
        drop(kept);
        assert_clean(&driver);
    }
}

#[test]
fn addresses_stay_the_same_on_request() {
    let (_dir, pipeline) = pictures();
    let options = DeviceOptions::cuda(0).finish("image", finished()).fixed_addresses(true);
    let expected = expected(&pipeline, &options);
    for seed in 0..24 {
        let driver = Simulated::new(seed);
        let mut batches = run(&pipeline, options.clone(), driver.clone()).unwrap();
        let mut addresses = None;
        for (step, expected) in expected.iter().enumerate() {
            let mut batch = next(&mut batches);
            batch.settle(StreamHandle(MAIN + step as u64 % 2)).unwrap();
            consume(&driver, &batch, expected, MAIN);
            consume(&driver, &batch, expected, THIRD);
            let now: Vec<u64> = batch.device_tensors().iter().map(DeviceTensor::address).collect();
            assert_eq!(*addresses.get_or_insert_with(|| now.clone()), now);
        }
        drop(batches);
        assert_clean(&driver);
    }
}

/// Whether the simulated device reports this misuse.
fn is_told(misuse: impl Fn(&Arc<Simulated>, Batch, &HashMap<String, Vec<u8>>)) -> bool {
    let (_dir, pipeline) = pictures();
    let options = DeviceOptions::cuda(0).depth(1);
    let expected = expected(&pipeline, &options);
    let driver = Simulated::new(3);
    let mut batches = run(&pipeline, options, driver.clone()).unwrap();
    for expected in &expected {
        misuse(&driver, next(&mut batches), expected);
    }
    drop(batches);
    !driver.finish().0.is_empty()
}

#[test]
fn the_stand_in_finds_what_it_is_there_to_find() {
    let read = |driver: &Simulated, batch: &Batch, expected: &HashMap<String, Vec<u8>>| {
        let start = Address(batch.device_tensor("image").unwrap().address());
        driver.read_later(start, expected["image"].clone(), StreamId(MAIN));
    };
    assert!(!is_told(|driver, batch, expected| consume(driver, &batch, expected, MAIN)));
    assert!(is_told(|driver, batch, expected| read(driver, &batch, expected)), "no wait for the copy");
    assert!(
        is_told(|driver, batch, expected| {
            consume(driver, &batch, expected, SIDE);
            let start = Address(batch.device_tensor("image").unwrap().address());
            drop(batch);
            driver.read_later(start, expected["image"].clone(), StreamId(SIDE));
        }),
        "used after it was returned"
    );
}

#[test]
fn a_device_that_fails_is_told_once_and_leaves_nothing() {
    let (_dir, pipeline) = pictures();
    for refused in [1, 2, 4, 5] {
        let driver = Simulated::new(refused);
        driver.fail_copies_from(refused);
        let mut batches = run(&pipeline, DeviceOptions::cuda(0), driver.clone()).unwrap();
        let failed = loop {
            match batches.next() {
                Some(Ok(batch)) => drop(batch),
                Some(Err(error)) => break error,
                None => panic!("the epoch ended without its error"),
            }
        };
        assert_eq!(failed.to_string(), "the copy was refused");
        assert!(batches.next().is_none());
        drop(batches);
        assert_clean(&driver);
    }
}

#[test]
fn scarce_page_locked_memory_means_fewer_slots_and_then_an_error() {
    let (_dir, pipeline) = pictures();
    // 8 rows of two columns, 8 and 96 KiB, in a block of 112: far more than what is staged.
    let large = [decode_image(), random_resized_crop(64)];
    let (pipeline, slot) = (pipeline.map_as("image", "large", large).slots(8), 112 << 10);
    let expected = expected(&pipeline, &DeviceOptions::cuda(0));
    for (limit, is_enough) in [(5 * slot, true), (slot, false)] {
        let driver = Simulated::new(1);
        driver.limit_host_bytes(limit);
        match run(&pipeline, DeviceOptions::cuda(0), driver.clone()) {
            Ok(mut batches) => {
                assert!(is_enough, "one slot cannot be enough");
                for expected in &expected {
                    consume(&driver, &next(&mut batches), expected, MAIN);
                }
            }
            Err(error) => {
                assert!(!is_enough, "{error}");
                assert_eq!(error.kind(), ErrorKind::BadConfig);
                assert!(error.to_string().contains("ulimit -l"), "{error}");
            }
        }
        assert_clean(&driver);
    }
}

#[test]
fn a_buffer_whose_users_cannot_be_known_is_not_used_again() {
    let (_dir, pipeline) = pictures();
    let driver = Simulated::new(1);
    let mut batches = run(&pipeline, DeviceOptions::cuda(0).depth(1), driver.clone()).unwrap();
    let first = next(&mut batches);
    first.use_on(StreamHandle(MAIN)).unwrap();
    driver.capture(StreamId(MAIN), true);
    drop(first);
    driver.capture(StreamId(MAIN), false);
    assert_eq!(batches.stats().slots, 1, "one of two buffers is left");
    let second = next(&mut batches);
    second.use_on(StreamHandle(MAIN)).unwrap();
    driver.capture(StreamId(MAIN), true);
    drop(second);
    let error = batches.next().unwrap().unwrap_err();
    assert!(error.to_string().contains("all device buffers were lost"), "{error}");
    assert!(driver.finish().0.is_empty());
}

#[test]
fn a_caller_who_keeps_every_buffer_is_told() {
    let (_dir, pipeline) = pictures();
    let pipeline = pipeline.deadline(Duration::from_secs(5));
    let driver = Simulated::new(1);
    let mut batches = run(&pipeline, DeviceOptions::cuda(0).depth(1), driver.clone()).unwrap();
    let held = [next(&mut batches), next(&mut batches)];
    assert!(matches!(batches.next_within(Duration::from_millis(20)), Ok(Next::Pending)));
    let stats = batches.stats();
    assert_eq!((stats.held, stats.slots), (2, 2));
    let error = batches.next().unwrap().unwrap_err();
    assert!(error.to_string().contains("all 2 device buffers are held"), "{error}");
    drop(held);
    drop(next(&mut batches));
    drop(batches);
    assert_clean(&driver);
}

fn addresses(batch: &Batch) -> Vec<u64> {
    batch.device_tensors().iter().map(DeviceTensor::address).collect()
}

/// Returns the next batch of a loader, in any epoch, at its fixed addresses.
fn settled(loader: &mut Loader, stream: u64) -> Batch {
    let mut batch = loader.next().or_else(|| loader.next()).unwrap().unwrap();
    batch.settle(StreamHandle(stream)).unwrap();
    batch
}

#[test]
fn fixed_addresses_stay_wherever_the_loader_goes() {
    let (_dir, pipeline) = pictures();
    let options = DeviceOptions::cuda(0).finish("image", finished()).fixed_addresses(true);
    let expected = expected(&pipeline, &options);
    for seed in 0..12 {
        let driver = Simulated::new(seed);
        let mut batches = loader(&pipeline, options.clone(), driver.clone()).unwrap();
        let first = settled(&mut batches, MAIN);
        consume(&driver, &first, &expected[0], MAIN);
        let (place, state) = (addresses(&first), batches.state());
        drop(settled(&mut batches, SIDE));
        batches.seek(0, 4).unwrap();
        let sought = settled(&mut batches, SIDE);
        consume(&driver, &sought, &expected[4], SIDE);
        assert_eq!(addresses(&sought), place);
        batches.load_state(state).unwrap();
        let resumed = settled(&mut batches, MAIN);
        consume(&driver, &resumed, &expected[1], MAIN);
        assert_eq!(addresses(&resumed), place);
        batches.stop();
        batches.set_epoch(1).unwrap();
        let later = settled(&mut batches, MAIN);
        consume(&driver, &later, &expected[6], THIRD);
        assert_eq!(addresses(&later), place);
        // Batches of another shape need another fixed buffer. Only held batches use the old one.
        batches.reconfigure(Rank::new(0, 1), Some(BatchSize::global(4))).unwrap();
        let small = settled(&mut batches, MAIN);
        assert_ne!(addresses(&small), place);
        drop((first, sought, resumed, later, small, batches));
        assert_clean(&driver);
    }
}

#[test]
fn only_columns_are_copied_to_their_fixed_place() {
    let (_dir, pipeline) = pictures();
    let large = [decode_image(), random_resized_crop(64)];
    let pipeline = pipeline.map_as("image", "large", large); // 96 KiB of bytes, which are not needed there
    let options = DeviceOptions::cuda(0).finish("large", finished()).fixed_addresses(true);
    let driver = Simulated::new(1);
    let mut batches = loader(&pipeline, options, driver.clone()).unwrap();
    let batch = settled(&mut batches, MAIN);
    let columns: usize = batch.device_tensors().iter().map(DeviceTensor::byte_len).sum();
    let (copies, bytes) = driver.copied_within();
    // Unfinished images are not copied, and of the staged bytes only those between columns are.
    assert!(copies <= 2, "{copies}");
    assert!((columns..columns + 4096).contains(&bytes), "{bytes} bytes for {columns} of columns");
    drop((batch, batches));
    assert_clean(&driver);
}

#[test]
fn a_copy_to_the_fixed_place_that_fails_forgets_no_reader() {
    let (_dir, pipeline) = pictures();
    let options = DeviceOptions::cuda(0).finish("image", finished()).fixed_addresses(true);
    let expected = expected(&pipeline, &options);
    for (seed, call) in [(1, "wait"), (2, "copy_within"), (3, "copy_within")] {
        let driver = Simulated::new(seed);
        let mut batches = loader(&pipeline, options.clone(), driver.clone()).unwrap();
        let first = settled(&mut batches, MAIN);
        consume(&driver, &first, &expected[0], SIDE);
        let mut second = batches.next().unwrap().unwrap();
        second.use_on(StreamHandle(THIRD)).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while batches.stats().unwrap().ready < 2 {
            assert!(Instant::now() < until, "the stage fills all buffers, and makes no more calls");
            std::thread::sleep(Duration::from_millis(1));
        }
        driver.refuse(call, 1);
        assert!(second.settle(StreamHandle(THIRD)).is_err());
        second.settle(StreamHandle(THIRD)).unwrap();
        consume(&driver, &second, &expected[1], THIRD);
        drop((first, second, batches));
        assert_clean(&driver);
    }
}

#[test]
fn streams_that_cannot_be_waited_for_are_refused() {
    let (_dir, pipeline) = pictures();
    let driver = Simulated::new(1);
    let foreign = 77;
    driver.make_foreign(StreamId(foreign));
    let options = DeviceOptions::cuda(0).fixed_addresses(true);
    let mut batches = loader(&pipeline, options, driver.clone()).unwrap();
    let mut batch = batches.next().unwrap().unwrap();
    let mut refused = |stream: u64, text: &str| {
        for error in
            [batch.use_on(StreamHandle(stream)), batch.settle(StreamHandle(stream))].map(Result::unwrap_err)
        {
            assert_eq!(error.kind(), ErrorKind::BadConfig);
            assert!(error.to_string().contains(text), "{error}");
        }
    };
    refused(2, "per-thread default");
    refused(foreign, "another context");
    driver.capture(StreamId(MAIN), true);
    refused(MAIN, "captured");
    driver.capture(StreamId(MAIN), false);
    batch.use_on(StreamHandle(MAIN)).unwrap();
    driver.capture(StreamId(MAIN), true);
    let error = batch.use_on(StreamHandle(MAIN)).unwrap_err();
    assert!(error.to_string().contains("captured"), "even for a known stream: {error}");
    driver.capture(StreamId(MAIN), false);
    batch.settle(StreamHandle(MAIN)).unwrap();
    // At fixed addresses, the graph's replay has the same batch, and the stream has waited for it already.
    driver.capture(StreamId(MAIN), true);
    batch.use_on(StreamHandle(MAIN)).unwrap();
    driver.capture(StreamId(SIDE), true);
    assert!(batch.use_on(StreamHandle(SIDE)).is_err(), "its wait would belong to the graph");
    driver.capture(StreamId(SIDE), false);
    driver.capture(StreamId(MAIN), false);
    drop((batch, batches));
    assert_clean(&driver);
}

#[test]
fn both_names_of_the_default_stream_are_one() {
    let (_dir, pipeline) = pictures();
    let driver = Simulated::new(4);
    let mut batches = run(&pipeline, DeviceOptions::cuda(0), driver.clone()).unwrap();
    let batch = next(&mut batches);
    batch.use_on(StreamHandle(0)).unwrap();
    driver.refuse("wait", 1);
    batch.use_on(StreamHandle(1)).unwrap(); // known: no wait
    assert!(batch.use_on(StreamHandle(MAIN)).is_err());
    drop((batch, batches));
    assert_clean(&driver);
}

#[test]
fn an_address_is_enough_to_name_a_further_stream() {
    let (_dir, pipeline) = pictures();
    let options = DeviceOptions::cuda(0);
    let expected = expected(&pipeline, &options);
    for fixed in [false, true] {
        let driver = Simulated::new(2);
        let mut batches =
            loader(&pipeline, options.clone().depth(1).fixed_addresses(fixed), driver.clone()).unwrap();
        let mut image = 0;
        for expected in &expected {
            let mut batch = batches.next().or_else(|| batches.next()).unwrap().unwrap();
            batch.settle(StreamHandle(MAIN)).unwrap();
            let tensor = batch.device_tensor("image").unwrap();
            image = tensor.address();
            assert!(use_address_on(image + tensor.byte_len() as u64 - 1, StreamHandle(SIDE)).unwrap());
            driver.read_later(Address(image), expected["image"].clone(), StreamId(SIDE));
            assert!(use_address_on(image, StreamHandle(2)).is_err());
        }
        assert_eq!(use_address_on(image, StreamHandle(SIDE)).unwrap(), fixed, "no batch is held there");
        drop(batches);
        assert_clean(&driver);
    }
}

#[test]
fn copies_run_while_kernels_of_earlier_batches_do_not() {
    let (_dir, pipeline) = pictures();
    let options = DeviceOptions::cuda(0).depth(2).finish("image", finished());
    let driver = Simulated::new(6);
    driver.hold_launches(true);
    let mut batches = run(&pipeline, options, driver.clone()).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while driver.copies_run() < 6 {
        assert!(Instant::now() < until, "copies of three batches, two each, wait for kernels");
        std::thread::sleep(Duration::from_millis(1));
    }
    driver.hold_launches(false);
    drop(next(&mut batches)); // no stream used it, but its kernels are waited for
    drop(next(&mut batches));
    drop(next(&mut batches));
    drop(next(&mut batches));
    drop(batches);
    assert_clean(&driver);
}

#[test]
fn a_defect_of_the_stage_is_told_at_once() {
    let (_dir, pipeline) = pictures();
    let driver = Simulated::new(1);
    driver.panic_at_copy(3);
    let mut batches = run(&pipeline, DeviceOptions::cuda(0), driver.clone()).unwrap();
    let (begun, first) = (Instant::now(), batches.next().unwrap());
    let error = first.and_then(|_| batches.next().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Bug);
    assert!(
        error.to_string().contains("a defect in feedstock") && error.to_string().contains("the copy panics")
    );
    assert!(begun.elapsed() < Duration::from_secs(60), "the deadline is 300 s");
    drop(batches);
    assert_clean(&driver);
}

#[test]
fn what_is_wrong_with_kernels_or_labels_is_told_before_anything_runs() {
    let (_dir, pipeline) = pictures();
    let driver = Simulated::new(1);
    driver.refuse("load_kernels", 1);
    let options = DeviceOptions::cuda(0);
    let error = loader(&pipeline, options.clone().finish("image", finished()), driver.clone()).unwrap_err();
    assert_eq!(error.to_string(), "load_kernels was refused");
    driver.refuse("load_kernels", 1);
    loader(&pipeline, options.clone(), driver.clone()).unwrap(); // without kernels to run
    for (labels, is_there) in [("label", true), ("image_path", false), ("nothing", false), ("image", false)] {
        let (mut finish, mut mix) = (PictureFinish::default(), MixupCutmix::default());
        labels.clone_into(&mut mix.labels);
        finish.mix = Some(mix);
        let options = DeviceOptions::host().finish("image", Finish::Picture(finish));
        let made = pipeline.clone().device(options).loader(Rank::new(0, 1));
        assert_eq!(made.is_ok(), is_there, "{labels}");
        if let Err(error) = made {
            assert!(error.to_string().contains(&format!("no column '{labels}' of numbers")), "{error}");
        }
    }
}

#[test]
fn host_memory_has_the_same_face_and_copies_nothing() {
    let (_dir, pipeline) = pictures();
    let plain: Vec<Vec<u8>> = pipeline
        .rank(Rank::new(0, 1))
        .start()
        .unwrap()
        .map(|batch| batch.unwrap()["image"].bytes().to_vec())
        .collect();
    let mut batches = pipeline.clone().device(DeviceOptions::host()).loader(Rank::new(0, 1)).unwrap();
    assert_eq!(batches.place(), Place::Host);
    for image in plain {
        let batch = batches.next().unwrap().unwrap();
        let names: Vec<&str> = batch.device_tensors().iter().map(DeviceTensor::name).collect();
        assert!(
            ["image", "label", "sample_ids", "valid"].iter().all(|name| names.contains(name)),
            "{names:?}"
        );
        let tensor = batch.device_tensor("image").unwrap();
        assert_eq!(tensor.address() % 4096, 0, "the slot's own page");
        assert_eq!(tensor.to_host(StreamHandle(0)).unwrap(), image);
        let ids = batch.device_tensor("sample_ids").unwrap().to_host(StreamHandle(0)).unwrap();
        let told: Vec<u8> = batch.sample_ids().iter().flat_map(|id| id.0.to_ne_bytes()).collect();
        assert_eq!(ids, told);
        assert!(tensor.use_on(StreamHandle(2)).is_err(), "as on a GPU");
        assert!(batches.stats().unwrap().held >= 1);
    }
}

#[test]
fn what_finishes_is_part_of_the_hash_of_the_ops() {
    let (_dir, pipeline) = pictures();
    let hash = |options: DeviceOptions| {
        let loader = pipeline.clone().device(options).loader(Rank::new(0, 1)).unwrap();
        loader.state().ops.unwrap()
    };
    let bare = pipeline.loader(Rank::new(0, 1)).unwrap().state().ops.unwrap();
    assert_eq!(hash(DeviceOptions::host()), bare, "the destination of batches is not an op");
    let halved = hash(DeviceOptions::host().finish("image", finished()));
    let single = hash(DeviceOptions::host().finish("image", Finish::Picture(PictureFinish::default())));
    assert!(bare != halved && halved != single && bare != single);
    assert_eq!(hash(DeviceOptions::host().finish("image", finished()).depth(3)), halved);
}

/// Runs `f` in a forked child, and returns its answer.
#[cfg(unix)]
fn in_a_child(f: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `f`, which must not take any thread's lock, and exits without the parent's clean-up.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(20);
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(false);
            libc::_exit(i32::from(!answer));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

#[cfg(unix)]
#[test]
fn a_child_of_fork_neither_uses_nor_frees_its_parents_batches() {
    let (_dir, pipeline) = pictures();
    for fixed in [false, true] {
        let driver = Simulated::new(1);
        let options = DeviceOptions::cuda(0).fixed_addresses(fixed);
        let expected = expected(&pipeline, &options);
        let mut batches = loader(&pipeline, options, driver.clone()).unwrap();
        let mut batch = batches.next().unwrap().unwrap();
        batch.settle(StreamHandle(MAIN)).unwrap();
        consume(&driver, &batch, &expected[0], MAIN);
        drop(batches);
        let mut tensor = batch.device_tensor("image").cloned();
        let mut batch = Some(batch);
        let understood = in_a_child(|| {
            driver.panic_at_use();
            let told = tensor.as_ref().unwrap().use_on(StreamHandle(SIDE)).unwrap_err().to_string();
            drop((batch.take(), tensor.take()));
            told.contains("before fork()")
        });
        assert!(understood);
        drop((batch, tensor));
        assert_clean(&driver);
    }
}

/// Makes two views of each image, flipped on the device or by their chains.
fn two_views(pipeline: Pipeline, is_flipped_by_chain: bool) -> (Pipeline, DeviceOptions) {
    let flips = is_flipped_by_chain.then(|| feedstock_ops::horizontal_flip(0.5));
    let chain: Vec<_> = [decode_image(), random_resized_crop(16)].into_iter().chain(flips).collect();
    let mut finish = PictureFinish::default();
    finish.flip = if is_flipped_by_chain { 0.0 } else { 0.5 };
    let finish = Finish::Picture(finish);
    let pipeline = pipeline.map_as("image", "first", chain.clone()).map_as("image", "second", chain);
    (pipeline, DeviceOptions::cuda(0).finish("first", finish.clone()).finish("second", finish))
}

#[test]
fn a_further_view_is_finished_with_its_own_draws() {
    let (dir, _) = pictures();
    let pipeline = || open(dir.path()).shuffle(Shuffle::seeded(7)).batch(BatchSize::global(ROWS)).epochs(2);
    let (chain, plain) = two_views(pipeline(), true);
    let (device, finish) = two_views(pipeline(), false);
    let batches = expected(&device, &finish);
    assert_eq!(batches, expected(&chain, &plain));
    for batch in batches {
        let row = batch["first"].len() / ROWS as usize;
        let rows = batch["first"].chunks(row).zip(batch["second"].chunks(row));
        assert_eq!(rows.filter(|(first, second)| first == second).count(), 0);
    }
}

/// Makes one and three views of each image, flipped on the device or by their chains.
fn one_and_three_views(
    pipeline: Dataset,
    is_flipped_by_chain: bool,
    layout: PictureLayout,
) -> (Pipeline, DeviceOptions) {
    let flips = is_flipped_by_chain.then(|| feedstock_ops::horizontal_flip(0.5));
    let chain: Vec<_> = [random_resized_crop(16)].into_iter().chain(flips).collect();
    let mut finish = PictureFinish::default();
    (finish.layout, finish.flip) = (layout, if is_flipped_by_chain { 0.0 } else { 0.5 });
    let finish = Finish::Picture(finish);
    let views = [View::new("one", chain.clone()), View::new("three", chain).count(3)];
    let pipeline = pipeline.views("image", decode_image(), views);
    let pipeline = pipeline.shuffle(Shuffle::seeded(7)).batch(BatchSize::global(ROWS)).epochs(2);
    (pipeline, DeviceOptions::cuda(0).finish("one", finish.clone()).finish("three", finish))
}

#[test]
fn each_of_several_views_is_finished_with_its_own_draws() {
    let (dir, _) = pictures();
    for layout in [PictureLayout::Planes, PictureLayout::ChannelsLast] {
        let (chain, plain) = one_and_three_views(open(dir.path()), true, layout);
        let (device, finish) = one_and_three_views(open(dir.path()), false, layout);
        assert_eq!(expected(&device, &finish), expected(&chain, &plain));
        let batch = next(&mut run(&device, finish, Arc::new(Host::default())).unwrap());
        let [one, three] = ["one", "three"].map(|name| batch.device_tensor(name).unwrap());
        assert_eq!((one.shape(), three.shape()), (&[8, 3, 16, 16][..], &[8, 3, 3, 16, 16][..]));
        let strides: &[usize] = match layout {
            PictureLayout::ChannelsLast => &[2304, 768, 1, 48, 3],
            _ => &[2304, 768, 256, 16, 1],
        };
        assert_eq!(three.strides(), strides);
    }
}

#[test]
fn several_views_are_not_mixed() {
    let (dir, _) = pictures();
    let (pipeline, _) = one_and_three_views(open(dir.path()), true, PictureLayout::Planes);
    let error = run(&pipeline, DeviceOptions::host().finish("three", finished()), Arc::new(Host::default()));
    let error = error.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.to_string().contains("finish of 'three': mix mixes rows of one image"), "{error}");
}
