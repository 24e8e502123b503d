//! Where a sampler's latents come from: an empty picture, one that is loaded, or another sampler.

use super::{Channel, Latents, Loaded, Mask, Recipe, Scaled, Start, ENLARGERS, SAMPLERS};
use crate::editing::Fit;
use crate::recall::comfy::graph::{Graph, Node, MOST_LINKS};
use crate::request::HighresFields;
use crate::upscale::Method;

impl Recipe {
    /// The latents that are started from.
    pub(super) fn latents<'a>(&mut self, graph: &mut Graph<'a>, sampler: Node<'a>) -> Latents<'a> {
        let Some((mut node, _)) = graph.linked(sampler, "latent_image") else {
            return Latents::Nothing;
        };
        let mut mask = None;
        let mut highres: Option<HighresFields> = None;
        for _ in 0..MOST_LINKS {
            let next = match node.class {
                class if class.starts_with("Empty") => {
                    self.fields.width = graph.count(node, "width");
                    self.fields.height = graph.count(node, "height");
                    self.batch(graph, node, "batch_size");
                    return Latents::Nothing;
                }
                "VAEEncode" | "VAEEncodeTiled" | "InpaintModelConditioning" => {
                    if node.class == "InpaintModelConditioning" {
                        mask = self.mask(graph, node);
                    }
                    self.starts_from(graph, node, mask, None);
                    return Latents::Picture;
                }
                "VAEEncodeForInpaint" => {
                    let mask = self.mask(graph, node);
                    let grow = graph.count(node, "grow_mask_by").unwrap_or(6);
                    self.starts_from(graph, node, mask, Some(grow));
                    return Latents::Picture;
                }
                "SetLatentNoiseMask" => {
                    mask = self.mask(graph, node);
                    "samples"
                }
                "RepeatLatentBatch" => {
                    self.batch(graph, node, "amount");
                    "samples"
                }
                "LatentUpscale" | "LatentUpscaleBy" if highres.is_none() => {
                    highres = Some(self.enlarged(graph, node));
                    "samples"
                }
                class if SAMPLERS.contains(&class) => match highres {
                    Some(highres) => return Latents::Sampler(node, Box::new(highres)),
                    None => {
                        self.tell(&sampler, "it goes on with the latents of another sampler");
                        return Latents::Nothing;
                    }
                },
                _ => {
                    self.tell(&node, "");
                    "samples"
                }
            };
            match graph.linked(node, next) {
                Some((next, _)) => node = next,
                None => break,
            }
        }
        Latents::Nothing
    }

    fn batch<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>, input: &str) {
        let count = graph.count(node, input).unwrap_or(1);
        self.fields.batch = Some(self.fields.batch.unwrap_or(1).saturating_mul(count));
    }

    fn starts_from<'a>(
        &mut self,
        graph: &mut Graph<'a>,
        node: Node<'a>,
        mask: Option<Mask>,
        grey: Option<usize>,
    ) {
        match self.picture(graph, node, "pixels") {
            Some((picture, scaled)) => {
                let start = Start {
                    picture,
                    scaled,
                    mask,
                    grey,
                };
                self.start = Some(start);
            }
            None => self.tell(&node, "it starts from a picture that is not loaded"),
        }
    }

    /// A picture that is loaded, and the size to which it is brought.
    pub(super) fn picture<'a>(
        &mut self,
        graph: &mut Graph<'a>,
        node: Node<'a>,
        input: &str,
    ) -> Option<(Loaded, Option<Scaled>)> {
        let (mut node, _) = graph.linked(node, input)?;
        let mut scaled = None;
        for _ in 0..MOST_LINKS {
            match node.class {
                "LoadImage" => {
                    let loaded = Loaded {
                        node: node.id.to_string(),
                        name: graph.text(node, "image")?.to_string(),
                    };
                    return Some((loaded, scaled));
                }
                "ImageScale" if scaled.is_none() => {
                    let fit = match graph.text(node, "crop") {
                        Some("center") => Fit::Crop,
                        _ => Fit::Stretch,
                    };
                    let size = graph.count(node, "width").zip(graph.count(node, "height"));
                    scaled = size.map(|(width, height)| (width, height, fit));
                }
                _ => self.tell(&node, ""),
            }
            (node, _) = graph.linked(node, "image")?;
        }
        None
    }

    fn mask<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) -> Option<Mask> {
        let (mut node, _) = graph.linked(node, "mask")?;
        let mut inverted = false;
        for _ in 0..MOST_LINKS {
            let channel = match node.class {
                "LoadImage" => Channel::Opacity,
                "LoadImageMask" => match graph.text(node, "channel") {
                    Some("red") => Channel::Red,
                    Some("green") => Channel::Green,
                    Some("blue") => Channel::Blue,
                    _ => Channel::Opacity,
                },
                "InvertMask" => {
                    inverted = !inverted;
                    (node, _) = graph.linked(node, "mask")?;
                    continue;
                }
                _ => break,
            };
            let picture = Loaded {
                node: node.id.to_string(),
                name: graph.text(node, "image")?.to_string(),
            };
            return Some(Mask {
                picture,
                channel,
                inverted,
            });
        }
        self.tell(&node, "as a mask");
        None
    }

    /// How latents are made larger for a second pass.
    fn enlarged<'a>(&mut self, graph: &mut Graph<'a>, node: Node<'a>) -> HighresFields {
        let name = graph.text(node, "upscale_method").unwrap_or_default();
        let known = ENLARGERS.iter().find(|(known, _)| *known == name);
        let method = known.and_then(|(_, ours)| Method::known(ours));
        if method.is_none() {
            self.tell(&node, &format!("upscale_method {name}"));
        }
        let mut fields = HighresFields {
            method,
            ..HighresFields::default()
        };
        match node.class {
            "LatentUpscaleBy" => fields.scale = graph.number(node, "scale_by"),
            _ => {
                fields.width = graph.count(node, "width");
                fields.height = graph.count(node, "height");
            }
        }
        fields
    }

    /// Turns what was read into the second pass, behind a first one.
    pub(super) fn second<'a>(
        &mut self,
        graph: &mut Graph<'a>,
        first: Node<'a>,
        highres: HighresFields,
    ) {
        let mut whole = Self::default();
        whole.sampler(graph, first, false);
        let own = std::mem::replace(self, whole);
        let (last, strength) = (own.sampler, own.strength);
        let node = graph.node(&last);
        for told in own.told {
            if !self.told.contains(&told) {
                self.told.push(told);
            }
        }
        if let Some(node) = node {
            if own.fields.loras != self.fields.loras || own.controls != self.controls {
                self.tell(
                    &node,
                    "its LoRAs or ControlNets are not those of the first pass",
                );
            }
            if own.condition != self.condition {
                self.tell(
                    &node,
                    "its guidance as a condition is not that of the first pass",
                );
            }
            if self.start.is_some() {
                self.tell(&node, "a second pass behind one that starts from a picture");
            }
        }
        let ours = &self.fields;
        let other = |text: Option<String>, first: &str| text.filter(|text| text != first);
        self.fields.highres = Some(HighresFields {
            steps: own.fields.steps,
            strength: Some(strength),
            sampler: own.fields.sampler,
            schedule: own.fields.schedule,
            guidance: own.fields.guidance,
            seed: own.fields.seed,
            prompt: other(Some(own.fields.prompt), &ours.prompt),
            negative_prompt: other(
                own.fields.negative_prompt,
                ours.negative_prompt.as_deref().unwrap_or_default(),
            ),
            ..highres
        });
        self.sampler = last;
    }
}
