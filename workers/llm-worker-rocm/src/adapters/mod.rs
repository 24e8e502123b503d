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

impl AdapterSource {
    /// Reads `PATH` or `PATH=SCALE`; its name is the path's last part.
    ///
    /// # Errors
    /// [`Error::Usage`] for an empty path.
    pub fn of_path(text: &str) -> Result<Self> {
        let scaled = text.rsplit_once('=').and_then(|(path, scale)| {
            let scale = scale.parse().ok().filter(|scale: &f32| scale.is_finite())?;
            Some((path, scale))
        });
        let (path, scale) = scaled.unwrap_or((text, 1.0));
        let path = PathBuf::from(path);
        match path.file_name() {
            Some(name) => Ok(Self {
                name: name.to_string_lossy().into_owned(),
                scale,
                path,
            }),
            None => Err(Error::Usage(format!(
                "{text:?} is not PATH[=SCALE], for example adapter.gguf=0.5"
            ))),
        }
    }
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

/// The name of the table of embeddings, whose rows are what is chosen among.
pub(crate) const EMBEDDING: &str = "token_embd";
/// The name of the output matrix, which may be that table as well.
pub(crate) const OUTPUT: &str = "output";

/// What is added to a matrix, or to each expert's: the product of two narrow ones.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part {
    pub rank: usize,
    pub inputs: usize,
    pub outputs: usize,
    /// How many experts' there are behind each other in both; 1 for a matrix of no expert.
    pub experts: usize,
    /// `(experts, rank, inputs)`; of the table of embeddings `(inputs, rank)`, a row for each token.
    pub a: Vec<f32>,
    /// `(experts, outputs, rank)`, times the adapter's own factor.
    pub b: Vec<f32>,
}

/// A matrix of an adapter's file, rows behind each other.
struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

/// Both matrices of each tensor, and of each of its experts.
type Halves = BTreeMap<String, BTreeMap<u32, [Option<Matrix>; 2]>>;

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
    halves: Halves,
    base: &Gguf,
    factor: impl Fn(usize) -> f32,
) -> std::result::Result<BTreeMap<String, Part>, String> {
    let mut parts = BTreeMap::new();
    for (name, experts) in halves {
        let shape = shape_of(base, &name)?;
        let mut part: Option<Part> = None;
        for (expert, halves) in experts {
            let [Some(a), Some(b)] = halves else {
                return Err(format!("{name} has one of its two matrices only"));
            };
            let [inputs, outputs, count] = shape;
            // A table has a row for each token.
            let (rank, width) = match name == EMBEDDING {
                true => (a.columns, a.rows),
                false => (a.rows, a.columns),
            };
            let fits = width == inputs && b.rows == outputs && b.columns == rank;
            if !fits || !(1..=MAX_RANK).contains(&rank) || expert as usize >= count {
                return Err(format!(
                    "{name}: matrices of {} x {} and {} x {} do not fit one of {outputs} x {inputs}",
                    a.rows, a.columns, b.rows, b.columns
                ));
            }
            // Experts that an adapter leaves alone are zeros.
            let part = part.get_or_insert_with(|| Part {
                rank,
                inputs,
                outputs,
                experts: count,
                a: vec![0.0; count * rank * inputs],
                b: vec![0.0; count * outputs * rank],
            });
            if part.rank != rank {
                return Err(format!("{name}: its experts have several ranks"));
            }
            let factor = factor(rank);
            let expert = expert as usize;
            part.a[expert * rank * inputs..][..rank * inputs].copy_from_slice(&a.values);
            let b = b.values.into_iter().map(|value| value * factor);
            let to = &mut part.b[expert * outputs * rank..][..outputs * rank];
            to.iter_mut().zip(b).for_each(|(to, value)| *to = value);
        }
        parts.extend(part.map(|part| (name, part)));
    }
    Ok(parts)
}

/// Inputs and outputs of a matrix of the base model, and how many experts have one.
fn shape_of(base: &Gguf, name: &str) -> std::result::Result<[usize; 3], String> {
    let tensor = base.tensor(&format!("{name}.weight"));
    let tensor = match tensor {
        // Tied: the table is the output matrix as well.
        None if name == OUTPUT => base.tensor(&format!("{EMBEDDING}.weight")),
        tensor => tensor,
    };
    match tensor.map(|tensor| &tensor.dims[..]) {
        Some(&[width, tokens]) if name == EMBEDDING => Ok([tokens as usize, width as usize, 1]),
        Some(&[inputs, outputs]) => Ok([inputs as usize, outputs as usize, 1]),
        Some(&[inputs, outputs, experts]) if name.ends_with("_exps") => {
            Ok([inputs as usize, outputs as usize, experts as usize])
        }
        _ => Err(format!("the model has no matrix {name}")),
    }
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
        let of_path = |text: &str| AdapterSource::of_path(text).unwrap();
        let plain = of_path("folder/a=b.gguf");
        assert_eq!((plain.name.as_str(), plain.scale), ("a=b.gguf", 1.0));
        assert_eq!(plain.path, Path::new("folder/a=b.gguf"));
        let scaled = of_path("folder=-0.5");
        assert_eq!((scaled.name.as_str(), scaled.scale), ("folder", -0.5));
        assert!(AdapterSource::of_path("").is_err());
        for wrong in ["path.gguf", "=path", "a=", "a b=c"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
