//! The scales of each matrix, found by the names that makers give them.
//!
//! | Beside `….weight`                         | Is                                                             |
//! |-------------------------------------------|----------------------------------------------------------------|
//! | `….weight_scale`, `….weight_scale_inv`, `….scale_weight` | by what its floats are multiplied               |
//! | `….input_scale`, `….scale_input`          | the scale of its inputs, which are not quantized here          |
//! | `….comfy_quant`                           | ComfyUI's settings                                             |
//!
//! `scaled_fp8` marks a whole file. Any other tensor beside a matrix of 8-bit floats is refused: to leave out a scale
//! of an unknown name would be a picture of noise.

use super::super::file::{SafetensorsFile, Stored};
use super::comfy::{self, Layer};
use super::{Layout, Scaled};
use candle_core::DType;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use worker::{Error, Result};

/// Tensors of 8-bit floats, and those that only say how others are stored.
#[derive(Debug, Default)]
pub struct Found {
    scaled: HashMap<String, Arc<Scaled>>,
    companions: HashSet<String>,
}

impl Found {
    /// How the 8-bit floats of a tensor become numbers, if it has such.
    pub fn scaled(&self, name: &str) -> Option<&Arc<Scaled>> {
        self.scaled.get(name)
    }

    /// Whether a tensor only says how another is stored.
    pub fn is_companion(&self, name: &str) -> bool {
        self.companions.contains(name)
    }
}

/// What a tensor says of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The scale of a matrix.
    Scale,
    /// The scale of a matrix' inputs.
    Input,
    /// Settings, or a mark.
    Mark,
}

impl Role {
    fn of(name: &str) -> Option<Self> {
        let last = name.rsplit('.').next().unwrap_or_default();
        match last {
            "input_scale" | "scale_input" => Some(Self::Input),
            comfy::MARK | "scaled_fp8" => Some(Self::Mark),
            "scale_weight" => Some(Self::Scale),
            _ if last.ends_with("weight_scale") || last.ends_with("weight_scale_inv") => {
                Some(Self::Scale)
            }
            _ => None,
        }
    }
}

/// The names that the scale of a tensor may have.
fn scale_names(name: &str) -> Vec<String> {
    let mut names = vec![format!("{name}_scale"), format!("{name}_scale_inv")];
    if let Some(layer) = name.strip_suffix("weight") {
        names.push(format!("{layer}scale_weight"));
    }
    names
}

/// The tensors of all files, with what each says of its layers.
struct Search<'a> {
    tensors: BTreeMap<&'a str, &'a SafetensorsFile>,
    layers: BTreeMap<String, Layer>,
    layout: Layout,
}

/// The 8-bit floats of some files that belong together, with their scales.
///
/// # Errors
/// [`Error::BadModel`] names what is missing, does not fit, or is not understood.
pub fn find(files: &[&SafetensorsFile], layout: Layout) -> Result<Found> {
    let mut search = Search {
        tensors: BTreeMap::new(),
        layers: BTreeMap::new(),
        layout,
    };
    for file in files {
        let names = file.names().map(|name| (name, *file));
        search.tensors.extend(names);
        if let Some(metadata) = file.metadata(comfy::METADATA) {
            let layers = comfy::layers(metadata).map_err(|reason| bad(file, reason))?;
            search.layers.extend(layers);
        }
    }
    search.read_marks()?;
    let mut found = Found::default();
    let mut used = HashSet::new();
    for (name, file) in &search.tensors {
        if Role::of(name).is_some() {
            found.companions.insert(name.to_string());
        } else if let Some((scaled, scale)) = search
            .scaled(name, file)
            .map_err(|reason| bad(file, format!("{name}: {reason}")))?
        {
            used.extend(scale);
            found.scaled.insert(name.to_string(), Arc::new(scaled));
        }
    }
    search.check_unused(&used)?;
    Ok(found)
}

fn bad(file: &SafetensorsFile, reason: String) -> Error {
    Error::BadModel {
        path: file.path().to_path_buf(),
        reason,
    }
}

impl Search<'_> {
    /// Layers with settings in a tensor of their own.
    fn read_marks(&mut self) -> Result<()> {
        for (name, file) in &self.tensors {
            let layer = name.strip_suffix(comfy::MARK);
            let Some(layer) = layer.and_then(|layer| layer.strip_suffix('.')) else {
                continue;
            };
            let json = file.bytes(name).unwrap_or_default();
            let read = Layer::of_json(json);
            let read = read.map_err(|reason| bad(file, format!("layer {layer}: {reason}")))?;
            self.layers.insert(layer.to_string(), read);
        }
        Ok(())
    }

    /// How a tensor's 8-bit floats become numbers, if it has such, and the name of its scale.
    fn scaled(
        &self,
        name: &str,
        file: &SafetensorsFile,
    ) -> std::result::Result<Option<(Scaled, Option<String>)>, String> {
        let (Some(stored), Some(size)) = (file.stored(name), file.rows_and_columns(name)) else {
            return Ok(None);
        };
        let layer = name.strip_suffix(".weight");
        let layer = layer.and_then(|layer| self.layers.get(layer));
        let kind = match (stored, layer) {
            (Stored::Float8(kind), None) => kind,
            (Stored::Float8(kind), Some(layer)) if layer.kind == kind => kind,
            // They may lie in bytes without a name.
            (Stored::Plain(DType::U8), Some(layer)) => layer.kind,
            (_, Some(layer)) => {
                return Err(format!(
                    "stored as {stored:?}, and the file says {:?}",
                    layer.kind
                ))
            }
            (Stored::Plain(_), None) => return Ok(None),
            (Stored::Exponents, None) => {
                return Err("exponents of 8 bits, which are not the scale of a matrix".to_string())
            }
            (Stored::Other(dtype), None) => {
                return Err(format!("has dtype {dtype:?}, which is not implemented"))
            }
        };
        self.check_beside(name)?;
        let mut scales = scale_names(name).into_iter();
        let scales: Vec<String> = scales
            .by_ref()
            .filter(|scale| self.tensors.contains_key(scale.as_str()))
            .collect();
        let scale = match scales.as_slice() {
            [] if file.shape(name).is_some_and(|shape| shape.len() == 2)
                && name.ends_with("weight")
                && (layer.is_some() || self.layout.scaled) =>
            {
                return Err(
                    "has no scale, and the file or its config.json says that it has one"
                        .to_string(),
                )
            }
            [] => return Ok(Some((Scaled::plain(kind), None))),
            [scale] => scale.clone(),
            [one, two, ..] => return Err(format!("has two scales, {one} and {two}")),
        };
        let place = self.tensors[scale.as_str()];
        let numbers = place.numbers(&scale)?;
        let area = layer.and_then(|layer| layer.area).or(self.layout.area);
        let scale_shape = place.shape(&scale).unwrap_or_default();
        let scaled = Scaled::new(kind, numbers, scale_shape, size, area)
            .map_err(|reason| format!("{scale}: {reason}"))?;
        Ok(Some((scaled, Some(scale))))
    }

    /// Whether all that lies beside a tensor of 8-bit floats is understood.
    fn check_beside(&self, name: &str) -> std::result::Result<(), String> {
        let unknown = |beside: &str| {
            Err(format!(
                "is in 8-bit floats, and {beside} beside it is nothing that is known; it may be a scale"
            ))
        };
        if name.ends_with("weight") || name.ends_with("bias") {
            let longer = self.from(name).skip(1);
            for beside in longer.take_while(|beside| beside.starts_with(name)) {
                let apart = beside[name.len()..].starts_with(['_', '.']);
                if apart && Role::of(beside).is_none() {
                    return unknown(beside);
                }
            }
        }
        let Some(layer) = name.strip_suffix("weight").filter(|l| l.ends_with('.')) else {
            return Ok(());
        };
        for beside in self.from(layer).take_while(|b| b.starts_with(layer)) {
            let part = &beside[layer.len()..];
            let known = part.contains('.') || ["weight", "bias"].contains(&part);
            if !known && Role::of(beside).is_none() {
                return unknown(beside);
            }
        }
        Ok(())
    }

    /// Names from this one on, in order.
    fn from(&self, name: &str) -> impl Iterator<Item = &str> {
        let from = (Bound::Included(name), Bound::Unbounded);
        self.tensors.range::<str, _>(from).map(|(name, _)| *name)
    }

    /// Whether no scale is left over: of matrices in 16 bits it must be 1.
    fn check_unused(&self, used: &HashSet<String>) -> Result<()> {
        for (name, file) in &self.tensors {
            if Role::of(name) != Some(Role::Scale) || used.contains(*name) {
                continue;
            }
            let numbers = file.numbers(name).map_err(|reason| bad(file, reason))?;
            if numbers.iter().any(|number| *number != 1.0) {
                let reason = format!("{name} is a scale, but not of a matrix of 8-bit floats");
                return Err(bad(file, reason));
            }
        }
        Ok(())
    }
}
