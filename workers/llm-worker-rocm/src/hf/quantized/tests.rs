//! Layouts of a module's tensors, and what configurations say of them.

use super::build::Known;
use super::parts::{Module, Parts};
use super::scheme::Quantization;
use super::Matrix;
use crate::architectures::ExpertFiles;
use crate::hf::files::{Files, Source, Stored};
use memmap2::MmapMut;
use safetensors::Dtype;
use serde_json::{json, Value as Json};
use std::sync::Arc;
use worker::gguf::Format;

/// Tensors in memory where files would be.
#[derive(Default)]
struct Memory {
    data: Vec<u8>,
    parts: Parts,
}

impl Memory {
    fn with(mut self, name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> Self {
        let source = Source {
            shard: 0,
            start: self.data.len(),
            bytes: data.len(),
        };
        self.data.extend_from_slice(data);
        let stored = Stored {
            source,
            dtype,
            shape: shape.to_vec(),
        };
        assert!(self.parts.take(name, stored).unwrap(), "{name}");
        self
    }

    fn floats(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.with(name, Dtype::F32, shape, &data)
    }

    /// The only module's matrix.
    fn matrix(self, quantization: &Json) -> Result<(Matrix, Files), String> {
        let config = json!({ "quantization_config": quantization });
        let quantization = Quantization::read(&config, ExpertFiles::Apart)?.unwrap();
        let mut map = MmapMut::map_anon(self.data.len().max(1)).unwrap();
        map[..self.data.len()].copy_from_slice(&self.data);
        let files = Files {
            maps: vec![Arc::new(map.make_read_only().unwrap())],
        };
        let (name, module): (String, Module) = self.parts.modules.into_iter().next().unwrap();
        let known = Known {
            fused: &|count, outputs| (count == 2).then(|| vec![outputs / 2; 2]),
            turned: &|shape| name.ends_with("experts.down_proj") && shape.len() == 3,
        };
        let matrix = quantization.matrix(&name, module, &files, &known)?;
        Ok((matrix, files))
    }
}

/// Rows of all matrices of a stack.
fn rows(matrix: &Matrix) -> usize {
    matrix.shape.iter().rev().skip(1).product()
}

fn elements((matrix, files): &(Matrix, Files)) -> Vec<f32> {
    let rows = rows(matrix);
    let mut out = vec![0; rows * matrix.row_bytes(Format::F32)];
    matrix.make(files, Format::F32, 0..rows, &mut out).unwrap();
    let numbers = out.chunks_exact(4);
    numbers
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

fn blocks((matrix, files): &(Matrix, Files)) -> Result<Vec<u8>, String> {
    let (rows, format) = (rows(matrix), matrix.layout.format());
    let mut out = vec![0; rows * matrix.row_bytes(format)];
    matrix.make(files, format, 0..rows, &mut out)?;
    Ok(out)
}

/// 1.5 and -2 and so on, as e4m3.
const ONE_AND_A_HALF: u8 = 0x3c;
const MINUS_TWO: u8 = 0xc0;

fn block_wise(rows: usize, columns: usize) -> Json {
    json!({"quant_method": "fp8", "weight_block_size": [rows, columns]})
}

#[test]
fn blocks_of_floats_keep_bytes_and_get_scales() {
    // Three rows of 128 in blocks of 2 by 64: the last has one row.
    let mut weight = vec![ONE_AND_A_HALF; 3 * 128];
    weight[1] = 0x80;
    weight[2 * 128 + 64] = MINUS_TWO;
    let scales = [1.0, 2.0, 3.0, 4.0];
    let made = Memory::default()
        .with("a.weight", Dtype::F8_E4M3, &[3, 128], &weight)
        .floats("a.weight_scale_inv", &[2, 2], &scales)
        .matrix(&block_wise(2, 64))
        .unwrap();
    assert_eq!(made.0.layout.format(), Format::F8E4M3);
    let found = blocks(&made).unwrap();
    assert_eq!(found.len(), 3 * 2 * 68);
    let block = |row: usize, column: usize| &found[(row * 2 + column) * 68..][..68];
    for (row, column, scale) in [
        (0, 0, 1f32),
        (1, 0, 1.0),
        (1, 1, 2.0),
        (2, 0, 3.0),
        (2, 1, 4.0),
    ] {
        assert_eq!(
            block(row, column)[..4],
            scale.to_le_bytes(),
            "{row} {column}"
        );
    }
    assert_eq!(block(0, 0)[4..7], [ONE_AND_A_HALF, 0, ONE_AND_A_HALF]);
    let numbers = elements(&made);
    assert_eq!(numbers[..3], [1.5, 0.0, 1.5]);
    assert_eq!(numbers[64..66], [3.0, 3.0]);
    assert_eq!(numbers[2 * 128 + 64..][..2], [-8.0, 6.0]);
}

#[test]
fn odd_sizes_become_plain_numbers() {
    for (columns, width) in [(96, 32), (128, 32), (96, 96)] {
        let weight = vec![ONE_AND_A_HALF; columns];
        let scales: Vec<f32> = (0..columns / width).map(|i| 1.0 + i as f32).collect();
        let made = Memory::default()
            .with("a.weight", Dtype::F8_E4M3, &[1, columns], &weight)
            .floats("a.weight_scale_inv", &[1, columns / width], &scales)
            .matrix(&block_wise(1, width))
            .unwrap();
        assert_eq!(made.0.layout.format(), Format::BF16);
        let expected = (0..columns).map(|i| 1.5 * scales[i / width]);
        assert_eq!(elements(&made), expected.collect::<Vec<_>>());
    }
}

#[test]
fn one_scale_is_of_a_tensor_an_output_or_a_fused_matrix() {
    let per_tensor = json!({"quant_method": "fp8", "activation_scheme": "static"});
    for (shape, scales, expected) in [
        (&[][..], vec![2.0], [2.0; 4]),
        (&[1, 1], vec![2.0], [2.0; 4]),
        (&[2], vec![2.0, 3.0], [2.0, 2.0, 3.0, 3.0]),
        (&[4, 1], vec![1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]),
    ] {
        let made = Memory::default()
            .with("a.weight", Dtype::F8_E4M3, &[4, 64], &[0x38; 256])
            .floats("a.weight_scale", shape, &scales)
            .floats("a.input_scale", &[], &[0.5])
            .matrix(&per_tensor)
            .unwrap();
        let numbers = elements(&made);
        let of_rows: Vec<f32> = numbers.iter().copied().step_by(64).collect();
        assert_eq!(of_rows, expected, "{shape:?}");
    }
}

#[test]
fn stacked_experts_may_have_rows_of_outputs() {
    // Two experts of 64 inputs and 2 outputs.
    let weight: Vec<u8> = (0..2 * 64)
        .flat_map(|_| [ONE_AND_A_HALF, MINUS_TWO])
        .collect();
    let made = Memory::default()
        .with("a.experts.down_proj", Dtype::F8_E4M3, &[2, 64, 2], &weight)
        .floats(
            "a.experts.down_proj_scale",
            &[2, 1, 2],
            &[1.0, 2.0, 3.0, 4.0],
        )
        .matrix(&json!({"quant_method": "fbgemm_fp8"}))
        .unwrap();
    assert_eq!(made.0.shape, [2, 2, 64]);
    let numbers = elements(&made);
    let of_rows: Vec<f32> = numbers.iter().copied().step_by(64).collect();
    assert_eq!(of_rows, [1.5, -4.0, 4.5, -8.0]);
    assert_eq!(numbers[..64], [1.5; 64]);
}

/// A row of 64 of four bits: number `i` is `i % 16`.
fn nibbles() -> Vec<u8> {
    (0..32)
        .map(|i| (2 * i % 16) | ((2 * i + 1) % 16) << 4)
        .collect()
}

const LEVELS: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

#[test]
fn four_bits_with_powers_of_two() {
    let group = json!({"targets": ["Linear"], "weights":
        {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group"}});
    let config = json!({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": group}});
    let made = Memory::default()
        .with("a.weight_packed", Dtype::U8, &[1, 32], &nibbles())
        .with("a.weight_scale", Dtype::U8, &[1, 2], &[127, 130])
        .matrix(&config)
        .unwrap();
    assert_eq!(made.0.layout.format(), Format::MXFP4);
    let expected = (0..64).map(|i| LEVELS[i % 16] * if i < 32 { 1.0 } else { 8.0 });
    assert_eq!(elements(&made), expected.collect::<Vec<_>>());
    let found = blocks(&made).unwrap();
    assert_eq!((found[0], found[17]), (127, 130));
    // The first and the seventeenth number of a block are equal here.
    let halves: Vec<u8> = (0..16).map(|i| i | i << 4).collect();
    assert_eq!((&found[1..17], &found[18..]), (&halves[..], &halves[..]));
}

#[test]
fn four_bits_with_floats_have_a_scale_of_all() {
    let compressed = json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights":
            {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}}}});
    let modelopt =
        json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]});
    for (config, weight, global, value) in [
        (&compressed, "a.weight_packed", "a.weight_global_scale", 4.0),
        (&modelopt, "a.weight", "a.weight_scale_2", 0.25),
    ] {
        let made = Memory::default()
            .with(weight, Dtype::U8, &[1, 32], &nibbles())
            .with(
                "a.weight_scale",
                Dtype::F8_E4M3,
                &[1, 4],
                &[0x38, 0x40, 0x00, 0x38],
            )
            .floats(global, &[1], &[value])
            .matrix(config)
            .unwrap();
        assert_eq!(made.0.layout.format(), Format::NVFP4);
        assert_eq!(made.0.scales, Some(vec![0.25]));
        let scales = [1.0, 2.0, 0.0, 1.0];
        let expected = (0..64).map(|i| LEVELS[i % 16] * scales[i / 16] * 0.25);
        assert_eq!(elements(&made), expected.collect::<Vec<_>>());
        let found = blocks(&made).unwrap();
        assert_eq!(found[..4], [0x38, 0x40, 0x00, 0x38]);
        assert_eq!(
            found[4..12],
            [0x80, 0x91, 0xa2, 0xb3, 0xc4, 0xd5, 0xe6, 0xf7]
        );
    }
}

#[test]
fn what_is_wrong_is_named() {
    let config = block_wise(64, 64);
    let weight = |memory: Memory| memory.with("a.weight", Dtype::F8_E4M3, &[1, 64], &[0x38; 64]);
    let refused = |memory: Memory, expected: &str| {
        let error = memory.matrix(&config).and_then(|made| blocks(&made));
        let error = error.unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    refused(weight(Memory::default()), "weight_scale");
    for scale in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        let scaled = weight(Memory::default()).floats("a.weight_scale_inv", &[1, 1], &[scale]);
        refused(scaled, "a scale is");
    }
    let scaled = |memory: Memory| memory.floats("a.weight_scale_inv", &[1, 1], &[1.0]);
    let nan = Memory::default().with("a.weight", Dtype::F8_E4M3, &[1, 64], &[0xff; 64]);
    refused(scaled(nan), "a weight is NaN");
    let other = Memory::default().with("a.weight", Dtype::F8_E5M2, &[1, 64], &[0; 64]);
    refused(scaled(other), "F8_E5M2");
    let flat = Memory::default().with("a.weight", Dtype::F8_E4M3, &[64], &[0; 64]);
    refused(scaled(flat), "[64]");
    let two = weight(Memory::default()).floats("a.weight_scale_inv", &[2, 1], &[1.0; 2]);
    refused(two, "[2, 1]");
    let whole = weight(Memory::default()).with("a.weight_scale_inv", Dtype::I32, &[1], &[0; 4]);
    refused(whole, "I32");
    let point =
        scaled(weight(Memory::default())).with("a.weight_zero_point", Dtype::U8, &[1], &[0]);
    refused(point, "weight_zero_point");
    let left = json!({"quant_method": "fp8", "modules_to_not_convert": ["a"]});
    let left = weight(Memory::default()).matrix(&left);
    assert!(left.err().unwrap().contains("leaves it as it is"));
}

#[test]
fn what_is_not_implemented_is_named() {
    let group = |weights: Json| {
        json!({"quant_method": "compressed-tensors", "format": "float-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}})
    };
    let eight = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
    let with = |key: &str, value: Json| {
        let mut config = group(eight.clone());
        config[key] = value;
        config
    };
    for (config, expected) in [
        (json!({"quant_method": "aqlm"}), "aqlm"),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), "e5m2"),
        (
            json!({"quant_method": "fp8", "weight_block_size": [0, 1]}),
            "[0,1]",
        ),
        (
            json!({"quant_method": "fp8", "weight_block_size": 128}),
            "128",
        ),
        (json!({"quant_method": "fp8", "expert_dtype": "fp4"}), "fp4"),
        (json!({"quant_method": "mxfp4"}), "mxfp4"),
        (
            json!({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}),
            "W4A8_AWQ",
        ),
        (
            json!({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}),
            "lm_head",
        ),
        (with("format", json!("marlin-24")), "marlin-24"),
        (
            with("sparsity_config", json!({"format": "sparse-24-bitmask"})),
            "sparse-24-bitmask",
        ),
        (
            with("transform_config", json!({"config_groups": {"u": {}}})),
            "transform_config",
        ),
        (with("config_groups", json!([])), "config_groups"),
        (
            with("config_groups", json!({"FP8": ["Linear"]})),
            "config_groups",
        ),
        (group(json!({"num_bits": 6, "type": "float"})), "num_bits"),
        (
            group(json!({"num_bits": 8, "type": "float", "strategy": "odd"})),
            "odd",
        ),
        (
            group(json!({"num_bits": 8, "type": "float", "symmetric": false})),
            "symmetric",
        ),
        (
            json!({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int3"}}}),
            "int3",
        ),
        (
            json!({"quant_method": "quark", "algo_config": [{"name": "rotation"}]}),
            "rotation",
        ),
    ] {
        let config = json!({ "quantization_config": config });
        let error = Quantization::read(&config, ExpertFiles::Apart).unwrap_err();
        assert!(
            error.contains(expected) && error.contains("quantization_config"),
            "{error}"
        );
    }
}

#[test]
fn groups_choose_their_modules() {
    let weights = |strategy: &str| json!({"num_bits": 8, "type": "float", "strategy": strategy});
    let config = json!({"quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "kv_cache_scheme": {"num_bits": 8},
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights("tensor")},
            "group_1": {"targets": ["re:.*mlp.*"], "weights": weights("channel")},
            "group_2": {"targets": ["model.layers.0.mlp.up_proj"], "weights": null},
        },
    }});
    let read = Quantization::read(&config, ExpertFiles::Apart)
        .unwrap()
        .unwrap();
    let of = |module: &str| format!("{:?}", read.of_module(module));
    assert!(of("model.layers.0.self_attn.q_proj").contains("Tensor"));
    assert!(of("model.layers.1.mlp.up_proj").contains("Channel"));
    assert_eq!(of("model.layers.0.mlp.up_proj"), "None");
    assert_eq!(of("lm_head"), "None");
}
