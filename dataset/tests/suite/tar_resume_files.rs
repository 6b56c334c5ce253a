//! An interrupted build of a catalog of local tars goes on where it ended: WebDataset next to the data, ILSVRC's tar of tars, and
//! Common Voice.
//!
//! A damaged header interrupts the build. Before the next one it is repaired, and the headers that were read are damaged, with the
//! file's version unchanged. A build that reads them again fails.

use crate::format_common::{options, path};
use feedstock_dataset::{CatalogStore, Dataset, Layout, OpenOptions, Result};
use feedstock_testkit::SparseTar;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const RECORD: usize = 512;
const SAMPLES: u64 = 10;

/// 100 MB that take no disk space.
fn sparse(extension: &str, first: u64) -> SparseTar {
    SparseTar::new(SAMPLES, &[(extension, 10_000_000)], first)
}

/// Writes the headers of a sparse tar at `start` of a file.
fn put_sparse(file: &File, start: u64, tar: &SparseTar) {
    let sample_bytes = (tar.size() - 1_024) / SAMPLES;
    for at in (0..SAMPLES).map(|sample| sample * sample_bytes) {
        file.write_all_at(&tar.read(at..at + RECORD as u64), start + at).unwrap();
    }
}

fn header(name: &str, bytes: u64) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name).unwrap();
    header.set_size(bytes);
    header.set_mode(0o644);
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// Replaces a record of a file, and keeps the time of change, which is part of its version. Returns the record.
fn exchange(file: &Path, at: u64, with: &[u8]) -> Vec<u8> {
    let file = File::options().read(true).write(true).open(file).unwrap();
    let time = file.metadata().unwrap().modified().unwrap();
    let mut before = vec![0; RECORD];
    file.read_exact_at(&mut before, at).unwrap();
    file.write_all_at(with, at).unwrap();
    file.set_modified(time).unwrap();
    before
}

/// Files with tars, and a cache of catalogs.
struct Data {
    files: tempfile::TempDir,
    cache: tempfile::TempDir,
    layout: Layout,
}

impl Data {
    fn of(layout: Layout) -> Self {
        Self { files: tempfile::tempdir().unwrap(), cache: tempfile::tempdir().unwrap(), layout }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    async fn open(&self, store: CatalogStore) -> Result<Dataset> {
        let options = OpenOptions { layout: Some(self.layout), ..options(store) };
        Dataset::open_with(path(self.files.path()), options).await
    }

    fn journals(&self) -> usize {
        let Ok(folders) = fs::read_dir(self.cache.path()) else { return 0 };
        folders.filter(|folder| folder.as_ref().unwrap().path().join("shards.journal").exists()).count()
    }

    /// Interrupts a build at the header at `(file, offset)`, and resumes it. Headers at `read` are not read again.
    async fn resume(&self, end: (&Path, u64), read: &[(PathBuf, u64)], samples: u64) {
        let store = || CatalogStore::Cache(self.cache.path().to_owned());
        let damage = [0xff; RECORD];
        let right = exchange(end.0, end.1, &damage);
        let error = self.open(store()).await.unwrap_err();
        assert!(error.message().contains("not a readable tar"), "{error}");
        assert_eq!(self.journals(), 1);
        exchange(end.0, end.1, &right);
        let headers: Vec<Vec<u8>> = read.iter().map(|(file, at)| exchange(file, *at, &damage)).collect();
        let resumed = self.open(store()).await.unwrap();
        assert_eq!((resumed.len(), self.journals()), (samples, 0));
        let again = self.open(CatalogStore::Nowhere).await;
        assert!(again.is_err(), "the damaged headers are needed");
        for ((file, at), header) in read.iter().zip(&headers) {
            exchange(file, *at, header);
        }
        let whole = self.open(CatalogStore::Nowhere).await.unwrap();
        assert_eq!(resumed.catalog().hashes(), whole.catalog().hashes());
        assert_eq!(resumed.catalog().schema(), whole.catalog().schema());
    }
}

#[tokio::test]
async fn inner_tars_of_ilsvrc_are_not_read_again() {
    let data = Data::of(Layout::IlsvrcTar);
    let at = data.file("ILSVRC2012_img_train.tar");
    let file = File::create(&at).unwrap();
    let (mut end, mut inner) = (0, Vec::new());
    for (i, wnid) in (0..).zip(["n01440764", "n02100000", "n02200000", "n15075141"]) {
        let tar = sparse("JPEG", i * SAMPLES);
        file.write_all_at(&header(&format!("{wnid}.tar"), tar.size()), end).unwrap();
        put_sparse(&file, end + RECORD as u64, &tar);
        inner.push(end + RECORD as u64);
        end += RECORD as u64 + tar.size();
    }
    file.set_len(end + 1_024).unwrap();
    // The outer header of the first one, and inner ones.
    let read: Vec<(PathBuf, u64)> =
        [0, inner[0], inner[1], inner[2]].into_iter().map(|offset| (at.clone(), offset)).collect();
    data.resume((&at, inner[3]), &read, 4 * SAMPLES).await;
}

#[tokio::test]
async fn archives_of_common_voice_are_not_read_again() {
    let data = Data::of(Layout::CommonVoiceTar);
    let clip_bytes = 300 << 20_u64;
    for locale in ["de", "en"] {
        let file = File::create(data.file(&format!("cv-corpus-17.0-{locale}.tar"))).unwrap();
        let folder = format!("cv-corpus-17.0-2024-03-15/{locale}");
        let table = format!("client_id\tpath\tsentence\nx\t{locale}.mp3\tyes\n");
        file.write_all_at(&header(&format!("{folder}/clips/{locale}.mp3"), clip_bytes), 0).unwrap();
        let at = RECORD as u64 + clip_bytes;
        file.write_all_at(&header(&format!("{folder}/train.tsv"), table.len() as u64), at).unwrap();
        file.write_all_at(table.as_bytes(), at + RECORD as u64).unwrap();
        file.set_len(at + 2 * RECORD as u64 + 1_024).unwrap();
    }
    let (first, second) = (data.file("cv-corpus-17.0-de.tar"), data.file("cv-corpus-17.0-en.tar"));
    data.resume((&second, 0), &[(first, 0)], 2).await;
}

const FOLDER: &str = "FEEDSTOCK_TEST_BESIDE";

/// Run by `a_catalog_next_to_the_data_is_resumed`, in a process with another cache folder.
#[tokio::test]
#[ignore = "a part of another test"]
async fn opens_beside() {
    let folder = std::env::var(FOLDER).unwrap();
    let options = OpenOptions { layout: Some(Layout::WebDataset), ..options(CatalogStore::Beside) };
    match Dataset::open_with(&folder, options).await {
        Ok(dataset) => println!("opened {}", dataset.len()),
        Err(error) => println!("refused: {error}"),
    }
}

/// A bucket cannot be appended to, and others may read the folder next to the data, so the list of finished tars is in the cache.
#[test]
fn a_catalog_next_to_the_data_is_resumed() {
    let data = Data::of(Layout::WebDataset);
    for i in 0..4 {
        let (tar, file) = (sparse("jpg", i * SAMPLES), File::create(data.file(&format!("{i}.tar"))).unwrap());
        put_sparse(&file, 0, &tar);
        file.set_len(tar.size()).unwrap();
    }
    let open = || {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tar_resume_files::opens_beside", "--ignored", "--nocapture"])
            .env(FOLDER, data.files.path())
            .env("FEEDSTOCK_CACHE", data.cache.path())
            .output()
            .unwrap();
        String::from_utf8_lossy(&child.stdout).into_owned()
    };
    let journals = || {
        let folders = fs::read_dir(data.cache.path().join("catalogs")).into_iter().flatten();
        folders.filter(|folder| folder.as_ref().unwrap().path().join("shards.journal").exists()).count()
    };
    let damage = [0xff; RECORD];
    let right = exchange(&data.file("3.tar"), 0, &damage);
    let refused = open();
    assert!(refused.contains("refused: ") && refused.contains("3.tar"), "{refused}");
    assert_eq!(journals(), 1);
    assert!(!data.file("_feedstock").exists());
    exchange(&data.file("3.tar"), 0, &right);
    for i in 0..3 {
        exchange(&data.file(&format!("{i}.tar")), 0, &damage);
    }
    let opened = open();
    assert!(opened.contains("opened 40"), "{opened}");
    assert_eq!(journals(), 0);
    assert!(data.file("_feedstock").exists());
}
