//! What a graph of standard nodes asks for: the request around its sampler, and what lies before and behind.

mod latents;

use super::graph::{link, Graph, Node, MOST_LINKS};
use crate::editing::Fit;
use crate::lora::Lora;
use crate::request::seed::given_seed;
use crate::request::{HighresFields, RequestFields};
use crate::rng::RngKind;
use crate::sampling::{Sampler, Schedule};
use serde_json::Value;

/// Nodes that make latents of noise.
pub(crate) const SAMPLERS: [&str; 3] = ["KSampler", "KSamplerAdvanced", "SamplerCustomAdvanced"];
/// Nodes for whose pictures a graph is there.
pub(crate) const OUTPUTS: [&str; 2] = ["SaveImage", "PreviewImage"];
/// Nodes that only load, decode or show: what they do is the model's own or makes no difference.
const WITHOUT_EFFECT: [&str; 14] = [
    "CheckpointLoaderSimple",
    "UNETLoader",
    "CLIPLoader",
    "DualCLIPLoader",
    "TripleCLIPLoader",
    "VAELoader",
    "VAEDecode",
    "VAEDecodeTiled",
    "SaveImage",
    "PreviewImage",
    "UpscaleModelLoader",
    "ControlNetLoader",
    "KSamplerSelect",
    "BasicScheduler",
];
/// How latents are enlarged, by ComfyUI's names and ours.
const ENLARGERS: [(&str, &str); 3] = [
    ("nearest-exact", "Latent (nearest-exact)"),
    ("bilinear", "Latent"),
    ("bicubic", "Latent (bicubic)"),
];

/// Something of a node that the request does not have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    /// The node.
    pub(crate) node: String,
    /// What of it, with its class.
    pub(crate) what: String,
}

/// A picture that a node loads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Loaded {
    pub(crate) node: String,
    pub(crate) name: String,
}

/// What of a loaded picture is a mask.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mask {
    pub(crate) picture: Loaded,
    pub(crate) channel: Channel,
    pub(crate) inverted: bool,
}

/// A channel; of opacity its opposite is the mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Red,
    Green,
    Blue,
    Opacity,
}

/// Width, height, and how a picture comes to them.
pub(crate) type Scaled = (usize, usize, Fit);

/// A picture to start from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Start {
    pub(crate) picture: Loaded,
    /// Its own size otherwise.
    pub(crate) scaled: Option<Scaled>,
    pub(crate) mask: Option<Mask>,
    /// What is under the mask is grey, which is so many pixels larger.
    pub(crate) grey: Option<usize>,
}

/// A ControlNet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ControlNet {
    pub(crate) node: String,
    pub(crate) model: String,
    pub(crate) picture: Loaded,
    pub(crate) strength: f64,
    pub(crate) between: (f64, f64),
}

/// A node for whose pictures the graph is there.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Output {
    pub(crate) node: String,
    /// Upscalers that the pictures go through, the first one first.
    pub(crate) upscalers: Vec<String>,
}

/// What a graph asks for.
#[derive(Debug, Default)]
pub(crate) struct Recipe {
    /// The request, without pictures.
    pub(crate) fields: RequestFields,
    /// The sampler.
    pub(crate) sampler: String,
    /// Guidance as a condition, where a node says it; [`Self::fields`] have the other beside it.
    pub(crate) condition: Option<f64>,
    /// Share of the steps of a run from a picture.
    pub(crate) strength: f64,
    pub(crate) start: Option<Start>,
    pub(crate) controls: Vec<ControlNet>,
    /// Of these samplers.
    pub(crate) outputs: Vec<Output>,
    /// What the request does not have.
    pub(crate) told: Vec<Told>,
    /// LoRAs between each prompt and its text encoders, by their nodes.
    encoders: Vec<Vec<String>>,
}

/// Where latents come from.
enum Latents<'a> {
    Nothing,
    Picture,
    /// Another sampler, enlarged.
    Sampler(Node<'a>, Box<HighresFields>),
}

impl Recipe {
    /// Reads a graph.
    ///
    /// # Errors
    /// Says why it cannot be: it has no sampler, or several of which none is the last.
    pub(crate) fn read(graph: &mut Graph) -> Result<Self, String> {
        let samplers: Vec<Node> = graph.nodes().filter(|node| is_sampler(node)).collect();
        let before: Vec<&str> = (samplers.iter())
            .filter_map(|sampler| Some(before(graph, *sampler)?.id))
            .collect();
        let mut last = samplers.iter().filter(|node| !before.contains(&node.id));
        let (Some(last), None) = (last.next(), last.next()) else {
            return Err(format!(
                "has {} samplers of which {} are the last; graphs with one such are read",
                samplers.len(),
                samplers.len() - before.len()
            ));
        };
        let mut recipe = Self::default();
        recipe.sampler(graph, *last, true);
        recipe.outputs(graph, *last);
        recipe.unread(graph);
        Ok(recipe)
    }

    fn tell(&mut self, node: &Node, what: &str) {
        let what = match what {
            "" => format!("{} (node {})", node.class, node.id),
            what => format!("{} (node {}): {what}", node.class, node.id),
        };
        let node = node.id.to_string();
        let told = Told { node, what };
        if !self.told.contains(&told) {
            self.told.push(told);
        }
    }

    /// Tells of nodes that nothing was read of.
    fn unread(&mut self, graph: &Graph) {
        let nodes = graph.nodes();
        let left: Vec<Node> = nodes
            .filter(|node| !graph.has_read(node) && !WITHOUT_EFFECT.contains(&node.class))
            .collect();
        for node in left {
            self.tell(&node, "");
        }
    }

    /// A sampler and what it depends on; a second pass is only the last one's.
    fn sampler<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>, is_last: bool) {
        graph.take(node.id);
        self.sampler = node.id.to_string();
        self.strength = 1.0;
        // ComfyUI draws noise on the processor, by PyTorch's numbers; its prompts are not scheduled.
        self.fields.rng = Some(RngKind::TorchCpu);
        self.fields.wording.scheduled = Some(false);
        match node.class {
            "SamplerCustomAdvanced" => self.custom(graph, node),
            _ => self.plain(graph, node),
        }
        // Steps of SDE samplers go along a Brownian motion there.
        let sampler = self.fields.sampler.as_deref().map(Sampler::from_name);
        let goes_along = sampler.is_some_and(|sampler| sampler.is_ok_and(Sampler::goes_along));
        self.fields.tuning.brownian_noise = goes_along.then_some(true);
        match self.latents(graph, node) {
            Latents::Nothing if self.strength < 1.0 => {
                self.tell(&node, "denoise below 1 without a picture to start from");
            }
            Latents::Nothing | Latents::Picture => {}
            Latents::Sampler(first, highres) if is_last => self.second(graph, first, *highres),
            Latents::Sampler(..) => self.tell(&node, "a third pass"),
        }
    }

    /// A sampler with all inputs of its own.
    fn plain<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) {
        self.seed(graph, node);
        self.method(graph, node);
        self.schedule(graph, node);
        self.fields.guidance = graph.number(node, "cfg");
        self.prompts(graph, node);
        self.model(graph, node);
        if node.class == "KSamplerAdvanced" {
            self.part(graph, node);
        }
    }

    /// The steps of a run that a sampler does.
    fn part<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) {
        let steps = self.fields.steps.unwrap_or(0);
        let first = graph.count(node, "start_at_step").unwrap_or(0);
        let end = graph.count(node, "end_at_step").unwrap_or(steps);
        if graph.text(node, "add_noise") == Some("disable") {
            self.tell(&node, "add_noise: disable");
        }
        if graph.text(node, "return_with_leftover_noise") == Some("enable") && end < steps {
            self.tell(&node, "return_with_leftover_noise: enable");
        }
        if end < steps {
            self.tell(&node, "end_at_step before the last step");
        }
        match first {
            0 => {}
            first if first < steps => {
                self.strength = (steps - first) as f64 / steps as f64;
            }
            _ => self.tell(&node, "start_at_step behind the last step"),
        }
    }

    /// A sampler whose parts are nodes of their own.
    fn custom<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) {
        let mut part = |graph: &mut Graph<'a>, name, classes: &[&str]| {
            let found = graph.linked(node, name).map(|(part, _)| part);
            found.filter(|part| {
                let known = classes.contains(&part.class);
                if !known {
                    self.tell(part, "");
                }
                known
            })
        };
        let noise = part(graph, "noise", &["RandomNoise"]);
        let method = part(graph, "sampler", &["KSamplerSelect"]);
        let sigmas = part(graph, "sigmas", &["BasicScheduler"]);
        let guider = part(graph, "guider", &["BasicGuider", "CFGGuider"]);
        if let Some(noise) = noise {
            self.seed(graph, noise);
        }
        if let Some(method) = method {
            self.method(graph, method);
        }
        if let Some(sigmas) = sigmas {
            self.schedule(graph, sigmas);
        }
        if let Some(guider) = guider {
            self.fields.guidance = graph.number(guider, "cfg");
            self.prompts(graph, guider);
            self.model(graph, guider);
        }
    }

    fn seed<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) {
        let names = ["seed", "noise_seed"];
        let name = names
            .into_iter()
            .find(|name| node.inputs.contains_key(*name));
        let seed = name.and_then(|name| graph.value(node, name));
        self.fields.seed =
            seed.and_then(|seed| seed.as_u64().or_else(|| given_seed(seed.as_i64())));
    }

    fn method<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) {
        match graph.text(node, "sampler_name") {
            Some(name) if Sampler::from_name(name).is_ok() => {
                self.fields.sampler = Some(name.to_string());
            }
            Some(name) => self.tell(&node, &format!("sampler {name}")),
            None => {}
        }
    }

    fn schedule<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) {
        let steps = graph.count(node, "steps");
        self.fields.steps = steps;
        match graph.text(node, "scheduler") {
            Some(name) if Schedule::from_name(name).is_ok() => {
                self.fields.schedule = Some(name.to_string());
            }
            Some(name) => self.tell(&node, &format!("scheduler {name}")),
            None => {}
        }
        let denoise = graph.number(node, "denoise").unwrap_or(1.0);
        if let Some(steps) = steps.filter(|_| denoise < 1.0) {
            // These are the last steps of a longer run.
            let whole = steps as f64 / denoise.max(1e-4);
            self.fields.steps = Some(whole as usize);
            self.strength = steps as f64 / (whole as usize).max(1) as f64;
        }
    }

    fn prompts<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) {
        let mut lead = Vec::new();
        let names = ["positive", "conditioning"].into_iter();
        let mut names = names.filter(|name| node.inputs.contains_key(*name));
        let prompt = names
            .next()
            .and_then(|name| self.prompt(graph, node, name, &mut lead));
        self.fields.prompt = prompt.unwrap_or_default();
        let mut against = Vec::new();
        self.fields.negative_prompt = self.prompt(graph, node, "negative", &mut against);
        let has_negative = node.inputs.contains_key("negative");
        for control in &lead {
            let applied = graph.node(&control.node);
            let advanced = applied.filter(|applied| applied.class == "ControlNetApplyAdvanced");
            let both = against.iter().any(|other| other.node == control.node);
            if let Some(applied) = advanced.filter(|_| has_negative && !both) {
                self.tell(&applied, "it is for one of the prompts only");
            }
        }
        for control in &against {
            let both = lead.iter().any(|other| other.node == control.node);
            if let Some(applied) = graph.node(&control.node).filter(|_| !both) {
                self.tell(&applied, "it is for the negative prompt only");
            }
        }
        self.controls = lead;
    }

    /// The text that conditions come from, and the ControlNets on the way; what else lies between is told.
    fn prompt<'a>(
        &mut self,
        graph: &mut Graph<'a>,
        node: Node<'a>,
        input: &str,
        controls: &mut Vec<ControlNet>,
    ) -> Option<String> {
        let (mut node, mut output) = graph.linked(node, input)?;
        for _ in 0..MOST_LINKS {
            match node.class {
                "CLIPTextEncode" => {
                    self.encoder(graph, node);
                    return graph.text(node, "text").map(plain_words);
                }
                "CLIPTextEncodeFlux" => {
                    self.encoder(graph, node);
                    self.condition = graph.number(node, "guidance");
                    return self.same_text(graph, node, ["t5xxl", "clip_l"]);
                }
                "CLIPTextEncodeSDXL" => {
                    self.encoder(graph, node);
                    self.sizes(graph, node);
                    return self.same_text(graph, node, ["text_g", "text_l"]);
                }
                "FluxGuidance" => self.condition = graph.number(node, "guidance"),
                "ConditioningZeroOut" => return Some(String::new()),
                "ControlNetApply" | "ControlNetApplyAdvanced" => {
                    if let Some(control) = self.control(graph, node) {
                        controls.insert(0, control);
                    }
                }
                "InpaintModelConditioning" => {}
                _ => self.tell(&node, ""),
            }
            let next = match output {
                1 => ["negative", "conditioning", "conditioning_1"],
                _ => ["positive", "conditioning", "conditioning_1"],
            };
            let next = next
                .into_iter()
                .find(|name| node.inputs.contains_key(*name))?;
            (node, output) = graph.linked(node, next)?;
        }
        None
    }

    /// One text for several encoders.
    fn same_text<'a>(
        &mut self,
        graph: &mut Graph<'a>,
        node: Node<'a>,
        [first, second]: [&str; 2],
    ) -> Option<String> {
        let text = graph.text(node, first);
        let other = graph.text(node, second);
        if other.is_some_and(|other| !other.trim().is_empty() && Some(other) != text) {
            self.tell(&node, &format!("{second} is another text than {first}"));
        }
        text.map(plain_words)
    }

    /// What Stable Diffusion XL is told besides.
    fn sizes<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) {
        let mut pair = |x: &str, y: &str| graph.count(node, x).zip(graph.count(node, y));
        let micro = &mut self.fields.micro;
        micro.original_size = pair("width", "height");
        micro.crop = pair("crop_w", "crop_h").unwrap_or_default();
        micro.target_size = pair("target_width", "target_height");
    }

    /// The text encoders: how many of their layers, and the LoRAs that are merged into them.
    fn encoder<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) {
        let mut loras = Vec::new();
        let mut node = graph.linked(node, "clip").map(|(node, _)| node);
        for _ in 0..MOST_LINKS {
            let Some(at) = node else { break };
            match at.class {
                "CLIPSetLastLayer" => {
                    let layer = graph.value(at, "stop_at_clip_layer");
                    let layer = layer.and_then(Value::as_i64);
                    self.fields.clip_skip = layer.and_then(|layer| usize::try_from(-layer).ok());
                }
                "LoraLoader" => loras.push(at.id.to_string()),
                class if WITHOUT_EFFECT.contains(&class) => break,
                _ => self.tell(&at, ""),
            }
            node = graph.linked(at, "clip").map(|(node, _)| node);
        }
        self.encoders.push(loras);
    }

    fn control<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) -> Option<ControlNet> {
        let loader = graph.linked(node, "control_net").map(|(loader, _)| loader);
        let name = loader.and_then(|loader| graph.text(loader, "control_net_name"));
        let picture = self
            .picture(graph, node, "image")
            .map(|(picture, _)| picture);
        let (Some(name), Some(picture)) = (name, picture) else {
            self.tell(&node, "");
            return None;
        };
        Some(ControlNet {
            node: node.id.to_string(),
            model: stem(name).to_string(),
            picture,
            strength: graph.number(node, "strength").unwrap_or(1.0),
            between: (
                graph.number(node, "start_percent").unwrap_or(0.0),
                graph.number(node, "end_percent").unwrap_or(1.0),
            ),
        })
    }

    /// What lies between a sampler and its model: LoRAs, shifts.
    fn model<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) {
        let merged = self.merged(graph, node);
        let all = self.encoders.clone();
        let mut encoders = all.iter();
        let first = encoders.next();
        if encoders.any(|other| Some(other) != first) {
            self.tell(&node, "its prompts have LoRAs of their own");
        }
        let alone = first.into_iter().flatten().find(|id| !merged.contains(*id));
        if let Some(lora) = alone.and_then(|id| graph.node(id)) {
            self.tell(&lora, "on text encoders alone");
        }
    }

    /// The LoRAs between a sampler and its model, by their nodes.
    fn merged<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) -> Vec<String> {
        let mut merged = Vec::new();
        let mut next = graph.linked(node, "model");
        for _ in 0..MOST_LINKS {
            let Some((node, _)) = next else { break };
            match node.class {
                "LoraLoader" | "LoraLoaderModelOnly" => {
                    let name = graph.text(node, "lora_name");
                    let strength = graph.number(node, "strength_model");
                    let (Some(name), Some(strength)) = (name, strength) else {
                        self.tell(&node, "");
                        break;
                    };
                    let mut lora = Lora::new(stem(name), strength);
                    let is_in = |loras: &Vec<String>| loras.iter().any(|id| id == node.id);
                    lora.text_strength = match self.encoders.first().is_some_and(is_in) {
                        true => graph.number(node, "strength_clip"),
                        false => Some(0.0),
                    };
                    merged.push(node.id.to_string());
                    self.fields.loras.insert(0, lora);
                }
                "RescaleCFG" => self.fields.guidance_rescale = graph.number(node, "multiplier"),
                class if WITHOUT_EFFECT.contains(&class) => break,
                _ => self.tell(&node, ""),
            }
            next = graph.linked(node, "model");
        }
        merged
    }

    /// The nodes that save or show what this sampler has made.
    fn outputs<'a>(&mut self, graph: &mut Graph<'a>, sampler: Node<'a>) {
        let outputs: Vec<Node> = graph
            .nodes()
            .filter(|node| OUTPUTS.contains(&node.class))
            .collect();
        for output in outputs {
            let mut upscalers = Vec::new();
            let mut node = output;
            for _ in 0..MOST_LINKS {
                let next = match node.class {
                    "VAEDecode" | "VAEDecodeTiled" => "samples",
                    "ImageUpscaleWithModel" => {
                        let loader = graph.linked(node, "upscale_model");
                        let name = loader.and_then(|(loader, _)| graph.text(loader, "model_name"));
                        match name {
                            Some(name) => upscalers.insert(0, stem(name).to_string()),
                            None => self.tell(&node, ""),
                        }
                        "image"
                    }
                    class if OUTPUTS.contains(&class) => "images",
                    _ => break,
                };
                match graph.linked(node, next) {
                    Some((before, _)) => node = before,
                    None => break,
                }
            }
            match node.id == sampler.id {
                true => self.outputs.push(Output {
                    node: output.id.to_string(),
                    upscalers,
                }),
                false if node.id == output.id => {}
                false => self.tell(&node, "its pictures are not the last sampler's"),
            }
        }
    }
}

fn is_sampler(node: &Node) -> bool {
    SAMPLERS.contains(&node.class)
}

/// The sampler whose latents another one goes on with.
fn before<'a>(graph: &Graph<'a>, sampler: Node<'a>) -> Option<Node<'a>> {
    let mut input = "latent_image";
    let mut node = sampler;
    for _ in 0..MOST_LINKS {
        let (id, _) = link(node.inputs.get(input)?)?;
        node = graph.node(id)?;
        if is_sampler(&node) {
            return Some(node);
        }
        let names = ["samples", "pixels", "image"].into_iter();
        input = names
            .into_iter()
            .find(|name| node.inputs.contains_key(*name))?;
    }
    None
}

/// A file's name without folders and ending.
pub(crate) fn stem(name: &str) -> &str {
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
    name.strip_suffix(".safetensors").unwrap_or(name)
}

/// ComfyUI marks the words of textual inversions.
fn plain_words(text: &str) -> String {
    text.replace("embedding:", "")
}
