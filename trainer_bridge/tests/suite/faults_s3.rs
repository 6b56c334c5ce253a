//! Runs from a real S3 server to the ranks, with network faults in between. Every sample must arrive once, with the bytes of
//! an undisturbed run on local files. Otherwise an error must name what failed. Nothing may hang.

use crate::common::pictures::files;
use crate::common::s3::{BUCKET, S3, URI, options_at, storage};
use crate::common::{Delivered, block_on, open, pipeline, run_epochs, synth};
use feedstock_dataset::{BlockId, Rank, StorageOptions, Tail};
use feedstock_synth::{ImagenetOptions, Layout};
use feedstock_testkit::{Fault, Rule, SECRET_KEY, StaticServer};
use feedstock_trainer_bridge::{Dataset, Error, ErrorKind, Pipeline};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SAMPLES: u64 = 203;

/// The same data on disk and in S3, and the samples that an undisturbed run on disk delivers in two epochs.
struct Case {
    local: TempDir,
    s3: S3,
    quiet: Delivered,
}

impl Case {
    fn new() -> Self {
        let local = tempfile::tempdir().unwrap();
        synth(local.path(), SAMPLES);
        let s3 = S3::holding(local.path());
        let quiet = run_epochs(&bounded(open(local.path())), 1, 2);
        quiet.assert_once_each();
        assert_eq!(quiet.samples() as u64, 2 * SAMPLES);
        Self { local, s3, quiet }
    }
}

/// Returns a pipeline of two epochs in steps of 24, with a padded tail and no wait over 15 s.
fn bounded(dataset: Dataset) -> Pipeline {
    pipeline(dataset, 24).tail(Tail::Pad).epochs(2).deadline(Duration::from_secs(15))
}

#[test]
fn a_quiet_bucket_delivers_what_local_files_deliver() {
    for layout in [Layout::Parquet, Layout::WebDataset, Layout::Ipc, Layout::Folder] {
        let local = tempfile::tempdir().unwrap();
        let options = ImagenetOptions {
            samples: 70,
            layout,
            width: 96,
            height: 80,
            samples_per_shard: 30,
            rows_per_group: 10,
            ..ImagenetOptions::default()
        };
        options.write(local.path(), &mut |_| {}).unwrap();
        let s3 = S3::holding(local.path());
        let quiet = run_epochs(&bounded(open(local.path())), 1, 1);
        quiet.assert_once_each();
        assert_eq!(quiet.samples(), 70, "{layout}");
        assert_eq!(run_epochs(&bounded(s3.open(storage())), 2, 1), quiet, "{layout}");
    }
}

#[test]
fn passing_faults_lose_and_double_nothing() {
    let case = Case::new();
    let dataset = case.s3.open(storage());
    // The other requests take a while, so that more are pending at once than the store allows. After a few refusals, the process
    // sends fewer at once, so this comes first, and there are few.
    let brief = Duration::from_millis(5);
    case.s3.proxy.forget();
    case.s3.proxy.inject(Rule::always(Fault::StatusAfter(503, brief)).over_concurrency(4));
    case.s3.proxy.inject(Rule::always(Fault::Latency(brief)));
    assert_eq!(run_epochs(&bounded(dataset.clone()), 2, 2), case.quiet);
    let log = case.s3.proxy.log();
    let refused = log.iter().filter(|exchange| exchange.status == Some(503)).count();
    assert!(refused >= 1, "none of {} requests was too many at once", log.len());
    let rules = [
        Rule::times(15, Fault::Status(503)),
        Rule::every(3, Fault::Status(503)),
        Rule::every(3, Fault::Status(429)),
        Rule::every(4, Fault::Status(500)),
        Rule::every(3, Fault::ResetMidBody(5_000)),
        Rule::every(4, Fault::ResetBeforeHead),
        Rule::every(3, Fault::ShortBody(5_000)),
        Rule::every(4, Fault::ShortLength(1_000)),
    ];
    for rule in rules {
        case.s3.proxy.heal();
        case.s3.proxy.forget();
        case.s3.proxy.inject(rule.clone());
        assert_eq!(run_epochs(&bounded(dataset.clone()), 2, 2), case.quiet, "{rule:?}");
        let (requests, faulty) = case.s3.requests();
        assert!(faulty >= 8, "only {faulty} of {requests} requests met {rule:?}");
    }
    assert!(dataset.as_ref().storage().stats().retries >= 50);
}

#[test]
fn stalls_are_cut_and_asked_again() {
    let case = Case::new();
    let dataset = case.s3.open(StorageOptions { stall_timeout: Duration::from_millis(300), ..storage() });
    let long = Duration::from_secs(300);
    for fault in
        [Fault::StallBeforeHead(long), Fault::StallMidBody(4_000, long), Fault::StallMidBody(0, long)]
    {
        case.s3.proxy.heal();
        case.s3.proxy.forget();
        case.s3.proxy.inject(Rule::times(6, fault.clone()).after(5));
        let began = Instant::now();
        assert_eq!(run_epochs(&bounded(dataset.clone()), 2, 2), case.quiet, "{fault:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{fault:?}: {:?}", began.elapsed());
        assert_eq!(case.s3.requests().1, 6, "{fault:?}");
    }
}

/// The budget is small, so that most of the epoch is still unread when the object changes.
#[test]
fn an_object_replaced_mid_epoch_ends_the_run_with_its_name() {
    let case = Case::new();
    let dataset = case.s3.open(storage());
    let replaced = "train/data/train-00001-of-00003.parquet";
    let content = files(case.local.path()).into_iter().find(|file| file.ends_with(&replaced[6..])).unwrap();
    let mut content = std::fs::read(content).unwrap();
    content.iter_mut().skip(100).step_by(50).for_each(|byte| *byte ^= 1);
    let blocks = 0..dataset.catalog().blocks() as u32;
    let largest = blocks.map(|block| dataset.catalog().block(BlockId(block)).memory_bytes).max().unwrap();
    let narrow = pipeline(dataset, 8).slots(2).budget_bytes(9 * largest).deadline(Duration::from_secs(15));
    let mut ranks = narrow.rank(Rank::new(0, 1)).start().unwrap();
    let mut delivered = Delivered::default();
    for _ in 0..2 {
        delivered.add(&ranks.next().unwrap().unwrap());
    }
    case.s3.server.put(BUCKET, replaced, content).unwrap();
    let error = loop {
        match ranks.next().expect("the epoch must end with an error") {
            Ok(batch) => delivered.add(&batch),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    says(&error, &["train-00001-of-00003.parquet", "block", "changed since the catalog was built"]);
    delivered.assert_once_each();
    assert_eq!(ranks.state().position.0, delivered.samples() as u64, "every step before it was delivered");
    for (key, digest) in &delivered.0 {
        assert_eq!(case.quiet.0[key], *digest, "sample {key:?} is mixed");
    }
    assert!(ranks.ledger().is_exact(), "{}", ranks.ledger());
    assert!(ranks.next().is_none(), "the error ends the epoch");
    assert_eq!(ranks.next().unwrap().unwrap_err().kind(), ErrorKind::Gone, "and is returned again");
}

#[test]
fn a_stall_beyond_the_ranks_deadline_says_what_it_waits_for_and_is_not_final() {
    let case = Case::new();
    let dataset = case.s3.open(StorageOptions { stall_timeout: Duration::from_secs(6), ..storage() });
    case.s3.proxy.inject(Rule::always(Fault::StallBeforeHead(Duration::from_secs(60))));
    let short = bounded(dataset).deadline(Duration::from_millis(500));
    let mut ranks = short.rank(Rank::new(0, 1)).start().unwrap();
    let began = Instant::now();
    // On a slow machine, storage may not have a request yet at the first deadline. 8 deadlines end before a stall is cut.
    let mut errors = (0..8).map(|_| {
        let asked = Instant::now();
        let error = ranks.next().unwrap().unwrap_err();
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        assert_eq!(error.kind(), ErrorKind::Retryable);
        error
    });
    let error = errors.find(|error| error.to_string().contains("waiting for storage")).unwrap();
    says(&error, &["rank 0", "position 0 of epoch 0", "waiting for storage", "block", ".parquet rows"]);
    case.s3.proxy.heal();
    let (mut delivered, mut overdue, mut epochs) = (Delivered::default(), 0, 0);
    while epochs < 2 {
        assert!(began.elapsed() < Duration::from_secs(40), "{overdue} errors since {began:?}");
        match ranks.next() {
            Some(Ok(batch)) => delivered.add(&batch),
            Some(Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::Retryable, "{error}");
                overdue += 1;
            }
            None => epochs += 1,
        }
    }
    assert!(overdue >= 1, "stalled requests are cut after 6 s only");
    assert_eq!(delivered, case.quiet);
}

#[test]
fn a_stall_beyond_storages_deadline_says_which_bytes_how_often_and_how_long() {
    let case = Case::new();
    let dataset = case.s3.open(StorageOptions {
        deadline: Duration::from_millis(1200),
        stall_timeout: Duration::from_millis(300),
        ..storage()
    });
    case.s3.proxy.inject(Rule::always(Fault::StallMidBody(100, Duration::from_secs(60))));
    let mut ranks = bounded(dataset).rank(Rank::new(0, 1)).start().unwrap();
    let began = Instant::now();
    let error = ranks.next().unwrap().unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(error.kind(), ErrorKind::Retryable);
    says(&error, &["block", URI, ".parquet", "bytes ", "attempts", "deadline"]);
    let began = Instant::now();
    drop(ranks);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_stalled_run_stops_soon() {
    let case = Case::new();
    let dataset = case.s3.open(storage());
    case.s3.proxy.inject(Rule::always(Fault::StallBeforeHead(Duration::from_secs(60))).after(3));
    let ranks = bounded(dataset).rank(Rank::new(0, 1)).start().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    drop(ranks);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// Checks that the message has all parts and no secret.
fn says(error: &Error, parts: &[&str]) {
    for part in parts {
        assert!(error.to_string().contains(part), "'{part}' is not in: {error}");
    }
    assert!(!format!("{error} {error:?}").contains(SECRET_KEY), "{error:?}");
}

fn one_object() -> S3 {
    let local = tempfile::tempdir().unwrap();
    synth(local.path(), 10);
    S3::holding(local.path())
}

#[test]
fn missing_bucket() {
    let s3 = one_object();
    let error = block_on(Dataset::open_with("s3://corpsu/train", s3.options(storage()))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    says(&error, &["corpsu", "bucket does not exist"]);
    let error = block_on(Dataset::open_with("s3://corpus/trian", s3.options(storage()))).unwrap_err();
    says(&error, &["s3://corpus/trian"]);
}

#[test]
fn wrong_key() {
    let s3 = one_object();
    let mut options = s3.options(storage());
    options.storage = options.storage.with("aws_secret_access_key", "another-SECRET");
    let error = s3.try_open(options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    says(&error, &[URI, "credentials"]);
    assert!(!format!("{error:?}").contains("another-SECRET"), "{error:?}");
}

#[test]
fn no_credentials() {
    let s3 = one_object();
    let anonymous = options_at(&s3.server.endpoint(), StorageOptions { anonymous: true, ..storage() });
    let error = s3.try_open(anonymous).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    // Without credentials, the machine's metadata service is queried; this one has none.
    let empty = tempfile::tempdir().unwrap();
    let metadata = StaticServer::start(empty.path()).unwrap();
    let mut options = s3.options(storage());
    for key in ["aws_access_key_id", "aws_secret_access_key"] {
        options.storage.config.remove(key);
    }
    options.storage = options.storage.with("aws_metadata_endpoint", metadata.endpoint());
    let began = Instant::now();
    let error = s3.try_open(options).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    says(&error, &["AWS_ACCESS_KEY_ID"]);
}

/// Credentials are revoked during a run.
#[test]
fn access_revoked_mid_epoch() {
    let case = Case::new();
    let dataset = case.s3.open(storage());
    case.s3.proxy.inject(Rule::always(Fault::Status(403)).after(5));
    let mut ranks = bounded(dataset).rank(Rank::new(0, 1)).start().unwrap();
    let error = ranks.find_map(Result::err).expect("the run ends with an error");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    says(&error, &["block", ".parquet", "credentials"]);
}
