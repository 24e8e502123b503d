//! The table of encoders.

use super::resample::Filter;

/// An encoder with what makes rows of the language model's width of what it gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Qwen2Vl,
    Qwen25Vl,
    Qwen3Vl,
    Gemma3,
    Gemma4,
    Llava,
    Idefics3,
    InternVl,
    Pixtral,
}

impl Kind {
    /// Pixels become numbers by the file's means and deviations, not by what the encoder does itself.
    pub(crate) fn is_normalised(self) -> bool {
        self != Self::Gemma4
    }
}

/// The activation of feed-forward parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    /// GELU, as it is defined.
    Gelu,
    /// GELU by tanh.
    GeluTanh,
    /// `x sigmoid(1.702 x)`.
    QuickGelu,
    Silu,
}

/// What a kind does in its own way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    pub(crate) kind: Kind,
    /// llama.cpp's name of it (`clip.projector_type`).
    pub(crate) projector: &'static str,
    /// `model_type` of folders with it.
    pub(crate) folders: &'static [&'static str],
    /// That of the folder's `vision_config`, where the kind goes with one encoder only.
    pub(crate) tower: Option<&'static str>,
    pub(crate) activation: Activation,
    /// Norms divide by the root mean square only.
    pub(crate) rms: bool,
    /// Patches are turned by their row and column, with frequencies of this base.
    pub(crate) turned: Option<f64>,
    /// Rows of the prompt are turned by time, row and column of a picture.
    pub(crate) sections: bool,
    /// How pictures are resized.
    pub(super) filter: Filter,
    /// Patches of a side that become one row, unless the file says.
    pub(crate) merge: usize,
    /// What a template writes for a picture.
    pub(crate) placeholder: &'static str,
    /// The token whose embedding a picture's rows take the place of.
    pub(crate) token: &'static str,
    /// What stands before and behind a picture's tokens where the template has written its placeholder.
    pub(crate) around: (&'static str, &'static str),
    /// The same where no template did.
    pub(crate) alone: (&'static str, &'static str),
    /// What it does with videos, if it takes them.
    pub(crate) video: Option<VideoTraits>,
}

/// What a kind does with videos.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VideoTraits {
    /// What a template writes for a video.
    pub(crate) placeholder: &'static str,
    /// The token whose embedding a video's rows take the place of.
    pub(crate) token: &'static str,
    /// What stands before and behind a video's part of a prompt where no template has written its placeholder.
    pub(crate) alone: (&'static str, &'static str),
    /// Frames that a second has, unless somebody says.
    pub(crate) fps: f64,
    /// Fewest frames, as far as there are so many, and most.
    pub(crate) frames: (usize, usize),
    /// Frames that become the rows of one picture.
    pub(crate) together: usize,
}

const QWEN_VIDEO: VideoTraits = VideoTraits {
    placeholder: "<|video_pad|>",
    token: "<|video_pad|>",
    alone: ("<|vision_start|>", "<|vision_end|>"),
    fps: 2.0,
    frames: (4, 768),
    together: 2,
};

/// Base of the frequencies of patches.
const USUAL_BASE: f64 = 10_000.0;

const QWEN: Traits = Traits {
    kind: Kind::Qwen25Vl,
    projector: "qwen2.5vl_merger",
    folders: &["qwen2_5_vl"],
    tower: None,
    activation: Activation::Silu,
    rms: true,
    turned: Some(USUAL_BASE),
    sections: true,
    filter: Filter::Bicubic,
    merge: 2,
    placeholder: "<|image_pad|>",
    token: "<|image_pad|>",
    around: ("", ""),
    alone: ("<|vision_start|>", "<|vision_end|>"),
    video: Some(QWEN_VIDEO),
};

static TABLE: &[Traits] = &[
    Traits {
        kind: Kind::Qwen2Vl,
        projector: "qwen2vl_merger",
        folders: &["qwen2_vl"],
        activation: Activation::QuickGelu,
        rms: false,
        ..QWEN
    },
    QWEN,
    Traits {
        projector: "qwen2.5o",
        folders: &["qwen2_5_omni", "qwen2_5_omni_thinker"],
        placeholder: "<|IMAGE|>",
        token: "<|IMAGE|>",
        alone: ("<|vision_bos|>", "<|vision_eos|>"),
        ..QWEN
    },
    Traits {
        kind: Kind::Qwen3Vl,
        projector: "qwen3vl_merger",
        folders: &["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"],
        activation: Activation::GeluTanh,
        rms: false,
        // Each frame has its own.
        video: Some(VideoTraits {
            alone: ("", ""),
            ..QWEN_VIDEO
        }),
        ..QWEN
    },
    Traits {
        kind: Kind::Gemma3,
        projector: "gemma3",
        folders: &["gemma3"],
        tower: Some("siglip_vision_model"),
        activation: Activation::GeluTanh,
        rms: false,
        turned: None,
        sections: false,
        filter: Filter::Bilinear,
        merge: 4,
        placeholder: "<start_of_image>",
        token: "<image_soft_token>",
        around: ("\n\n<start_of_image>", "<end_of_image>\n\n"),
        alone: ("\n\n<start_of_image>", "<end_of_image>\n\n"),
        video: None,
    },
    Traits {
        kind: Kind::Gemma4,
        projector: "gemma4v",
        folders: &["gemma4"],
        tower: Some("gemma4_vision"),
        activation: Activation::GeluTanh,
        rms: true,
        turned: Some(100.0),
        sections: false,
        filter: Filter::Bicubic,
        merge: 3,
        placeholder: "<|image|>",
        token: "<|image|>",
        around: ("<|image>", "<image|>"),
        alone: ("<|image>", "<image|>"),
        video: None,
    },
    Traits {
        kind: Kind::Llava,
        projector: "mlp",
        folders: &["llava", "llava_next"],
        tower: Some("clip_vision_model"),
        activation: Activation::QuickGelu,
        rms: false,
        turned: None,
        sections: false,
        filter: Filter::Bicubic,
        merge: 1,
        placeholder: "<image>",
        token: "<image>",
        around: ("", ""),
        alone: ("", "\n"),
        video: None,
    },
    Traits {
        kind: Kind::Idefics3,
        projector: "idefics3",
        folders: &["idefics3", "smolvlm"],
        tower: None,
        activation: Activation::GeluTanh,
        rms: false,
        turned: None,
        sections: false,
        filter: Filter::Lanczos,
        merge: 4,
        placeholder: "<image>",
        token: "<image>",
        around: ("", ""),
        alone: ("", ""),
        video: Some(VideoTraits {
            placeholder: "<video>",
            token: "<image>",
            alone: ("", ""),
            fps: 1.0,
            frames: (1, 64),
            together: 1,
        }),
    },
    Traits {
        kind: Kind::Pixtral,
        projector: "pixtral",
        folders: &["llava", "mistral3"],
        tower: Some("pixtral"),
        activation: Activation::Silu,
        rms: true,
        turned: Some(USUAL_BASE),
        sections: false,
        filter: Filter::Bicubic,
        merge: 1,
        placeholder: "[IMG]",
        token: "[IMG]",
        around: ("", ""),
        alone: ("", ""),
        video: None,
    },
    Traits {
        kind: Kind::InternVl,
        projector: "internvl",
        folders: &["internvl"],
        tower: Some("internvl_vision"),
        activation: Activation::Gelu,
        rms: false,
        turned: None,
        sections: false,
        filter: Filter::Bicubic,
        merge: 2,
        placeholder: "<IMG_CONTEXT>",
        token: "<IMG_CONTEXT>",
        around: ("<img>", "</img>"),
        alone: ("<img>", "</img>\n"),
        video: Some(VideoTraits {
            placeholder: "<video>",
            token: "<IMG_CONTEXT>",
            alone: ("", "\n"),
            fps: 1.0,
            frames: (1, 32),
            together: 1,
        }),
    },
];

/// Whether a text is a kind's name in an `mmproj` file or a folder's `model_type`.
pub(crate) fn traits_of(name: &str) -> Option<&'static Traits> {
    TABLE
        .iter()
        .find(|t| t.projector == name || t.folders.contains(&name))
}

/// The kind of a folder with this `model_type`, whose encoder has that one.
pub(crate) fn traits_of_folder(model: &str, tower: Option<&str>) -> Option<&'static Traits> {
    let mut all = TABLE.iter().filter(|t| t.folders.contains(&model));
    all.find(|t| t.tower.is_none() || tower.is_none() || t.tower == tower)
}

/// Names of all kinds, as `mmproj` files have them.
pub(crate) fn projectors() -> String {
    let names: Vec<&str> = TABLE.iter().map(|t| t.projector).collect();
    names.join(", ")
}
