//! Tars whose headers are read with the samples.

use crate::format_common::{all_rows, options, path, payloads, tar_of, texts};
use crate::storage_support::{S3, with_config};
use feedstock_dataset::{
    BadShards, BlockId, CatalogStore, Dataset, ErrorKind, Extent, OpenOptions, Result, SampleId,
    StorageOptions, TarHeaders,
};
use feedstock_testkit::{S3Server, SimulatedObject, SimulatedStore, SparseTar};
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn at_read(store: CatalogStore) -> OpenOptions {
    OpenOptions { tar_headers: TarHeaders::Read, ..options(store) }
}

async fn open(at: &Path) -> Result<Dataset> {
    Dataset::open_with(path(at), at_read(CatalogStore::Nowhere)).await
}

async fn open_walked(at: &Path) -> Dataset {
    Dataset::open_with(path(at), options(CatalogStore::Nowhere)).await.unwrap()
}

fn store(tars: &[SparseTar]) -> SimulatedStore {
    let mut objects: BTreeMap<String, SimulatedObject> = BTreeMap::new();
    for (i, tar) in tars.iter().enumerate() {
        objects.insert(format!("data/{i:04}.tar.idx"), tar.energon_index().into());
        let read = tar.clone();
        objects.insert(
            format!("data/{i:04}.tar"),
            SimulatedObject::new(tar.size(), move |range| read.read(range)),
        );
    }
    SimulatedStore::start(objects, Duration::from_millis(1)).unwrap()
}

/// Opens the tars of a store, and returns the requests and bytes that this took.
async fn opened(store: &SimulatedStore, tar_headers: TarHeaders) -> (Dataset, u64, u64) {
    let storage =
        StorageOptions { max_concurrency: NonZeroUsize::new(64), ..crate::storage_support::options() };
    let storage = with_config(storage, S3Server::config_at(&store.endpoint()));
    let options = OpenOptions { storage, tar_headers, ..options(CatalogStore::Nowhere) };
    let dataset = Dataset::open_with("s3://bucket/data/", options).await.unwrap();
    let stats = dataset.storage().stats();
    (dataset, stats.requests, stats.read_bytes)
}

#[tokio::test]
async fn opening_takes_two_requests_a_tar() {
    let tars: Vec<SparseTar> =
        (0..8).map(|i| SparseTar::new(50, &[("jpg", 4 * MIB), ("bin", 700)], i * 50)).collect();
    let store = store(&tars);
    let (walked, all_requests, all_bytes) = opened(&store, TarHeaders::Open).await;
    let (dataset, requests, bytes) = opened(&store, TarHeaders::Read).await;
    println!("{requests} requests, {bytes} bytes; with headers {all_requests} requests, {all_bytes} bytes");
    assert!(requests <= 8 * 2 + 6, "{requests} requests");
    assert!(bytes < 3 * MIB, "{bytes} bytes");
    assert!(all_requests > 8 * 50 && all_bytes > 10 * bytes, "{all_requests} requests, {all_bytes} bytes");
    assert!(dataset.catalog().notes().is_empty(), "{:?}", dataset.catalog().notes());
    assert_eq!((dataset.len(), dataset.catalog().schema()), (walked.len(), walked.catalog().schema()));
    let last = async |dataset: &Dataset| {
        dataset.block_reader().fetch_sample(SampleId(399), u64::MAX).await.unwrap().rows
    };
    let before = dataset.storage().stats().requests;
    assert_eq!(last(&dataset).await, last(&walked).await);
    assert_eq!(dataset.storage().stats().requests - before, 1, "a sample's headers are among its bytes");
}

/// Keys are found from header to header.
#[tokio::test]
async fn a_filter_on_keys_reads_headers_alone() {
    let tars = [SparseTar::new(30, &[("jpg", 4 * MIB)], 0), SparseTar::new(30, &[("jpg", 4 * MIB)], 30)];
    let store = store(&tars);
    let (dataset, ..) = opened(&store, TarHeaders::Read).await;
    let before = dataset.storage().stats();
    let some = dataset.filter("key >= '00000058' or key = '00000003'").await.unwrap();
    let after = some.storage().stats();
    assert_eq!(some.len(), 3);
    assert!(after.requests - before.requests <= 64, "{} requests", after.requests - before.requests);
    let read = after.read_bytes - before.read_bytes;
    assert!(read < 2 * 30 * 4 * MIB / 20, "{read} bytes");
}

/// An index that Energon's rule made, of a tar with folders and extended headers.
#[tokio::test]
async fn samples_are_those_of_a_walk() {
    let samples = Path::new("tests/real_tools/samples/tar_indexes");
    let folder = tempfile::tempdir().unwrap();
    for file in ["bare.tar", "bare.tar.idx"] {
        fs::copy(samples.join(file), folder.path().join(file)).unwrap();
    }
    let (dataset, walked) = (open(folder.path()).await.unwrap(), open_walked(folder.path()).await);
    assert!(dataset.catalog().notes().is_empty(), "{:?}", dataset.catalog().notes());
    assert_eq!(dataset.catalog().schema(), walked.catalog().schema());
    let (rows, expected) = (all_rows(&dataset).await, all_rows(&walked).await);
    assert_eq!(texts(&rows, "key"), texts(&expected, "key"));
    assert_eq!(texts(&rows, "key")[3], "d2/0003");
    for column in ["jpg", "seg_png"] {
        assert_eq!(payloads(&rows, column), payloads(&expected, column));
    }
    assert_eq!(dataset.catalog().describe_sample(SampleId(3)), "bare.tar sample 3");
    let keys = all_rows(&dataset.columns(&["key"]).unwrap()).await;
    assert_eq!(texts(&keys, "key"), texts(&rows, "key"), "without payloads, from header to header");
}

/// Units have 4,096 samples; blocks and parts of them begin anywhere in a unit.
#[tokio::test]
async fn a_stored_catalog_of_many_samples_is_read_back() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tar = SparseTar::new(9_000, &[("bin", 100)], 0);
    fs::write(folder.path().join("a.tar"), tar.read(0..tar.size())).unwrap();
    fs::write(folder.path().join("a.tar.idx"), tar.energon_index()).unwrap();
    let open = async |block_bytes: u64| {
        let store = CatalogStore::Cache(cache.path().to_owned());
        let options = OpenOptions { block_bytes, ..at_read(store) };
        Dataset::open_with(path(folder.path()), options).await.unwrap()
    };
    let built = open(64 << 10).await;
    let stored = open(64 << 10).await;
    assert_eq!(built.catalog().hashes(), stored.catalog().hashes());
    let other = open(32 << 10).await;
    assert_eq!(built.catalog().hashes().identity, other.catalog().hashes().identity);
    assert_ne!(built.catalog().hashes().blocks, other.catalog().hashes().blocks);
    let expected: Vec<String> = (0..9_000).map(|i| format!("{i:08}")).collect();
    assert_eq!(texts(&all_rows(&stored).await, "key"), expected);
    let reader = stored.block_reader();
    for sample in [0, 4_095, 4_096, 8_191, 8_192, 8_999] {
        let rows = [reader.fetch_sample(SampleId(sample), u64::MAX).await.unwrap().rows];
        assert_eq!(texts(&rows, "key"), [expected[sample as usize].clone()]);
        assert_eq!(payloads(&rows, "bin"), [Some(vec![0; 100])]);
    }
    let block = stored.catalog().block_samples(BlockId(1));
    let some = Extent::new(BlockId(1), block.start + 3..block.end - 2);
    let rows = [reader.fetch_extent(some, u64::MAX).await.unwrap().rows];
    assert_eq!(texts(&rows, "key"), expected[block.start as usize + 3..block.end as usize - 2]);
}

/// Returns the offsets of an index, one sample for each key.
fn offsets_of(members: &[(String, Vec<u8>)]) -> Vec<u64> {
    let (mut at, mut last, mut offsets) = (0, None, Vec::new());
    for (name, bytes) in members {
        let key = name.split('.').next();
        if last != key {
            offsets.push(at);
        }
        (last, at) = (key, at + 512 + (bytes.len() as u64).next_multiple_of(512));
    }
    offsets.push(at);
    offsets
}

fn index(offsets: &[u64]) -> Vec<u8> {
    offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect()
}

fn members(names: &[&str]) -> Vec<(String, Vec<u8>)> {
    (1..).zip(names).map(|(i, name)| ((*name).to_owned(), vec![i; 600])).collect()
}

fn write(folder: &Path, members: &[(String, Vec<u8>)]) {
    fs::write(folder.join("a.tar"), tar_of(members)).unwrap();
    fs::write(folder.join("a.tar.idx"), index(&offsets_of(members))).unwrap();
}

#[tokio::test]
async fn samples_may_lack_members_or_have_others() {
    let folder = tempfile::tempdir().unwrap();
    let members = members(&[
        "0.jpg",
        "0.npy",
        "1.jpg",
        "2.npy",
        "2.png",
        "2.extra",
        "3.png",
        "3.webp",
        "3.npy",
        "4.mask.png",
    ]);
    write(folder.path(), &members);
    let dataset = open(folder.path()).await.unwrap();
    let names: Vec<&str> =
        dataset.catalog().schema().fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["key", "image", "npy"]);
    let rows = all_rows(&dataset).await;
    let of = |member: usize| Some(members[member].1.clone());
    assert_eq!(payloads(&rows, "npy"), [of(1), None, of(3), of(8), None]);
    assert_eq!(
        payloads(&rows, "image"),
        [of(0), of(2), of(4), None, None],
        "a sample's only image, whatever its extension, and no mask"
    );
}

/// Each sample that is not where the index states it is refused, alone and with others, and no other sample's bytes come back.
#[tokio::test]
async fn a_wrong_index_gives_no_other_samples() {
    let names = ["0.jpg", "0.npy", "1.jpg", "1.npy", "2.jpg", "2.npy", "3.jpg", "3.npy"];
    let members = members(&names);
    let right = offsets_of(&members);
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &members);
    let mut joined = right.clone();
    joined.remove(2);
    let mut cut = right.clone();
    cut[2] += 512;
    let mut middle = right.clone();
    middle[2] += 1_536; // where 2.npy begins, so that 2.jpg is in sample 1
    let mut fewer = right.clone();
    fewer.pop();
    let longer = [&right[..], &[right[4] + 1_024]].concat();
    for (name, offsets, wrong) in [
        ("right", &right, &[][..]),
        ("joined", &joined, &[1]),
        ("cut", &cut, &[1, 2]),
        ("middle", &middle, &[1]),
        ("fewer", &fewer, &[2]),
        ("longer", &longer, &[4]),
    ] {
        fs::write(folder.path().join("a.tar.idx"), index(offsets)).unwrap();
        let dataset = open(folder.path()).await.unwrap();
        let reader = dataset.block_reader();
        let mut refused = Vec::new();
        for sample in 0..dataset.len() {
            match reader.fetch_sample(SampleId(sample), u64::MAX).await {
                Ok(block) => {
                    let key: usize = texts(std::slice::from_ref(&block.rows), "key")[0].parse().unwrap();
                    let jpg = &payloads(&[block.rows], "image")[0];
                    assert!(jpg.is_none() || *jpg == Some(members[2 * key].1.clone()), "{name}: {sample}");
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Gone, "{name}: {error}");
                    assert!(error.message().contains("a.tar.idx states a sample at"), "{name}: {error}");
                    refused.push(sample);
                }
            }
        }
        assert_eq!(refused, wrong, "{name}");
        assert_eq!(reader.fetch(BlockId(0), u64::MAX).await.is_ok(), wrong.is_empty(), "{name}");
        let keys = dataset.filter("key > '0'").await; // walks all headers
        assert_eq!(keys.is_ok(), wrong.is_empty(), "{name}");
    }
}

#[tokio::test]
async fn an_index_that_is_missing_or_does_not_fit_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let members = members(&["0.jpg", "1.jpg"]);
    write(folder.path(), &members);
    let right = offsets_of(&members);
    for (offsets, why) in [
        (vec![], "not a number of 64-bit offsets"),
        (vec![0], "it has no sample"),
        (vec![0, 100], "not a multiple of 512"),
        (vec![512, right[1]], "no member begins at 512"),
        (vec![0, right[2], right[1]], "is not after"),
        (vec![0, 1 << 40], "beyond the tar's"),
        (right[1..].to_vec(), "there are files before it"),
    ] {
        fs::write(folder.path().join("a.tar.idx"), index(&offsets)).unwrap();
        let error = open(folder.path()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        for part in ["a.tar.idx does not fit", why, "tar_headers=\"open\""] {
            assert!(error.message().contains(part), "{part} is missing in: {error}");
        }
    }
    fs::remove_file(folder.path().join("a.tar.idx")).unwrap();
    let error = open(folder.path()).await.unwrap_err();
    assert!(error.message().contains("has no index") && error.message().contains("a.tar.idx"), "{error}");
    // Named one by one, so that nothing is listed.
    fs::write(folder.path().join("a.tar.idx"), index(&right)).unwrap();
    assert_eq!(open(&folder.path().join("a.tar")).await.unwrap().len(), 2);
}

/// Tars or indexes that do not fit are left out, the first one too.
#[tokio::test]
async fn damaged_tars_are_left_out_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str| folder.path().join(name);
    let members = members(&["0.jpg", "1.jpg"]);
    let right = offsets_of(&members);
    let index_damaged = index(&[&right[..2], &[right[2] + (1 << 20)]].concat());
    let mut tar_damaged = tar_of(&members);
    tar_damaged[..512].fill(7);
    for (name, tar, index) in [
        ("a", &tar_damaged, &index(&right)),
        ("b", &tar_of(&members), &index_damaged),
        ("c", &tar_of(&members), &index(&right)),
    ] {
        fs::write(of(&format!("{name}.tar")), tar).unwrap();
        fs::write(of(&format!("{name}.tar.idx")), index).unwrap();
    }
    let error = open(folder.path()).await.unwrap_err();
    assert!(error.is_damage() && error.message().contains("a.tar"), "{error}");
    let options = OpenOptions { bad_shards: BadShards::Skip, ..at_read(CatalogStore::Nowhere) };
    let dataset = Dataset::open_with(path(folder.path()), options).await.unwrap();
    assert_eq!(texts(&all_rows(&dataset).await, "key"), ["0", "1"]);
    let notes = dataset.catalog().notes().join("\n");
    assert!(
        notes.contains("shard a.tar is left out") && notes.contains("shard b.tar is left out"),
        "{notes}"
    );
    fs::remove_file(of("c.tar")).unwrap();
    let options = OpenOptions { bad_shards: BadShards::Skip, ..at_read(CatalogStore::Nowhere) };
    let error = Dataset::open_with(path(folder.path()), options).await.unwrap_err();
    assert!(error.is_damage(), "none is left: {error}");
}

/// Samples of one size, in another order: they begin where the others did.
#[tokio::test]
async fn tars_that_begin_with_another_sample_are_other_data() {
    let identity = async |names: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &members(names));
        open(folder.path()).await.unwrap().catalog().hashes().identity
    };
    let before = identity(&["0.jpg", "1.jpg", "2.jpg"]).await;
    assert_eq!(before, identity(&["0.jpg", "1.jpg", "2.jpg"]).await);
    assert_ne!(before, identity(&["2.jpg", "1.jpg", "0.jpg"]).await);
}

/// Texts become columns of the catalog, and durations need headers anyway.
#[tokio::test]
async fn tars_with_texts_or_audio_are_opened_as_before() {
    for extension in ["json", "cls", "txt", "mp3"] {
        let folder = tempfile::tempdir().unwrap();
        let content = |i: u8| if extension == "mp3" { vec![i; 600] } else { format!("{i}").into_bytes() };
        let members: Vec<(String, Vec<u8>)> = (0..4)
            .flat_map(|i| [(format!("{i}.jpg"), vec![i; 600]), (format!("{i}.{extension}"), content(i))])
            .collect();
        write(folder.path(), &members);
        let (dataset, walked) = (open(folder.path()).await.unwrap(), open_walked(folder.path()).await);
        assert_eq!(dataset.catalog().hashes(), walked.catalog().hashes(), "{extension}");
        let notes = dataset.catalog().notes();
        assert!(notes.iter().any(|note| note.contains(&format!("0.{extension} in "))), "{notes:?}");
        assert!(walked.catalog().notes().is_empty());
    }
}

/// A worker opens what the rank describes, with another identity than by default.
#[tokio::test]
async fn a_description_states_when_headers_are_read() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &members(&["0.jpg", "1.jpg"]));
    let (dataset, walked) = (open(folder.path()).await.unwrap(), open_walked(folder.path()).await);
    assert_ne!(dataset.catalog().hashes().identity, walked.catalog().hashes().identity);
    assert!(!serde_json::to_string(&walked.spec()).unwrap().contains("tar_headers"), "older workers know it");
    let sent = serde_json::to_string(&dataset.spec()).unwrap();
    let spec: feedstock_dataset::DatasetSpec = serde_json::from_str(&sent).unwrap();
    let same = spec.open(&|| options(CatalogStore::Nowhere)).await.unwrap();
    assert_eq!(same.catalog().hashes(), dataset.catalog().hashes());
}

/// A store that does not send an index has not lost it: the tar must not be opened in another form.
#[tokio::test]
async fn an_index_that_is_denied_is_an_error() {
    let s3 = S3::start();
    let tar = SparseTar::new(3, &[("bin", 100)], 0);
    s3.put("data/a.tar", &tar.read(0..tar.size()));
    s3.put("data/a.tar.idx", &tar.energon_index());
    s3.proxy
        .inject(feedstock_testkit::Rule::always(feedstock_testkit::Fault::Status(403)).on("GET").at(".idx"));
    let storage = with_config(crate::storage_support::options(), S3Server::config_at(&s3.proxy.endpoint()));
    let options = OpenOptions { storage, ..at_read(CatalogStore::Nowhere) };
    let error = Dataset::open_with("s3://bucket/data/", options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}
