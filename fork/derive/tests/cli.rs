//! The program `candle-derive`, on the published crates.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Output and errors of a run, and whether it succeeded.
fn run(arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_candle-derive"))
        .args(arguments)
        .env_remove("CANDLE_UPSTREAM_DIR")
        .output()
        .expect("starts");
    let text = |bytes| String::from_utf8(bytes).expect("is text");
    (
        output.status.success(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn succeeds(arguments: &[&str]) -> String {
    let (success, out, errors) = run(arguments);
    assert!(success, "{arguments:?}: {errors}");
    out
}

fn fails(arguments: &[&str]) -> String {
    let (success, out, errors) = run(arguments);
    assert!(!success, "{arguments:?}: {out}");
    errors
}

fn path(dir: &Path) -> &str {
    dir.to_str().expect("is text")
}

#[test]
fn show_writes_the_derived_tree_and_prints_where() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let out = succeeds(&["show", "candle-nn", "--out", path(dir.path())]);
    assert_eq!(out.trim(), path(dir.path()));
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).expect(name);
    // A twin, a departure, a patch and a file of ours.
    assert!(read("src/ops.rs").contains("fn rocm_fwd("));
    assert!(read("src/lib.rs").contains("pub mod fused;"));
    assert!(read("src/rotary_emb.rs").contains("table_len"));
    assert!(read("src/ops/rocm.rs").contains("softmax_last_dim"));
}

#[test]
fn an_edited_tree_becomes_a_patch_only_if_it_can() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let out = path(dir.path());
    let edit = |more: &[&'static str]| [&["edit", "candle-nn", "--out", out], more].concat();
    let made = ["patch", "candle-nn", "a new one", "--out", out];

    let printed = succeeds(&edit(&[]));
    assert!(printed.trim().ends_with("/b"), "{printed}");
    let message = fails(&made);
    assert!(message.contains("do not differ"), "{message}");

    let edited = dir.path().join("b/src/ours.rs");
    fs::write(&edited, "").expect("can be written");
    let message = fails(&made);
    assert!(
        message.contains("src/ours.rs") && message.contains("overlay/"),
        "{message}"
    );
    let message = fails(&edit(&["1"]));
    assert!(message.contains("--force"), "{message}");

    // With the first patch in hand, a new one cannot be made.
    succeeds(&edit(&["1", "--force"]));
    let text = |tree: &str| {
        fs::read_to_string(dir.path().join(tree).join("src/rotary_emb.rs")).expect(tree)
    };
    assert!(!text("a").contains("table_len") && text("b").contains("table_len"));
    let message = fails(&made);
    assert!(message.contains("`edit`"), "{message}");
}

#[test]
fn patches_are_made_and_changed() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (fork, out) = (dir.path().join("fork"), dir.path().join("out"));
    let with = |command: &str, more: &[&str]| {
        let arguments = [
            command,
            "candle-nn",
            "--fork",
            path(&fork),
            "--out",
            path(&out),
        ];
        succeeds(&[&arguments, more].concat())
    };
    let edited = out.join("b/src/loss.rs");
    let replace = |from: &str, to: &str| {
        let text = fs::read_to_string(&edited).expect("can be read");
        assert!(text.contains(from), "{text}");
        fs::write(&edited, text.replace(from, to)).expect("can be written");
    };

    with("edit", &[]);
    replace("pub fn nll(", "pub fn nil(");
    let printed = with("patch", &["losses of nothing"]);
    assert!(printed.contains("what upstream does"), "{printed}");
    assert!(!out.exists());
    let file = fork.join("candle-nn/patches/0001-losses-of-nothing.patch");
    let read = || fs::read_to_string(&file).expect("the patch is there");
    let text = read();
    assert!(
        text.contains("Subject: [PATCH] losses of nothing\n"),
        "{text}"
    );
    assert!(
        text.contains("\n-pub fn nll(") && text.contains("\n+pub fn nil("),
        "{text}"
    );
    let context = text.lines().filter(|line| line.starts_with(' ')).count();
    assert!(context <= 2, "{text}");
    let message = fails(&["fixes", "candle-nn", "--fork", path(&fork)]);
    assert!(message.contains("no reason"), "{message}");

    // Its header stays when it is changed.
    fs::write(
        &file,
        text.replace("nothing\n\n", "nothing\n\nThere are some.\n"),
    )
    .expect("can be written");
    succeeds(&["fixes", "candle-nn", "--fork", path(&fork)]);
    let page = fs::read_to_string(fork.join("candle-nn/FIXES.md")).expect("the page is there");
    assert!(
        page.contains("## losses of nothing\n\nThere are some.\n"),
        "{page}"
    );
    with("edit", &["1"]);
    replace("pub fn nil(", "pub fn none(");
    with("patch", &["1"]);
    let text = read();
    assert!(
        text.contains("\n+pub fn none(") && text.contains("There are some."),
        "{text}"
    );

    let shown = dir.path().join("shown");
    succeeds(&[
        "show",
        "candle-nn",
        "--fork",
        path(&fork),
        "--out",
        path(&shown),
    ]);
    let text = fs::read_to_string(shown.join("src/loss.rs")).expect("is shown");
    assert!(text.contains("pub fn none("), "{text}");
}

#[test]
fn mistakes_are_named() {
    for (arguments, named) in [
        (
            &["show", "candle"][..],
            "candle-core, candle-nn, candle-transformers",
        ),
        (&["show"], "`show`"),
        (&["shew"], "shew"),
        (&["edit", "candle-nn", "77"], "77"),
        (&["--now", "show"], "--now"),
        (
            &["patch", "candle-nn", "x", "--out", "/nonexistent"],
            "edit candle-nn",
        ),
    ] {
        let message = fails(arguments);
        assert!(
            message.contains(named) && message.contains("help"),
            "{message}"
        );
    }
    assert!(succeeds(&["help"]).contains("show CRATE"));
}
