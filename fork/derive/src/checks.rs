//! What every derivation promises, as tests of the derived package: without what the feature `rocm` adds, it is upstream's with the named fixes, no more.

use crate::{manifest, Recipe};
use std::collections::BTreeSet;
use std::path::Path;

/// The tests of a derived package: `fork_tests!(RECIPE, MANIFEST)`, where `MANIFEST` lists what its manifest says otherwise than upstream's.
#[macro_export]
macro_rules! fork_tests {
    ($recipe:expr, $manifest:expr) => {
        const DERIVED: &str = env!("OUT_DIR");
        const UPSTREAM: &str = include_str!(concat!(env!("OUT_DIR"), "/upstream-path"));
        const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

        #[test]
        fn without_rocm_the_derived_text_is_upstreams_with_the_fixes() {
            $crate::checks::text_is_upstreams(&$recipe, UPSTREAM.as_ref(), DERIVED.as_ref());
        }

        /// The check sees every fix when it is not told of it.
        #[test]
        fn the_fixes_are_in_the_derived_text() {
            $crate::checks::fixes_are_in_the_text(&$recipe, UPSTREAM.as_ref(), DERIVED.as_ref());
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

fn differing_files(recipe: &Recipe, upstream: &Path, derived: &Path) -> BTreeSet<String> {
    let files = recipe.differences(upstream, derived);
    files.expect("both can be read").into_iter().collect()
}

/// Panics if a file differs from upstream's by more than the fixes and what is gated by `rocm`.
pub fn text_is_upstreams(recipe: &Recipe, upstream: &Path, derived: &Path) {
    let differing = differing_files(recipe, upstream, derived);
    assert!(differing.is_empty(), "these files differ: {differing:?}");
}

/// Panics unless leaving a fix out of the recipe shows in exactly the files that it edits.
pub fn fixes_are_in_the_text(recipe: &Recipe, upstream: &Path, derived: &Path) {
    for (i, fix) in recipe.fixes.iter().enumerate() {
        let others = [&recipe.fixes[..i], &recipe.fixes[i + 1..]].concat();
        let without = Recipe {
            fixes: others.leak(),
            ..*recipe
        };
        let named: BTreeSet<_> = fix.edits.iter().map(|e| e.file.to_owned()).collect();
        let differing = differing_files(&without, upstream, derived);
        assert_eq!(differing, named, "{}", fix.name);
    }
}

/// Panics if `FIXES.md` of the package is not the recipe's page; writes it with `CANDLE_DERIVE_WRITE` set.
pub fn page_lists_the_fixes(recipe: &Recipe, package: &Path) {
    let page = recipe.fixes_page();
    let file = package.join("FIXES.md");
    if std::env::var_os("CANDLE_DERIVE_WRITE").is_some() {
        std::fs::write(&file, &page).expect("the page can be written");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == page,
        "{} is out of date; running this test with CANDLE_DERIVE_WRITE=1 writes it",
        file.display()
    );
}

/// Panics if the package's manifest differs from upstream's otherwise than `expected` says.
pub fn manifest_is_upstreams(expected: &[&str], upstream: &Path, package: &Path) {
    let found = manifest::differences(upstream, package);
    assert_eq!(found.expect("cargo reads both"), expected);
}
