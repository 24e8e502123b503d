//! Networks that clients may name: what lies in folders that the operator chose, nothing else of the machine.

use std::path::{Path, PathBuf};

/// What a folder offers, sorted: safetensors files, and with `folders` those that have a `config.json`. A folder that
/// cannot be read has nothing to offer.
pub fn offers(folder: &Path, folders: bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_network = |path: &PathBuf| match path.is_dir() {
        true => folders && path.join("config.json").is_file(),
        false => path.extension().is_some_and(|e| e == "safetensors"),
    };
    let paths = entries.map(|entry| entry.path()).filter(is_network);
    let mut paths: Vec<PathBuf> = paths.collect();
    paths.sort();
    paths
}

/// The same of several folders by name, a file's without its ending, sorted; of two with one name the first folder's
/// counts.
pub fn named(among: &[PathBuf], folders: bool) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for path in among.iter().flat_map(|folder| offers(folder, folders)) {
        let name = match path.is_dir() {
            true => path.file_name(),
            false => path.file_stem(),
        };
        let Some(name) = name.and_then(|name| name.to_str()) else {
            continue;
        };
        if !found.iter().any(|(known, _)| known == name) {
            found.push((name.to_string(), path));
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_name_counts() {
        let place = tempfile::tempdir().unwrap();
        let (first, second) = (place.path().join("first"), place.path().join("second"));
        for folder in [&first, &second] {
            std::fs::create_dir_all(folder.join("canny")).unwrap();
            std::fs::create_dir_all(folder.join("empty")).unwrap();
        }
        let file = |path: PathBuf| std::fs::write(path, b"").unwrap();
        file(first.join("b.safetensors"));
        file(second.join("b.safetensors"));
        file(second.join("a.safetensors"));
        file(second.join("notes.txt"));
        file(second.join("canny/config.json"));
        let among = [first.clone(), second.clone(), place.path().join("absent")];
        let files = vec![
            ("a".to_string(), second.join("a.safetensors")),
            ("b".to_string(), first.join("b.safetensors")),
        ];
        assert_eq!(named(&among, false), files);
        let all = [files, vec![("canny".to_string(), second.join("canny"))]].concat();
        assert_eq!(named(&among, true), all);
    }
}
