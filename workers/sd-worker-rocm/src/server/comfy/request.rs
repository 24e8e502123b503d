//! The request that a graph is.

use super::check::{check, Invalid};
use crate::editing::{Editing, Fit};
use crate::image_io;
use crate::info::Family;
use crate::recall::comfy::graph::{Graph, Node};
use crate::recall::comfy::recipe::{Channel, Mask, Output, Recipe, Start};
use crate::request::{Control, InitFields, InterfaceDefaults, RequestFields, ValidRequest};
use crate::server::request::Upload;
use crate::server::App;
use crate::upscale::Method;
use image::imageops::{self, FilterType};
use image::{DynamicImage, GrayImage, Luma, RgbImage};
use serde_json::{json, Map, Value};
use std::path::PathBuf;
use worker::http::{blocking, ApiError};

/// What is under a mask that ComfyUI encodes for inpainting.
const GREY: u8 = 128;
/// A file name begins so where a graph names none.
const PREFIX: &str = "ComfyUI";
/// Longest beginning of a file name.
const MOST_PREFIX: usize = 100;

/// What is to be made.
pub(super) struct Work {
    pub(super) request: ValidRequest,
    pub(super) sampler: String,
    pub(super) outputs: Vec<Saved>,
}

/// What a node saves or shows.
#[derive(Debug, Clone)]
pub(super) struct Saved {
    pub(super) node: String,
    pub(super) upscalers: Vec<PathBuf>,
    pub(super) folder: String,
    pub(super) prefix: String,
    /// `output` or `temp`.
    pub(super) kind: &'static str,
}

impl App {
    /// The request of a graph, of whose outputs these are wanted, or all.
    ///
    /// # Errors
    /// What is wrong with the graph, or not implemented here, by its nodes.
    pub(super) async fn comfy_work(
        &self,
        graph: &Value,
        wanted: Option<&[String]>,
    ) -> Result<Work, Invalid> {
        let bad =
            |reason: String| Invalid::whole("invalid_prompt", "The graph cannot be read", &reason);
        let whole = graph
            .as_object()
            .ok_or_else(|| bad("it is no graph".to_string()))?;
        let all = Graph::new(graph).map_err(bad)?;
        let outputs = check(self, &all, whole)?;
        let is_wanted =
            |id: &&&str| wanted.is_none_or(|wanted| wanted.iter().any(|known| known == *id));
        let outputs: Vec<&str> = outputs.iter().filter(is_wanted).copied().collect();
        // Nodes on which no picture depends are not run.
        let needed = all.needed_by(outputs.iter().copied());
        let pruned = whole.iter().filter(|(id, _)| needed.contains(id.as_str()));
        let pruned: Map<String, Value> = pruned
            .map(|(id, node)| (id.clone(), node.clone()))
            .collect();
        let pruned = Value::Object(pruned);
        let mut graph = Graph::new(&pruned).map_err(bad)?;
        let recipe = Recipe::read(&mut graph).map_err(|e| {
            Invalid::whole(
                "not_implemented",
                "This server makes pictures by one sampler",
                &format!("the graph {e}"),
            )
        })?;
        if let Some(told) = recipe.told.first() {
            let class = graph.node(&told.node).map_or("", |node| node.class);
            let what = format!("{} is not implemented here", told.what);
            return Err(Invalid::unsupported(&told.node, class, &what));
        }
        let saved = |output: &Output| {
            let class = graph.node(&output.node).map_or("", |node| node.class);
            let blame = |e: ApiError| Invalid::unsupported(&output.node, class, &e.message);
            let node = graph.node(&output.node);
            self.saved(output, node.as_ref()).map_err(blame)
        };
        let outputs = recipe
            .outputs
            .iter()
            .map(saved)
            .collect::<Result<Vec<_>, _>>()?;
        let sampler = recipe.sampler.clone();
        let class = graph
            .node(&sampler)
            .map_or("", |node| node.class)
            .to_string();
        let blame = |e: ApiError| match e.status.as_u16() {
            400 => Invalid::unsupported(&sampler, &class, &e.message),
            _ => e.into(),
        };
        let request = self.comfy_request(recipe).await.map_err(blame)?;
        Ok(Work {
            request,
            sampler,
            outputs,
        })
    }

    fn saved(&self, output: &Output, node: Option<&Node>) -> Result<Saved, ApiError> {
        let find = |name: &String| match self.options().upscalers.find(name) {
            Ok(Method::Network(path)) => Ok(path),
            Ok(_) => Err(ApiError::field(
                "model_name",
                format!("{name} is no network"),
            )),
            Err(e) => Err(ApiError::field("model_name", e.to_string())),
        };
        let upscalers = output
            .upscalers
            .iter()
            .map(find)
            .collect::<Result<Vec<_>, _>>()?;
        let prefix = node.and_then(|node| node.inputs.get("filename_prefix")?.as_str());
        let (folder, prefix) = file_prefix(prefix.unwrap_or(PREFIX));
        let shows = node.is_some_and(|node| node.class == "PreviewImage");
        Ok(Saved {
            node: output.node.clone(),
            upscalers,
            folder: if shows { String::new() } else { folder },
            prefix: if shows {
                format!("{PREFIX}_temp")
            } else {
                prefix
            },
            kind: if shows { "temp" } else { "output" },
        })
    }

    async fn comfy_request(&self, recipe: Recipe) -> Result<ValidRequest, ApiError> {
        let mut fields = recipe.fields;
        self.guidance(recipe.condition, &mut fields)?;
        for control in recipe.controls {
            let model = self
                .options()
                .controls
                .find("control_net_name", &control.model)?;
            let picture = self.uploaded(&control.picture.name).await?;
            let (start, end) = control.between;
            fields.controls.push(Control {
                strength: control.strength,
                start,
                end,
                ..Control::new(model, image_io::to_rgb(&picture))
            });
        }
        if let Some(start) = recipe.start {
            let multiple = self.queue().info().size_multiple;
            self.start(start, recipe.strength, multiple, &mut fields)
                .await?;
        }
        self.valid(fields, &InterfaceDefaults::OPENAI, &self.options().limits)
    }

    /// Both kinds of guidance: `cfg` of a sampler is the one beside the condition, where the model has two.
    fn guidance(&self, condition: Option<f64>, fields: &mut RequestFields) -> Result<(), ApiError> {
        let cfg = fields.guidance;
        let guides = cfg.is_some_and(|cfg| cfg != 1.0);
        match (self.queue().info().family, condition) {
            (family, _) if family.has_true_guidance() => {
                fields.guidance = condition;
                fields.true_guidance = cfg;
            }
            (Family::Flux2, Some(_)) if guides => {
                let reason = "FLUX.2 has one guidance: FluxGuidance, beside a cfg of 1";
                return Err(ApiError::field("cfg", reason));
            }
            (Family::Flux2, condition) if !guides => fields.guidance = condition,
            _ => {}
        }
        Ok(())
    }

    /// A picture that was sent here.
    async fn uploaded(&self, name: &str) -> Result<DynamicImage, ApiError> {
        let found = self.comfy().uploads().get(name);
        let bytes = found
            .ok_or_else(|| ApiError::field("image", format!("there is no picture {name:?}")))?;
        self.decode("image", Upload::Bytes(bytes.to_vec())).await
    }

    /// The picture to start from, and the size of the new one.
    async fn start(
        &self,
        start: Start,
        strength: f64,
        multiple: usize,
        fields: &mut RequestFields,
    ) -> Result<(), ApiError> {
        let picture = self.uploaded(&start.picture.name).await?;
        let own = (picture.width() as usize, picture.height() as usize);
        // Sides that are no multiples are cut off around the middle, as ComfyUI does before it encodes.
        let whole = |side: usize| (side / multiple * multiple).max(multiple);
        let (width, height, fit) = start
            .scaled
            .unwrap_or((whole(own.0), whole(own.1), Fit::Crop));
        (fields.width, fields.height) = (Some(width), Some(height));
        let mask = match &start.mask {
            Some(mask) => {
                let source = match mask.picture.name == start.picture.name {
                    true => picture.clone(),
                    false => self.uploaded(&mask.picture.name).await?,
                };
                Some((mask.clone(), source))
            }
            None => None,
        };
        let grey = start.grey;
        let made = blocking(move || {
            let mut image = image_io::to_rgb(&picture);
            let mask = mask.map(|(mask, source)| {
                let mask = mask_of(&source, &mask);
                let size = image.dimensions();
                match mask.dimensions() == size {
                    true => mask,
                    false => imageops::resize(&mask, size.0, size.1, FilterType::Triangle),
                }
            });
            let mask = match (mask, grey) {
                (Some(mask), Some(grow)) => Some(greyed(&mut image, &mask, grow)),
                (mask, _) => mask,
            };
            (image, mask)
        });
        let (image, mask) = made.await?;
        fields.init = Some(InitFields {
            strength: Some(strength),
            mask,
            editing: Editing {
                fit,
                ..Editing::default()
            },
            ..InitFields::new(image)
        });
        Ok(())
    }
}

/// A mask: white is painted.
fn mask_of(picture: &DynamicImage, mask: &Mask) -> GrayImage {
    let rgba = picture.to_rgba8();
    let (width, height) = rgba.dimensions();
    GrayImage::from_fn(width, height, |x, y| {
        let [red, green, blue, opacity] = rgba.get_pixel(x, y).0;
        let value = match mask.channel {
            Channel::Red => red,
            Channel::Green => green,
            Channel::Blue => blue,
            Channel::Opacity => 255 - opacity,
        };
        Luma([if mask.inverted { 255 - value } else { value }])
    })
}

/// Makes what is under the mask grey, and gives the mask, hard and larger by a box of this side.
fn greyed(image: &mut RgbImage, mask: &GrayImage, grow: usize) -> GrayImage {
    let hard = GrayImage::from_fn(mask.width(), mask.height(), |x, y| {
        Luma([if mask.get_pixel(x, y).0[0] >= GREY {
            255
        } else {
            0
        }])
    });
    for (pixel, masked) in image.pixels_mut().zip(hard.pixels()) {
        if masked.0[0] > 0 {
            pixel.0 = [GREY; 3];
        }
    }
    let (grow, before) = (grow as i64, (grow as i64) / 2);
    // Along one direction, then along the other.
    let along = |mask: &GrayImage, step: (i64, i64)| {
        let (width, height) = (i64::from(mask.width()), i64::from(mask.height()));
        GrayImage::from_fn(mask.width(), mask.height(), |x, y| {
            let mut offsets = -before..(grow - before).max(1);
            let any = offsets.any(|offset| {
                let (x, y) = (
                    i64::from(x) + step.0 * offset,
                    i64::from(y) + step.1 * offset,
                );
                let inside = (0..width).contains(&x) && (0..height).contains(&y);
                inside && mask.get_pixel(x as u32, y as u32).0[0] > 0
            });
            Luma([if any { 255 } else { 0 }])
        })
    };
    along(&along(&hard, (1, 0)), (0, 1))
}

/// The folder and the beginning of a file's name; characters that files should not have are left out.
fn file_prefix(prefix: &str) -> (String, String) {
    let plain = |part: &str| -> String {
        let kept = part
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ .%()+".contains(*c));
        kept.take(MOST_PREFIX).collect()
    };
    let mut parts: Vec<String> = prefix.split(['/', '\\']).map(plain).collect();
    parts.retain(|part| !part.trim_matches(['.', ' ']).is_empty());
    let name = parts.pop().unwrap_or_else(|| PREFIX.to_string());
    (parts.join("/"), name)
}

/// What a job is asked for, as clients see it.
pub(super) fn outputs_of(work: &Work) -> Vec<String> {
    work.outputs
        .iter()
        .map(|saved| saved.node.clone())
        .collect()
}

/// What an error of nodes looks like while a graph runs.
pub(super) fn failure(id: &str, work_node: &str, class: &str, kind: &str, message: &str) -> Value {
    json!({
        "prompt_id": id, "node_id": work_node, "node_type": class, "executed": [], "exception_message": message,
        "exception_type": kind, "traceback": [], "current_inputs": {}, "current_outputs": [],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_grow_over_what_is_grey() {
        let mut image = RgbImage::from_pixel(9, 9, image::Rgb([10, 20, 30]));
        let mut mask = GrayImage::new(9, 9);
        mask.put_pixel(4, 4, Luma([200]));
        mask.put_pixel(0, 0, Luma([100]));
        let grown = greyed(&mut image, &mask, 3);
        assert_eq!(image.get_pixel(4, 4).0, [GREY; 3]);
        assert_eq!(
            (image.get_pixel(3, 4).0, image.get_pixel(0, 0).0),
            ([10, 20, 30], [10, 20, 30])
        );
        let white = |mask: &GrayImage| mask.pixels().filter(|pixel| pixel.0[0] > 0).count();
        assert_eq!((white(&grown), grown.get_pixel(5, 3).0[0]), (9, 255));
        assert_eq!(white(&greyed(&mut image, &mask, 0)), 1);
    }

    #[test]
    fn files_have_plain_names() {
        let of = |prefix: &str| file_prefix(prefix);
        assert_eq!(of("cats/red cat"), ("cats".into(), "red cat".into()));
        assert_eq!(of("../../etc/pass\nwd"), ("etc".into(), "passwd".into()));
        assert_eq!(of("//.."), (String::new(), "ComfyUI".into()));
    }
}
