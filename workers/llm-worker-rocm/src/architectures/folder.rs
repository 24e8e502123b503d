//! How a decoder's folder, `config.json` and safetensors, differs from the usual one.

use serde_json::Value as Json;

/// What transformers' code of an architecture does where others do something else.
#[derive(Debug, Clone, Copy)]
pub struct FolderTraits {
    /// The rotary embedding turns neighbours, not halves.
    pub interleaved: bool,
    /// Norms store their weight less one.
    pub norm_plus_one: bool,
    /// `post_attention_layernorm` comes before the feed-forward part (GGUF's `ffn_norm`), not behind attention.
    pub post_attention_is_ffn_norm: bool,
    /// Names of the activation; any other is refused.
    pub activations: &'static [&'static str],
    /// The output matrix is the embedding table unless the file says otherwise.
    pub tied: bool,
    /// What its configuration has that others do not.
    pub rules: &'static [ConfigRule],
    /// How experts' matrices lie in its files.
    pub experts: ExpertFiles,
    /// The words of families with a recurrence.
    pub recurrent: Option<RecurrentFolder>,
    /// The words of families with a delta rule or short convolutions.
    pub delta: Option<DeltaFolder>,
    /// The words of older families, and of some that took them up.
    pub older: Option<OlderFolder>,
}

/// Families of the usual blocks whose configurations or tensors have names of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OlderFolder {
    /// Falcon.
    Falcon,
    /// StarCoder 1.
    BigCode,
    /// GPT-2.
    Gpt2,
    /// GPT-NeoX and Pythia.
    Neox,
    /// StableLM.
    StableLm,
    /// OLMo 1.
    Olmo,
    /// EXAONE 3.
    Exaone,
    /// InternLM 2.
    InternLm2,
    /// Ling 1.
    Ling,
    /// Granite 3 with experts.
    GraniteMoe,
}

/// Families with a delta rule or short convolutions, whose configurations and tensors have names of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaFolder {
    /// Qwen3-Next.
    Qwen3Next,
    /// Qwen 3.5.
    Qwen35,
    /// LFM2, with and without experts.
    Lfm2,
}

/// How the matrices of experts lie in the files of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertFiles {
    /// Tensors of each expert.
    Apart,
    /// `gate_up_proj` and `down_proj` of all experts, rows of inputs; the columns of gates come first.
    Halves,
    /// The same, where columns of gates and of what they multiply take turns; or blocks of MXFP4, rows of outputs.
    Turns,
}

/// Families with a recurrence, whose configurations and tensors have names of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecurrentFolder {
    /// Mamba and Falcon Mamba.
    Mamba,
    /// Mamba 2.
    Mamba2,
    /// Granite 4.
    Granite,
    /// Nemotron-H.
    Nemotron,
    /// Falcon-H1.
    FalconH1,
    /// RecurrentGemma.
    Griffin,
    /// MiniMax-Text-01 and M1.
    MiniMax,
    /// RWKV 7.
    Rwkv7,
    /// Jamba.
    Jamba,
}

impl FolderTraits {
    /// Llama's.
    pub const USUAL: Self = Self {
        interleaved: false,
        norm_plus_one: false,
        post_attention_is_ffn_norm: true,
        activations: &["silu", "swish"],
        tied: false,
        rules: &[],
        experts: ExpertFiles::Apart,
        recurrent: None,
        delta: None,
        older: None,
    };

    /// The same with these rules.
    pub(super) const fn rules(self, rules: &'static [ConfigRule]) -> Self {
        Self { rules, ..self }
    }
}

/// A key of `config.json`, and what becomes of it in GGUF's metadata.
#[derive(Debug, Clone, Copy)]
pub enum ConfigRule {
    /// Other values than these call for something that is not implemented.
    Only(&'static str, &'static [Accepted]),
    /// The same, of models with experts.
    OnlyWithExperts(&'static str, &'static [Accepted]),
    /// A whole number above 0, and GGUF's key for it.
    Count(&'static str, &'static str),
    /// The same of a number that may be absent.
    OptionalCount(&'static str, &'static str),
    /// Sizes of layers with a window and of those without, layers that share keys, and inputs of each layer: Gemma's.
    LayerSizes,
    /// What a function says of the configuration: what is not implemented.
    Check(fn(&Json) -> Result<(), String>),
    /// Another number than this one, where there is one, calls for something that is not implemented.
    OnlyFloat(&'static str, f64),
    /// A number, and GGUF's key for it.
    Float(&'static str, &'static str),
    /// Scores are divided by the root of this number; in GGUF only where it is not the size of a head.
    ScoreRoot(&'static str),
    /// GGUF's number of folders of this name that do not have the key: a name, a key, GGUF's key and the number.
    NumberOf(&'static str, &'static str, &'static str, u32),
    /// Each so-manieth layer sees everything, the others a window: other patterns are refused.
    FullAttentionEvery(usize),
    /// Which layers have the window, if there is one: `layer_types` lists them, else `sliding_window_pattern` says, else
    /// each so-manieth sees everything.
    Windows(usize),
    /// Which layers turn queries and keys: `no_rope_layers` lists them, else all but each `no_rope_layer_interval`-th
    /// (this one, if that is absent).
    TurnedLayers(u32),
    /// How pairs of elements are shared among time, row and column of pictures.
    PictureSections,
}

/// A value of a key that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// No value, or null.
    Absent,
    /// true or false.
    Bool(bool),
    /// A whole number.
    Number(u32),
    /// A list without elements.
    EmptyList,
    /// A list of this text only.
    Each(&'static str),
    /// This text.
    Text(&'static str),
}

impl Accepted {
    /// Whether a value is this one.
    pub fn is(self, value: &Json) -> bool {
        match self {
            Self::Absent => value.is_null(),
            Self::Bool(expected) => value.as_bool() == Some(expected),
            Self::Number(expected) => value.as_u64() == Some(expected.into()),
            Self::EmptyList => value.as_array().is_some_and(Vec::is_empty),
            Self::Each(text) => {
                let list = value.as_array();
                list.is_some_and(|list| list.iter().all(|element| element == text))
            }
            Self::Text(text) => value.as_str() == Some(text),
        }
    }
}
