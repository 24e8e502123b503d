//! Whole derivations of made-up crates.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use candle_derive::{Edit, Error, Exception, Fix, Recipe};

const PLAIN: Recipe = Recipe {
    name: "made-up",
    version: "1.0.0",
    untouched: &[],
    without_twin: &[],
    arm_bodies: &[],
    fixes: &[],
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
    let dir = tempfile::tempdir().expect("temporary folder");
    for (name, text) in files {
        write(&dir.path().join("up").join(name), text);
    }
    write(&dir.path().join("overlay/extra.rs"), "pub fn ours() {}\n");
    let outcome = recipe.derive(
        &dir.path().join("up"),
        &dir.path().join("overlay"),
        &dir.path().join("out"),
    );
    (outcome, dir)
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

const MENDED: Recipe = Recipe {
    fixes: &[Fix {
        name: "halves are halves",
        reason: "Upstream doubles.",
        edits: &[Edit {
            file: "src/a.rs",
            find: "n * 2",
            replace: "n / 2",
            count: 1,
        }],
    }],
    ..PLAIN
};

/// A fault sits in a twin, too, and the check knows the fix by name but nothing else.
#[test]
fn fixes_come_first_and_are_the_only_difference() {
    let source =
        "fn f(d: D) -> u32 {\n    match d {\n        D::Metal(n) => n * 2,\n        D::Cpu => 0,\n    }\n}\n";
    let (outcome, dir) = derive(&MENDED, &[("src/lib.rs", "mod a;\n"), ("src/a.rs", source)]);
    outcome.expect("derives");
    let text = read(&dir, "src/a.rs");
    assert!(text.contains("D::Rocm(n) => n / 2,"), "{text}");
    assert!(!text.contains("n * 2"), "{text}");

    let (up, out) = (dir.path().join("up"), dir.path().join("out"));
    let none: [String; 0] = [];
    assert_eq!(MENDED.differences(&up, &out).expect("compares"), none);
    assert_eq!(
        PLAIN.differences(&up, &out).expect("compares"),
        ["src/a.rs"]
    );
    write(
        &out.join("src/a.rs"),
        &text.replace("D::Cpu => 0", "D::Cpu => 1"),
    );
    assert_eq!(
        MENDED.differences(&up, &out).expect("compares"),
        ["src/a.rs"]
    );
}

#[test]
fn the_page_lists_every_fix() {
    let page = MENDED.fixes_page();
    for part in [
        "made-up 1.0.0",
        "## halves are halves",
        "Upstream doubles.",
        "`src/a.rs`",
    ] {
        assert!(page.contains(part), "{page}");
    }
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
        (MENDED, "halves are halves"),
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
    PLAIN
        .derive(&dir.path().join("up"), &dir.path().join("overlay"), &out)
        .expect("derives again");
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
