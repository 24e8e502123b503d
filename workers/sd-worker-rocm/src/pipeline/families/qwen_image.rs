//! Qwen-Image, and Qwen-Image-Edit, which looks at pictures and has its text encoder look at them.

use super::{Evaluation, Inputs, Network, Row, TransformerFamily};
use crate::info::Family;
use crate::models::transformer::qwen_image::{QwenImage, QwenImageConfig};
use crate::models::VarBuilder;
use crate::pipeline::language::{last, Question, Show};
use crate::pipeline::load::{distilled, Decoder, TextModels, TextSource};
use crate::pipeline::text::{composed_long, Reading};
use crate::request::ImageRequest;
use crate::sampling::guidance::Length;
use crate::weights::folder::Folder;
use crate::weights::packed;
use candle_core::Result as CandleResult;
use serde_json::json;
use std::ops::RangeInclusive;
use std::sync::Arc;
use worker::Result;

/// The family's row.
pub const ROW: Row = Row {
    label: "Qwen-Image",
    classes: &["QwenImageTransformer2DModel"],
    marks: &["transformer_blocks.0.img_mod.1."],
    of_folder,
    of_tensors: |weights| {
        Ok(Box::new(QwenFamily {
            config: packed::qwen_image_config(weights)?,
            // The tensors do not say what they were trained for.
            looks: Looks::Any,
        }))
    },
    // The originals have the same names.
    renamed: Clone::clone,
};

/// The model's text encoder for prompts alone.
const PLAIN: Question = Question {
    before: "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n",
    after: "<|im_end|>\n<|im_start|>assistant\n",
    dropped: 34,
    longest: 1024,
    filled: None,
    states: last,
};

/// The same for prompts that say what is to become of pictures.
const EDIT: Question = Question {
    before: "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, background), then explain how the user's text instruction should alter or modify the image. Generate a new image that meets the user's requirements while maintaining consistency with the original input where appropriate.<|im_end|>\n<|im_start|>user\n",
    dropped: 64,
    ..PLAIN
};

/// How the first editing model is shown its one picture.
const ONE: Show = Show {
    question: EDIT,
    around: ["<|vision_start|>", "<|vision_end|>"],
    token: "<|image_pad|>",
    size: |picture, keep| match keep {
        true => picture,
        false => of_area(1024 * 1024, picture),
    },
};

/// Most pictures to look at; the later models were made for three.
const MOST: usize = 8;

/// How the later ones are shown several.
const SEVERAL: Show = Show {
    around: ["Picture {}: <|vision_start|>", "<|vision_end|>"],
    size: |picture, _| of_area(384 * 384, picture),
    ..ONE
};

/// About so many pixels in the shape of a picture, in steps of 32.
fn of_area(area: usize, (width, height): (usize, usize)) -> (usize, usize) {
    let ratio = width.max(1) as f64 / height.max(1) as f64;
    let wide = (area as f64 * ratio).sqrt();
    let steps = |side: f64| (((side / 32.0).round_ties_even() as usize) * 32).max(32);
    (steps(wide), steps(wide / ratio))
}

/// What a model looks at, as its folder's pipeline says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looks {
    /// `QwenImagePipeline`: nothing.
    Nothing,
    /// `QwenImageEditPipeline`: one picture.
    One,
    /// `QwenImageEditPlusPipeline`: several.
    Several,
    /// Whatever a request has: nothing is known.
    Any,
}

#[derive(Debug)]
struct QwenFamily {
    config: QwenImageConfig,
    looks: Looks,
}

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    let part = folder.part("transformer");
    let config: QwenImageConfig = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    let index: serde_json::Value = folder.json("model_index.json")?;
    let looks = match index["_class_name"].as_str().unwrap_or_default() {
        "QwenImageEditPipeline" => Looks::One,
        "QwenImageEditPlusPipeline" => Looks::Several,
        "QwenImagePipeline" => Looks::Nothing,
        other => {
            return Err(worker::Error::BadModel {
                path: folder.path("model_index.json"),
                reason: format!("Qwen-Image as {other} is not implemented"),
            })
        }
    };
    Ok(Box::new(QwenFamily { config, looks }))
}

impl TransformerFamily for QwenFamily {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::QwenImage
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        let decoder = Decoder {
            label: "Qwen 2.5 VL",
            own: "qwen25_7b",
            file: "qwen_2.5_vl_7b",
            part: "text_encoder",
            tokenizer: "tokenizer",
            known: json!({"model_type": "qwen2_5_vl", "rope_theta": 1e6, "rms_norm_eps": 1e-6, "head_dim": 128,
                "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}),
            question: PLAIN,
        };
        Ok(TextModels {
            towers: Vec::new(),
            long: vec![match self.looks {
                Looks::Nothing => source.language(&decoder)?,
                Looks::One => source.seeing(&decoder, "processor", ONE)?,
                Looks::Several | Looks::Any => source.seeing(&decoder, "processor", SEVERAL)?,
            }],
            reading: Reading::LAST,
            compose: Arc::new(composed_long),
        })
    }

    fn defaults(&self, name: &str) -> (usize, f64) {
        match distilled(name) {
            Some(_) => (8, 1.0),
            None => (50, 4.0),
        }
    }

    fn scheduler(&self) -> &'static str {
        r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 1.0, "use_dynamic_shifting": true, "base_shift": 0.5,
            "max_shift": 0.9, "base_image_seq_len": 256, "max_image_seq_len": 8192, "shift_terminal": 0.02}"#
    }

    fn references(&self) -> RangeInclusive<usize> {
        match self.looks {
            Looks::Nothing => 0..=0,
            Looks::One => 1..=1,
            Looks::Several => 1..=MOST,
            Looks::Any => 0..=MOST,
        }
    }

    fn reference_size(
        &self,
        picture: (usize, usize),
        _request: &ImageRequest,
        _factor: usize,
    ) -> (usize, usize) {
        of_area(1024 * 1024, picture)
    }

    fn guidance_length(&self) -> Length {
        Length::Patches
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(QwenImage::new(vb, &self.config)?))
    }
}

impl Network for QwenImage {
    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation> {
        let Inputs {
            text, references, ..
        } = inputs;
        let [_, height, width] = *inputs.latents else {
            candle_core::bail!("latents of {:?}", inputs.latents)
        };
        let mut sizes = vec![(height, width)];
        for reference in &references {
            let (_, _, height, width) = reference.dims4()?;
            sizes.push((height, width));
        }
        let rope = self.rope(text.dim(1)?, &sizes, &text)?;
        Ok(Box::new(move |x, level, _| {
            let time = level.time(|level| 1000.0 * level.sigma);
            self.forward(x, time, &text, &references, &rope)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// diffusers' `calculate_dimensions`.
    #[test]
    fn areas_in_steps() {
        assert_eq!(of_area(1024 * 1024, (1920, 1080)), (1376, 768));
        assert_eq!(of_area(1024 * 1024, (500, 500)), (1024, 1024));
        assert_eq!(of_area(384 * 384, (768, 1024)), (320, 448));
        assert_eq!(of_area(384 * 384, (100_000, 1)), (121_440, 32));
    }
}
