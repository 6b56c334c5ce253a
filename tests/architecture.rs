//! Checks the directions of dependencies between the crates, with `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The crates of this workspace that each crate may use, outside tests.
const ALLOWED: [(&str, &[&str]); 12] = [
    ("feedstock-base", &[]),
    ("feedstock-plan", &["feedstock-base"]),
    ("feedstock-dataset", &["feedstock-base", "feedstock-plan"]),
    ("feedstock-ops", &["feedstock-base"]),
    ("feedstock-ingest", &["feedstock-base", "feedstock-dataset", "feedstock-ops"]),
    ("feedstock-device", &["feedstock-base", "feedstock-ops"]),
    (
        "feedstock-trainer-bridge",
        &["feedstock-base", "feedstock-dataset", "feedstock-device", "feedstock-ingest", "feedstock-ops"],
    ),
    ("feedstock-synth", &[]),
    ("feedstock-testkit", &["feedstock-base"]),
    // The last three only for the feature `shared-build`.
    (
        "feedstock-python",
        &["feedstock", "feedstock-cli", "feedstock-device", "feedstock-ops", "feedstock-testkit"],
    ),
    ("feedstock", &["feedstock-dataset", "feedstock-ingest", "feedstock-ops", "feedstock-trainer-bridge"]),
    (
        "feedstock-cli",
        &[
            "feedstock-dataset",
            "feedstock-ingest",
            "feedstock-ops",
            "feedstock-synth",
            "feedstock-trainer-bridge",
        ],
    ),
];

/// By crate, the dependencies that it must not have.
const FOREIGN: [(&str, &[&str]); 6] = [
    ("feedstock", &["clap", "indicatif", "png", "tracing-subscriber"]),
    ("feedstock-dataset", &["turbojpeg-sys", "fast_image_resize", "png", "image-webp", "cudarc", "pyo3"]),
    ("feedstock-ops", &["object_store", "tokio", "reqwest", "cudarc", "pyo3"]),
    ("feedstock-ingest", &["cudarc", "pyo3", "turbojpeg-sys"]),
    ("feedstock-device", &["object_store", "tokio", "parquet", "datafusion", "pyo3"]),
    ("feedstock-trainer-bridge", &["cudarc", "object_store", "parquet", "turbojpeg-sys", "pyo3"]),
];

/// All dependencies that the plan may have: arithmetic needs no I/O, no runtime and no clock. The crate's `clippy.toml`
/// forbids those of the standard library.
const PLAN_USES: [&str; 6] = ["arrow-buffer", "base64", "feedstock-base", "flate2", "rand_xoshiro", "serde"];

struct Package {
    /// The dependencies that its library or program links, without those of tests and build scripts.
    linked: BTreeSet<String>,
    has_bin: bool,
}

fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output =
        Command::new(cargo).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn packages() -> BTreeMap<String, Package> {
    let metadata = cargo(&["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let read = |package: &serde_json::Value| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let linked = dependencies.filter(|dependency| dependency["kind"].is_null());
        let targets = package["targets"].as_array().unwrap();
        Package {
            linked: linked.map(|dependency| dependency["name"].as_str().unwrap().to_owned()).collect(),
            has_bin: targets.iter().any(|target| target["kind"][0] == "bin"),
        }
    };
    packages.iter().map(|package| (package["name"].as_str().unwrap().to_owned(), read(package))).collect()
}

#[test]
fn dependencies_point_one_way() {
    let packages = packages();
    for (name, allowed) in ALLOWED {
        let package = packages.get(name).unwrap_or_else(|| panic!("{name} is not a member of the workspace"));
        let ours = package.linked.iter().filter(|dependency| packages.contains_key(*dependency));
        for dependency in ours {
            assert!(allowed.contains(&dependency.as_str()), "{name} must not depend on {dependency}");
        }
    }
    let known: BTreeSet<&str> = ALLOWED.iter().map(|(name, _)| *name).collect();
    for name in packages.keys() {
        assert!(known.contains(name.as_str()), "{name} is new: list here what it may depend on");
    }
}

#[test]
fn rooms_hold_nothing_foreign() {
    let packages = packages();
    for (name, foreign) in FOREIGN {
        for dependency in foreign {
            assert!(!packages[name].linked.contains(*dependency), "{name} must not depend on {dependency}");
        }
    }
}

#[test]
fn the_plan_is_arithmetic() {
    let packages = packages();
    let linked: Vec<&str> = packages["feedstock-plan"].linked.iter().map(String::as_str).collect();
    assert_eq!(linked, PLAN_USES);
    let base: Vec<&str> = packages["feedstock-base"].linked.iter().map(String::as_str).collect();
    assert_eq!(base, ["serde"], "every crate is built after this one");
}

#[test]
fn only_the_command_line_and_the_test_kit_are_programs() {
    for (name, package) in packages() {
        let may = ["feedstock-cli", "feedstock-testkit"].contains(&name.as_str());
        assert!(may || !package.has_bin, "{name} has a program; the command line is in cli/");
    }
}

/// `scripts/common.sh` builds the wheel of Python's tests from what the tests of Rust have built. A library with other features would be
/// compiled again, and all that use it.
#[test]
fn the_wheel_of_the_tests_has_the_features_of_the_tests() {
    let libraries = |edges: &str, selection: &[&str]| -> BTreeSet<(String, String)> {
        let form = ["tree", "--locked", "--edges", edges, "--prefix", "none", "--format", "{p}|{f}"];
        let split = |line: &str| {
            let (package, features) = line.split_once('|').unwrap();
            (package.to_owned(), features.trim_end_matches(" (*)").to_owned())
        };
        cargo(&[&form, selection].concat()).lines().filter(|line| !line.is_empty()).map(split).collect()
    };
    let tests = ["--workspace", "--exclude", "feedstock-python", "--all-features"];
    let tests = libraries("normal,build,dev", &tests);
    let wheel = ["--package", "feedstock-python", "--features", "shared-build,test-hooks"];
    let mut wheel = libraries("normal,build", &wheel);
    wheel.retain(|(package, _)| tests.iter().any(|(other, _)| other == package));
    assert!(wheel.len() > 300, "{} libraries of both", wheel.len());
    let others: Vec<_> = wheel.difference(&tests).collect();
    assert!(others.is_empty(), "in the wheel, with other features than in the tests of Rust: {others:?}");
}

/// In tests, all crates that read bytes from outside have debug assertions and overflow checks.
#[test]
fn tests_check_the_decoders_of_outside_bytes() {
    let read =
        |name: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    let (lock, settings) = (read("Cargo.lock"), read(".cargo/config.toml"));
    let locked = lock.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let (_, checked) = settings.split_once("[profile.test.package]").unwrap();
    let symphonia: Vec<&str> = locked.filter(|name| name.starts_with("symphonia")).collect();
    assert!(symphonia.len() > 5, "{symphonia:?}");
    let others = [
        "arrow-ipc",
        "feedstock-cli",
        "feedstock-ops",
        "image-webp",
        "kamadak-exif",
        "parquet",
        "png",
        "tar",
    ];
    for name in symphonia.into_iter().chain(others) {
        let settings = format!("\n{name} = {{ debug-assertions = true, overflow-checks = true }}\n");
        assert!(
            checked.contains(&settings),
            ".cargo/config.toml must have in profile.test.package: {settings}"
        );
    }
}
