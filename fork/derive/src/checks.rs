//! What every derivation promises, as tests of the derived package: without what the feature `rocm` adds and with the
//! patches taken back, it is upstream's text. Nothing here uses what made the derivation: twins are taken out by
//! [`crate::strip`], patches are taken back by [`Reverse`].

use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::error::{Error, Result};
use crate::files::{files_below, relative_name};
use crate::fixes::fixes_page;
use crate::patch::{Patch, Series};
use crate::recipe::{Recipe, Stage};
use crate::strip::without_rocm;
use crate::{macros, manifest};

/// The tests of a derived package: `fork_tests!(RECIPE, MANIFEST)`, where `MANIFEST` lists what its manifest says
/// otherwise than upstream's.
#[macro_export]
macro_rules! fork_tests {
    ($recipe:expr, $manifest:expr) => {
        const DERIVED: &str = env!("OUT_DIR");
        const UPSTREAM: &str = include_str!(concat!(env!("OUT_DIR"), "/upstream-path"));
        const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

        #[test]
        fn without_rocm_and_patches_the_derived_text_is_upstreams() {
            $crate::checks::text_is_upstreams(
                &$recipe,
                UPSTREAM.as_ref(),
                PACKAGE.as_ref(),
                DERIVED.as_ref(),
            );
        }

        /// The check sees every patch when it is not told of it.
        #[test]
        fn the_patches_are_in_the_derived_text() {
            $crate::checks::patches_are_in_the_text(
                &$recipe,
                UPSTREAM.as_ref(),
                PACKAGE.as_ref(),
                DERIVED.as_ref(),
            );
        }

        #[test]
        fn what_is_shown_is_what_is_compiled() {
            $crate::checks::shown_is_compiled(
                &$recipe,
                UPSTREAM.as_ref(),
                PACKAGE.as_ref(),
                DERIVED.as_ref(),
            );
        }

        #[test]
        fn the_page_lists_the_fixes() {
            $crate::checks::page_lists_the_fixes(&$recipe, PACKAGE.as_ref());
        }

        #[test]
        fn the_manifest_is_upstreams_but_for_what_is_ours() {
            $crate::checks::manifest_is_upstreams($manifest, UPSTREAM.as_ref(), PACKAGE.as_ref());
        }
    };
}

/// A derived crate whose additions are taken back as far as the patches of `patches/`.
pub struct Undone {
    originals: BTreeMap<String, String>,
    /// Upstream's text with the patches.
    patched: BTreeMap<String, String>,
    patches: Series,
}

impl Undone {
    /// Takes back, in the files of `derived` that are upstream's, exceptions, departures, renamed macros and what is
    /// gated by `rocm`.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn new(recipe: &Recipe, upstream: &Path, package: &Path, derived: &Path) -> Result<Self> {
        let departures = Stage::Rule.series(package)?;
        let (mut originals, mut patched) = (BTreeMap::new(), BTreeMap::new());
        for path in files_below(&upstream.join("src"))? {
            let name = relative_name(&path, upstream);
            let read = |path: &Path| std::fs::read_to_string(path).map_err(Error::io(path));
            let mut text = read(&derived.join(&name))?;
            for exception in recipe.exceptions.iter().rev().filter(|e| e.file == name) {
                text = text.replace(exception.replace, exception.find);
            }
            // A departure that is not there is a difference.
            text = reversed(&departures.patches, &name, text.clone()).unwrap_or(text);
            for (_, exported) in recipe.exported_macros.iter().filter(|(f, _)| *f == name) {
                text = macros::undo_rename(&text, exported);
            }
            if name.ends_with(".rs")
                && !recipe
                    .untouched
                    .iter()
                    .any(|prefix| name.starts_with(prefix))
            {
                text = without_rocm(&text).unwrap_or(text);
            }
            originals.insert(name.clone(), read(&path)?);
            patched.insert(name, text);
        }
        Ok(Self {
            originals,
            patched,
            patches: Stage::Upstream.series(package)?,
        })
    }

    /// The files, of those that `only` says, that are not upstream's once the patches that `told` says are taken back.
    pub fn differences(
        &self,
        only: impl Fn(&str) -> bool,
        told: impl Fn(&Patch) -> bool,
    ) -> BTreeSet<String> {
        let told: Vec<Patch> = self
            .patches
            .patches
            .iter()
            .filter(|p| told(p))
            .cloned()
            .collect();
        let names = self.patched.keys().filter(|name| only(name));
        let differing = names.filter(|name| {
            let undone = reversed(&told, name, self.patched[*name].clone());
            !undone.is_some_and(|text| is_same(name, &text, &self.originals[*name]))
        });
        differing.cloned().collect()
    }
}

/// The derived text of the crate's root lacks its inner attributes, and one to which a module was added may end
/// otherwise.
fn is_same(name: &str, text: &str, original: &str) -> bool {
    if name != "src/lib.rs" {
        return text.trim_end() == original.trim_end();
    }
    let tokens = |text: &str| {
        let mut file = syn::parse_file(text).ok()?;
        file.attrs.clear();
        Some(file.into_token_stream().to_string())
    };
    tokens(text).is_some() && tokens(text) == tokens(original)
}

/// `text` of `file` with the patches taken back, last to first; none if one of them is not there.
fn reversed(patches: &[Patch], file: &str, text: String) -> Option<String> {
    patches.iter().rev().try_fold(text, |text, patch| {
        let hunks = Reverse::hunks(&patch.text(), file);
        let mut lines: Vec<&str> = text.lines().collect();
        for hunk in hunks.iter().rev() {
            let at = hunk.place(&lines)?;
            lines.splice(at..at + hunk.new.len(), hunk.old.iter().map(String::as_str));
        }
        Some(lines.join("\n") + "\n")
    })
}

/// A hunk of a patch, read in the plainest way.
#[derive(Default)]
struct Reverse {
    /// Line of the patched text at which it begins, from 0.
    start: usize,
    old: Vec<String>,
    new: Vec<String>,
}

impl Reverse {
    fn hunks(patch: &str, file: &str) -> Vec<Self> {
        let (mut hunks, mut of_file) = (Vec::<Self>::new(), false);
        let head = format!("diff --git a/{file} b/{file}");
        for line in patch.lines() {
            if line.starts_with("diff --git ") {
                of_file = line == head;
            } else if !of_file || line.starts_with("--- a/") || line.starts_with("+++ b/") {
            } else if let Some((_, new)) = line
                .strip_prefix("@@ ")
                .and_then(|rest| rest.split_once('+'))
            {
                let start = new
                    .split([',', ' '])
                    .next()
                    .and_then(|start| start.parse().ok());
                hunks.push(Self {
                    start: start.unwrap_or(1usize).saturating_sub(1),
                    ..Self::default()
                });
            } else if let Some(hunk) = hunks.last_mut() {
                let text = line.get(1..).unwrap_or_default().to_owned();
                match line.as_bytes().first() {
                    Some(b'-') => hunk.old.push(text),
                    Some(b'+') => hunk.new.push(text),
                    _ => {
                        hunk.old.push(text.clone());
                        hunk.new.push(text);
                    }
                }
            }
        }
        hunks
    }

    /// Where the patched lines are: nearest to where they should be.
    fn place(&self, lines: &[&str]) -> Option<usize> {
        let found = lines
            .windows(self.new.len())
            .enumerate()
            .filter(|(_, window)| *window == self.new);
        found
            .map(|(at, _)| at)
            .min_by_key(|at| at.abs_diff(self.start))
    }
}

fn undone(recipe: &Recipe, upstream: &Path, package: &Path, derived: &Path) -> Undone {
    Undone::new(recipe, upstream, package, derived).expect("all files can be read")
}

/// Panics if a file differs from upstream's by more than the patches, the departures and what is gated by `rocm`.
pub fn text_is_upstreams(recipe: &Recipe, upstream: &Path, package: &Path, derived: &Path) {
    let differing = undone(recipe, upstream, package, derived).differences(|_| true, |_| true);
    assert!(differing.is_empty(), "these files differ: {differing:?}");
}

/// Panics unless not being told of a patch shows in exactly the files that it changes.
pub fn patches_are_in_the_text(recipe: &Recipe, upstream: &Path, package: &Path, derived: &Path) {
    let undone = undone(recipe, upstream, package, derived);
    for patch in &undone.patches.patches {
        let named: BTreeSet<_> = patch.files().map(str::to_owned).collect();
        let differing = undone.differences(
            |file| named.contains(file),
            |other| other.path != patch.path,
        );
        assert_eq!(differing, named, "{}", patch.subject);
    }
}

/// Panics unless deriving the crate once more, as `candle-derive show` does, gives what the build script has written.
pub fn shown_is_compiled(recipe: &Recipe, upstream: &Path, package: &Path, derived: &Path) {
    let shown = derived.join("shown");
    recipe.derive(upstream, package, &shown).expect("derives");
    for folder in ["src", "tests"] {
        let all = |base: &Path| {
            let paths = files_below(&base.join(folder)).expect("can be listed");
            let read = |path: &Path| std::fs::read(path).expect("can be read");
            let named = paths
                .iter()
                .map(|path| (relative_name(path, base), read(path)));
            named.collect::<BTreeMap<_, _>>()
        };
        let (shown, compiled) = (all(&shown), all(derived));
        assert!(!compiled.is_empty(), "{folder} is empty");
        let files = shown.keys().chain(compiled.keys());
        let differing: BTreeSet<_> = files
            .filter(|file| shown.get(*file) != compiled.get(*file))
            .collect();
        assert!(differing.is_empty(), "these files differ: {differing:?}");
    }
    std::fs::remove_dir_all(&shown).expect("can be removed");
}

/// Panics if `FIXES.md` of the package is not the page of its patches.
pub fn page_lists_the_fixes(recipe: &Recipe, package: &Path) {
    let page = fixes_page(recipe, package).expect("the patches can be read");
    let file = package.join("FIXES.md");
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == page,
        "{} is out of date; `cargo run -p candle-derive -- fixes` writes it",
        file.display()
    );
}

/// Panics if the package's manifest differs from upstream's otherwise than `expected` says.
pub fn manifest_is_upstreams(expected: &[&str], upstream: &Path, package: &Path) {
    let found = manifest::differences(upstream, package);
    assert_eq!(found.expect("cargo reads both"), expected);
}
