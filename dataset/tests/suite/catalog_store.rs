//! Stored catalogs: reopened, rejected when the data changed, rebuilt when damaged.

use crate::format_common::*;
use feedstock_dataset::{CatalogCheck, CatalogOptions, CatalogStore, Dataset, Layout, OpenOptions};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) fn write_parquet(at: &Path, rows: std::ops::Range<u64>) {
    let batch = hf_batch(rows, 500);
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(20)).build();
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(at).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

pub(crate) fn write_tar(at: &Path, samples: u64) {
    let mut builder = tar::Builder::new(std::fs::File::create(at).unwrap());
    for i in 0..samples {
        for (name, bytes) in [(format!("{i}.jpg"), picture(i, 500)), (format!("{i}.cls"), b"1".to_vec())] {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, name, bytes.as_slice()).unwrap();
        }
    }
    builder.finish().unwrap();
}

/// Opens, and returns how many objects were read to make a catalog: none if a stored one was used.
async fn open_counted(at: &Path, store: &CatalogStore, rebuild: bool) -> (Dataset, u64) {
    counted(at, CatalogOptions { store: store.clone(), rebuild, ..CatalogOptions::default() }).await
}

/// As [`open_counted`], with all options of catalogs.
pub(crate) async fn counted(at: &Path, catalog: CatalogOptions) -> (Dataset, u64) {
    let seen = Arc::new(AtomicU64::new(0));
    let counter = seen.clone();
    let progress: feedstock_dataset::ProgressFn = Arc::new(move |p| {
        if p.stage.starts_with("reading") {
            counter.store(p.done, Ordering::Relaxed);
        }
    });
    let catalog = CatalogOptions { progress: Some(progress), ..catalog };
    let options = OpenOptions { catalog, block_bytes: 64 << 10, ..OpenOptions::default() };
    let dataset = Dataset::open_with(path(at), options).await.unwrap();
    (dataset, seen.load(Ordering::Relaxed))
}

pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let at = entry.unwrap().path();
        if at.is_dir() { found.extend(files_below(&at)) } else { found.push(at) }
    }
    found.sort();
    found
}

#[tokio::test]
async fn a_stored_catalog_serves_the_same_rows() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_parquet(&data.path().join("a.parquet"), 0..100);
    write_parquet(&data.path().join("b.parquet"), 100..150);
    for store in [CatalogStore::Cache(cache.path().into()), CatalogStore::Beside] {
        let (built, read) = open_counted(data.path(), &store, false).await;
        assert_eq!(read, 2);
        let (stored, read) = open_counted(data.path(), &store, false).await;
        assert_eq!(read, 0, "the stored catalog was not used");
        assert_eq!(stored.catalog().content_hash(), built.catalog().content_hash());
        assert_eq!(stored.catalog().schema(), built.catalog().schema());
        assert_eq!(stored.catalog().block_starts(), built.catalog().block_starts());
        assert_eq!(all_rows(&stored).await, all_rows(&built).await);
        assert_eq!(stored.filter("width > 140").await.unwrap().len(), 9);
        let (_, read) = open_counted(data.path(), &store, true).await;
        assert_eq!(read, 2, "rebuild = true");
    }
    assert!(data.path().join("_feedstock").is_dir());
}

#[tokio::test]
async fn sample_tables_are_stored_too() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_tar(&data.path().join("x.tar"), 500);
    let store = CatalogStore::Cache(cache.path().into());
    let (built, _) = open_counted(data.path(), &store, false).await;
    let (stored, read) = open_counted(data.path(), &store, false).await;
    assert_eq!(read, 0);
    assert_eq!(all_rows(&stored).await, all_rows(&built).await);
}

#[tokio::test]
async fn a_changed_data_set_has_another_hash() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = CatalogStore::Cache(cache.path().into());
    write_parquet(&data.path().join("a.parquet"), 0..100);
    let (first, _) = open_counted(data.path(), &store, false).await;
    write_parquet(&data.path().join("b.parquet"), 100..150);
    let (added, read) = open_counted(data.path(), &store, false).await;
    assert_eq!((read, added.len()), (2, 150));
    assert_ne!(added.catalog().content_hash(), first.catalog().content_hash());
    std::fs::remove_file(data.path().join("b.parquet")).unwrap();
    write_parquet(&data.path().join("new"), 0..100);
    std::fs::rename(data.path().join("new"), data.path().join("a.parquet")).unwrap();
    let (replaced, read) = open_counted(data.path(), &store, false).await;
    assert_eq!((read, replaced.len()), (1, 100));
    assert_eq!(replaced.catalog().content_hash(), first.catalog().content_hash(), "the same bytes again");
    assert_ne!(replaced.place_hash(), first.place_hash(), "the bytes to read are not those that were held");
    let coarse = OpenOptions { block_bytes: 1 << 20, ..options(store) };
    let coarse = Dataset::open_with(path(data.path()), coarse).await.unwrap();
    assert_ne!(coarse.catalog().hashes().blocks, replaced.catalog().hashes().blocks);
}

/// Tiny files of two classes, by number.
fn write_files(folder: &Path, numbers: std::ops::Range<usize>) {
    for class in ["a", "b"] {
        std::fs::create_dir_all(folder.join(class)).unwrap();
    }
    for i in numbers {
        std::fs::write(folder.join(["a", "b"][i % 2]).join(format!("{i:06}.jpg")), b"x").unwrap();
    }
}

async fn open_checked(at: &Path, store: &CatalogStore, check: CatalogCheck) -> Dataset {
    let catalog = CatalogOptions { store: store.clone(), check, ..CatalogOptions::default() };
    Dataset::open_with(path(at), OpenOptions { catalog, ..OpenOptions::default() }).await.unwrap()
}

#[tokio::test]
async fn more_than_ten_thousand_objects_are_compared_too() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = CatalogStore::Cache(cache.path().into());
    write_files(data.path(), 0..10_400);
    let old = open_checked(data.path(), &store, CatalogCheck::Auto).await;
    write_files(data.path(), 10_400..11_600);
    let new = open_checked(data.path(), &store, CatalogCheck::Auto).await;
    assert_eq!((old.len(), new.len()), (10_400, 11_600));
    assert_ne!(old.catalog().content_hash(), new.catalog().content_hash());
}

/// The catalog is below the old limit of a listing, but the data set is above it.
#[tokio::test]
async fn a_catalog_whose_data_outgrew_the_limit_is_not_taken_for_agreement() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = CatalogStore::Cache(cache.path().into());
    write_files(data.path(), 0..9_900);
    assert_eq!(open_checked(data.path(), &store, CatalogCheck::Auto).await.len(), 9_900);
    write_files(data.path(), 9_900..10_100);
    assert_eq!(open_checked(data.path(), &store, CatalogCheck::Auto).await.len(), 10_100);
}

#[tokio::test]
async fn above_a_hundred_thousand_objects_a_listing_is_requested() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = CatalogStore::Cache(cache.path().into());
    write_files(data.path(), 0..100_001);
    open_checked(data.path(), &store, CatalogCheck::Auto).await;
    write_files(data.path(), 100_001..100_101);
    assert_eq!(open_checked(data.path(), &store, CatalogCheck::Auto).await.len(), 100_001);
    assert_eq!(open_checked(data.path(), &store, CatalogCheck::List).await.len(), 100_101);
    assert_eq!(open_checked(data.path(), &store, CatalogCheck::Auto).await.len(), 100_101);
    // A copy, in which all inodes and times differ: a few objects suffice.
    for class in ["a", "b"] {
        let folder = data.path().join(class);
        std::fs::rename(&folder, data.path().join("old")).unwrap();
        std::fs::create_dir(&folder).unwrap();
        for file in std::fs::read_dir(data.path().join("old")).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
        std::fs::remove_dir_all(data.path().join("old")).unwrap();
    }
    let copied = open_checked(data.path(), &store, CatalogCheck::Auto).await;
    copied.block_reader().fetch(feedstock_dataset::BlockId(0), u64::MAX).await.unwrap();
    // A machine without a stored catalog reads the folder by this table, so this one must too.
    let first = copied.catalog().objects().name(0).to_owned();
    std::fs::write(data.path().join("metadata.csv"), format!("file_name,score\n{first},7\n")).unwrap();
    let by_table = open_checked(data.path(), &store, CatalogCheck::Auto).await;
    assert_eq!((by_table.len(), by_table.catalog().layout()), (1, Layout::Manifest));
}

/// Changes, cuts and removes every file of a stored catalog in turn: the rows are always right.
#[tokio::test]
async fn a_damaged_catalog_is_never_trusted() {
    let data = tempfile::tempdir().unwrap();
    write_parquet(&data.path().join("a.parquet"), 0..60);
    let tars = tempfile::tempdir().unwrap();
    write_tar(&tars.path().join("x.tar"), 60);
    for data in [data.path(), tars.path()] {
        let cache = tempfile::tempdir().unwrap();
        let store = CatalogStore::Cache(cache.path().into());
        let (built, _) = open_counted(data, &store, false).await;
        let right = all_rows(&built).await;
        let kept = files_below(cache.path());
        assert!(kept.len() >= 5, "{kept:?}");
        for file in kept {
            let content = std::fs::read(&file).unwrap();
            let mut bent = content.clone();
            bent[content.len() / 2] ^= 0x40;
            for damage in [Some(bent), Some(content[..content.len() / 2].to_vec()), Some(Vec::new()), None] {
                match &damage {
                    Some(bytes) => std::fs::write(&file, bytes).unwrap(),
                    None => std::fs::remove_file(&file).unwrap(),
                }
                let (dataset, _) = open_counted(data, &store, false).await;
                assert_eq!(all_rows(&dataset).await, right, "{}", file.display());
            }
        }
    }
}

#[tokio::test]
async fn an_older_version_is_built_again() {
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_parquet(&data.path().join("a.parquet"), 0..60);
    let store = CatalogStore::Cache(cache.path().into());
    open_counted(data.path(), &store, false).await;
    let index = files_below(cache.path()).into_iter().find(|f| f.ends_with("catalog.json")).unwrap();
    let json = std::fs::read_to_string(&index).unwrap();
    std::fs::write(&index, json.replace("\"version\": 4", "\"version\": 0")).unwrap();
    let (_, read) = open_counted(data.path(), &store, false).await;
    assert_eq!(read, 1);
}

/// A catalog that was made with a relative path is found from any working directory, and must name the same files there.
#[tokio::test]
async fn a_relative_path_is_resolved_when_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), 0);
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    let relative = up.join(folder.path().strip_prefix("/").unwrap());
    assert!(relative.is_relative() && relative.exists());
    let dataset = open(&relative).await.unwrap();
    assert!(Path::new(dataset.uri()).is_absolute(), "{}", dataset.uri());
    let uri = dataset.catalog().sample_uri(feedstock_dataset::SampleId(0));
    assert!(Path::new(&uri).is_absolute(), "{uri}");
    all_rows(&dataset).await;
}

/// Files that are not data are not part of the catalog, but its notes name them.
#[tokio::test]
async fn notes_about_other_files_are_those_of_the_listing() {
    let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = CatalogStore::Cache(cache.path().into());
    std::fs::write(root.path().join("1.jpg"), picture(1, 500)).unwrap();
    std::fs::write(root.path().join("a.txt"), "text").unwrap();
    let notes = async || open_counted(root.path(), &store, false).await.0.catalog().notes().join("; ");
    assert!(notes().await.contains("1 file ignored, neither images nor audio: 1 .txt"));
    std::fs::write(root.path().join("b.md"), "text").unwrap();
    let renewed = notes().await;
    assert!(renewed.contains("2 files ignored, neither images nor audio: 1 .md, 1 .txt"), "{renewed}");
    assert!(!renewed.contains("1 file ignored"), "{renewed}");
    for name in ["a.txt", "b.md"] {
        std::fs::remove_file(root.path().join(name)).unwrap();
    }
    let renewed = notes().await;
    assert!(!renewed.contains("ignored"), "{renewed}");
}

/// Files of another kind appear. With a stored catalog, the data set stays the same, and a note states what a machine without
/// one does.
#[tokio::test]
async fn the_layout_of_a_stored_catalog_stays_when_other_files_appear() {
    for (table, layout) in
        [("", Layout::Folder), ("metadata.csv", Layout::Manifest), ("list.csv", Layout::Manifest)]
    {
        let (root, cache, elsewhere) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = CatalogStore::Cache(cache.path().into());
        let pictures = if table == "list.csv" { elsewhere.path() } else { root.path() };
        for i in 1..4 {
            std::fs::write(pictures.join(format!("{i}.jpg")), picture(i, 500)).unwrap();
        }
        match table {
            "" => {}
            "metadata.csv" => std::fs::write(root.path().join(table), "file_name,score\n2.jpg,7\n").unwrap(),
            _ => {
                let rows = format!("image\n{}\n", path(&pictures.join("2.jpg")));
                std::fs::write(root.path().join(table), rows).unwrap();
            }
        }
        let is_noted = |dataset: &Dataset| {
            dataset.catalog().notes().iter().any(|note| note.contains("a machine without one"))
        };
        let before = open_counted(root.path(), &store, false).await.0;
        assert_eq!((before.catalog().layout(), is_noted(&before)), (layout, false), "{table}");
        let stray = root.path().join("stray.parquet");
        write_parquet(&stray, 0..5);
        let (after, read) = open_counted(root.path(), &store, false).await;
        assert_eq!((after.catalog().hashes(), read), (before.catalog().hashes(), 0), "{table}");
        assert!(is_noted(&after), "{table}: {:?}", after.catalog().notes());
        let fresh = open(root.path()).await.map(|fresh| fresh.catalog().layout());
        match table {
            "list.csv" => assert_eq!(fresh.unwrap(), Layout::HfParquet),
            _ => assert!(fresh.unwrap_err().message().contains("several layouts"), "{table}"),
        }
        std::fs::remove_file(stray).unwrap();
        let (later, read) = open_counted(root.path(), &store, false).await;
        assert_eq!((later.catalog().hashes(), read), (before.catalog().hashes(), 0), "{table}");
        assert!(!is_noted(&later), "{table}");
    }
}

#[tokio::test]
async fn a_table_of_metadata_that_comes_later_is_noticed() {
    let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = CatalogStore::Cache(cache.path().into());
    for i in 1..4 {
        std::fs::write(root.path().join(format!("{i}.jpg")), picture(i, 500)).unwrap();
    }
    let samples = async || open_counted(root.path(), &store, false).await.0.catalog().samples();
    assert_eq!(samples().await, 3);
    let table = root.path().join("metadata.csv");
    std::fs::write(&table, "file_name,score\n2.jpg,7\n").unwrap();
    assert_eq!(samples().await, 1);
    assert_eq!(samples().await, 1);
    std::fs::remove_file(table).unwrap();
    assert_eq!(samples().await, 3);
}
