//! Adaptations of every kind on single layers, against LyCORIS' and PEFT's numbers: `tests/reference/make_lora_kinds.py` has
//! made them.

use super::common::{difference, file, go_on, tensors, Draw};
use super::hashed::weight;
use super::pipelines::{originals, with_transformer, write_gguf, Tensors};
use super::small::{apart, Pipelines};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use sd_worker_rocm::lora::{Lora, LoraFile, Network};
use sd_worker_rocm::pipeline::{Pipeline, PipelineOptions};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

fn shape(value: &Value) -> Vec<usize> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The file of a case, as LyCORIS or as PEFT writes it.
fn write(place: &Path, case: &str, about: &Value) -> LoraFile {
    let of = |(name, value): (&String, &Value)| {
        let tensor = match value.as_f64() {
            Some(number) => Tensor::new(number as f32, &Device::Cpu).unwrap(),
            None => weight(case, name, &shape(value)),
        };
        (name.clone(), tensor)
    };
    let all: HashMap<String, Tensor> = about["tensors"]
        .as_object()
        .unwrap()
        .iter()
        .map(of)
        .collect();
    let folder = place.join(case);
    std::fs::create_dir_all(&folder).unwrap();
    candle_core::safetensors::save(&all, folder.join("adapter_model.safetensors")).unwrap();
    if !about["config"].is_null() {
        std::fs::write(
            folder.join("adapter_config.json"),
            about["config"].to_string(),
        )
        .unwrap();
    }
    LoraFile::open(&folder).unwrap()
}

#[test]
fn every_kind_as_lycoris_and_peft_have_it() {
    all_are_the_same("lora_kinds", 30);
}

/// `tests/reference/make_lora_rotations.py` has made them.
#[test]
fn rotations_of_inputs_as_peft_has_them() {
    all_are_the_same("lora_rotations", 8);
}

fn all_are_the_same(group: &str, least: usize) {
    let path = |ending| format!("tests/fixtures/networks/{group}.{ending}");
    let json = std::fs::read(file(&path("json"))).unwrap();
    let about: Value = serde_json::from_slice(&json).unwrap();
    let merged = tensors(&path("safetensors"));
    let base: HashMap<&String, Tensor> = about["base"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| (name, weight("base", name, &shape(value))))
        .collect();
    let names = base.keys().map(ToString::to_string).collect();
    let networks = [(Network::Denoiser, names)];
    let place = tempfile::tempdir().unwrap();
    let cases = about["cases"].as_object().unwrap();
    assert!(cases.len() > least);
    for (case, about) in cases {
        let lora = Lora::new(case, about["strength"].as_f64().unwrap());
        let file = write(place.path(), case, about);
        let deltas = file
            .deltas(&lora, &networks, |_| true, &Device::Cpu)
            .unwrap();
        let mut sums: HashMap<String, Tensor> = HashMap::new();
        for delta in deltas {
            let own = &base[&delta.tensor];
            let sum = (own + delta.change.delta(own).unwrap()).unwrap();
            sums.insert(delta.tensor, sum);
        }
        let layer = about["layer"].as_str().unwrap();
        for part in ["weight", "bias"] {
            let expected = merged.get(&format!("{case}.{part}"));
            let ours = sums.remove(&format!("{layer}.{part}"));
            assert_eq!(ours.is_some(), expected.is_some(), "{case}.{part}");
            if let (Some(ours), Some(expected)) = (ours, expected) {
                let off = difference(&ours, expected);
                assert!(off < 3e-5, "{case}.{part}: {off}");
            }
        }
        assert!(sums.is_empty(), "{case}");
    }
}

/// Numbers of a tensor's name.
fn named(name: &str, shape: &[usize], scale: f64) -> Tensor {
    (weight("kinds", name, shape) * scale).unwrap()
}

/// Saves a file and asks for it.
fn lora(p: &Pipelines, name: &str, tensors: &Tensors) -> Vec<Lora> {
    let path = p.place().join(format!("{name}.safetensors"));
    candle_core::safetensors::save(tensors, &path).unwrap();
    vec![Lora::new(path.to_str().unwrap(), 1.0)]
}

/// A LoRA and changes of other kinds on one matrix and on others, all within one file or several.
#[test]
fn other_kinds_widen_quantized_matrices() {
    let p = Pipelines::open();
    let folder = p.folder("flux");
    let (quantized, plain) = (p.place().join("q.gguf"), p.place().join("f.safetensors"));
    let tensors = originals(&p, "flux");
    write_gguf(&quantized, &tensors, GgmlDType::Q8_0, "Q8_0");
    let rounded: Tensors = tensors
        .into_iter()
        .map(|(name, tensor)| match tensor.dims() {
            [_, columns] if columns.is_multiple_of(32) => {
                let rounded = QTensor::quantize(&tensor, GgmlDType::Q8_0).unwrap();
                (name, rounded.dequantize(&Device::Cpu).unwrap())
            }
            _ => (name, tensor),
        })
        .collect();
    candle_core::safetensors::save(&rounded, &plain).unwrap();
    let place = "transformer.transformer_blocks.0.attn";
    let mut low = Tensors::new();
    let mut others = Tensors::new();
    for (name, shape) in [
        ("to_q.lora_A.weight", [2, 32]),
        ("to_q.lora_B.weight", [32, 2]),
    ] {
        low.insert(format!("{place}.{name}"), named(name, &shape, 1.0));
    }
    for (name, shape) in [
        ("to_q.diff", vec![32, 32]),
        ("to_k.oft_blocks", vec![4, 8, 8]),
        ("to_v.hada_w1_a", vec![32, 4]),
        ("to_v.hada_w1_b", vec![4, 32]),
        ("to_v.hada_w2_a", vec![32, 4]),
        ("to_v.hada_w2_b", vec![4, 32]),
        ("to_out.0.diff_b", vec![32]),
    ] {
        others.insert(format!("{place}.{name}"), named(name, &shape, 2.0));
    }
    let mut loras = lora(&p, "low", &low);
    loras.extend(lora(&p, "others", &others));
    let mut request = p.request("flux");
    request.steps = 2;
    let mut draw = |pipeline: &mut Pipeline, loras: &[Lora]| {
        request.loras = loras.to_vec();
        pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0)
    };
    let mut pipeline = p.load(&folder, with_transformer(&plain));
    let merged = draw(&mut pipeline, &loras);
    for offload in [false, true] {
        let options = PipelineOptions {
            offload,
            ..with_transformer(&quantized)
        };
        let mut pipeline = p.load(&folder, options);
        let before = draw(&mut pipeline, &[]);
        for order in [[0, 1], [1, 0]] {
            let both = order.map(|at| loras[at].clone());
            let with = draw(&mut pipeline, &both);
            // Activations are rounded to 8 bits beside matrices that stay quantized.
            let (off, far) = (apart(&with, &merged), apart(&before, &merged));
            assert!(off <= 24 && far > 3 * off, "{off} with them, {far} without");
        }
        assert_eq!(draw(&mut pipeline, &[]), before);
    }
}

/// Kinds on layers that the original has stacked, and on the parts.
#[test]
fn stacked_layers_are_taken_apart_in_every_kind() {
    let p = Pipelines::open();
    let names = ["q", "k", "v"].map(|part| format!("transformer_blocks.0.attn.to_{part}"));
    let tensors = p.weights("flux", "transformer/diffusion_pytorch_model.safetensors");
    let networks = [(Network::Denoiser, tensors.keys().cloned().collect())];
    let base: Vec<&Tensor> = names
        .iter()
        .map(|n| &tensors[&format!("{n}.weight")])
        .collect();
    let whole = Tensor::cat(&base, 0).unwrap();
    let own = [(Network::Denoiser, vec!["whole.weight".to_string()])];
    let (rows, columns) = whole.dims2().unwrap();
    let pair = |a: &str, b: &str| {
        [
            (a.to_string(), vec![rows, 4]),
            (b.to_string(), vec![4, columns]),
        ]
    };
    let cases: Vec<Vec<(String, Vec<usize>)>> = vec![
        [
            pair("hada_w1_a", "hada_w1_b"),
            pair("hada_w2_a", "hada_w2_b"),
        ]
        .concat(),
        vec![
            ("lokr_w1".to_string(), vec![4, 4]),
            ("lokr_w2".to_string(), vec![rows / 4, columns / 4]),
        ],
        vec![("diff".to_string(), vec![rows, columns])],
        vec![("set_weight".to_string(), vec![rows, columns])],
        vec![
            ("oft_blocks".to_string(), vec![rows / 8, 8, 8]),
            ("rescale".to_string(), vec![rows, 1]),
        ],
        vec![("ia3_l".to_string(), vec![rows, 1])],
        [
            pair("lora_up.weight", "lora_down.weight").to_vec(),
            vec![("dora_scale".to_string(), vec![rows, 1])],
        ]
        .concat(),
        [
            vec![
                ("a1.weight".to_string(), vec![columns, 4]),
                ("a2.weight".to_string(), vec![4, columns]),
            ],
            pair("b1.weight", "b2.weight").to_vec(),
        ]
        .concat(),
    ];
    for (number, case) in cases.iter().enumerate() {
        let file = |layer: &str| {
            let all: Tensors = case
                .iter()
                .map(|(end, shape)| (format!("lora_unet_{layer}.{end}"), named(end, shape, 1.0)))
                .collect();
            let path = p.place().join(format!("{layer}{number}.safetensors"));
            candle_core::safetensors::save(&all, &path).unwrap();
            LoraFile::open(&path).unwrap()
        };
        let asked = Lora::new("x", 0.7);
        let all = |_: Network| true;
        let together = file("whole")
            .deltas(&asked, &own, all, &Device::Cpu)
            .unwrap();
        let together = together[0].change.delta(&whole).unwrap();
        let apart = file("double_blocks_0_img_attn_qkv");
        let apart = apart.deltas(&asked, &networks, all, &Device::Cpu).unwrap();
        assert_eq!(apart.len(), 3, "{case:?}");
        for (i, delta) in apart.iter().enumerate() {
            assert_eq!(delta.tensor, format!("{}.weight", names[i]));
            let part = delta.change.delta(base[i]).unwrap();
            let expected = together.narrow(0, i * rows / 3, rows / 3).unwrap();
            let off = difference(&part, &expected);
            assert!(off < 1e-5, "{case:?}: {off}");
        }
    }
    // What goes across the parts is refused by name.
    for (end, shape, kind) in [
        ("dora_scale", vec![1, columns], "DoRA by inputs"),
        ("oft_blocks", vec![2, rows / 8, 8, 8], "BOFT"),
    ] {
        let mut all = Tensors::new();
        let key = |end: &str| format!("lora_unet_double_blocks_0_img_attn_qkv.{end}");
        all.insert(key(end), named(end, &shape, 1.0));
        if end == "dora_scale" {
            for (end, shape) in pair("lora_up.weight", "lora_down.weight") {
                all.insert(key(&end), named(&end, &shape, 1.0));
            }
        }
        let path = p.place().join("across.safetensors");
        candle_core::safetensors::save(&all, &path).unwrap();
        let deltas = LoraFile::open(&path).unwrap().deltas(
            &Lora::new("x", 1.0),
            &networks,
            |_| true,
            &Device::Cpu,
        );
        let error = deltas.err().unwrap().to_string();
        assert!(error.contains(kind), "{error}");
    }
}

/// FLUX.1's second text encoder is T5, by whatever name; its LoRA comes and goes.
#[test]
fn a_lora_of_a_language_model() {
    let p = Pipelines::open();
    let mut pipeline = p.load(&p.folder("flux"), PipelineOptions::default());
    let layer = "encoder.block.0.layer.0.SelfAttention.q";
    let of = |layer: String, down: &str, up: &str| {
        Tensors::from([
            (
                format!("{layer}.{down}.weight"),
                named("down", &[4, 24], 3.0),
            ),
            (format!("{layer}.{up}.weight"), named("up", &[16, 4], 3.0)),
        ])
    };
    let kohya = format!("lora_te3_{}", layer.replace('.', "_"));
    let files = [
        lora(&p, "kohya", &of(kohya, "lora_down", "lora_up")),
        lora(
            &p,
            "peft",
            &of(format!("text_encoder_2.{layer}"), "lora_A", "lora_B"),
        ),
    ];
    let mut request = p.request("flux");
    request.steps = 2;
    let mut draw = |loras: &[Lora]| {
        request.loras = loras.to_vec();
        pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0)
    };
    let before = draw(&[]);
    let with = draw(&files[0]);
    assert!(apart(&with, &before) > 1);
    assert_eq!(draw(&files[1]), with);
    let mut silent = files[0].clone();
    silent[0].text_strength = Some(0.0);
    assert_eq!(draw(&silent), before);
    assert_eq!(draw(&[]), before);
}
