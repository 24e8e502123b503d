//! Making patches from an edited tree.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use candle_derive::patch::Patch;
use candle_derive::Stage;

use crate::packages::{self, Package};
use crate::Result;

/// Texts of files by their name relative to the crate.
type Tree = BTreeMap<String, String>;

/// `(file, before, after)` of a file that differs.
type Change = (String, String, String);

/// Where trees are edited: `a` is the text before the patch, `b` the text with it.
pub fn folder(package: &Package) -> Result<PathBuf> {
    Ok(packages::target()?.join("edit").join(package.recipe.name))
}

/// A series of a package with what its first patch finds.
struct Work {
    patches: Vec<Patch>,
    start: Tree,
}

impl Work {
    fn new(package: &Package, stage: Stage) -> Result<Self> {
        let series = stage.series(&package.folder).map_err(|e| e.to_string())?;
        let upstream = package.upstream()?;
        let start = package.recipe.texts_at(stage, &upstream, &package.folder);
        Ok(Self {
            patches: series.patches,
            start: start.map_err(|e| e.to_string())?,
        })
    }

    /// Number of the patch that `name` means.
    fn position(&self, name: &str) -> Option<usize> {
        let file = Path::new(name)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let number = name.parse::<usize>().ok();
        self.patches.iter().position(|patch| {
            let own = patch.name();
            own == file
                || own.trim_end_matches(".patch") == file
                || number.is_some() && number_of(&own) == number
        })
    }

    /// The tree with the first `count` patches.
    fn with(&self, count: usize) -> Result<Tree> {
        let mut tree = self.start.clone();
        for patch in &self.patches[..count] {
            tree.extend(applied(patch, &tree)?);
        }
        Ok(tree)
    }
}

/// The files that a patch changes, changed.
fn applied(patch: &Patch, tree: &Tree) -> Result<Tree> {
    let mut changed = Tree::new();
    for file in patch.files() {
        let text = patch.apply(file, text_of(patch, tree, file)?);
        changed.insert(file.to_owned(), text.map_err(|e| e.to_string())?);
    }
    Ok(changed)
}

/// The same as far as hunks match; says which ones do not, or not for certain.
fn applied_for_editing(patch: &Patch, tree: &Tree) -> Result<Tree> {
    let mut changed = Tree::new();
    for file in patch.files() {
        let (text, refused) = patch
            .apply_what_fits(file, text_of(patch, tree, file)?)
            .map_err(|e| e.to_string())?;
        for hunk in refused {
            eprintln!("warning: {hunk}");
        }
        changed.insert(file.to_owned(), text);
    }
    Ok(changed)
}

fn text_of(patch: &Patch, tree: &Tree, file: &str) -> Result<String> {
    let missing = || format!("{}: there is no file {file}", patch.path.display());
    tree.get(file).cloned().ok_or_else(missing)
}

fn number_of(name: &str) -> Option<usize> {
    name.split('-').next()?.parse().ok()
}

fn read(folder: &Path) -> Result<Tree> {
    candle_derive::texts_below(folder).map_err(|e| e.to_string())
}

fn write(folder: &Path, tree: &Tree) -> Result<()> {
    for (name, text) in tree {
        let path = folder.join(name);
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        std::fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(failed)?;
        std::fs::write(&path, text).map_err(failed)?;
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {e}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Tells whether a tree has been edited.
fn digest(tree: &Tree) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    tree.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// What differs between two trees.
fn changes(before: &Tree, after: &Tree) -> Result<Vec<Change>> {
    if let Some(name) = after.keys().find(|name| !before.contains_key(*name)) {
        return Err(format!(
            "{name} is a new file: files of our own belong in the package's overlay/"
        ));
    }
    let mut changes = Vec::new();
    for (name, before) in before {
        let Some(after) = after.get(name) else {
            return Err(format!("{name} is gone: a patch cannot remove files"));
        };
        if before != after {
            changes.push((name.clone(), before.clone(), after.clone()));
        }
    }
    Ok(changes)
}

/// Writes the trees `a` and `b` of a patch, or of a new one. A patch that does not apply can be mended so.
pub fn edit(
    package: &Package,
    stage: Stage,
    patch: Option<&str>,
    out: &Path,
    force: bool,
) -> Result<()> {
    let work = Work::new(package, stage)?;
    let position = match patch {
        None => work.patches.len(),
        Some(name) => work
            .position(name)
            .ok_or_else(|| no_such_patch(package, stage, name))?,
    };
    let before = work.with(position)?;
    let mut after = before.clone();
    if let Some(patch) = work.patches.get(position) {
        after.extend(applied_for_editing(patch, &before)?);
    }
    let (a, b) = (out.join("a"), out.join("b"));
    let note = out.join("as-written");
    if !force && b.is_dir() && std::fs::read_to_string(&note).ok() != Some(digest(&read(&b)?)) {
        return Err(format!(
            "{} has changes that are in no patch: `patch` makes one of them, `edit --force` drops them",
            b.display()
        ));
    }
    remove(out)?;
    write(&a, &before)?;
    write(&b, &after)?;
    std::fs::write(&note, digest(&after)).map_err(|e| format!("{}: {e}", note.display()))?;
    println!("{}", b.display());
    Ok(())
}

/// Makes the difference between the trees `a` and `b` a patch.
pub fn patch(package: &Package, stage: Stage, name: &str, from: &Path) -> Result<()> {
    let work = Work::new(package, stage)?;
    let (a, b) = (from.join("a"), from.join("b"));
    if !b.is_dir() {
        return Err(format!(
            "{} does not exist: `edit {}` makes it",
            b.display(),
            package.recipe.name
        ));
    }
    let position = work.position(name);
    let before = read(&a)?;
    if before != work.with(position.unwrap_or(work.patches.len()))? {
        return Err(format!(
            "{} is not what the patch would be applied to: `edit` was asked for another one, or the patches have changed since",
            a.display()
        ));
    }
    let changes = changes(&before, &read(&b)?)?;
    if changes.is_empty() {
        return Err(format!("{} and {} do not differ", a.display(), b.display()));
    }
    let made = match position {
        Some(position) => work.patches[position].with_changes(&changes),
        None => {
            let number = work
                .patches
                .iter()
                .filter_map(|p| number_of(&p.name()))
                .max()
                .unwrap_or(0)
                + 1;
            let slug = slug(name)?;
            let path = package
                .folder
                .join(stage.folder())
                .join(format!("{number:04}-{slug}.patch"));
            Patch::new(&path, &slug.replace('-', " "), "", &changes)
        }
    };
    let made = made.map_err(|e| e.to_string())?;
    packages::write(&made.path, &made.text())?;
    if made.reason.is_empty() {
        println!("say in its header, after the subject and a blank line, what upstream does and what the patch does instead");
    }
    remove(from)?;
    // Those after it must still apply.
    let work = Work::new(package, stage)?;
    work.with(work.patches.len()).map(drop)
}

/// Writes every patch of a series anew.
pub fn refresh(package: &Package, stage: Stage) -> Result<()> {
    let work = Work::new(package, stage)?;
    let mut tree = work.start.clone();
    for patch in &work.patches {
        let after = applied(patch, &tree)?;
        let of_file = |file: &str| (file.to_owned(), tree[file].clone(), after[file].clone());
        let changes: Vec<Change> = patch.files().map(of_file).collect();
        let anew = patch.with_changes(&changes).map_err(|e| e.to_string())?;
        packages::write(&patch.path, &anew.text())?;
        tree.extend(after);
    }
    Ok(())
}

fn no_such_patch(package: &Package, stage: Stage, name: &str) -> String {
    format!(
        "{name} is not a patch of {}",
        package.folder.join(stage.folder()).display()
    )
}

/// `name` as a part of a file's name.
fn slug(name: &str) -> Result<String> {
    let words = name
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty());
    let slug = words.collect::<Vec<_>>().join("-");
    match slug.chars().any(|c| c.is_ascii_alphabetic()) {
        true => Ok(slug),
        false => Err(format!(
            "{name} cannot be the name of a new patch: give it a few words"
        )),
    }
}
