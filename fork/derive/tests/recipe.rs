//! Whole derivations of made-up crates.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use candle_derive::checks::Undone;
use candle_derive::{fixes_page, Error, Exception, Recipe};

const PLAIN: Recipe = Recipe {
    name: "made-up",
    version: "1.0.0",
    untouched: &[],
    without_twin: &[],
    arm_bodies: &[],
    exceptions: &[],
    exported_macros: &[],
};

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("has a parent")).expect("directory");
    fs::write(path, text).expect("file");
}

/// Derives a crate of the given files; gives the outcome and the folder with it.
fn derive(
    recipe: &Recipe,
    files: &[(&str, &str)],
) -> (candle_derive::Result<()>, tempfile::TempDir) {
    derive_with(recipe, files, &[])
}

/// The same, with files of the package: patches and departures.
fn derive_with(
    recipe: &Recipe,
    files: &[(&str, &str)],
    package: &[(&str, &str)],
) -> (candle_derive::Result<()>, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("temporary folder");
    for (name, text) in files {
        write(&dir.path().join("up").join(name), text);
    }
    for (name, text) in package {
        write(&dir.path().join("package").join(name), text);
    }
    write(
        &dir.path().join("package/overlay/extra.rs"),
        "pub fn ours() {}\n",
    );
    let outcome = derive_again(recipe, &dir);
    (outcome, dir)
}

fn derive_again(recipe: &Recipe, dir: &tempfile::TempDir) -> candle_derive::Result<()> {
    recipe.derive(
        &dir.path().join("up"),
        &dir.path().join("package"),
        &dir.path().join("out"),
    )
}

fn read(dir: &tempfile::TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join("out").join(name)).expect("derived file")
}

#[test]
fn roots_lose_inner_attributes_and_gain_the_overlay() {
    let (outcome, dir) = derive(
        &PLAIN,
        &[("src/lib.rs", "//! Docs.\n#![allow(x)]\npub mod extra;\n")],
    );
    outcome.expect("derives");
    assert_eq!(read(&dir, "src/lib.rs").trim(), "pub mod extra;");
    assert_eq!(read(&dir, "src/extra.rs"), "pub fn ours() {}\n");
}

#[test]
fn tests_find_their_data_in_the_derived_copy() {
    let test = "#![cfg(x)]\n#[test] fn t() { open(\"tests/a.npy\") }\n";
    let (outcome, dir) = derive(
        &PLAIN,
        &[
            ("src/lib.rs", ""),
            ("tests/t.rs", test),
            ("tests/a.npy", "data"),
        ],
    );
    outcome.expect("derives");
    assert!(read(&dir, "tests/t.rs").contains("open(concat!(env!(\"OUT_DIR\"), \"/tests/a.npy\"))"));
    assert!(!read(&dir, "tests/t.rs").contains("#!["));
    assert_eq!(read(&dir, "tests/a.npy"), "data");
}

#[test]
fn exported_macros_are_renamed_where_they_are_defined() {
    let recipe = Recipe {
        exported_macros: &[("src/error.rs", "bail")],
        ..PLAIN
    };
    let source = "#[macro_export]\nmacro_rules! bail { () => {} }\nfn f() { crate::bail!() }\n";
    let (outcome, dir) = derive(&recipe, &[("src/lib.rs", ""), ("src/error.rs", source)]);
    outcome.expect("derives");
    let text = read(&dir, "src/error.rs");
    assert!(
        text.contains("macro_rules! candle_bail { () => {} }\npub use candle_bail as bail;"),
        "{text}"
    );
    assert!(text.contains("crate::bail!()"), "{text}");
}

#[test]
fn a_leftover_fails_with_file_and_line() {
    let (outcome, _dir) = derive(
        &PLAIN,
        &[
            ("src/lib.rs", ""),
            ("src/a.rs", "fn f() {\n    g(Metal);\n}\n"),
        ],
    );
    let message = outcome.expect_err("must fail").to_string();
    assert!(message.contains("src/a.rs:2: g(Metal);"), "{message}");
}

#[test]
fn a_syntax_error_fails_with_file_and_line() {
    let (outcome, _dir) = derive(&PLAIN, &[("src/lib.rs", "fn f() {\n    (\n}\n")]);
    let message = outcome.expect_err("must fail").to_string();
    assert!(message.starts_with("src/lib.rs:"), "{message}");
}

const HALVES: &str = "\
From: Nobody <nobody@example.invalid>
Subject: [PATCH] halves are
 halves

Upstream doubles. Here
it halves.

It does so everywhere.
---
diff --git a/src/a.rs b/src/a.rs
--- a/src/a.rs
+++ b/src/a.rs
@@ -2,3 +2,3 @@
     match d {
-        D::Metal(n) => n * 2,
+        D::Metal(n) => n / 2,
         D::Cpu => 0,
";

/// A departure is made to what the rule has made.
const NOT_ON_ROCM: &str = "\
Subject: [PATCH] Rocm gives 0

It has no numbers.
---
diff --git a/src/a.rs b/src/a.rs
--- a/src/a.rs
+++ b/src/a.rs
@@ -3,3 +3,3 @@
         #[cfg(feature = \"rocm\")]
-        D::Rocm(n) => n / 2,
+        D::Rocm(n) => n / 2 * 0,
         D::Metal(n) => n / 2,
";

const SOURCE: &str = "fn f(d: D) -> u32 {\n    match d {\n        D::Metal(n) => n * 2,\n        D::Cpu => 0,\n    }\n}\n";
const ROOT: (&str, &str) = ("src/lib.rs", "mod a;\n");
const PATCH: (&str, &str) = ("patches/0001-halves.patch", HALVES);

/// The files that differ from upstream's once additions and, if told of them, patches are taken back.
fn differences(dir: &tempfile::TempDir, told: bool) -> Vec<String> {
    let path = |name: &str| dir.path().join(name);
    let undone = Undone::new(&PLAIN, &path("up"), &path("package"), &path("out"));
    let files = undone.expect("reads").differences(|_| true, |_| told);
    files.into_iter().collect()
}

/// A fault sits in a twin, too; taken back, patch and departure give upstream's text.
#[test]
fn patches_come_first_and_are_the_only_difference() {
    let departure = ("departures/0001-zero.patch", NOT_ON_ROCM);
    let files = [ROOT, ("src/a.rs", SOURCE)];
    let (outcome, dir) = derive_with(&PLAIN, &files, &[PATCH, departure]);
    outcome.expect("derives");
    let text = read(&dir, "src/a.rs");
    assert!(text.contains("D::Rocm(n) => n / 2 * 0,"), "{text}");
    assert!(!text.contains("n * 2"), "{text}");

    let none: [String; 0] = [];
    assert_eq!(differences(&dir, true), none);
    assert_eq!(differences(&dir, false), ["src/a.rs"]);
    write(
        &dir.path().join("out/src/a.rs"),
        &text.replace("D::Cpu => 0", "D::Cpu => 1"),
    );
    assert_eq!(differences(&dir, true), ["src/a.rs"]);
}

#[test]
fn a_patch_follows_its_lines() {
    let source = format!("use x;\n\n{SOURCE}");
    let (outcome, dir) = derive_with(&PLAIN, &[ROOT, ("src/a.rs", &source)], &[PATCH]);
    outcome.expect("derives");
    assert!(read(&dir, "src/a.rs").contains("D::Rocm(n) => n / 2,"));
    let none: [String; 0] = [];
    assert_eq!(differences(&dir, true), none);
}

/// The message of a derivation that fails on the patch.
fn refused(source: &str, patch: &str) -> String {
    let patch = ("patches/0001-halves.patch", patch);
    let (outcome, _dir) = derive_with(&PLAIN, &[ROOT, ("src/a.rs", source)], &[patch]);
    let error = outcome.expect_err("must fail").to_string();
    assert!(error.contains("0001-halves.patch"), "{error}");
    error
}

#[test]
fn a_patch_that_does_not_apply_is_named_with_file_and_hunk() {
    // Not even its context may differ.
    for source in [
        SOURCE.replace("n * 2", "n * 3"),
        SOURCE.replace("Cpu => 0", "Cpu => 1"),
    ] {
        let message = refused(&source, HALVES);
        assert!(message.contains("hunk 1 of src/a.rs"), "{message}");
        assert!(message.contains("line 2"), "{message}");
    }
    let two = format!("{HALVES}@@ -9,2 +9,2 @@\n-gone\n+here\n }}\n");
    let message = refused(SOURCE, &two);
    assert!(message.contains("hunk 2 of src/a.rs"), "{message}");
}

#[test]
fn a_patch_that_fits_several_places_is_refused_unless_it_is_at_its_own() {
    let twice = format!("use x;\n{SOURCE}{SOURCE}");
    let message = refused(&twice, HALVES);
    assert!(message.contains("lines [3, 9]"), "{message}");
    let twice = format!("{SOURCE}{SOURCE}");
    let (outcome, dir) = derive_with(&PLAIN, &[ROOT, ("src/a.rs", &twice)], &[PATCH]);
    outcome.expect("derives");
    let text = read(&dir, "src/a.rs");
    assert!(text.find("n / 2") < text.find("n * 2"), "{text}");
}

#[test]
fn what_is_no_patch_says_why() {
    let of_new_file = HALVES.replace("--- a/src/a.rs", "--- /dev/null");
    for (patch, why) in [
        ("Subject: [PATCH] x\n\nReason.\n".to_owned(), "diff --git"),
        (HALVES.replace("Subject:", "Title:"), "Subject"),
        (of_new_file, "overlay/"),
        (HALVES.replace("src/a.rs", "src/gone.rs"), "src/gone.rs"),
        (HALVES.replace("@@ -2,3", "@@ -2,4"), "hunk"),
    ] {
        let message = refused(SOURCE, &patch);
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn the_page_is_made_of_the_headers() {
    let faster = HALVES
        .replace("halves are\n halves", "quarters")
        .replace("It does so everywhere.", "Kind: speed");
    let package = [("patches/0002-quarters.patch", faster.as_str()), PATCH];
    let (_, dir) = derive_with(&PLAIN, &[ROOT, ("src/a.rs", SOURCE)], &package);
    let page = |dir: &tempfile::TempDir| fixes_page(&PLAIN, &dir.path().join("package"));
    let text = page(&dir).expect("has reasons");
    let (faults, faster) = text.split_once("\n# ").expect("two lists");
    for part in [
        "made-up 1.0.0",
        "## halves are halves\n\nUpstream doubles. Here it halves.\n\nIt does so everywhere.\n\nIn `src/a.rs`:",
        "(patches/0001-halves.patch)",
    ] {
        assert!(faults.contains(part), "{text}");
    }
    assert!(
        faster.contains("## quarters\n\nUpstream doubles. Here it halves.\n"),
        "{text}"
    );
    assert!(!text.contains("Kind"), "{text}");

    let silent = HALVES.replace(
        "Upstream doubles. Here\nit halves.\n\nIt does so everywhere.\n",
        "",
    );
    write(
        &dir.path().join("package/patches/0003-silent.patch"),
        &silent,
    );
    let message = page(&dir).expect_err("no reason").to_string();
    assert!(message.contains("0003-silent.patch"), "{message}");
}

fn unmatched(recipe: &Recipe) -> String {
    let files = [("src/lib.rs", "pub mod a;\n"), ("src/a.rs", "fn f() {}\n")];
    match derive(recipe, &files).0 {
        Err(error @ Error::Unmatched { .. }) => error.to_string(),
        other => panic!("expected an unmatched rule, got {other:?}"),
    }
}

#[test]
fn every_kind_of_rule_that_matches_nothing_fails() {
    let exception = Exception {
        file: "src/a.rs",
        name: "a fix",
        find: "fn g()",
        replace: "",
        count: 1,
    };
    for (recipe, named) in [
        (
            Recipe {
                exceptions: &[Exception {
                    file: "src/a.rs",
                    name: "a fix",
                    find: "fn g()",
                    replace: "",
                    count: 1,
                }],
                ..PLAIN
            },
            "a fix",
        ),
        (
            Recipe {
                without_twin: &[("src/a.rs", &["is_metal"])],
                ..PLAIN
            },
            "is_metal",
        ),
        (
            Recipe {
                arm_bodies: &[("src/a.rs", &["x"])],
                ..PLAIN
            },
            "arm_bodies",
        ),
        (
            Recipe {
                exported_macros: &[("src/a.rs", "bail")],
                ..PLAIN
            },
            "bail",
        ),
        (
            Recipe {
                untouched: &["src/gone/"],
                ..PLAIN
            },
            "src/gone/",
        ),
        (
            Recipe {
                without_twin: &[("src/gone.rs", &[])],
                ..PLAIN
            },
            "src/gone.rs",
        ),
    ] {
        let message = unmatched(&recipe);
        assert!(message.contains(named), "{message}");
        assert!(message.contains("fork/made-up/recipe.rs"), "{message}");
    }
    let twice: &'static [Exception] = Box::leak(Box::new([Exception {
        find: "f",
        count: 1,
        ..exception
    }]));
    let message = unmatched(&Recipe {
        exceptions: twice,
        ..PLAIN
    });
    assert!(message.contains("matched 2 times, expected 1"), "{message}");
}

#[test]
fn deriving_again_writes_nothing_and_removes_what_is_gone() {
    let files = [("src/lib.rs", "pub mod a;\n"), ("src/a.rs", "fn f() {}\n")];
    let (outcome, dir) = derive(&PLAIN, &files);
    outcome.expect("derives");
    let out = dir.path().join("out");
    let stamp = |name: &str| -> SystemTime {
        fs::metadata(out.join(name))
            .and_then(|m| m.modified())
            .expect("time stamp")
    };
    let before = (
        stamp("src/lib.rs"),
        stamp("src/a.rs"),
        stamp("src/extra.rs"),
    );
    fs::write(out.join("src/stale.rs"), "").expect("stale file");
    derive_again(&PLAIN, &dir).expect("derives again");
    assert_eq!(
        before,
        (
            stamp("src/lib.rs"),
            stamp("src/a.rs"),
            stamp("src/extra.rs")
        )
    );
    assert!(!out.join("src/stale.rs").exists());
}

#[test]
fn an_upstream_folder_without_the_crate_says_what_to_do() {
    // The only test that touches the variable.
    std::env::set_var("CANDLE_UPSTREAM_DIR", "/nonexistent");
    let message = candle_derive::upstream::locate("made-up", "1.0.0", Path::new("/nonexistent"))
        .expect_err("must fail")
        .to_string();
    assert!(message.contains("made-up-1.0.0"), "{message}");
    assert!(message.contains("CANDLE_UPSTREAM_DIR"), "{message}");
}

#[test]
fn manifests_are_compared_in_full() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let package = |name: &str, more: &str| {
        let head =
            "[package]\nname = \"made-up\"\nversion = \"1.0.0\"\nedition = \"2021\"\n[workspace]\n";
        write(
            &dir.path().join(name).join("Cargo.toml"),
            &format!("{head}{more}"),
        );
        write(&dir.path().join(name).join("src/lib.rs"), "");
        dir.path().join(name)
    };
    let upstream = package(
        "up",
        "[features]\nmetal = []\nfast = [\"dep:a\"]\n[dependencies]\na = { version = \"1\", optional = true }\nb = \"2\"\nc = { version = \"3\", features = [\"x\", \"y\"] }\n",
    );
    let ours = package(
        "ours",
        "[features]\nfast = []\nrocm = []\n[dependencies]\na = \"1\"\nb = { version = \"2\", default-features = false }\nc = { version = \"3\", features = [\"y\", \"x\"] }\n",
    );
    let found = candle_derive::manifest::differences(&upstream, &ours).expect("cargo reads both");
    let expected = [
        "dependency a: upstream ^1 optional [], here ^1 []",
        "dependency b: upstream ^2 [], here ^2 without default features []",
        "feature fast: upstream [dep:a], here []",
        "feature metal: upstream [], missing here",
        "feature rocm: only here",
    ];
    assert_eq!(found, expected);
    let message = candle_derive::manifest::differences(&dir.path().join("none"), &ours)
        .expect_err("there is no manifest")
        .to_string();
    assert!(message.contains("none"), "{message}");
}
