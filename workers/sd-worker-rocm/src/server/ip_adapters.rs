//! The IP-Adapters that a job asks for; clients name them as they name ControlNets.

use super::request::Upload;
use super::App;
use crate::image_io;
use crate::request::{BlockStrengths, IpAdapter};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use worker::http::ApiError;

const FIELD: &str = "ip_adapters";

fn one() -> f64 {
    1.0
}

/// An IP-Adapter of a job.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct IpAdapterBody {
    model: String,
    /// In base64.
    #[serde(default)]
    images: Vec<String>,
    /// Embeddings of faces, for FaceID.
    #[serde(default)]
    faces: Vec<Vec<f32>>,
    #[serde(default = "one")]
    strength: f64,
    /// `all`, `style`, `layout`, `style+layout`, or strengths of blocks as diffusers writes them.
    blocks: Option<Value>,
    /// In base64; white is where it acts.
    mask: Option<String>,
    #[serde(default)]
    start: f64,
    #[serde(default = "one")]
    end: f64,
}

impl App {
    /// The IP-Adapters of a job.
    pub(super) async fn ip_adapters(
        &self,
        bodies: Vec<IpAdapterBody>,
    ) -> Result<Vec<IpAdapter>, ApiError> {
        let mut adapters = Vec::new();
        for body in bodies {
            let model = self.options().controls.find(FIELD, &body.model)?;
            let mut images = Vec::new();
            for image in body.images {
                let image = self.decode(FIELD, Upload::Base64(image)).await?;
                images.push(image_io::to_rgb(&image));
            }
            let mask = match body.mask {
                Some(mask) => Some(self.decode(FIELD, Upload::Base64(mask)).await?),
                None => None,
            };
            let blocks = match body.blocks {
                None | Some(Value::Null) => BlockStrengths::default(),
                Some(Value::String(name)) => name
                    .parse()
                    .map_err(|e: String| ApiError::field(FIELD, e))?,
                Some(json) => json
                    .to_string()
                    .parse()
                    .map_err(|e: String| ApiError::field(FIELD, e))?,
            };
            adapters.push(IpAdapter {
                faces: body.faces,
                strength: body.strength,
                blocks,
                mask: mask.as_ref().map(image_io::to_mask),
                start: body.start,
                end: body.end,
                ..IpAdapter::new(model, images)
            });
        }
        Ok(adapters)
    }
}
