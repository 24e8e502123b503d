//! Packs the files of a worker's page, for its build script: each is compressed once and stands in one table.

use miniz_oxide::deflate::compress_to_vec;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What the pages share: helpers around the document, and how things look.
const COMMON: [(&str, &str); 7] = [
    ("app/dom.js", include_str!("../common/app/dom.js")),
    ("app/icons.js", include_str!("../common/app/icons.js")),
    (
        "app/key-dialog.js",
        include_str!("../common/app/key-dialog.js"),
    ),
    ("app/notices.js", include_str!("../common/app/notices.js")),
    (
        "app/small-store.js",
        include_str!("../common/app/small-store.js"),
    ),
    ("app/theme.js", include_str!("../common/app/theme.js")),
    ("style/base.css", include_str!("../common/style/base.css")),
];
/// What stands in `index.html` for the version of the page.
const PLACEHOLDER: &str = "VERSION";

/// Writes `page.rs` to `OUT_DIR`: `VERSION`, a hash of all files, and `FILES`, a table of `Asset`s, for all files below
/// `folder` and those that the pages share. In `index.html` the word `VERSION` becomes the version.
///
/// # Panics
/// If it is called by no build script, or the files cannot be read.
pub fn pack(folder: &str) {
    println!("cargo:rerun-if-changed={folder}");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = Path::new(folder);
    let mut paths = Vec::new();
    list(root, &mut paths);
    let own = paths.iter().map(|path| (name(root, path), read(path)));
    let common = COMMON
        .iter()
        .map(|(name, text)| (name.to_string(), text.as_bytes().to_vec()));
    let mut files: Vec<(String, Vec<u8>)> = own.chain(common).collect();
    files.sort();
    for pair in files.windows(2) {
        assert_ne!(pair[0].0, pair[1].0, "two files of one name");
    }
    let version = format!("{:016x}", hash(&files));
    let mut table =
        format!("pub const VERSION: &str = {version:?};\npub const FILES: &[Asset] = &[\n");
    for (number, (name, content)) in files.iter().enumerate() {
        let content = match name.as_str() {
            "index.html" => String::from_utf8_lossy(content)
                .replace(PLACEHOLDER, &version)
                .into_bytes(),
            _ => content.clone(),
        };
        // Fonts are compressed by their format.
        let is_gzip = !name.ends_with(".woff2");
        let content = if is_gzip { gzip(&content) } else { content };
        let path = out.join(format!("page-{number}"));
        fs::write(&path, content).expect("OUT_DIR can be written");
        writeln!(
            table,
            "    Asset {{ path: {name:?}, is_gzip: {is_gzip}, bytes: include_bytes!({path:?}) }},"
        )
        .expect("a string takes all");
    }
    table.push_str("];\n");
    fs::write(out.join("page.rs"), table).expect("OUT_DIR can be written");
}

fn list(folder: &Path, paths: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("a folder can be read").path();
        match path.is_dir() {
            true => list(&path, paths),
            false => paths.push(path),
        }
    }
}

/// A file's path below the folder, as addresses have it.
fn name(root: &Path, path: &Path) -> String {
    let parts = path.strip_prefix(root).expect("a file of the folder");
    let parts: Vec<&str> = parts.iter().filter_map(|part| part.to_str()).collect();
    parts.join("/")
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// RFC 1952: a header that says nothing but the method, the deflated content, its checksum and its length.
fn gzip(content: &[u8]) -> Vec<u8> {
    const BEST: u8 = 9;
    let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255];
    file.extend(compress_to_vec(content, BEST));
    file.extend(crc32(content).to_le_bytes());
    file.extend((content.len() as u32).to_le_bytes());
    file
}

fn crc32(content: &[u8]) -> u32 {
    let mut checksum = u32::MAX;
    for &byte in content {
        checksum ^= u32::from(byte);
        for _ in 0..8 {
            checksum = (checksum >> 1) ^ (0xedb8_8320 * (checksum & 1));
        }
    }
    !checksum
}

/// FNV-1a of all names and contents: tells versions of the page apart, no more.
fn hash(files: &[(String, Vec<u8>)]) -> u64 {
    let bytes = files
        .iter()
        .flat_map(|(name, content)| name.bytes().chain([0]).chain(content.iter().copied()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
