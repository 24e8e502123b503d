//! Safetensors as the image worker reads them: a part of a model, a LoRA, a learnt word.

use crate::target::{Target, Verdict};
use crate::{corpus, mutate, Random};
use candle_core::{DType, Device};
use sd_worker_rocm::lora::{Lora, LoraFile};
use sd_worker_rocm::textual_inversion::Concept;
use sd_worker_rocm::weights::Weights;

struct Safetensors {
    corpus: Vec<Vec<u8>>,
    folder: tempfile::TempDir,
}

pub(crate) fn target() -> Box<dyn Target> {
    let files = corpus::files("safetensors").into_iter();
    let files = files.map(|(_, bytes)| bytes);
    Box::new(Safetensors {
        corpus: files.chain([small_floats()]).collect(),
        folder: tempfile::tempdir().expect("a folder for files can be made"),
    })
}

/// Matrices in 8-bit and 4-bit floats with their scales, as ComfyUI writes them.
fn small_floats() -> Vec<u8> {
    let tensors: [(&str, &str, &[usize], &[u8]); 9] = [
        ("a.weight", "F8_E4M3", &[2, 64], &[0x3a; 128]),
        (
            "a.weight_scale",
            "F32",
            &[2, 1],
            &[0, 0, 128, 63, 0, 0, 0, 63],
        ),
        ("a.input_scale", "F32", &[], &[0, 0, 128, 63]),
        ("b.weight", "U8", &[1, 32], &[0x5a; 32]),
        ("b.weight_scale", "F8_E4M3", &[128, 4], &[0x38; 512]),
        ("b.weight_scale_2", "F32", &[], &[0, 0, 128, 63]),
        ("b.comfy_quant", "U8", &[19], br#"{"format": "nvfp4"}"#),
        ("c.bias", "F8_E5M2", &[3], &[0x3c, 0xbc, 0]),
        ("scaled_fp8", "F8_E4M3", &[0], &[]),
    ];
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        data.extend(bytes);
        let about = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.to_string(), about);
    }
    let header = serde_json::Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &data].concat()
}

/// Damages a file: the tree of its header mostly, with a length that fits, else its bytes.
pub(super) fn damaged(valid: &[u8], random: &mut Random) -> Vec<u8> {
    let mut input = valid.to_vec();
    let header = valid
        .split_first_chunk()
        .and_then(|(length, rest)| rest.get(..u64::from_le_bytes(*length) as usize));
    let tree = header.and_then(|header| serde_json::from_slice::<serde_json::Value>(header).ok());
    let (Some(header), Some(mut tree)) = (header, tree) else {
        mutate::bytes(&mut input, usize::MAX, random);
        return input;
    };
    if random.one_in(4) {
        mutate::bytes(&mut input, 8 + header.len(), random);
        return input;
    }
    mutate::json(&mut tree, random);
    let text = tree.to_string();
    let length = (text.len() as u64).to_le_bytes();
    [&length[..], text.as_bytes(), &valid[8 + header.len()..]].concat()
}

impl Target for Safetensors {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        damaged(random.pick::<Vec<u8>>(&self.corpus), random)
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        let path = self.folder.path().join("word.safetensors");
        if let Err(error) = std::fs::write(&path, input) {
            return Verdict::Fault(error.to_string());
        }
        // Each looks at other things; what one refuses another may take.
        let taken = [
            Weights::open(&path)
                .and_then(|weights| {
                    for name in weights.quantized() {
                        weights.load_quantized(name, &Device::Cpu)?;
                    }
                    weights.load_all(DType::F32, &Device::Cpu)
                })
                .is_ok(),
            LoraFile::open(&path)
                .and_then(|lora| {
                    lora.deltas(&Lora::new("of a file", 1.0), &[], |_| true, &Device::Cpu)
                })
                .is_ok(),
            Concept::open(&path).is_ok(),
        ];
        match taken.contains(&true) {
            true => Verdict::Accepted,
            false => Verdict::Refused,
        }
    }

    fn memory(&self, bytes: usize) -> usize {
        256 * bytes + (16 << 20)
    }
}
