//! An interrupted run leaves no incomplete file under the file's name.

use feedstock_synth::{CommonVoiceLayout, CommonVoiceOptions, ImagenetOptions, Layout, Progress, Voice};
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

type Write<'a> = &'a dyn Fn(bool, &mut dyn FnMut(Progress)) -> feedstock_synth::Result<()>;

/// Returns the files whose names do not begin with a dot, and their sizes.
fn shown(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(shown(&path));
        } else if !path.file_name().unwrap().to_str().unwrap().starts_with('.') {
            let bytes = path.metadata().unwrap().len();
            files.insert(path, bytes);
        }
    }
    files
}

/// Checks the folder's files between two samples, which a killed run would leave.
fn shows_whole_files_only(layout: &str, dir: &Path, write: Write<'_>) {
    let mut seen = BTreeMap::new();
    write(false, &mut |_| seen.extend(shown(dir))).unwrap();
    let whole = shown(dir);
    for (path, bytes) in seen {
        assert_eq!(whole.get(&path), Some(&bytes), "{layout}: {} was seen in part", path.display());
    }
    // A run that fails removes the file that it was writing, so that the run can be repeated.
    let interrupted =
        catch_unwind(AssertUnwindSafe(|| write(true, &mut |now| assert!(now.done < 5, "interrupted"))));
    assert!(interrupted.is_err());
    for (path, bytes) in shown(dir) {
        assert_eq!(whole.get(&path), Some(&bytes), "{layout}: {} was left in part", path.display());
    }
    // Files that a killed run left belong to its sample data.
    fs::write(dir.join(".imagenet-train-000000.tar.unfinished"), "half").unwrap();
    write(true, &mut |_| ()).unwrap();
    assert_eq!(shown(dir), whole, "{layout}");
    assert!(!dir.join(".imagenet-train-000000.tar.unfinished").exists());
}

#[test]
fn pictures() {
    for layout in Layout::ALL {
        let dir = tempfile::tempdir().unwrap();
        let write: Write<'_> = &|overwrite, progress| {
            let options = ImagenetOptions {
                samples: 12,
                classes: Some(3),
                layout,
                width: 96,
                height: 80,
                samples_per_shard: 8,
                rows_per_group: 2,
                overwrite,
                ..Default::default()
            };
            options.write(dir.path(), &mut |now| progress(now)).map(|_| ())
        };
        shows_whole_files_only(layout.name(), dir.path(), write);
    }
}

#[test]
fn speech() {
    for layout in CommonVoiceLayout::ALL {
        let dir = tempfile::tempdir().unwrap();
        let write: Write<'_> = &|overwrite, progress| {
            let options = CommonVoiceOptions {
                samples: 12,
                layout,
                voice: Voice::Formant,
                mean_seconds: 1.6,
                samples_per_shard: 8,
                rows_per_group: 2,
                overwrite,
                ..Default::default()
            };
            options.write(dir.path(), &mut |now| progress(now)).map(|_| ())
        };
        shows_whole_files_only(layout.name(), dir.path(), write);
    }
}
