//! Sana.

use super::{Evaluation, Inputs, Network, Row, TransformerFamily};
use crate::info::Family;
use crate::models::transformer::sana::{Sana, SanaConfig};
use crate::models::VarBuilder;
use crate::pipeline::language::{last, Question};
use crate::pipeline::load::{Decoder, TextModels, TextSource};
use crate::pipeline::text::{composed_long, Reading};
use crate::sampling::noise_schedule::Spacing;
use crate::sampling::NoiseSchedule;
use crate::weights::folder::Folder;
use candle_core::Result as CandleResult;
use serde_json::json;
use std::sync::Arc;
use worker::Result;

/// The family's row.
pub const ROW: Row = Row {
    label: "Sana",
    classes: &["SanaTransformer2DModel"],
    marks: &["ff.conv_inverted."],
    of_folder,
    of_tensors: |_| {
        Err("Sana's text encoder and autoencoder are read from its folder; give that with --model, and this file with --transformer".to_string())
    },
    renamed: Clone::clone,
};

/// How it asks Gemma 2: prompts in lower case, of whose instruction only the first and the last token are read. The words
/// are those of its makers.
const GEMMA: Question = Question {
    before: "Given a user prompt, generate an 'Enhanced prompt' that provides detailed visual descriptions suitable for image generation. Evaluate the level of detail in the user prompt:\n\
- If the prompt is simple, focus on adding specifics about colors, shapes, sizes, textures, and spatial relationships to create vivid and concrete scenes.\n\
- If the prompt is already detailed, refine and enhance the existing details slightly without overcomplicating.\n\
Here are examples of how to transform or refine prompts:\n\
- User Prompt: A cat sleeping -> Enhanced: A small, fluffy white cat curled up in a round shape, sleeping peacefully on a warm sunny windowsill, surrounded by pots of blooming red flowers.\n\
- User Prompt: A busy city street -> Enhanced: A bustling city street scene at dusk, featuring glowing street lamps, a diverse crowd of people in colorful clothing, and a double-decker bus passing by towering glass skyscrapers.\n\
Please generate only the enhanced description for the prompt below and avoid including any additional commentary or evaluations:\n\
User Prompt: ",
    after: "",
    dropped: 0,
    longest: 300,
    filled: None,
    states: last,
};

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    let part = folder.part("transformer");
    let config: SanaConfig = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    Ok(Box::new(config))
}

impl TransformerFamily for SanaConfig {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::Sana
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        let gemma = source.language(&Decoder {
            label: "Gemma 2",
            own: "gemma2_2b",
            file: "gemma_2_2b",
            part: "text_encoder",
            tokenizer: "tokenizer",
            known: json!({"model_type": "gemma2", "head_dim": 256}),
            question: GEMMA,
        })?;
        Ok(TextModels {
            towers: Vec::new(),
            long: vec![gemma.with_before_negative("").instructed()],
            reading: Reading::LAST,
            compose: Arc::new(composed_long),
        })
    }

    fn defaults(&self, _name: &str) -> (usize, f64) {
        (20, 4.5)
    }

    fn size(&self, factor: usize) -> (usize, usize) {
        (self.sample_size * factor, self.sample_size * factor)
    }

    fn scheduler(&self) -> &'static str {
        r#"{"_class_name": "DPMSolverMultistepScheduler", "prediction_type": "flow_prediction", "use_flow_sigmas": true,
        "flow_shift": 3.0}"#
    }

    fn schedule(&self, schedule: NoiseSchedule) -> NoiseSchedule {
        // Its pipeline leaves the steps to the scheduler.
        schedule.with_spacing(Spacing::Linspace)
    }

    fn patch(&self) -> usize {
        1
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(Sana::new(vb, self)?))
    }
}

impl Network for Sana {
    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation> {
        let [_, height, width] = *inputs.latents else {
            candle_core::bail!("latents of {:?}", inputs.latents)
        };
        let text = self.text(&inputs.text)?;
        let places = self.places(height, width, text.device())?;
        Ok(Box::new(move |x, level, _| {
            let time = level.time(|level| level.timestep);
            self.forward(x, time, &text, places.as_ref())
        }))
    }

    fn without_attention(&self, blocks: &[String]) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(self.apart(blocks)?))
    }
}
