//! Counts the files and folders of each crate that import each other in circles, from `use` lines and paths. Folders without
//! circles have an order in which no import points upwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::Visit;

/// By source folder, the number of files in circles of imports, and of folders (or files next to `lib.rs`). The numbers may
/// only fall: a reader must read a circle's files like one file.
const CIRCLES: [(&str, usize, usize); 11] = [
    ("dataset/base/src", 0, 0),
    ("dataset/plan/src", 0, 0),
    ("dataset/src", 6, 0),
    ("ops/src", 0, 0),
    ("ingest/src", 0, 0),
    ("trainer_bridge/device/src", 0, 0),
    ("trainer_bridge/src", 0, 0),
    ("synth/src", 0, 0),
    ("testkit/src", 0, 0),
    ("cli/src", 0, 0),
    ("python/src", 0, 0),
];

#[test]
fn files_and_folders_do_not_import_each_other_in_circles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = String::new();
    for (folder, allowed_files, allowed_folders) in CIRCLES {
        let files = Graph::of(&root.join(folder));
        for (what, graph, allowed) in
            [("files", &files, allowed_files), ("folders", &files.of_folders(), allowed_folders)]
        {
            let circles = graph.circles();
            let found: usize = circles.iter().map(BTreeSet::len).sum();
            if found != allowed {
                let advice = if found < allowed { "lower the number" } else { "let imports point one way" };
                wrong += &format!(
                    "{folder}: {found} {what} in circles, {allowed} allowed; {advice}: {circles:?}\n"
                );
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn an_import_upwards_between_folders_is_found_where_no_file_is_in_a_circle() {
    let source = |text: &str| Module::of(&syn::parse_file(text).unwrap());
    let modules = BTreeMap::from([
        (path("low"), source("mod one; mod two;")),
        (path("low::one"), source("")),
        (path("low::two"), source("use crate::high::three;")),
        (path("high"), source("mod three; mod four;")),
        (path("high::three"), source("")),
        (path("high::four"), source("use crate::low::one;")),
    ]);
    let files = Graph::from_modules(&modules);
    assert_eq!(files.circles(), Vec::<BTreeSet<String>>::new());
    assert_eq!(files.of_folders().circles(), [BTreeSet::from(["high".to_owned(), "low".to_owned()])]);
}

#[test]
fn circles_are_found_through_the_names_that_a_module_re_exports() {
    let source = |text: &str| Module::of(&syn::parse_file(text).unwrap());
    let modules = BTreeMap::from([
        (path(""), source("mod a; mod b; mod c; pub use a::One; mod d;")),
        (
            path("a"),
            source("use crate::b::{Two, other}; pub struct One; #[cfg(test)] mod tests { use crate::c; }"),
        ),
        (path("b"), source("fn f() { let _ = crate::One; } pub struct Two; fn other() {}")),
        (path("c"), source("use crate::One; use super::d::inner;")),
        (path("d"), source("pub mod inner; pub use inner::Three; fn f() { inner::g() }")),
        (path("d::inner"), source("pub(super) struct Three; use std::fmt;")),
    ]);
    let graph = Graph::from_modules(&modules);
    assert_eq!(graph.0["c"], BTreeSet::from(["a".to_owned(), "d::inner".to_owned()]));
    assert_eq!(graph.circles(), [BTreeSet::from(["a".to_owned(), "b".to_owned()])]);
}

#[test]
fn a_module_imports_the_child_that_it_names() {
    let source = |text: &str| Module::of(&syn::parse_file(text).unwrap());
    let modules = BTreeMap::from([
        (path("a"), source("mod b; fn f() { b::run() } pub struct Common;")),
        (path("a::b"), source("use super::Common; pub fn run() {}")),
    ]);
    assert_eq!(Graph::from_modules(&modules).circles().len(), 1);
}

/// A module's path in its crate. It is empty for the root.
type ModulePath = Vec<String>;

fn path(text: &str) -> ModulePath {
    text.split("::").filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

/// The names in one file.
#[derive(Default)]
struct Module {
    /// Paths that are used, as written.
    used: Vec<Vec<String>>,
    /// Names that it re-exports, with their paths.
    exported: Vec<(String, Vec<String>)>,
}

impl Module {
    fn of(file: &syn::File) -> Self {
        let mut module = Self::default();
        module.visit_file(file);
        module
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    let is_cfg = |attribute: &&syn::Attribute| attribute.path().is_ident("cfg");
    attributes.iter().filter(is_cfg).any(|attribute| {
        attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_test(&item.attrs) {
            return;
        }
        let mut leaves = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut leaves);
        match item.vis {
            syn::Visibility::Inherited => self.used.extend(leaves.into_iter().map(|(_, path)| path)),
            _ => self.exported.extend(leaves),
        }
    }

    /// `pub(super)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.used.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }
}

/// Collects the paths of a `use`, each with the name that it imports.
fn flatten(tree: &syn::UseTree, before: &mut Vec<String>, leaves: &mut Vec<(String, Vec<String>)>) {
    match tree {
        syn::UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, leaves);
            before.pop();
        }
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, leaves)),
        syn::UseTree::Name(name) => leaves.push((name.ident.to_string(), with(before, &name.ident))),
        syn::UseTree::Rename(name) => leaves.push((name.rename.to_string(), with(before, &name.ident))),
        syn::UseTree::Glob(_) => leaves.push(("*".to_owned(), before.clone())),
    }
}

fn with(before: &[String], last: &syn::Ident) -> Vec<String> {
    before
        .iter()
        .cloned()
        .chain([last.to_string()])
        .filter(|segment| segment != "self" || before.is_empty())
        .collect()
}

/// The imports of each file, by module path.
struct Graph(BTreeMap<String, BTreeSet<String>>);

impl Graph {
    fn of(folder: &Path) -> Self {
        let mut files = Vec::new();
        sources(folder, &mut files);
        let modules = files.iter().filter_map(|file| {
            let name = module_path(file.strip_prefix(folder).unwrap())?;
            Some((name, Module::of(&syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap())))
        });
        Self::from_modules(&modules.collect())
    }

    fn from_modules(modules: &BTreeMap<ModulePath, Module>) -> Self {
        let imports = modules.iter().map(|(name, module)| {
            let targets = module.used.iter().filter_map(|used| target(modules, name, used));
            // The root declares all modules. Names that it re-exports were resolved to their files.
            let targets = targets.filter(|target| target != name && !target.is_empty());
            (name.join("::"), targets.map(|target| target.join("::")).collect())
        });
        Self(imports.collect())
    }

    /// Returns the same graph with the files of each folder as one node.
    fn of_folders(&self) -> Self {
        let folder = |name: &str| name.split("::").next().unwrap_or_default().to_owned();
        let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (name, imports) in &self.0 {
            let others = imports.iter().map(|import| folder(import)).filter(|other| *other != folder(name));
            folders.entry(folder(name)).or_default().extend(others);
        }
        Self(folders)
    }

    /// Returns the sets of more than one file in which each file imports all others, directly or indirectly.
    fn circles(&self) -> Vec<BTreeSet<String>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.0.keys().map(|name| (name.as_str(), self.reached(name))).collect();
        let mut circles: Vec<BTreeSet<String>> = Vec::new();
        for (name, others) in &reached {
            let circle = others.iter().filter(|other| reached[*other].contains(name));
            let circle: BTreeSet<String> = circle.map(|&other| other.to_owned()).collect();
            if circle.len() > 1 && !circles.contains(&circle) {
                circles.push(circle);
            }
        }
        circles
    }

    fn reached<'a>(&'a self, from: &'a str) -> BTreeSet<&'a str> {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(name) = next.pop() {
            next.extend(self.0[name].iter().map(String::as_str).filter(|other| reached.insert(*other)));
        }
        reached
    }
}

/// Returns the module that defines the name `used` in module `from`, or `None` for names of other crates.
fn target(modules: &BTreeMap<ModulePath, Module>, from: &[String], used: &[String]) -> Option<ModulePath> {
    const HOPS: usize = 8; // re-exports of re-exports
    let (mut from, mut used) = (from.to_vec(), used.to_vec());
    for _ in 0..HOPS {
        let (module, rest) = module_of(modules, &from, &used)?;
        let name = match rest.first() {
            Some(name) => name,
            None => return Some(module),
        };
        let exported = modules[&module].exported.iter().find(|(exported, _)| exported == name);
        let Some((_, path)) = exported else { return Some(module) };
        let mut path = path.clone();
        if !matches!(path.first().map(String::as_str), Some("crate" | "self" | "super")) {
            path.insert(0, "self".to_owned());
        }
        if module_of(modules, &module, &path)
            .is_none_or(|(to, rest)| to == module && rest.len() == path.len() - 1)
        {
            return Some(module); // a name of another crate
        }
        path.extend_from_slice(&rest[1..]);
        (from, used) = (module, path);
    }
    None
}

/// Returns the deepest module on a path that begins with `crate`, `self`, `super` or a module inside `from`, and the rest of
/// the path.
fn module_of(
    modules: &BTreeMap<ModulePath, Module>,
    from: &[String],
    used: &[String],
) -> Option<(ModulePath, Vec<String>)> {
    let mut full = match used.first()?.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => from.to_vec(),
        child if modules.contains_key(&[from, &[child.to_owned()]].concat()) => from.to_vec(),
        _ => return None,
    };
    for segment in used {
        match segment.as_str() {
            "crate" | "self" => {}
            "super" => {
                full.pop();
            }
            name => full.push(name.to_owned()),
        }
    }
    let deepest = (0..=full.len()).rev().find(|&len| modules.contains_key(&full[..len]))?;
    Some((full[..deepest].to_vec(), full[deepest..].to_vec()))
}

/// Returns the module of a file: `a::b` for `a/b.rs` and `a/b/mod.rs`, and the root for `lib.rs` and `main.rs`.
fn module_path(file: &Path) -> Option<ModulePath> {
    let segments = file.with_extension("");
    let mut segments: ModulePath =
        segments.iter().map(|segment| segment.to_str().unwrap().to_owned()).collect();
    match segments.last()?.as_str() {
        "mod" | "lib" => {
            segments.pop();
        }
        "main" | "tests" => return None,
        name if name.ends_with("_tests") => return None,
        _ => {}
    }
    Some(segments)
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for entry in entries {
        match entry.is_dir() {
            true => sources(&entry, files),
            false if entry.extension().is_some_and(|extension| extension == "rs") => files.push(entry),
            false => {}
        }
    }
}
