//! The table of kernels that `CANDLE_ROCM_ARCHS` has the build script make.

#[path = "../build/objects.rs"]
mod objects;

use code_object::CodeObject;

/// The file that a line of the table includes, and its arch.
fn entry(line: &str) -> Option<(&str, &str)> {
    let (arch, file) = line.trim().split_once(", include_bytes!(\"")?;
    let arch = arch.strip_prefix("(\"")?.strip_suffix('"')?;
    Some((arch, file.strip_suffix("\")),")?))
}

#[test]
fn it_has_the_kernels_of_every_arch_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let archs = ["gfx1100", "gfx942:sramecc+:xnack-", "gfx12-generic"];
    let table = objects::table(&archs, folder.path()).unwrap();
    let entries: Vec<_> = table.lines().filter_map(entry).collect();
    let named: Vec<&str> = entries.iter().map(|(arch, _)| *arch).collect();
    assert_eq!(named, archs, "{table}");
    for (arch, file) in entries {
        let object = CodeObject::parse(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(object.target.to_string(), arch);
        assert!(object.kernel("pattern_check").is_some(), "{arch}");
    }
}

#[test]
fn it_is_empty_and_needs_no_compiler_if_none_is() {
    let folder = tempfile::tempdir().unwrap();
    let table = objects::table(&[], folder.path()).unwrap();
    assert_eq!(table.lines().filter_map(entry).count(), 0);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
