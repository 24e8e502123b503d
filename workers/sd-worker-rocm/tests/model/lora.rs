//! LoRAs on quantized matrices: beside them, as if merged into what they stand for.

use super::common::{device, difference, go_on, Draw};
use super::pipelines::{originals, with_transformer, write_gguf, Tensors};
use super::small::{apart, Pipelines};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Module, Tensor};
use image::RgbImage;
use sd_worker_rocm::models::layers::linear;
use sd_worker_rocm::models::low_rank::{Adapter, LowRank};
use sd_worker_rocm::models::VarBuilder;
use sd_worker_rocm::pipeline::{Lora, Pipeline, PipelineOptions};
use std::collections::HashMap;
use std::sync::Arc;

/// Whole numbers from -8 to 8.
pub fn whole(rows: usize, columns: usize, seed: usize) -> Tensor {
    let value = |i: usize| ((i * 37 + seed * 11 + i / 7) % 17) as f32 - 8.0;
    let all: Vec<f32> = (0..rows * columns).map(value).collect();
    Tensor::from_vec(all, (rows, columns), &Device::Cpu).unwrap()
}

#[test]
fn adapters_add_to_a_quantized_product() {
    let (device, cpu) = (device(), Device::Cpu);
    let (outputs, inputs) = (40, 64);
    let matrix = QTensor::quantize(&whole(outputs, inputs, 1), GgmlDType::Q8_0).unwrap();
    let plain = matrix.dequantize(&cpu).unwrap();
    let bytes = matrix.data().unwrap().into_owned();
    let storage =
        candle_core::quantized::QStorage::from_data(bytes.into(), &device, GgmlDType::Q8_0);
    let matrix = Arc::new(QTensor::new(storage.unwrap(), (outputs, inputs)).unwrap());
    let changes: Vec<LowRank> = [(4, 2), (1, 3)]
        .iter()
        .map(|(rank, seed)| LowRank {
            up: (whole(outputs, *rank, *seed) * 0.25).unwrap(),
            down: whole(*rank, inputs, seed + 5),
            core: None,
        })
        .collect();
    // 127 in every block of inputs, so that rounding them to 8 bits changes nothing.
    let mut x = whole(6, inputs, 9).to_vec2::<f32>().unwrap();
    for row in &mut x {
        (row[0], row[32]) = (127.0, -127.0);
    }
    let x = Tensor::new(x, &cpu).unwrap();
    let mut expected = plain;
    for change in &changes {
        expected = (expected + change.product().unwrap()).unwrap();
    }
    let expected = x.matmul(&expected.t().unwrap()).unwrap();
    let vb = |changes: &[LowRank]| {
        let adapters = match changes {
            [] => HashMap::new(),
            _ => HashMap::from([(
                "layer.weight".to_string(),
                Adapter::new(changes, DType::F32, &device).unwrap(),
            )]),
        };
        VarBuilder::from_tensors(HashMap::new(), DType::F32, &device)
            .with_quantized(HashMap::from([(
                "layer.weight".to_string(),
                matrix.clone(),
            )]))
            .with_adapters(adapters)
    };
    let product = |changes: &[LowRank]| {
        let layer = linear(vb(changes).pp("layer"), inputs, outputs).unwrap();
        layer.forward(&x.to_device(&device).unwrap()).unwrap()
    };
    let size = expected
        .abs()
        .unwrap()
        .max_all()
        .unwrap()
        .to_scalar::<f32>()
        .unwrap();
    assert!(difference(&product(&changes), &expected) < 1e-3 * size);
    assert!(difference(&product(&changes[..1]), &expected) > 1e-2 * size);
    assert!(difference(&product(&[]), &expected) > 1e-2 * size);
}

/// A LoRA on matrices of a transformer, quantized ones and others, several at once.
fn write_lora(p: &Pipelines) -> Lora {
    let mut tensors = Tensors::new();
    for (layer, outputs, inputs) in [
        ("transformer_blocks.0.attn.to_q", 32, 32),
        ("transformer_blocks.0.attn.add_v_proj", 32, 32),
        ("transformer_blocks.0.ff.net.0.proj", 128, 32),
        ("single_transformer_blocks.1.proj_out", 32, 160),
        ("x_embedder", 32, 16),
    ] {
        let factor = |rows, columns, seed| (whole(rows, columns, seed) * 0.02).unwrap();
        tensors.insert(
            format!("transformer.{layer}.lora_A.weight"),
            factor(3, inputs, 1),
        );
        tensors.insert(
            format!("transformer.{layer}.lora_B.weight"),
            factor(outputs, 3, 2),
        );
    }
    let path = p.place().join("lora.safetensors");
    candle_core::safetensors::save(&tensors, &path).unwrap();
    Lora::new(path.to_str().unwrap(), 2.0)
}

#[test]
fn loras_beside_quantized_matrices() {
    let p = Pipelines::open();
    let folder = p.folder("flux");
    let (quantized, plain) = (p.place().join("q.gguf"), p.place().join("f.safetensors"));
    let tensors = originals(&p, "flux");
    write_gguf(&quantized, &tensors, GgmlDType::Q8_0, "Q8_0");
    // What the quantized matrices stand for.
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
    let lora = write_lora(&p);
    let mut request = p.request("flux");
    request.steps = 2;
    let mut draw = |pipeline: &mut Pipeline, loras: &[Lora]| -> RgbImage {
        request.loras = loras.to_vec();
        pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0)
    };
    let mut pipeline = p.load(&folder, with_transformer(&plain));
    let merged = draw(&mut pipeline, std::slice::from_ref(&lora));
    for offload in [false, true] {
        let options = PipelineOptions {
            offload,
            ..with_transformer(&quantized)
        };
        let mut pipeline = p.load(&folder, options);
        let before = draw(&mut pipeline, &[]);
        let with = draw(&mut pipeline, std::slice::from_ref(&lora));
        // Activations are rounded to 8 bits beside quantized matrices, and only there.
        let (off, far) = (apart(&with, &merged), apart(&before, &merged));
        assert!(
            off <= 24 && far > 3 * off,
            "{off} with the LoRA, {far} without"
        );
        assert_eq!(draw(&mut pipeline, &[]), before);
    }
}

/// One LoRA under the original's names, whose layers are stacked, and under diffusers'.
#[test]
fn names_of_the_original() {
    let p = Pipelines::open();
    let (mut original, mut ours) = (Tensors::new(), Tensors::new());
    for (layer, parts) in [
        (
            "double_blocks_0_txt_attn_qkv",
            [
                ("transformer_blocks.0.attn.add_q_proj", 32),
                ("transformer_blocks.0.attn.add_k_proj", 32),
                ("transformer_blocks.0.attn.add_v_proj", 32),
            ]
            .as_slice(),
        ),
        (
            "single_blocks_1_linear1",
            &[
                ("single_transformer_blocks.1.attn.to_q", 32),
                ("single_transformer_blocks.1.attn.to_k", 32),
                ("single_transformer_blocks.1.attn.to_v", 32),
                ("single_transformer_blocks.1.proj_mlp", 128),
            ],
        ),
    ] {
        let outputs = parts.iter().map(|(_, rows)| rows).sum();
        let down = (whole(3, 32, 1) * 0.02).unwrap();
        let up = (whole(outputs, 3, 2) * 0.02).unwrap();
        let mut first = 0;
        for (name, rows) in parts {
            let share = up
                .narrow(0, first, *rows)
                .unwrap()
                .force_contiguous()
                .unwrap();
            ours.insert(format!("transformer.{name}.lora_B.weight"), share);
            ours.insert(format!("transformer.{name}.lora_A.weight"), down.clone());
            first += rows;
        }
        original.insert(format!("lora_unet_{layer}.lora_up.weight"), up);
        original.insert(format!("lora_unet_{layer}.lora_down.weight"), down);
    }
    let mut request = p.request("flux");
    request.steps = 1;
    let options = PipelineOptions::default();
    let mut pipeline =
        Pipeline::load(&p.folder("flux"), &Device::Cpu, options, &mut |_| {}).unwrap();
    let mut draw = |lora: Option<(&str, &Tensors)>| {
        request.loras = lora.map_or(Vec::new(), |(name, tensors)| {
            let path = p.place().join(format!("{name}.safetensors"));
            candle_core::safetensors::save(tensors, &path).unwrap();
            vec![Lora::new(path.to_str().unwrap(), 2.0)]
        });
        pipeline
            .draw(&request, &mut go_on)
            .unwrap()
            .images
            .remove(0)
    };
    let expected = draw(Some(("ours", &ours)));
    assert!(apart(&draw(None), &expected) > 3);
    assert_eq!(draw(Some(("original", &original))), expected);

    // The same at twice the alpha and half the strength, as diffusers writes it into the file and PEFT beside it.
    let folders = ["diffusers", "peft"].map(|name| p.place().join(name));
    folders
        .iter()
        .for_each(|folder| std::fs::create_dir_all(folder).unwrap());
    let metadata = r#"{"transformer.lora_alpha": 6, "transformer.r": 3}"#.to_string();
    let metadata = HashMap::from([("lora_adapter_metadata".to_string(), metadata)]);
    let file = folders[0].join("pytorch_lora_weights.safetensors");
    safetensors::serialize_to_file(&ours, Some(metadata), &file).unwrap();
    let peft: Tensors = ours
        .iter()
        .map(|(name, tensor)| {
            (
                name.replace("transformer.", "base_model.model."),
                tensor.clone(),
            )
        })
        .collect();
    candle_core::safetensors::save(&peft, folders[1].join("adapter_model.safetensors")).unwrap();
    let config = r#"{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "lora_dropout": NaN}"#;
    std::fs::write(folders[1].join("adapter_config.json"), config).unwrap();
    for folder in folders {
        request.loras = vec![Lora::new(folder.to_str().unwrap(), 1.0)];
        let drawn = pipeline.draw(&request, &mut go_on).unwrap();
        assert_eq!(drawn.images[0], expected, "{}", folder.display());
    }
}
