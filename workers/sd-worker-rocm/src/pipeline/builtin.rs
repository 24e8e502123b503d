//! The small model that the program carries.

#[cfg(feature = "built-in-model")]
use crate::weights::folder::Folder;

#[cfg(feature = "built-in-model")]
macro_rules! model {
    ($($file:literal),+ $(,)?) => {
        &[$(($file, include_bytes!(concat!("../../models/tiny-shapes-sd/", $file)))),+]
    };
}

/// Name of the model.
pub const NAME: &str = "tiny-shapes-sd";

/// The model's files: it draws one to three plain shapes of 128×128 pixels; `models/tiny-shapes-sd/README.md` has the
/// details.
#[cfg(feature = "built-in-model")]
pub const FOLDER: Folder = Folder::Embedded(model![
    "model_index.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "tokenizer/tokenizer.json",
    "unet/config.json",
    "unet/diffusion_pytorch_model.safetensors",
    "vae/config.json",
    "vae/diffusion_pytorch_model.safetensors",
]);

/// CLIP's vocabulary, which is the same in all models and missing from single-file checkpoints.
pub const CLIP_TOKENIZER: &[u8] =
    include_bytes!("../../models/tiny-shapes-sd/tokenizer/tokenizer.json");
