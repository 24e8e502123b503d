//! Low-rank adapters of language models ("LoRA: Low-Rank Adaptation of Large Language Models", Hu et al., 2021): GGUF
//! files as llama.cpp's converter writes them, and folders of PEFT.
//!
//! An adapter stays beside the weights: `y = W x + scale * factor * B (A x)`, with a scale that each request chooses.

mod gguf;
mod peft;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use worker::gguf::Gguf;
use worker::{Error, Result};

/// Highest rank that a file may claim.
const MAX_RANK: usize = 4096;

/// Where an adapter is, and what it is called: `NAME=PATH` or `NAME=PATH:SCALE`.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSource {
    /// What requests call it.
    pub name: String,
    /// A GGUF file or a PEFT folder.
    pub path: PathBuf,
    /// Its scale where a request names it without one.
    pub scale: f32,
}

impl FromStr for AdapterSource {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let malformed = || {
            Error::Usage(format!(
                "{text:?} is not NAME=PATH[:SCALE], for example german=adapter.gguf:0.5"
            ))
        };
        let (name, path) = text.split_once('=').ok_or_else(malformed)?;
        let scaled = path.rsplit_once(':').and_then(|(path, scale)| {
            let scale = scale.parse().ok().filter(|scale: &f32| scale.is_finite())?;
            Some((path, scale))
        });
        let (path, scale) = scaled.unwrap_or((path, 1.0));
        let is_plain = |c: char| c.is_alphanumeric() || "._-/".contains(c);
        if name.is_empty() || !name.chars().all(is_plain) || path.is_empty() {
            return Err(malformed());
        }
        Ok(Self {
            name: name.to_string(),
            path: PathBuf::from(path),
            scale,
        })
    }
}

/// An adapter in memory, in the terms of the base model's tensors.
#[derive(Debug, Clone)]
pub struct Adapter {
    /// Where it is from.
    pub source: AdapterSource,
    /// What is added to matrices, by their names in GGUF without `.weight`.
    pub(crate) parts: BTreeMap<String, Part>,
}

/// What is added to a matrix: the product of two narrow ones.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part {
    pub rank: usize,
    pub inputs: usize,
    pub outputs: usize,
    /// `(rank, inputs)`.
    pub a: Vec<f32>,
    /// `(outputs, rank)`, times the adapter's own factor.
    pub b: Vec<f32>,
}

/// A matrix of an adapter's file, rows behind each other.
struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

impl Adapter {
    /// Reads an adapter for a model with this header.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged, of another model, or asks for something
    /// that is not implemented.
    pub fn open(source: &AdapterSource, base: &Gguf) -> Result<Self> {
        let parts = match source.path.is_dir() {
            true => peft::read(&source.path, base)?,
            false => gguf::read(&source.path, base)?,
        };
        if parts.is_empty() {
            return Err(bad(&source.path, "it has no matrices".to_string()));
        }
        Ok(Self {
            source: source.clone(),
            parts,
        })
    }
}

fn bad(path: &Path, reason: String) -> Error {
    Error::BadModel {
        path: path.to_path_buf(),
        reason,
    }
}

/// The two matrices of each tensor, checked against the base model's and put together; `factor` gives what is
/// multiplied by, for a rank.
fn pair_up(
    halves: BTreeMap<String, [Option<Matrix>; 2]>,
    base: &Gguf,
    factor: impl Fn(usize) -> f32,
) -> std::result::Result<BTreeMap<String, Part>, String> {
    let mut parts = BTreeMap::new();
    for (name, halves) in halves {
        let [Some(a), Some(b)] = halves else {
            return Err(format!("{name} has one of its two matrices only"));
        };
        let tensor = base.tensor(&format!("{name}.weight"));
        let Some(&[inputs, outputs]) = tensor.map(|tensor| &tensor.dims[..]) else {
            return Err(format!(
                "the model has no matrix {name}, or it has several dimensions"
            ));
        };
        let rank = a.rows;
        let fits = a.columns as u64 == inputs && b.rows as u64 == outputs && b.columns == rank;
        if !fits || rank > MAX_RANK {
            return Err(format!(
                "{name}: matrices of {} x {} and {} x {} do not fit one of {outputs} x {inputs}",
                a.rows, a.columns, b.rows, b.columns
            ));
        }
        let factor = factor(rank);
        let part = Part {
            rank,
            inputs: a.columns,
            outputs: b.rows,
            a: a.values,
            b: b.values.into_iter().map(|value| value * factor).collect(),
        };
        parts.insert(name, part);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_have_a_name_a_path_and_perhaps_a_scale() {
        let parse = |text: &str| text.parse::<AdapterSource>();
        let plain = parse("german=folder/a.gguf").unwrap();
        assert_eq!(
            (plain.name.as_str(), plain.path.as_path(), plain.scale),
            ("german", Path::new("folder/a.gguf"), 1.0)
        );
        let scaled = parse("a=C:/x:0.5").unwrap();
        assert_eq!(
            (scaled.path.as_path(), scaled.scale),
            (Path::new("C:/x"), 0.5)
        );
        assert_eq!(parse("a=b:c").unwrap().path, Path::new("b:c"));
        for wrong in ["path.gguf", "=path", "a=", "a b=c"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
