//! Files with weights in 8-bit and 4-bit floats, in every layout that is read.

use super::pipelines::Tensors;
use candle_core::{Device, Tensor};
use safetensors::tensor::TensorView;
use safetensors::Dtype;
use sd_worker_rocm::weights::file::Float8;
use serde_json::{json, Value};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// A tensor as a file has it.
#[derive(Clone)]
pub struct Raw {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub type File = BTreeMap<String, Raw>;

pub fn raw(dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Raw {
    Raw {
        dtype,
        shape: shape.to_vec(),
        bytes,
    }
}

pub fn floats(values: &[f32], shape: &[usize]) -> Raw {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    raw(Dtype::F32, shape, bytes.collect())
}

pub fn save(path: &Path, file: &File, metadata: &[(&str, String)]) {
    let views = file.iter().map(|(name, raw)| {
        let view = TensorView::new(raw.dtype, raw.shape.clone(), &raw.bytes).unwrap();
        (name.clone(), view)
    });
    let metadata = metadata.iter().map(|(k, v)| (k.to_string(), v.clone()));
    let metadata: HashMap<String, String> = metadata.collect();
    safetensors::serialize_to_file(views, Some(metadata), path).unwrap();
}

/// The nearest float.
fn nearest(kind: Float8, value: f32) -> u8 {
    // Magnitudes grow with their bits.
    let mut finite = (0..128u8).filter(|bits| kind.value(*bits).is_finite());
    let above = finite.clone().find(|bits| kind.value(*bits) >= value.abs());
    let above = above.unwrap_or_else(|| finite.next_back().unwrap());
    let below = above.saturating_sub(1);
    let off = |bits: u8| (kind.value(bits) - value.abs()).abs();
    let bits = if off(below) <= off(above) {
        below
    } else {
        above
    };
    bits | (u8::from(value < 0.0) << 7)
}

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stored {
    /// All tensors as they are.
    Plain(Float8),
    /// One scale, ComfyUI's names.
    ComfyOld,
    /// One scale, ComfyUI's newer names, settings in tensors.
    ComfyNew,
    /// The same with settings in the metadata, and bytes without a type.
    ComfyMetadata,
    /// A scale for each row.
    Rows,
    /// A scale for each so many rows and columns.
    Areas(usize),
    /// ComfyUI's mxfp8: a power of two for each 32 in a row.
    Mxfp8,
    /// ComfyUI's nvfp4: 4-bit floats, a scale for each 16 in a row and one for all.
    Nvfp4,
}

impl Stored {
    fn kind(self) -> Float8 {
        match self {
            Self::Plain(kind) => kind,
            _ => Float8::E4m3,
        }
    }

    /// Rows and columns of a scale, for a matrix of this shape.
    fn area(self, rows: usize, columns: usize) -> [usize; 2] {
        match self {
            Self::Rows => [1, columns],
            Self::Areas(size) => [size, size],
            _ => [rows, columns],
        }
    }
}

/// Puts a tensor into a file; gives the numbers that it stands for there.
fn store(file: &mut File, name: &str, tensor: &Tensor, stored: Stored) -> Tensor {
    let shape = tensor.dims().to_vec();
    let values = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let plain = matches!(stored, Stored::Plain(_));
    let group = match stored {
        Stored::Mxfp8 => 32,
        Stored::Nvfp4 => 16,
        _ => 1,
    };
    let is_matrix = shape.len() == 2 && shape[1].is_multiple_of(group);
    if !plain && (!is_matrix || !name.ends_with(".weight")) {
        file.insert(name.to_string(), floats(&values, &shape));
        return tensor.clone();
    }
    let rows = shape.first().copied().unwrap_or(1);
    let columns = values.len() / rows;
    if group > 1 {
        let numbers = store_groups(file, name, &values, [rows, columns], stored);
        return Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap();
    }
    let [height, width] = stored.area(rows, columns);
    let (down, across) = (rows.div_ceil(height), columns.div_ceil(width));
    let place = |i: usize| i / columns / height * across + i % columns / width;
    let mut scales = vec![0f32; down * across];
    for (i, value) in values.iter().enumerate() {
        let scale = &mut scales[place(i)];
        *scale = scale.max(value.abs() / 448.0);
    }
    if plain {
        scales.fill(1.0);
    }
    let kind = stored.kind();
    let bits: Vec<u8> = (values.iter().enumerate())
        .map(|(i, value)| nearest(kind, value / scales[place(i)]))
        .collect();
    let numbers: Vec<f32> = (bits.iter().enumerate())
        .map(|(i, bits)| kind.value(*bits) * scales[place(i)])
        .collect();
    let dtype = match (stored, kind) {
        (Stored::ComfyMetadata, _) => Dtype::U8,
        (_, Float8::E4m3) => Dtype::F8_E4M3,
        (_, Float8::E5m2) => Dtype::F8_E5M2,
    };
    file.insert(name.to_string(), raw(dtype, &shape, bits));
    let layer = name.strip_suffix("weight").unwrap_or_default();
    let one = floats(&[0.5], &[]);
    let mut beside = |end: &str, raw: Raw| file.insert(format!("{layer}{end}"), raw);
    match stored {
        Stored::Plain(_) => {}
        Stored::ComfyOld => {
            beside("scale_weight", floats(&scales, &[1]));
            beside("scale_input", one);
            let mark = raw(Dtype::F8_E4M3, &[0], Vec::new());
            file.insert("scaled_fp8".to_string(), mark);
        }
        Stored::ComfyNew => {
            beside("weight_scale", floats(&scales, &[]));
            beside("input_scale", one);
            let settings = br#"{"format": "float8_e4m3fn"}"#.to_vec();
            beside("comfy_quant", raw(Dtype::U8, &[settings.len()], settings));
        }
        Stored::ComfyMetadata => {
            beside("weight_scale", floats(&scales, &[]));
        }
        Stored::Rows => {
            beside("weight_scale", floats(&scales, &[rows, 1]));
        }
        Stored::Areas(_) => {
            beside("weight_scale_inv", floats(&scales, &[down, across]));
        }
        Stored::Mxfp8 | Stored::Nvfp4 => unreachable!("scales of groups"),
    }
    Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap()
}

/// The numbers that four bits stand for, but for the sign.
const LEVELS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Scales of `rows` by `columns` groups as tensor cores read them: in tiles of 128 by 4, of which each fourth of the rows
/// lies beside the first.
fn tiled(scales: &[u8], rows: usize, columns: usize) -> Raw {
    let (down, across) = (rows.div_ceil(128), columns.div_ceil(4));
    let mut bytes = Vec::new();
    for tile in 0..down * across {
        for lane in 0..32 {
            for part in 0..4 {
                for column in 0..4 {
                    let row = tile / across * 128 + part * 32 + lane;
                    let column = tile % across * 4 + column;
                    let inside = row < rows && column < columns;
                    bytes.push(if inside {
                        scales[row * columns + column]
                    } else {
                        0
                    });
                }
            }
        }
    }
    raw(Dtype::F8_E4M3, &[down * 128, across * 4], bytes)
}

/// Puts a matrix into a file in one of ComfyUI's formats with scales for groups; gives its numbers.
fn store_groups(
    file: &mut File,
    name: &str,
    values: &[f32],
    [rows, columns]: [usize; 2],
    stored: Stored,
) -> Vec<f32> {
    let layer = name.strip_suffix("weight").unwrap();
    let mut beside = |end: &str, raw: Raw| file.insert(format!("{layer}{end}"), raw);
    let largest = |values: &[f32]| {
        values
            .iter()
            .fold(0f32, |most, value| most.max(value.abs()))
    };
    let mut scales = Vec::new();
    let mut numbers = Vec::new();
    let mut bits = Vec::new();
    let format = if stored == Stored::Mxfp8 {
        for group in values.chunks(32) {
            let exponent = (largest(group) / 448.0).log2().ceil();
            scales.push((exponent + 127.0) as u8);
            let scale = exponent.exp2();
            for value in group {
                bits.push(nearest(Float8::E4m3, value / scale));
                numbers.push(Float8::E4m3.value(*bits.last().unwrap()) * scale);
            }
        }
        let mut scales = tiled(&scales, rows, columns / 32);
        scales.dtype = Dtype::F8_E8M0;
        beside("weight_scale", scales);
        beside("weight", raw(Dtype::F8_E4M3, &[rows, columns], bits));
        "mxfp8"
    } else {
        let factor = largest(values) / (448.0 * 6.0);
        for group in values.chunks(16) {
            scales.push(nearest(Float8::E4m3, largest(group) / 6.0 / factor));
            let scale = Float8::E4m3.value(*scales.last().unwrap());
            for value in group {
                let off = |level: f32| (value.abs() / (scale * factor) - level).abs();
                let best = (0..8).min_by(|a, b| off(LEVELS[*a]).total_cmp(&off(LEVELS[*b])));
                let sign = f32::from(*value < 0.0);
                bits.push(best.unwrap() as u8 | (sign as u8) << 3);
                numbers.push(LEVELS[best.unwrap()] * (1.0 - 2.0 * sign) * scale * factor);
            }
        }
        beside("weight_scale", tiled(&scales, rows, columns / 16));
        beside("weight_scale_2", floats(&[factor], &[]));
        let pairs = bits.chunks(2).map(|pair| pair[0] << 4 | pair[1]);
        beside(
            "weight",
            raw(Dtype::U8, &[rows, columns / 2], pairs.collect()),
        );
        "nvfp4"
    };
    let settings = json!({ "format": format }).to_string().into_bytes();
    beside("comfy_quant", raw(Dtype::U8, &[settings.len()], settings));
    numbers
}

/// A file of these tensors, its metadata, and the numbers that its tensors stand for.
pub fn stored(tensors: &Tensors, stored: Stored) -> (File, Vec<(&'static str, String)>, Tensors) {
    let mut file = File::new();
    let numbers = tensors.iter().map(|(name, tensor)| {
        let numbers = store(&mut file, name, tensor, stored);
        (name.clone(), numbers)
    });
    let numbers = numbers.collect();
    let metadata = match stored {
        Stored::ComfyMetadata => {
            let layers = file.iter().filter(|(_, raw)| raw.dtype == Dtype::U8);
            let layers: serde_json::Map<String, Value> = layers
                .filter_map(|(name, _)| Some(name.strip_suffix(".weight")?.to_string()))
                .map(|layer| (layer, json!({"format": "float8_e4m3fn"})))
                .collect();
            let about = json!({"format_version": "1.0", "layers": layers});
            vec![("_quantization_metadata", about.to_string())]
        }
        _ => Vec::new(),
    };
    (file, metadata, numbers)
}
