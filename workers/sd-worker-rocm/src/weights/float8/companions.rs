//! The scales of each matrix, found by the names that makers give them.
//!
//! | Beside `….weight`                         | Is                                                             |
//! |-------------------------------------------|----------------------------------------------------------------|
//! | `….weight_scale`, `….weight_scale_inv`, `….scale_weight` | by what its floats are multiplied               |
//! | `….weight_scale_2`                        | by what all of them are multiplied besides, in ComfyUI's nvfp4 |
//! | `….input_scale`, `….scale_input`          | the scale of its inputs, which are not quantized here          |
//! | `….comfy_quant`                           | ComfyUI's settings                                             |
//!
//! `scaled_fp8` marks a whole file. Any other tensor beside such a matrix is refused: to leave out a scale of an unknown
//! name would be a picture of noise.

use super::comfy::{self, Format, Layer};
use super::float4::Float4;
use super::tiles::untiled;
use super::{Layout, Scaled, Small};
use crate::weights::file::{power_of_two, Float8, SafetensorsFile, Stored};
use candle_core::DType;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use worker::{Error, Result};

/// Tensors of 8-bit floats, and those that only say how others are stored.
#[derive(Debug, Default)]
pub struct Found {
    scaled: HashMap<String, Arc<Small>>,
    companions: HashSet<String>,
}

impl Found {
    /// How a tensor of fewer than 16 bits becomes numbers, if it is one.
    pub fn scaled(&self, name: &str) -> Option<&Arc<Small>> {
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
            "weight_scale_2" => Some(Self::Scale),
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

/// What is read, or what is wrong.
type Read<T> = std::result::Result<T, String>;

/// The 8-bit and 4-bit floats of some files that belong together, with their scales.
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
        } else if let Some((scaled, scales)) = search
            .small(name, file)
            .map_err(|reason| bad(file, format!("{name}: {reason}")))?
        {
            used.extend(scales);
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

/// The scales of one byte in a tensor.
fn bytes(file: &SafetensorsFile, name: &str) -> Read<Vec<u8>> {
    match (file.bytes(name), file.stored(name)) {
        (
            Some(bytes),
            Some(Stored::Float8(Float8::E4m3) | Stored::Exponents | Stored::Plain(DType::U8)),
        ) => Ok(bytes.to_vec()),
        (_, stored) => Err(format!("{name} is stored as {stored:?}, not in 8 bits")),
    }
}

/// Scales of a matrix of 8-bit floats that are powers of two for 32 in a row, in tiles.
fn mxfp8(tiled: &[u8], [rows, columns]: [usize; 2]) -> Read<Scaled> {
    const GROUP: usize = 32;
    if !columns.is_multiple_of(GROUP) {
        return Err(format!("rows of {columns} are no groups of {GROUP}"));
    }
    let shape = [rows, columns / GROUP];
    let scales = untiled(tiled, shape)?.into_iter().map(power_of_two);
    let area = Some([1, GROUP]);
    Scaled::new(
        Float8::E4m3,
        scales.collect(),
        &shape,
        [rows, columns],
        area,
    )
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

    /// How a tensor of fewer than 16 bits becomes numbers, if it is one, and the names of its scales.
    fn small(&self, name: &str, file: &SafetensorsFile) -> Read<Option<(Small, Vec<String>)>> {
        let (Some(stored), Some(size)) = (file.stored(name), file.rows_and_columns(name)) else {
            return Ok(None);
        };
        let layer = name.strip_suffix(".weight");
        let layer = layer.and_then(|layer| self.layers.get(layer));
        let format = match (stored, layer.map(|layer| layer.format)) {
            (Stored::Float8(kind), None) => Format::Float8(kind),
            (Stored::Float8(kind), Some(Format::Float8(said))) if said == kind => {
                Format::Float8(kind)
            }
            (Stored::Float8(Float8::E4m3), Some(Format::Mxfp8)) => Format::Mxfp8,
            // They may lie in bytes without a name.
            (Stored::Plain(DType::U8), Some(format)) => format,
            (_, Some(format)) => {
                return Err(format!(
                    "stored as {stored:?}, and the file says {format:?}"
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
        let is_matrix = file.shape(name).is_some_and(|shape| shape.len() == 2);
        let must = is_matrix && name.ends_with("weight") && (layer.is_some() || self.layout.scaled);
        let scales = scale_names(name).into_iter();
        let scales = scales.filter(|scale| self.tensors.contains_key(scale.as_str()));
        let scale = match &scales.collect::<Vec<_>>()[..] {
            [scale] => Some(scale.clone()),
            [] if must => {
                return Err(
                    "has no scale, and the file or its config.json says that it has one"
                        .to_string(),
                )
            }
            [] => None,
            [one, two, ..] => return Err(format!("has two scales, {one} and {two}")),
        };
        let (Some(scale), true) = (&scale, is_matrix || matches!(format, Format::Float8(_))) else {
            return match format {
                Format::Float8(kind) => Ok(Some((Small::Eight(Scaled::plain(kind)), Vec::new()))),
                format => Err(format!("is no matrix, and the file says {format:?}")),
            };
        };
        let place = self.tensors[scale.as_str()];
        let area = layer.and_then(|layer| layer.area).or(self.layout.area);
        let of_scale = |reason: String| format!("{scale}: {reason}");
        let mut used = vec![scale.clone()];
        let small = match format {
            Format::Float8(kind) => {
                let (numbers, shape) = (place.numbers(scale)?, place.shape(scale));
                let scaled = Scaled::new(kind, numbers, shape.unwrap_or_default(), size, area);
                Small::Eight(scaled.map_err(of_scale)?)
            }
            Format::Mxfp8 => Small::Eight(mxfp8(&bytes(place, scale)?, size).map_err(of_scale)?),
            Format::Nvfp4 => {
                let whole = format!("{scale}_2");
                let place_of_whole = self.tensors.get(whole.as_str());
                let place_of_whole = place_of_whole.ok_or_else(|| format!("has no {whole}"))?;
                let factor = match place_of_whole.numbers(&whole)?[..] {
                    [factor] => factor,
                    ref all => return Err(format!("{whole} has {} numbers", all.len())),
                };
                used.push(whole);
                let [rows, bytes_of_row] = size;
                let columns = bytes_of_row.saturating_mul(2);
                let scales = bytes(place, scale)?;
                let scaled = Float4::new(factor, &scales, [rows, columns]);
                Small::Four(scaled.map_err(of_scale)?)
            }
        };
        Ok(Some((small, used)))
    }

    /// Whether all that lies beside such a tensor is understood.
    fn check_beside(&self, name: &str) -> Read<()> {
        let unknown = |beside: &str| {
            Err(format!(
                "is in small floats, and {beside} beside it is nothing that is known; it may be a scale"
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
                let reason = format!("{name} is a scale, but not of a matrix in small floats");
                return Err(bad(file, reason));
            }
        }
        Ok(())
    }
}
