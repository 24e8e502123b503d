//! What the derivation promises: without what the feature `rocm` adds, this crate is upstream's with the named fixes, no more.

#[path = "../recipe.rs"]
mod recipe;

use std::collections::BTreeSet;
use std::path::Path;

use candle_derive::Recipe;
use recipe::RECIPE;

const DERIVED: &str = env!("OUT_DIR");
const UPSTREAM: &str = include_str!(concat!(env!("OUT_DIR"), "/upstream-path"));

/// What our manifest says otherwise than upstream's.
const MANIFEST: &[&str] = &[
    "build-dependency candle-derive: only here",
    "dependency candle-core: upstream ^0.11.1 [] as candle, here =0.11.1 [] as candle",
    "dependency candle-nn: upstream ^0.11.1 [], here =0.11.1 []",
    "dependency candle-rocm-flash-attn: only here",
    "dev-dependency candle-derive: only here",
    "feature rocm: only here",
    "feature rocm-flash-attn: only here",
];

fn differing_files(recipe: &Recipe) -> BTreeSet<String> {
    let files = recipe.differences(Path::new(UPSTREAM), Path::new(DERIVED));
    files.expect("both can be read").into_iter().collect()
}

#[test]
fn without_rocm_the_derived_text_is_upstreams_with_the_fixes() {
    let differing = differing_files(&RECIPE);
    assert!(differing.is_empty(), "these files differ: {differing:?}");
}

/// The check sees every fix when it is not told of it.
#[test]
fn the_fixes_are_in_the_derived_text() {
    for (i, fix) in RECIPE.fixes.iter().enumerate() {
        let others = [&RECIPE.fixes[..i], &RECIPE.fixes[i + 1..]].concat();
        let without = Recipe {
            fixes: others.leak(),
            ..RECIPE
        };
        let named: BTreeSet<_> = fix.edits.iter().map(|e| e.file.to_owned()).collect();
        assert_eq!(differing_files(&without), named, "{}", fix.name);
    }
}

#[test]
fn the_page_lists_the_fixes() {
    let page = RECIPE.fixes_page();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("FIXES.md");
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

#[test]
fn the_manifest_is_upstreams_but_for_what_is_ours() {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = candle_derive::manifest::differences(Path::new(UPSTREAM), ours);
    assert_eq!(found.expect("cargo reads both"), MANIFEST);
}
