//! Folders, files and crates.

use super::{folder, open};
use rocm_port::source::{self, Error, LARGEST_FILE};

#[test]
fn files_by_their_endings() {
    let folder = folder(&[
        (
            "Cargo.toml",
            b"[package]\nname = \"x\"\nversion = \"1.2.3\"\n",
        ),
        ("src/a.cu", b""),
        ("src/a.cuh", b""),
        ("src/lib.rs", b""),
        ("target/b.cu", b""),
        (".git/c.cu", b""),
        ("readme.md", b""),
    ]);
    let sources = open(folder.path());
    assert_eq!(sources.package, Some(("x".into(), "1.2.3".into())));
    assert_eq!(sources.cuda, ["src/a.cu"]);
    assert_eq!(sources.headers, ["src/a.cuh"]);
    assert_eq!(sources.rust, ["src/lib.rs"]);
    assert!(sources.skipped.is_empty());
}

#[test]
fn one_file_in_its_crate() {
    let folder = folder(&[
        (
            "Cargo.toml",
            b"[package]\nname = \"x\"\nversion.workspace = true\n",
        ),
        ("src/a.cu", b""),
        ("src/b.cu", b""),
    ]);
    let sources = open(&folder.path().join("src/b.cu"));
    assert_eq!(sources.cuda, ["src/b.cu"]);
    assert!(sources.single);
    assert_eq!(sources.package, Some(("x".into(), String::new())));
}

#[test]
#[cfg(unix)]
fn links_out_of_the_root_are_left_out() {
    let outside = folder(&[("secret.cu", b"")]);
    let folder = folder(&[("a.cu", b"")]);
    std::os::unix::fs::symlink(
        outside.path().join("secret.cu"),
        folder.path().join("link.cu"),
    )
    .unwrap();
    std::os::unix::fs::symlink(outside.path(), folder.path().join("more")).unwrap();
    std::os::unix::fs::symlink(folder.path(), folder.path().join("loop")).unwrap();
    std::os::unix::fs::symlink("a.cu", folder.path().join("inside.cu")).unwrap();
    let sources = open(folder.path());
    assert_eq!(sources.cuda, ["a.cu", "inside.cu"]);
    assert_eq!(sources.skipped[0].0, "link.cu");
    assert!(matches!(sources.read("link.cu"), Err(Error::Outside(_))));
    assert!(sources.read("../x").is_err());
}

#[test]
fn files_that_are_too_large() {
    let folder = folder(&[("a.cu", b"")]);
    let file = std::fs::File::create(folder.path().join("b.cu")).unwrap();
    file.set_len(LARGEST_FILE + 1).unwrap();
    let sources = open(folder.path());
    assert_eq!(sources.cuda, ["a.cu"]);
    assert_eq!(sources.skipped[0].0, "b.cu");
}

#[test]
fn what_is_not_there() {
    assert!(matches!(
        source::open("no/such/folder"),
        Err(Error::Missing(_))
    ));
    assert!(matches!(source::open("-v"), Err(Error::Missing(_))));
}
