//! The graph that ComfyUI puts into its PNG files: its standard nodes around a sampler.

use super::Recalled;
use crate::lora::Lora;
use crate::request::seed::given_seed;
use crate::sampling::{Sampler, Schedule};
use serde_json::{Map, Value};

/// Links that are followed at most, from a node to what it depends on.
const MOST_LINKS: usize = 64;

/// Nodes that only load, decode or show: what they do is the model's own or makes no difference.
const WITHOUT_EFFECT: [&str; 9] = [
    "CheckpointLoaderSimple",
    "UNETLoader",
    "DualCLIPLoader",
    "CLIPLoader",
    "VAELoader",
    "VAEDecode",
    "VAEDecodeTiled",
    "SaveImage",
    "PreviewImage",
];

struct Graph<'a> {
    nodes: &'a Map<String, Value>,
    /// Nodes whose inputs are in the request.
    read: Vec<&'a str>,
}

/// A node: its number, class and inputs.
type Node<'a> = (&'a str, &'a str, &'a Map<String, Value>);

impl<'a> Graph<'a> {
    fn node(&self, id: &str) -> Option<Node<'a>> {
        let (id, node) = self.nodes.get_key_value(id)?;
        let class = node.get("class_type")?.as_str()?;
        Some((id, class, node.get("inputs")?.as_object()?))
    }

    /// The node that an input is linked to.
    fn linked(&mut self, inputs: &Map<String, Value>, name: &str) -> Option<Node<'a>> {
        let id = inputs.get(name)?.get(0)?;
        let id = id.as_str().map(String::from);
        let node = self.node(&id?)?;
        self.read.push(node.0);
        Some(node)
    }

    /// An input's value, or that of a node which holds only one.
    fn value(&mut self, inputs: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
        let mut value = inputs.get(name)?;
        for _ in 0..MOST_LINKS {
            if !value.is_array() {
                return Some(value);
            }
            let id = value.get(0)?.as_str()?;
            let (id, _, inputs) = self.node(id)?;
            self.read.push(id);
            let names = ["value", "text", "string", "seed", "int", "float"];
            value = names.iter().find_map(|name| inputs.get(*name))?;
        }
        None
    }

    /// The text that conditions come from; what lies between is told.
    fn text(
        &mut self,
        inputs: &Map<String, Value>,
        name: &str,
        recalled: &mut Recalled,
    ) -> Option<String> {
        let (mut id, mut class, mut inputs) = self.linked(inputs, name)?;
        for _ in 0..MOST_LINKS {
            match class {
                "CLIPTextEncode" => {
                    if let Some((clip, "CLIPSetLastLayer", clips)) = self.linked(inputs, "clip") {
                        self.read.push(clip);
                        let layer = clips.get("stop_at_clip_layer").and_then(Value::as_i64);
                        recalled.fields.clip_skip =
                            layer.and_then(|layer| usize::try_from(-layer).ok());
                    }
                    return self.value(inputs, "text")?.as_str().map(String::from);
                }
                "CLIPTextEncodeFlux" => {
                    recalled.fields.guidance = self.value(inputs, "guidance")?.as_f64();
                    return self.value(inputs, "t5xxl")?.as_str().map(String::from);
                }
                "CLIPTextEncodeSDXL" => {
                    return self.value(inputs, "text_g")?.as_str().map(String::from);
                }
                "FluxGuidance" => {
                    recalled.fields.guidance = self.value(inputs, "guidance")?.as_f64();
                }
                "ConditioningZeroOut" => return Some(String::new()),
                other => recalled.leave_out(format!("{other} (node {id})")),
            }
            let next = ["conditioning", "positive", "conditioning_1"];
            let next = next.into_iter().find(|name| inputs.contains_key(*name))?;
            (id, class, inputs) = self.linked(inputs, next)?;
        }
        None
    }

    /// LoRAs between a sampler and its model.
    fn model(&mut self, inputs: &Map<String, Value>, recalled: &mut Recalled) {
        let Some((mut id, mut class, mut inputs)) = self.linked(inputs, "model") else {
            return;
        };
        for _ in 0..MOST_LINKS {
            match class {
                "LoraLoader" | "LoraLoaderModelOnly" => {
                    let name = self.value(inputs, "lora_name").and_then(Value::as_str);
                    let strength = self.value(inputs, "strength_model").and_then(Value::as_f64);
                    let (Some(name), Some(strength)) = (name, strength) else {
                        recalled.leave_out(format!("{class} (node {id})"));
                        return;
                    };
                    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
                    let name = name.strip_suffix(".safetensors").unwrap_or(name);
                    let mut lora = Lora::new(name, strength);
                    if class == "LoraLoader" {
                        let clip = self.value(inputs, "strength_clip").and_then(Value::as_f64);
                        lora.text_strength = clip;
                    }
                    recalled.fields.loras.insert(0, lora);
                }
                known if WITHOUT_EFFECT.contains(&known) => return,
                other => recalled.leave_out(format!("{other} (node {id})")),
            }
            match self.linked(inputs, "model") {
                Some(next) => (id, class, inputs) = next,
                None => return,
            }
        }
    }

    /// Size of the latents that are started from.
    fn latents(&mut self, inputs: &Map<String, Value>, recalled: &mut Recalled) {
        let Some((id, class, inputs)) = self.linked(inputs, "latent_image") else {
            return;
        };
        if !class.starts_with("Empty") {
            recalled.leave_out(format!("{class} (node {id}): it started from a picture"));
            return;
        }
        let mut side = |name| {
            let side = self.value(inputs, name)?.as_u64()?;
            usize::try_from(side).ok()
        };
        (recalled.fields.width, recalled.fields.height) = (side("width"), side("height"));
    }

    fn schedule(&mut self, inputs: &'a Map<String, Value>, recalled: &mut Recalled) {
        let steps = self.value(inputs, "steps").and_then(Value::as_u64);
        recalled.fields.steps = steps.and_then(|steps| usize::try_from(steps).ok());
        let name = self.value(inputs, "scheduler").and_then(Value::as_str);
        // What ComfyUI calls normal is the plain schedule.
        let name = name.map(|name| if name == "normal" { "discrete" } else { name });
        match name {
            Some(name) if Schedule::from_name(name).is_ok() => {
                recalled.fields.schedule = Some(name.to_string());
            }
            Some(name) => recalled.leave_out(format!("scheduler {name}")),
            None => {}
        }
        let strength = self.value(inputs, "denoise").and_then(Value::as_f64);
        if strength.is_some_and(|strength| strength < 1.0) {
            recalled.leave_out("denoise below 1: it started from a picture");
        }
    }

    fn sampler(&mut self, inputs: &'a Map<String, Value>, recalled: &mut Recalled) {
        match self.value(inputs, "sampler_name").and_then(Value::as_str) {
            Some(name) if Sampler::from_name(name).is_ok() => {
                recalled.fields.sampler = Some(name.to_string());
            }
            Some(name) => recalled.leave_out(format!("sampler {name}")),
            None => {}
        }
    }

    fn seed(&mut self, inputs: &'a Map<String, Value>, recalled: &mut Recalled) {
        let names = ["seed", "noise_seed"];
        let name = names.into_iter().find(|name| inputs.contains_key(*name));
        let seed = name.and_then(|name| self.value(inputs, name));
        let seed = seed.and_then(|seed| seed.as_u64().or_else(|| given_seed(seed.as_i64())));
        recalled.fields.seed = seed;
    }

    /// A sampler with all inputs of its own.
    fn plain(&mut self, inputs: &'a Map<String, Value>, recalled: &mut Recalled) {
        self.seed(inputs, recalled);
        self.sampler(inputs, recalled);
        self.schedule(inputs, recalled);
        recalled.fields.guidance = self.value(inputs, "cfg").and_then(Value::as_f64);
        self.prompts(inputs, recalled);
        self.model(inputs, recalled);
        self.latents(inputs, recalled);
    }

    fn prompts(&mut self, inputs: &Map<String, Value>, recalled: &mut Recalled) {
        recalled.fields.negative_prompt = self.text(inputs, "negative", recalled);
        let prompt = ["positive", "conditioning"].into_iter();
        let mut prompt = prompt.filter(|name| inputs.contains_key(*name));
        let prompt = prompt
            .next()
            .and_then(|name| self.text(inputs, name, recalled));
        recalled.fields.prompt = prompt.unwrap_or_default();
    }

    /// A sampler whose parts are nodes of their own.
    fn custom(&mut self, inputs: &'a Map<String, Value>, recalled: &mut Recalled) {
        if let Some((.., noise)) = self.linked(inputs, "noise") {
            self.seed(noise, recalled);
        }
        if let Some((.., sampler)) = self.linked(inputs, "sampler") {
            self.sampler(sampler, recalled);
        }
        if let Some((.., sigmas)) = self.linked(inputs, "sigmas") {
            self.schedule(sigmas, recalled);
        }
        if let Some((.., guider)) = self.linked(inputs, "guider") {
            recalled.fields.guidance = self.value(guider, "cfg").and_then(Value::as_f64);
            self.prompts(guider, recalled);
            self.model(guider, recalled);
        }
        self.latents(inputs, recalled);
    }
}

/// Reads a graph.
pub(super) fn read(json: &str) -> Result<Recalled, String> {
    // Python's JSON may have NaN, with which ComfyUI marks what has changed.
    let graph: Value = worker::json::of_python(json.as_bytes())
        .map_err(|e| format!("ComfyUI's graph in the picture cannot be read: {e}"))?;
    let Some(nodes) = graph.as_object() else {
        return Err("ComfyUI's graph in the picture is no graph".to_string());
    };
    let mut graph = Graph {
        nodes,
        read: Vec::new(),
    };
    let mut recalled = Recalled::default();
    let samplers = ["KSampler", "KSamplerAdvanced", "SamplerCustomAdvanced"];
    let is_sampler = |id: &&String| {
        graph
            .node(id)
            .is_some_and(|(_, c, _)| samplers.contains(&c))
    };
    let found: Vec<&String> = nodes.keys().filter(is_sampler).collect();
    let [sampler] = found[..] else {
        return Err(format!(
            "ComfyUI's graph in the picture has {} samplers; graphs with one are read",
            found.len()
        ));
    };
    let Some((id, class, inputs)) = graph.node(sampler) else {
        return Err("ComfyUI's graph in the picture has no sampler".to_string());
    };
    graph.read.push(id);
    match class {
        "SamplerCustomAdvanced" => graph.custom(inputs, &mut recalled),
        _ => graph.plain(inputs, &mut recalled),
    }
    for id in nodes.keys() {
        let Some((id, class, _)) = graph.node(id) else {
            continue;
        };
        if !graph.read.contains(&id) && !WITHOUT_EFFECT.contains(&class) {
            recalled.leave_out(format!("{class} (node {id})"));
        }
    }
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
