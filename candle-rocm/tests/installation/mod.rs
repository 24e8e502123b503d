//! ROCm installations that lack something.

/// A ROCm installation as the one in use, without a library.
pub fn rocm_without(library: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = std::path::PathBuf::from(std::env::var_os("ROCM_PATH").expect("ROCM_PATH"));
    std::fs::create_dir(folder.path().join("lib")).unwrap();
    for entry in std::fs::read_dir(root.join("lib")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.contains(library) {
            let link = folder.path().join("lib").join(name);
            std::os::unix::fs::symlink(path.canonicalize().unwrap(), link).unwrap();
        }
    }
    folder
}
