//! Single files of models whose prompts go through language models, against the folders that they are made of.

use super::common::{go_on, Draw};
use super::pipelines::{with_transformer, write_gguf, Tensors};
use super::small::{apart, Pipelines};
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Tensor};
use image::RgbImage;
use sd_worker_rocm::pipeline::{ImageRequest, Pipeline, PipelineOptions};
use serde_json::{json, Value};
use std::path::Path;

const TRANSFORMER: &str = "transformer/diffusion_pytorch_model.safetensors";
const ENCODER: &str = "text_encoder/model.safetensors";

fn dims(shape: &Value) -> Vec<u64> {
    serde_json::from_value(shape.clone()).unwrap()
}

/// The small models, altered to what a file without configuration cannot say otherwise: heads of Gemma 2 and Qwen 2.5
/// VL, of its tower, and of Qwen-Image, of which an eighth turns with the picture.
fn models() -> Pipelines {
    let mut p = Pipelines::of("language_pipelines");
    p.alter("lumina2", |about| {
        let config = &mut about["files"]["text_encoder/config.json"];
        for (name, value) in [
            ("head_dim", 256),
            ("num_attention_heads", 1),
            ("num_key_value_heads", 1),
            ("query_pre_attn_scalar", 256),
            ("sliding_window", 4096),
            ("attn_logit_softcapping", 50),
        ] {
            config[name] = json!(value);
        }
        let shapes = &mut about["weights"][ENCODER]["shapes"];
        for (name, shape) in shapes.as_object_mut().unwrap() {
            match name.rsplit('.').nth(1) {
                Some("q_proj" | "k_proj" | "v_proj") => *shape = json!([256, 24]),
                Some("o_proj") => *shape = json!([24, 256]),
                _ => (),
            }
        }
    });
    p.alter("qwen_image_edit_plus", |about| {
        let config = &mut about["files"]["text_encoder/config.json"];
        config["image_token_id"] = json!(5);
        let text = &mut config["text_config"];
        text["num_attention_heads"] = json!(1);
        text["num_key_value_heads"] = json!(1);
        text["head_dim"] = json!(128);
        text["rope_parameters"] =
            json!({"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]});
        let vision = &mut config["vision_config"];
        vision["hidden_size"] = json!(64);
        vision["num_heads"] = json!(16);
        vision["fullatt_block_indexes"] = json!([0, 1]);
        let shapes = &mut about["weights"][ENCODER]["shapes"];
        for (name, shape) in shapes.as_object_mut().unwrap() {
            let last = name.rsplit('.').nth(1).unwrap_or_default();
            let bias = name.ends_with("bias");
            *shape = match last {
                "q_proj" | "k_proj" | "v_proj" if bias => json!([128]),
                "q_proj" | "k_proj" | "v_proj" => json!([128, 32]),
                "o_proj" => json!([32, 128]),
                _ if name.contains("visual.") => {
                    let keep = name.contains("merger.mlp.2.");
                    let wider = |(at, dim)| match dim {
                        32 if at == 0 && keep => 32,
                        32 | 96 | 128 => 2 * dim,
                        other => other,
                    };
                    json!(dims(shape)
                        .into_iter()
                        .enumerate()
                        .map(wider)
                        .collect::<Vec<_>>())
                }
                _ => continue,
            };
        }
        let config = &mut about["files"]["transformer/config.json"];
        config["num_attention_heads"] = json!(1);
        config["attention_head_dim"] = json!(32);
        config["axes_dims_rope"] = json!([4, 14, 14]);
        let shapes = &mut about["weights"][TRANSFORMER]["shapes"];
        for (name, shape) in shapes.as_object_mut().unwrap() {
            if name.contains(".attn.norm_") {
                *shape = json!([32]);
            }
        }
    });
    p
}

/// A transformer as its makers name it; Qwen-Image's has diffusers' names.
fn originals(p: &Pipelines, model: &str) -> Tensors {
    let ours = p.weights(model, TRANSFORMER);
    if model != "lumina2" {
        return ours;
    }
    let mut theirs = Tensors::new();
    for (name, tensor) in &ours {
        if let Some(layer) = name.strip_suffix(".attn.to_q.weight") {
            let part = |part: &str| ours[&format!("{layer}.attn.{part}.weight")].clone();
            let stacked = Tensor::cat(&[part("to_q"), part("to_k"), part("to_v")], 0);
            theirs.insert(format!("{layer}.attention.qkv.weight"), stacked.unwrap());
        }
        if name.contains(".attn.to_k.") || name.contains(".attn.to_") && name.contains("_v.") {
            continue;
        }
        let block = |name: &str| {
            name.replace(".attn.to_out.0.", ".attention.out.")
                .replace(".attn.norm_q.", ".attention.q_norm.")
                .replace(".attn.norm_k.", ".attention.k_norm.")
                .replace(".norm1.linear.", ".adaLN_modulation.1.")
                .replace(".norm1.norm.", ".attention_norm1.")
                .replace(".norm1.", ".attention_norm1.")
                .replace(".norm2.", ".attention_norm2.")
                .replace(".feed_forward.linear_", ".feed_forward.w")
        };
        let name = match name.split_once('.') {
            Some(("norm_out", rest)) => {
                let rest = rest.replace("linear_1.", "adaLN_modulation.1.");
                format!("final_layer.{}", rest.replace("linear_2.", "linear."))
            }
            Some(("time_caption_embed", rest)) => rest
                .replace("caption_embedder.", "cap_embedder.")
                .replace("timestep_embedder.linear_1.", "t_embedder.mlp.0.")
                .replace("timestep_embedder.linear_2.", "t_embedder.mlp.2."),
            _ => block(name),
        };
        if !name.contains(".attn.to_") {
            theirs.insert(name, tensor.clone());
        }
    }
    // Their files have one that no network uses.
    let unused = Tensor::ones(48, DType::F32, &candle_core::Device::Cpu).unwrap();
    theirs.insert("norm_final.weight".to_string(), unused);
    theirs
}

fn draw(
    p: &Pipelines,
    model: &str,
    path: &Path,
    options: PipelineOptions,
    change: &dyn Fn(&mut ImageRequest),
) -> RgbImage {
    let mut pipeline = p.load(path, options);
    let mut request = p.request(model);
    request.steps = 1;
    change(&mut request);
    pipeline
        .draw(&request, &mut go_on)
        .unwrap()
        .images
        .remove(0)
}

fn as_it_is(_: &mut ImageRequest) {}

/// A whole model's tensors as ComfyUI packs them.
fn packed(p: &Pipelines, model: &str, encoder: &str) -> Tensors {
    let mut all = Tensors::new();
    for (name, tensor) in originals(p, model) {
        all.insert(format!("model.diffusion_model.{name}"), tensor);
    }
    for (name, tensor) in p.weights(model, ENCODER) {
        // Files of such encoders have the names of earlier versions.
        let name = name.replace("model.language_model.", "model.");
        let name = name.replace("model.visual.", "visual.");
        let bare =
            name.starts_with("layers.") || name.starts_with("embed") || name == "norm.weight";
        let below = if bare { "model." } else { "" };
        let name = format!("text_encoders.{encoder}.transformer.{below}{name}");
        all.insert(name, tensor);
    }
    all
}

#[test]
fn a_single_file_is_the_same_model() {
    let p = models();
    let looking = |request: &mut ImageRequest| {
        request.references = vec![p.picture("start")];
        request.keep_reference_size = true;
    };
    for (model, encoder) in [
        ("lumina2", "gemma2_2b"),
        ("qwen_image_edit_plus", "qwen25_7b"),
    ] {
        let folder = p.folder(model);
        let all = packed(&p, model, encoder);
        let whole = p.place().join(format!("{model}.safetensors"));
        candle_core::safetensors::save(&all, &whole).unwrap();
        let bare: Tensors = all
            .into_iter()
            .map(|(name, tensor)| (name.replace("text_encoders.", "vae."), tensor))
            .collect();
        let rest = p.place().join("rest.safetensors");
        candle_core::safetensors::save(&bare, &rest).unwrap();
        // The folder has the tokenizer, and the encoder if the file has none.
        let draw = |path: &Path, change: &dyn Fn(&mut ImageRequest)| {
            let options = PipelineOptions {
                vae: Some(folder.join("vae")),
                text_encoders: Some(folder.clone()),
                ..PipelineOptions::default()
            };
            draw(&p, model, path, options, change)
        };
        let off = apart(&draw(&whole, &as_it_is), &draw(&rest, &as_it_is));
        assert!(off <= 1, "{model}: {off}");
        let own = |change| self::draw(&p, model, &folder, PipelineOptions::default(), change);
        // Of the published models' encoders another token stands for pictures than of the small one.
        let change: &dyn Fn(&mut ImageRequest) = match model {
            "lumina2" => &as_it_is,
            _ => &looking,
        };
        let off = apart(&draw(&rest, change), &own(change));
        assert!(off <= 1, "{model}: {off}");
    }
    // Without a tower for pictures none can be looked at.
    let blind: Tensors = packed(&p, "qwen_image_edit_plus", "qwen25_7b")
        .into_iter()
        .filter(|(name, _)| !name.contains(".visual."))
        .collect();
    let path = p.place().join("blind.safetensors");
    candle_core::safetensors::save(&blind, &path).unwrap();
    let folder = p.folder("qwen_image_edit_plus");
    let options = PipelineOptions {
        vae: Some(folder.join("vae")),
        text_encoders: Some(folder),
        ..PipelineOptions::default()
    };
    let mut pipeline = p.load(&path, options);
    let mut request = p.request("qwen_image_edit_plus");
    pipeline.draw(&request, &mut go_on).unwrap();
    looking(&mut request);
    let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
    assert!(error.contains("--text-encoders"), "{error}");
}

#[test]
fn transformers_of_their_own_and_quantized() {
    let p = Pipelines::of("language_pipelines");
    for model in ["qwen_image", "lumina2"] {
        let folder = p.folder(model);
        let tensors = originals(&p, model);
        let expected = draw(&p, model, &folder, PipelineOptions::default(), &as_it_is);
        for (dtype, name, limit) in [(GgmlDType::F32, "F32", 1), (GgmlDType::Q8_0, "Q8_0", 24)] {
            let path = p.place().join(format!("{model}-{name}.gguf"));
            write_gguf(&path, &tensors, dtype, name);
            let ours = draw(&p, model, &folder, with_transformer(&path), &as_it_is);
            let off = apart(&ours, &expected);
            assert!(off <= limit, "{model} {name}: {off}");
        }
        // 8-bit floats are what 32 bits hold of them.
        let eight: Tensors = tensors
            .iter()
            .map(|(name, tensor)| {
                let dtype = match tensor.rank() {
                    2 => DType::F8E4M3,
                    _ => DType::F32,
                };
                (name.clone(), tensor.to_dtype(dtype).unwrap())
            })
            .collect();
        let wide: Tensors = eight
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.to_dtype(DType::F32).unwrap()))
            .collect();
        let both = [(&eight, "8"), (&wide, "32")].map(|(tensors, name)| {
            let path = p.place().join(format!("{model}-{name}.safetensors"));
            candle_core::safetensors::save(tensors, &path).unwrap();
            draw(&p, model, &folder, with_transformer(&path), &as_it_is)
        });
        let [eight, wide] = &both;
        assert!(apart(eight, wide) <= 1, "{model}");
        assert!(apart(wide, &expected) > 1, "{model}: nothing was rounded");
    }
    // Another family's is refused.
    let path = p.place().join("lumina2-F32.gguf");
    let folder = p.folder("qwen_image");
    let options = with_transformer(&path);
    let loaded = Pipeline::load(&folder, &candle_core::Device::Cpu, options, &mut |_| {});
    let error = loaded.err().unwrap().to_string();
    assert!(
        error.contains("Lumina 2") && error.contains("Qwen-Image"),
        "{error}"
    );
}
