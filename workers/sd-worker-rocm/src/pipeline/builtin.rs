//! The small model that the program carries.

#[cfg(feature = "built-in-model")]
use crate::weights::folder::Folder;

#[cfg(feature = "built-in-model")]
macro_rules! model {
    ($($file:literal),+ $(,)?) => {
        &[$(($file, include_bytes!(concat!("../../models/scenes-sd/", $file)))),+]
    };
}

/// Name of the model.
pub const NAME: &str = "scenes-sd";

/// What guidance suits models of this project: the one that is built in, and that of the tests.
pub const GUIDANCE: [(&str, f64); 2] = [(NAME, 4.0), ("tiny-shapes-sd", 5.0)];

/// The model's files: it draws scenes of up to four things, 256×256 pixels; `models/scenes-sd/README.md` has the details.
#[cfg(feature = "built-in-model")]
pub const FOLDER: Folder = Folder::Embedded(model![
    "model_index.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "text_encoder/model.gguf",
    "tokenizer/tokenizer.json",
    "unet/config.json",
    "unet/diffusion_pytorch_model.gguf",
    "vae/config.json",
    "vae/diffusion_pytorch_model.gguf",
]);

/// CLIP's vocabulary, which is the same in all models and missing from single-file checkpoints.
pub const CLIP_TOKENIZER: &[u8] =
    include_bytes!("../../models/tiny-shapes-sd/tokenizer/tokenizer.json");
