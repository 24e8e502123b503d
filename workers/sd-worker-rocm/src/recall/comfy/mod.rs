//! The graph that ComfyUI puts into its PNG files, and that its clients send: its standard nodes around a sampler.
//!
//! | Module   | Gives                                                    |
//! |----------|----------------------------------------------------------|
//! | `graph`  | nodes and the links between them                         |
//! | `recipe` | the request that a graph is                              |

pub(crate) mod graph;
pub(crate) mod recipe;

use super::Recalled;
use graph::Graph;
use recipe::Recipe;
use serde_json::Value;

/// Reads the graph of a picture.
pub(super) fn read(json: &str) -> Result<Recalled, String> {
    let of = |e: String| format!("ComfyUI's graph in the picture: {e}");
    // Python's JSON may have NaN, with which ComfyUI marks what has changed.
    let graph: Value = worker::json::of_python(json.as_bytes())
        .map_err(|e| of(format!("it cannot be read: {e}")))?;
    let mut graph = Graph::new(&graph).map_err(of)?;
    let mut recipe = Recipe::read(&mut graph).map_err(|e| of(format!("it {e}")))?;
    let mut recalled = Recalled::default();
    if recipe.start.is_some() {
        recalled.leave_out("it started from a picture");
        let steps = recipe.fields.steps.unwrap_or(0) as f64 * recipe.strength;
        recipe.fields.steps = Some(steps.round() as usize);
    }
    for control in &recipe.controls {
        recalled.leave_out(format!(
            "ControlNet {} (node {})",
            control.model, control.node
        ));
    }
    for output in recipe
        .outputs
        .iter()
        .filter(|output| !output.upscalers.is_empty())
    {
        let names = output.upscalers.join(", ");
        recalled.leave_out(format!("ImageUpscaleWithModel: {names}"));
    }
    for told in recipe.told {
        recalled.leave_out(told.what);
    }
    if let Some(condition) = recipe.condition {
        let other = recipe.fields.guidance.replace(condition);
        recipe.fields.true_guidance = other.filter(|guidance| *guidance != 1.0);
    }
    recalled.fields = recipe.fields;
    Ok(recalled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plain() -> Value {
        json!({
            "3": {"class_type": "KSampler", "inputs": {
                "seed": 99, "steps": 12, "cfg": 6.5, "sampler_name": "dpmpp_2m", "scheduler": "karras", "denoise": 1,
                "model": ["10", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]}},
            "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "x.safetensors"}},
            "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 640, "height": 448, "batch_size": 1}},
            "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a red door", "clip": ["11", 0]}},
            "7": {"class_type": "CLIPTextEncode", "inputs": {"text": ["12", 0], "clip": ["11", 0]}},
            "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
            "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0]}, "is_changed": null},
            "10": {"class_type": "LoraLoader", "inputs": {
                "lora_name": "styles/ink.safetensors", "strength_model": 0.7, "strength_clip": 0.5, "model": ["4", 0], "clip": ["4", 1]}},
            "11": {"class_type": "CLIPSetLastLayer", "inputs": {"stop_at_clip_layer": -2, "clip": ["10", 1]}},
            "12": {"class_type": "PrimitiveString", "inputs": {"value": "blue"}},
        })
    }

    #[test]
    fn a_graph_around_one_sampler() {
        let read = read(&plain().to_string()).unwrap();
        let fields = read.fields;
        assert_eq!(
            (fields.prompt.as_str(), fields.negative_prompt.as_deref()),
            ("a red door", Some("blue"))
        );
        assert_eq!((fields.seed, fields.steps), (Some(99), Some(12)));
        assert_eq!((fields.width, fields.height), (Some(640), Some(448)));
        assert_eq!((fields.guidance, fields.clip_skip), (Some(6.5), Some(2)));
        assert_eq!(fields.sampler.as_deref(), Some("dpmpp_2m"));
        assert_eq!(fields.schedule.as_deref(), Some("karras"));
        assert_eq!(
            (fields.loras[0].name.as_str(), fields.loras[0].strength),
            ("ink", 0.7)
        );
        assert_eq!(fields.loras[0].text_strength, Some(0.5));
        assert!(read.left_out.is_empty(), "{:?}", read.left_out);
    }

    #[test]
    fn a_sampler_in_parts() {
        let graph = json!({
            "1": {"class_type": "SamplerCustomAdvanced", "inputs": {
                "noise": ["2", 0], "guider": ["3", 0], "sampler": ["4", 0], "sigmas": ["5", 0], "latent_image": ["6", 0]}},
            "2": {"class_type": "RandomNoise", "inputs": {"noise_seed": 5}},
            "3": {"class_type": "BasicGuider", "inputs": {"model": ["9", 0], "conditioning": ["7", 0]}},
            "4": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler"}},
            "5": {"class_type": "BasicScheduler", "inputs": {"scheduler": "simple", "steps": 4, "denoise": 1.0, "model": ["9", 0]}},
            "6": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 1024, "height": 768, "batch_size": 1}},
            "7": {"class_type": "FluxGuidance", "inputs": {"guidance": 3.5, "conditioning": ["8", 0]}},
            "8": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["10", 0]}},
            "9": {"class_type": "UNETLoader", "inputs": {}},
            "10": {"class_type": "DualCLIPLoader", "inputs": {}},
        });
        let read = read(&graph.to_string()).unwrap();
        assert_eq!(
            (read.fields.prompt.as_str(), read.fields.seed),
            ("a cat", Some(5))
        );
        assert_eq!(
            (read.fields.guidance, read.fields.steps),
            (Some(3.5), Some(4))
        );
        assert!(read.left_out.is_empty(), "{:?}", read.left_out);
    }

    #[test]
    fn what_is_not_understood_is_told() {
        let mut graph = plain();
        graph["3"]["inputs"]["sampler_name"] = json!("plaid");
        graph["3"]["inputs"]["positive"] = json!(["20", 0]);
        graph["20"] = json!({"class_type": "ControlNetApply", "inputs": {"conditioning": ["6", 0], "strength": 1}});
        graph["21"] = json!({"class_type": "FaceMender", "inputs": {}});
        let read = read(&graph.to_string()).unwrap();
        assert_eq!(read.fields.prompt, "a red door");
        assert_eq!(read.fields.sampler, None);
        let told = read.left_out.join("; ");
        for part in ["plaid", "ControlNetApply", "FaceMender"] {
            assert!(told.contains(part), "{told}");
        }
    }

    #[test]
    fn hostile_graphs_end() {
        let mut circle = plain();
        circle["6"] = json!({"class_type": "FluxGuidance", "inputs": {"guidance": ["6", 0], "conditioning": ["6", 0]}});
        circle["10"]["inputs"]["model"] = json!(["10", 0]);
        read(&circle.to_string()).unwrap();
        let mut two = plain();
        two["30"] = two["3"].clone();
        let mut chain = plain();
        for i in 100..1900 {
            chain[i.to_string()] = json!({"class_type": "KSampler", "inputs": {"steps": 2, "latent_image": [format!("{i}u"), 0]}});
            chain[format!("{i}u")] = json!({"class_type": "LatentUpscaleBy", "inputs": {"samples": [(i + 1).to_string(), 0]}});
        }
        assert!(read(&chain.to_string()).is_err());
        let mut passes = json!({"1900": {"class_type": "KSampler", "inputs": {}}});
        for i in 1000..1900 {
            passes[i.to_string()] = chain[i.to_string()].clone();
            passes[format!("{i}u")] = chain[format!("{i}u")].clone();
        }
        let told = read(&passes.to_string()).unwrap().left_out.join("; ");
        assert!(told.contains("a third pass"));
        for (graph, part) in [
            (two.to_string(), "2 samplers"),
            ("[]".to_string(), "no graph"),
            ("{}".to_string(), "0 samplers"),
            ("{".to_string(), "cannot be read"),
            ("[".repeat(100_000), "cannot be read"),
        ] {
            let error = read(&graph).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
