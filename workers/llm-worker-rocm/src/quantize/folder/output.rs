//! A folder of safetensors that is being written.

use crate::folder::{INDEX, SINGLE};
use safetensors::Dtype;
use serde_json::{json, Map, Value as Json};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// Most bytes of tensors in a file, but for a tensor that has more alone.
const SHARD_BYTES: usize = 5_000_000_000;
/// Multiple at which the tensors begin.
const ALIGNMENT: usize = 8;
const CONFIG: &str = "config.json";
/// Endings of files that are weights or come with weights of other programs.
const WEIGHTS: [&str; 10] = [
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".gguf",
    ".onnx",
    ".h5",
    ".msgpack",
];

/// A tensor as it is written.
pub(super) struct Stored {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: usize,
}

/// Where everything goes.
pub(super) struct Layout {
    shards: Vec<Shard>,
    /// For each tensor of the source, where each part of it begins in its file.
    places: Vec<Vec<usize>>,
    /// Of all tensors.
    bytes: usize,
}

struct Shard {
    /// Tensors of the source.
    tensors: Range<usize>,
    /// The length of the header and the header.
    header: Vec<u8>,
    bytes: usize,
}

impl Layout {
    /// For each tensor of the source, what becomes of it.
    pub fn of(tensors: &[Vec<Stored>]) -> Self {
        Self::with(tensors, SHARD_BYTES)
    }

    fn with(tensors: &[Vec<Stored>], most: usize) -> Self {
        let bytes = |parts: &Vec<Stored>| parts.iter().map(|part| part.bytes).sum::<usize>();
        let mut layout = Self {
            shards: Vec::new(),
            places: tensors.iter().map(|parts| vec![0; parts.len()]).collect(),
            bytes: tensors.iter().map(bytes).sum(),
        };
        let mut start = 0;
        while start < tensors.len() {
            let mut end = start + 1;
            let mut sum = bytes(&tensors[start]);
            while end < tensors.len() && sum + bytes(&tensors[end]) <= most {
                sum += bytes(&tensors[end]);
                end += 1;
            }
            layout.add(tensors, start..end);
            start = end;
        }
        layout
    }

    /// A file of some tensors: those of large elements first, so that all are aligned.
    fn add(&mut self, tensors: &[Vec<Stored>], range: Range<usize>) {
        let parts = |i: usize| (0..tensors[i].len()).map(move |part| (i, part));
        let mut order: Vec<(usize, usize)> = range.clone().flat_map(parts).collect();
        order.sort_by_key(|(i, part)| std::cmp::Reverse(tensors[*i][*part].dtype.bitsize()));
        let mut header = Map::new();
        header.insert("__metadata__".to_string(), json!({"format": "pt"}));
        let mut at = 0;
        for (i, part) in &order {
            let stored = &tensors[*i][*part];
            let entry = json!({
                "dtype": stored.dtype,
                "shape": stored.shape,
                "data_offsets": [at, at + stored.bytes],
            });
            header.insert(stored.name.clone(), entry);
            self.places[*i][*part] = at;
            at += stored.bytes;
        }
        let mut header = Json::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        for (i, part) in order {
            self.places[i][part] += bytes.len();
        }
        self.shards.push(Shard {
            tensors: range,
            bytes: bytes.len() + at,
            header: bytes,
        });
    }

    /// The tensors of each file.
    pub fn shards(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.shards.iter().map(|shard| shard.tensors.clone())
    }

    /// Where the parts of a tensor begin in its file.
    pub fn places(&self, tensor: usize) -> &[usize] {
        &self.places[tensor]
    }

    fn name(&self, shard: usize) -> String {
        match self.shards.len() {
            1 => SINGLE.to_string(),
            all => format!("model-{:05}-of-{all:05}.safetensors", shard + 1),
        }
    }
}

/// A folder beside its final place, gone unless kept.
pub(super) struct NewFolder {
    path: PathBuf,
    target: PathBuf,
}

impl NewFolder {
    /// # Errors
    /// [`Error::Usage`] if there is something that must not be replaced, [`Error::Io`] if it cannot be created.
    pub fn create(target: &Path, force: bool) -> Result<Self> {
        if target.exists() {
            may_replace(target, force)?;
        }
        let path = beside(target, "partial");
        fs::create_dir(&path).map_err(Error::io(&path))?;
        Ok(Self {
            path,
            target: target.to_path_buf(),
        })
    }

    /// Copies what is no weights: the tokenizer, templates, licences.
    pub fn copy_others(&self, source: &Path) -> Result<()> {
        let entries = fs::read_dir(source).map_err(Error::io(source))?;
        for entry in entries {
            let entry = entry.map_err(Error::io(source))?;
            let (name, from) = (entry.file_name(), entry.path());
            let text = name.to_string_lossy();
            let is_weights = WEIGHTS.iter().any(|ending| text.ends_with(ending));
            // Files of a hub's cache are links.
            let is_file = fs::metadata(&from).map_err(Error::io(&from))?.is_file();
            if is_file && !is_weights && text != CONFIG && !text.starts_with('.') {
                fs::copy(&from, self.path.join(&name)).map_err(Error::io(&from))?;
            }
        }
        Ok(())
    }

    /// Writes the source's configuration with `own` as how the weights are quantized. Its text stays as it is, numbers
    /// that only Python reads included.
    pub fn write_config(&self, source: &Path, own: &Json) -> Result<()> {
        let from = source.join(CONFIG);
        let text = fs::read_to_string(&from).map_err(Error::io(&from))?;
        let end = text.rfind('}').ok_or_else(|| Error::BadModel {
            path: from.clone(),
            reason: "it is no JSON object".to_string(),
        })?;
        let before = text[..end].trim_end();
        let comma = if before.ends_with('{') { "" } else { "," };
        let own = format!("{own:#}").replace('\n', "\n  ");
        let text = format!("{before}{comma}\n  \"quantization_config\": {own}\n}}\n");
        let to = self.path.join(CONFIG);
        fs::write(&to, text).map_err(Error::io(&to))
    }

    /// A file of the layout.
    pub fn file(&self, layout: &Layout, shard: usize) -> Result<ShardFile> {
        let path = self.path.join(layout.name(shard));
        let file = File::create_new(&path).map_err(Error::io(&path))?;
        let Shard { header, bytes, .. } = &layout.shards[shard];
        file.set_len(*bytes as u64).map_err(Error::io(&path))?;
        let file = ShardFile { file, path };
        file.write(0, header)?;
        Ok(file)
    }

    /// Writes the index of a model in several files: which tensor is in which.
    pub fn write_index(&self, layout: &Layout, tensors: &[Vec<Stored>]) -> Result<()> {
        if layout.shards.len() == 1 {
            return Ok(());
        }
        let mut map = Map::new();
        for (shard, range) in layout.shards().enumerate() {
            for stored in tensors[range].iter().flatten() {
                map.insert(stored.name.clone(), layout.name(shard).into());
            }
        }
        let index = json!({"metadata": {"total_size": layout.bytes}, "weight_map": map});
        let path = self.path.join(INDEX);
        fs::write(&path, format!("{index:#}\n")).map_err(Error::io(&path))
    }

    /// Gives the folder its name.
    pub fn keep(self) -> Result<()> {
        let io = Error::io(&self.target);
        let has_files = fs::read_dir(&self.target).is_ok_and(|mut files| files.next().is_some());
        if !has_files {
            return fs::rename(&self.path, &self.target).map_err(io);
        }
        let old = beside(&self.target, "old");
        fs::rename(&self.target, &old).map_err(&io)?;
        if let Err(error) = fs::rename(&self.path, &self.target) {
            // What was there stays.
            let _ = fs::rename(&old, &self.target);
            return Err(io(error));
        }
        fs::remove_dir_all(&old).map_err(Error::io(&old))
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        // After `keep` there is nothing under this name; a folder that cannot be removed is named after its purpose.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A neighbour of a path, named after it and this process.
fn beside(path: &Path, purpose: &str) -> PathBuf {
    // The components are without a slash at the end.
    let mut name = path.components().as_path().as_os_str().to_owned();
    name.push(format!(".{}.{purpose}", std::process::id()));
    PathBuf::from(name)
}

/// Refuses to replace what is not asked to be replaced or does not look like a model's folder.
fn may_replace(target: &Path, force: bool) -> Result<()> {
    let refused = |why: &str| Err(Error::Usage(format!("{} {why}", target.display())));
    if !target.is_dir() {
        return refused("is a file; the model is written as a folder");
    }
    let entries = fs::read_dir(target).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let entries = entries.map_err(Error::io(target))?;
    if entries.is_empty() {
        return Ok(());
    }
    if !force {
        return refused("exists; --force replaces it");
    }
    let is_models = target.join(CONFIG).is_file() && entries.iter().all(|e| !e.path().is_dir());
    match is_models {
        true => Ok(()),
        false => refused("does not look like a model's folder and is not replaced"),
    }
}

/// A file of tensors.
pub(super) struct ShardFile {
    file: File,
    path: PathBuf,
}

impl ShardFile {
    /// Writes bytes at a place in the file; several threads may.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(bytes, at as u64);
        written.map_err(Error::io(&self.path))
    }

    /// Waits until the file is on the disk.
    pub fn finish(self) -> Result<()> {
        self.file.sync_all().map_err(Error::io(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(name: &str, dtype: Dtype, shape: &[usize]) -> Stored {
        Stored {
            name: name.to_string(),
            dtype,
            shape: shape.to_vec(),
            bytes: shape.iter().product::<usize>() * dtype.bitsize() / 8,
        }
    }

    #[test]
    fn tensors_are_aligned_and_shards_bounded() {
        let tensors = [
            vec![
                stored("a.weight", Dtype::F8_E4M3, &[3, 5]),
                stored("a.weight_scale_inv", Dtype::F32, &[1, 1]),
            ],
            vec![stored("b.bias", Dtype::BF16, &[3])],
            vec![stored("c.weight", Dtype::BF16, &[20])],
        ];
        let layout = Layout::with(&tensors, 25);
        assert_eq!(layout.shards().collect::<Vec<_>>(), [0..2, 2..3]);
        assert_eq!(layout.bytes, 15 + 4 + 6 + 40);
        let shard = &layout.shards[0];
        let start = shard.header.len();
        assert_eq!(start % ALIGNMENT, 0);
        assert_eq!(layout.places(0), [start + 10, start]);
        assert_eq!(layout.places(1), [start + 4]);
        let mut file = shard.header.clone();
        file.resize(shard.bytes, 7);
        let read = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.tensor("a.weight").unwrap().shape(), [3, 5]);
        assert_eq!(read.tensor("b.bias").unwrap().dtype(), Dtype::BF16);
        assert_eq!(layout.name(1), "model-00002-of-00002.safetensors");
    }

    #[test]
    fn neighbours_are_beside_the_folder() {
        let name = |path: &str| {
            beside(Path::new(path), "old")
                .to_string_lossy()
                .into_owned()
        };
        let id = std::process::id();
        assert_eq!(name("a/b/"), format!("a/b.{id}.old"));
        assert_eq!(name("b"), format!("b.{id}.old"));
    }
}
