//! The cost of cataloguing tars in object storage, and that indexes change only the cost.

use crate::format_common::{all_rows, ints, open, options, path, payloads, tar_of, texts};
use crate::storage_support::{S3, with_config};
use bytes::Bytes;
use feedstock_dataset::{BlockId, CatalogStore, Dataset, ErrorKind, OpenOptions, SampleId, StorageOptions};
use feedstock_testkit::{
    Fault, FaultProxy, Rule, S3Server, SimulatedObject, SimulatedStore, SparseTar, StaticServer,
};
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Which indexes are next to the tars.
#[derive(Clone, Copy, PartialEq)]
enum Index {
    Nothing,
    Dali,
    DaliWithoutNames,
    Energon,
}

fn store(tars: &[SparseTar], index: Index, latency_ms: u64) -> SimulatedStore {
    let mut objects: BTreeMap<String, SimulatedObject> = BTreeMap::new();
    for (i, tar) in tars.iter().enumerate() {
        let of_index: Option<(&str, Bytes)> = match index {
            Index::Nothing => None,
            Index::Dali => Some(("idx", tar.dali_index())),
            Index::DaliWithoutNames => Some(("idx", without_names(&tar.dali_index()))),
            Index::Energon => Some(("tar.idx", tar.energon_index())),
        };
        objects.extend(of_index.map(|(end, bytes)| (format!("data/{i:04}.{end}"), bytes.into())));
        let read = tar.clone();
        let object = SimulatedObject::new(tar.size(), move |range| read.read(range));
        objects.insert(format!("data/{i:04}.tar"), object);
    }
    SimulatedStore::start(objects, Duration::from_millis(latency_ms)).unwrap()
}

/// Returns the same index as DALI wrote it before indexes had names.
fn without_names(index: &[u8]) -> Bytes {
    let text = std::str::from_utf8(index).unwrap().replacen("v1.2", "v1.1", 1);
    let (first, lines) = text.split_once('\n').unwrap();
    let mut older = format!("{first}\n");
    for line in lines.lines() {
        let words: Vec<&str> =
            line.split(' ').enumerate().filter(|(i, _)| i % 4 != 3).map(|(_, w)| w).collect();
        older += &(words.join(" ") + "\n");
    }
    older.into()
}

/// A data set, and the cost of opening it.
struct Opened {
    dataset: Dataset,
    requests: u64,
    read_bytes: u64,
}

async fn opened(store: &SimulatedStore) -> Opened {
    let options =
        StorageOptions { max_concurrency: NonZeroUsize::new(64), ..crate::storage_support::options() };
    let storage = with_config(options, S3Server::config_at(&store.endpoint()));
    let open = OpenOptions { storage, ..crate::format_common::options(CatalogStore::Nowhere) };
    let dataset = Dataset::open_with("s3://bucket/data/", open).await.unwrap();
    let stats = dataset.storage().stats();
    Opened { dataset, requests: stats.requests, read_bytes: stats.read_bytes }
}

fn same(one: &Opened, other: &Opened) {
    assert_eq!(one.dataset.catalog().hashes(), other.dataset.catalog().hashes());
    assert_eq!(one.dataset.catalog().schema(), other.dataset.catalog().schema());
}

/// Returns the part of the tars that was read, in percent.
fn percent(opened: &Opened, tars: &[SparseTar]) -> f64 {
    let all: u64 = tars.iter().map(SparseTar::size).sum();
    opened.read_bytes as f64 * 100.0 / all as f64
}

#[tokio::test]
async fn members_over_a_mib_are_hopped_over() {
    for (large, bound) in [(MIB + 4_096, 5.0), (3 * MIB / 2, 5.0), (2 * MIB, 5.0), (10 * MIB, 1.0)] {
        let members = [("cls", 4), ("jpg", large), ("json", 2_000)];
        let tars: Vec<SparseTar> = (0..3).map(|i| SparseTar::new(40, &members, i * 40)).collect();
        let opened = opened(&store(&tars, Index::Nothing, 1)).await;
        assert_eq!(opened.dataset.len(), 120);
        assert!(percent(&opened, &tars) < bound, "{large}: {} %", percent(&opened, &tars));
        // One request for each large member, and a few at each tar's start and end.
        assert!(opened.requests <= 120 + 3 * 6, "{large}: {} requests", opened.requests);
        let rows = all_rows(&opened.dataset.columns(&["label", "n"]).unwrap()).await;
        assert_eq!(ints(&rows, "label"), (0..120).collect::<Vec<_>>());
        assert_eq!(ints(&rows, "n"), (0..120).collect::<Vec<_>>());
    }
}

/// Small members are read along: requests grow to a MiB again.
#[tokio::test]
async fn small_members_are_read_in_large_requests() {
    let tars = [SparseTar::new(300, &[("cls", 4), ("jpg", 100_000)], 0)];
    let few = opened(&store(&tars, Index::Nothing, 1)).await;
    assert!(few.requests <= 300 / 10 + 8, "{} requests", few.requests);
    // One large member is hopped over; those before and after it are read along.
    let mut mixed: Vec<(String, Vec<u8>)> = Vec::new();
    for i in 0..40 {
        let bytes = if i == 20 { 30 * MIB as usize } else { 100_000 };
        mixed.push((format!("{i:03}.jpg"), vec![7; bytes]));
    }
    let objects = BTreeMap::from([("data/0.tar".to_owned(), Bytes::from(tar_of(&mixed)).into())]);
    let opened = opened(&SimulatedStore::start(objects, Duration::ZERO).unwrap()).await;
    assert_eq!(opened.dataset.len(), 40);
    assert!(opened.requests <= 16, "{} requests", opened.requests);
    assert!(opened.read_bytes < 6 * MIB, "{} bytes", opened.read_bytes);
}

#[tokio::test]
async fn as_many_tars_are_walked_as_storage_takes_requests() {
    let tars: Vec<SparseTar> = (0..96).map(|i| SparseTar::new(6, &[("jpg", 4 * MIB)], i * 6)).collect();
    let store = store(&tars, Index::Nothing, 40);
    opened(&store).await;
    assert!(store.peak() >= 56, "{} requests at once", store.peak());
}

#[tokio::test]
async fn a_full_index_costs_four_requests_a_tar() {
    let tars: Vec<SparseTar> = (0..8).map(|i| SparseTar::new(50, &[("jpg", 4 * MIB)], i * 50)).collect();
    let walked = opened(&store(&tars, Index::Nothing, 1)).await;
    let indexed = opened(&store(&tars, Index::Dali, 1)).await;
    same(&walked, &indexed);
    assert!(indexed.requests <= 8 * 4 + 3, "{} requests", indexed.requests);
    assert!(indexed.dataset.catalog().notes().is_empty(), "{:?}", indexed.dataset.catalog().notes());
    // Every header has an extended one in front, which is not a reason to read them all.
    let tars: Vec<SparseTar> = tars.into_iter().map(SparseTar::extended).collect();
    let walked = opened(&store(&tars, Index::Nothing, 1)).await;
    let indexed = opened(&store(&tars, Index::Dali, 1)).await;
    same(&walked, &indexed);
    assert!(indexed.requests <= 8 * 12 + 3, "{} requests", indexed.requests);
    assert!(indexed.dataset.catalog().notes().is_empty(), "{:?}", indexed.dataset.catalog().notes());
}

#[tokio::test]
async fn texts_are_read_at_their_places_many_at_once() {
    let members = [("cls", 4), ("jpg", 2 * MIB), ("json", 600)];
    let tars = [SparseTar::new(60, &members, 0), SparseTar::new(60, &members, 60)];
    let walked = opened(&store(&tars, Index::Nothing, 1)).await;
    let store = store(&tars, Index::Dali, 30);
    let indexed = opened(&store).await;
    same(&walked, &indexed);
    // The json of one sample and the cls of the next are one request.
    assert!(indexed.requests <= 2 * 63 + 3, "{} requests", indexed.requests);
    assert!(percent(&indexed, &tars) < 0.2, "{} %", percent(&indexed, &tars));
    assert!(store.peak() >= 40, "{} requests at once", store.peak());
    // Those of small samples are read together.
    let tars = [SparseTar::new(300, &[("cls", 4), ("jpg", 100_000)], 0)];
    let small = opened(&self::store(&tars, Index::Dali, 1)).await;
    assert!(small.requests <= 300 / 10 + 8, "{} requests", small.requests);
    same(&small, &opened(&self::store(&tars, Index::Nothing, 1)).await);
}

#[tokio::test]
async fn an_index_without_names_takes_them_from_headers() {
    let tars = [SparseTar::new(60, &[("cls", 4), ("jpg", 2 * MIB), ("seg.png", 300_000)], 0)];
    let walked = opened(&store(&tars, Index::Nothing, 1)).await;
    let store = store(&tars, Index::DaliWithoutNames, 30);
    let indexed = opened(&store).await;
    same(&walked, &indexed);
    assert!(indexed.dataset.catalog().notes().is_empty(), "{:?}", indexed.dataset.catalog().notes());
    assert!(indexed.requests <= 60 + 6, "{} requests", indexed.requests);
    assert!(store.peak() >= 40, "{} requests at once", store.peak());
}

#[tokio::test]
async fn offsets_let_parts_of_one_tar_be_walked_at_once() {
    let tars = [SparseTar::new(200, &[("cls", 4), ("jpg", 2 * MIB)], 0)];
    let walked = opened(&store(&tars, Index::Nothing, 1)).await;
    let store = store(&tars, Index::Energon, 30);
    let indexed = opened(&store).await;
    same(&walked, &indexed);
    assert!(indexed.dataset.catalog().notes().is_empty(), "{:?}", indexed.dataset.catalog().notes());
    assert!(store.peak() >= 40, "{} requests at once", store.peak());
    assert!(percent(&indexed, &tars) < 5.0, "{} %", percent(&indexed, &tars));
}

fn samples() -> std::path::PathBuf {
    Path::new("tests/real_tools/samples/tar_indexes").canonicalize().unwrap()
}

/// Copies one tar, and those of its indexes that `ends` names.
fn copied(name: &str, ends: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for end in ["tar"].iter().chain(ends) {
        let file = format!("{name}.{end}");
        fs::copy(samples().join(&file), folder.path().join(&file)).unwrap();
    }
    folder
}

/// Indexes that DALI's and Energon's tools wrote. DALI's index is wrong for long names, which must be noticed.
#[tokio::test]
async fn indexes_of_other_tools_are_used_or_refused() {
    for (name, is_right) in [("plain", true), ("pax", true), ("mixed", true), ("long", false)] {
        let alone = copied(name, &[]);
        let walked = open(alone.path()).await.unwrap();
        assert_eq!(walked.len(), 6, "{name}");
        for end in ["idx", "tar.idx"] {
            let folder = copied(name, &[end]);
            let indexed = open(folder.path()).await.unwrap();
            // The older hash holds the versions of the files, which are copies here.
            let hashes =
                |dataset: &Dataset| (dataset.catalog().hashes().identity, dataset.catalog().hashes().blocks);
            assert_eq!(hashes(&indexed), hashes(&walked), "{name}.{end}");
            let notes = indexed.catalog().notes();
            let is_used = is_right || end == "tar.idx";
            assert_eq!(
                notes.iter().any(|note| note.contains("long.idx")),
                !is_used,
                "{name}.{end}: {notes:?}"
            );
            assert_eq!(notes.is_empty(), is_used, "{name}.{end}: {notes:?}");
            let rows = all_rows(&indexed).await;
            assert_eq!(payloads(&rows, "jpg")[2], payloads(&all_rows(&walked).await, "jpg")[2]);
        }
    }
}

fn write_tar(folder: &Path, samples: u64) -> Bytes {
    let tar = SparseTar::new(samples, &[("cls", 3), ("jpg", 5_000)], 0);
    fs::write(folder.join("a.tar"), tar.read(0..tar.size())).unwrap();
    tar.dali_index()
}

/// Indexes that are damaged, hostile, or those of another tar.
#[tokio::test]
async fn an_index_that_does_not_fit_its_tar_is_left_out_with_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let right = String::from_utf8(write_tar(folder.path(), 20).to_vec()).unwrap();
    let walked = open(folder.path()).await.unwrap();
    let long = tempfile::tempdir().unwrap();
    let longer = String::from_utf8(write_tar(long.path(), 21).to_vec()).unwrap();
    let shorter = String::from_utf8(write_tar(long.path(), 19).to_vec()).unwrap();
    let renamed = right.replace("00000000.cls", "0000000x.cls");
    let renamed_last = right.replace("00000019.jpg", "0000001x.jpg");
    let without_last_member = right.trim_end().rsplit_once(" jpg ").unwrap().0.to_owned() + "\n";
    let fewer = right.replacen("v1.2 20", "v1.2 19", 1);
    let without_first = fewer.split_inclusive('\n').enumerate();
    let without_first: String = without_first.filter(|(i, _)| *i != 1).map(|(_, line)| line).collect();
    let cases: [(&str, Vec<u8>); 11] = [
        ("empty", Vec::new()),
        ("garbage", vec![0xfe; 300]),
        ("text", b"v1.2 1000000000\n".to_vec()),
        ("beyond", b"v1.2 1\njpg 9223372036854775808 1 a.jpg\n".to_vec()),
        ("overflow", b"v1.2 1\njpg 18446744073709551104 18446744073709551104 a.jpg\n".to_vec()),
        ("longer", longer.into()),
        ("shorter", shorter.into()),
        ("renamed", renamed.into()),
        ("renamed last", renamed_last.into()),
        ("without last member", without_last_member.into()),
        ("without first", without_first.into()),
    ];
    for (name, index) in cases {
        fs::write(folder.path().join("a.idx"), index).unwrap();
        let indexed = open(folder.path()).await.unwrap();
        let notes = indexed.catalog().notes();
        let names_both = |note: &&String| note.contains("a.idx") && note.contains("a.tar");
        assert!(notes.iter().any(|note| names_both(&note)), "{name}: {notes:?}");
        assert_eq!(indexed.catalog().hashes(), walked.catalog().hashes(), "{name}");
    }
    fs::write(folder.path().join("a.idx"), right).unwrap();
    let indexed = open(folder.path()).await.unwrap();
    assert!(indexed.catalog().notes().is_empty(), "{:?}", indexed.catalog().notes());
    assert_eq!(indexed.catalog().hashes(), walked.catalog().hashes());
}

/// DALI's index of a tar whose samples have one member each, of these names and sizes.
fn index_of(members: &[(&str, u64)]) -> String {
    let mut end = 0;
    let mut index = format!("v1.2 {}\n", members.len());
    for (name, bytes) in members {
        let offset = end + 512;
        index += &format!("jpg {offset} {bytes} {name}\n");
        end = offset + bytes.next_multiple_of(512);
    }
    index
}

/// The headers of payloads between the first and the last one are compared when the payloads are read. An index that is wrong
/// only about them cannot be rejected earlier, and must not give another sample's bytes.
#[tokio::test]
async fn a_wrong_index_never_gives_the_bytes_of_another_sample() {
    let right = [
        ("0.jpg", 5_000),
        ("1.jpg", 5_000),
        ("2.jpg", 9_000),
        ("3.jpg", 5_000),
        ("4.jpg", 7),
        ("5.jpg", 5_000),
    ];
    let members: Vec<(String, Vec<u8>)> =
        (0..).zip(right).map(|(i, (name, bytes))| (name.to_owned(), vec![i; bytes as usize])).collect();
    let (mut renamed, mut moved, mut longer) = (right, right, right);
    (renamed[1].0, renamed[3].0) = ("3.jpg", "1.jpg");
    (moved[1].1, moved[2].1) = (9_000, 5_000);
    longer[4].1 = 8;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.tar"), tar_of(&members)).unwrap();
    for (stated, wrong) in [(right, &[][..]), (renamed, &[1, 3]), (moved, &[2]), (longer, &[4])] {
        fs::write(folder.path().join("a.idx"), index_of(&stated)).unwrap();
        let dataset = open(folder.path()).await.unwrap();
        assert!(dataset.catalog().notes().is_empty(), "{:?}", dataset.catalog().notes());
        let reader = dataset.block_reader();
        let mut refused = Vec::new();
        for sample in 0..6 {
            match reader.fetch_sample(SampleId(sample), u64::MAX).await {
                Ok(block) => assert_eq!(
                    payloads(&[block.rows], "image"),
                    [Some(members[sample as usize].1.clone())],
                    "sample {sample} of {stated:?}"
                ),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
                    assert!(error.message().contains("a.tar.idx"), "{error}");
                    refused.push(sample);
                }
            }
        }
        assert!(wrong.iter().all(|sample| refused.contains(sample)), "{refused:?} of {stated:?}");
        assert_eq!(refused.is_empty(), wrong.is_empty(), "{refused:?} of {stated:?}");
        let block = reader.fetch(BlockId(0), u64::MAX).await;
        assert_eq!(block.is_ok(), wrong.is_empty(), "{stated:?}");
    }
}

/// Makes a tar as Python does: a member's name that is not ASCII is in an extended header, and its own header has `?`.
fn tar_by_python(names: &[String], bytes: usize) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for name in names {
        tar.append_pax_extensions([("path", name.as_bytes())]).unwrap();
        let mut header = tar::Header::new_ustar();
        let plain: String = name.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect();
        header.set_path(plain).unwrap();
        header.set_size(bytes as u64);
        header.set_cksum();
        tar.append(&header, name.as_bytes().repeat(bytes).get(..bytes).unwrap()).unwrap();
    }
    tar.into_inner().unwrap()
}

/// The header in front of a payload has `?.jpg` for all of these names, so only the extended ones show that an index is wrong.
#[tokio::test]
async fn an_index_that_exchanges_names_beyond_ascii_is_left_out() {
    let names: Vec<String> = "äëïöüÿáéíóúàèìòùâêîôûçñ".chars().map(|c| format!("{c}.jpg")).collect();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.tar"), tar_by_python(&names, 5_000)).unwrap();
    let walked = open(folder.path()).await.unwrap();
    // An extended header, its one record, and the header: three records in front of each payload.
    let index = |names: &[String]| {
        let line = |(i, name): (usize, &String)| format!("jpg {} 5000 {name}\n", 1536 + i * (1536 + 5120));
        format!("v1.2 {}\n{}", names.len(), names.iter().enumerate().map(line).collect::<String>())
    };
    let mut exchanged = names.clone();
    exchanged.swap(3, 4);
    for (stated, is_right) in [(&names, true), (&exchanged, false)] {
        fs::write(folder.path().join("a.idx"), index(stated)).unwrap();
        let indexed = open(folder.path()).await.unwrap();
        let notes = indexed.catalog().notes();
        assert_eq!(notes.is_empty(), is_right, "{notes:?}");
        assert_eq!(indexed.catalog().hashes(), walked.catalog().hashes());
        let rows = all_rows(&indexed).await;
        let payloads = payloads(&rows, "image");
        for (key, payload) in texts(&rows, "key").iter().zip(payloads) {
            assert!(payload.unwrap().starts_with(key.as_bytes()), "{key}");
        }
    }
}

/// Offsets are read if a tar is walked in parts, from 8 MiB on.
#[tokio::test]
async fn offsets_that_do_not_fit_their_tar_are_left_out_with_a_note() {
    let tar = SparseTar::new(200, &[("cls", 3), ("jpg", 100_000)], 0);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.tar"), tar.read(0..tar.size())).unwrap();
    let walked = open(folder.path()).await.unwrap();
    let right = tar.energon_index().to_vec();
    let mut shifted = right.clone();
    for offset in shifted.as_chunks_mut::<8>().0.iter_mut().skip(1) {
        *offset = (u64::from_le_bytes(*offset) - 512).to_le_bytes();
    }
    let mut beyond = right.clone();
    beyond[8 * 100..8 * 101].copy_from_slice(&(1_u64 << 63).to_le_bytes());
    let cases =
        [("empty", Vec::new()), ("cut", right[..81].to_vec()), ("shifted", shifted), ("beyond", beyond)];
    for (name, index) in cases.into_iter().chain([("text", b"v1.2 20\n".to_vec())]) {
        fs::write(folder.path().join("a.tar.idx"), index).unwrap();
        let indexed = open(folder.path()).await.unwrap();
        let notes = indexed.catalog().notes();
        assert!(notes.iter().any(|note| note.contains("a.tar.idx")), "{name}: {notes:?}");
        assert_eq!(indexed.catalog().hashes(), walked.catalog().hashes(), "{name}");
    }
    fs::write(folder.path().join("a.tar.idx"), right).unwrap();
    let indexed = open(folder.path()).await.unwrap();
    assert!(indexed.catalog().notes().is_empty(), "{:?}", indexed.catalog().notes());
    assert_eq!(indexed.catalog().hashes(), walked.catalog().hashes());
}

/// An index is not data. It neither makes the stored catalog stale nor changes the data set.
#[tokio::test]
async fn an_index_that_appears_changes_nothing() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let index = write_tar(folder.path(), 20);
    let open = async || {
        let store = CatalogStore::Cache(cache.path().to_owned());
        Dataset::open_with(path(folder.path()), options(store)).await.unwrap()
    };
    let before = open().await;
    let stored = || {
        let of = |folder: fs::DirEntry| {
            fs::read_dir(folder.path()).unwrap().map(|file| {
                let file = file.unwrap();
                (file.path(), file.metadata().unwrap().modified().unwrap())
            })
        };
        let mut files: Vec<_> =
            fs::read_dir(cache.path()).unwrap().flat_map(|at| of(at.unwrap()).collect::<Vec<_>>()).collect();
        files.sort();
        files
    };
    let was = stored();
    fs::write(folder.path().join("a.idx"), index).unwrap();
    let after = open().await;
    assert_eq!(before.catalog().hashes(), after.catalog().hashes());
    assert_eq!(stored(), was, "the stored catalog still fits");
    assert_eq!(texts(&all_rows(&after).await, "key")[19], "00000019");
}

/// Web servers do not list, so the first tar's index is requested.
#[tokio::test]
async fn indexes_of_tars_that_are_named_one_by_one_are_requested() {
    let folder = tempfile::tempdir().unwrap();
    write_tar(folder.path(), 20);
    let server = StaticServer::start(folder.path()).unwrap();
    let open = async |uri: String| {
        let dataset = Dataset::open_with(&uri, options(CatalogStore::Nowhere)).await.unwrap();
        dataset.catalog().notes().to_vec()
    };
    for uri in [format!("{}/a.tar", server.endpoint()), format!("{}/{{a,a}}.tar", server.endpoint())] {
        assert!(open(uri.clone()).await.is_empty());
        fs::write(folder.path().join("a.idx"), "no index").unwrap();
        let notes = open(uri.clone()).await;
        assert!(notes.iter().any(|note| note.contains("a.idx of ")), "{uri}: {notes:?}");
        fs::remove_file(folder.path().join("a.idx")).unwrap();
    }
}

/// An index only saves time: one that a store cannot send costs less than one deadline in all, for any number of tars.
#[tokio::test]
async fn an_index_that_cannot_be_read_neither_fails_nor_delays_the_opening() {
    let deadline = Duration::from_secs(24);
    let with_deadline = |config| OpenOptions {
        storage: with_config(StorageOptions { deadline, ..crate::storage_support::options() }, config),
        ..options(CatalogStore::Nowhere)
    };
    let s3 = S3::start();
    let folder = tempfile::tempdir().unwrap();
    let index = write_tar(folder.path(), 20);
    let tar = Bytes::from(fs::read(folder.path().join("a.tar")).unwrap());
    for name in ["a", "b", "c"] {
        s3.put(&format!("data/{name}.tar"), &tar);
        s3.put(&format!("data/{name}.idx"), &index);
    }
    let config = || S3Server::config_at(&s3.proxy.endpoint());
    let right = Dataset::open_with("s3://bucket/data/", with_deadline(config())).await.unwrap();
    assert!(right.catalog().notes().is_empty(), "{:?}", right.catalog().notes());
    // HEAD, which completes the listing, is answered.
    s3.proxy.inject(Rule::always(Fault::StallMidBody(0, Duration::from_secs(60))).at(".idx"));
    let began = Instant::now();
    let walked = Dataset::open_with("s3://bucket/data/", with_deadline(config())).await.unwrap();
    assert!(began.elapsed() < deadline, "{:?}", began.elapsed());
    assert_eq!(walked.catalog().hashes(), right.catalog().hashes());
    let notes = walked.catalog().notes();
    assert!(notes.iter().any(|note| note.contains("a.idx") && note.contains("3 indexes")), "{notes:?}");
    // Named one by one, so that nothing is listed.
    for name in ["b", "c"] {
        fs::copy(folder.path().join("a.tar"), folder.path().join(format!("{name}.tar"))).unwrap();
    }
    let server = StaticServer::start(folder.path()).unwrap();
    let proxy = FaultProxy::start(&server.endpoint()).unwrap();
    proxy.inject(Rule::always(Fault::Status(503)).at(".idx"));
    let began = Instant::now();
    let uri = format!("{}/{{a,b,c}}.tar", proxy.endpoint());
    let named = Dataset::open_with(&uri, with_deadline(Vec::new())).await.unwrap();
    assert!(began.elapsed() < deadline, "{:?}", began.elapsed());
    assert_eq!(named.len(), 60);
    let asked: Vec<String> =
        proxy.log().into_iter().map(|e| e.path).filter(|path| path.contains(".idx")).collect();
    assert!(asked.len() >= 2 && asked.iter().all(|path| path.contains("a.")), "{asked:?}");
}
