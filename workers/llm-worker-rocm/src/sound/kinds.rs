//! The table of encoders of sounds.

/// An encoder with what makes rows of the language model's width of what it gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Voxtral,
    Qwen2Audio,
    Qwen25Omni,
    Gemma3n,
    Gemma4,
}

/// What a kind does in its own way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    pub(crate) kind: Kind,
    /// llama.cpp's name of it (`clip.projector_type`, or `clip.audio.projector_type`).
    pub(crate) projector: &'static str,
    /// `model_type` of folders with it.
    pub(crate) folders: &'static [&'static str],
    /// What a template writes for a sound: the token whose embedding its rows take the place of.
    pub(crate) token: &'static str,
    /// What stands before and behind its rows where a template has written it.
    pub(crate) around: (&'static str, &'static str),
    /// The same where no template did.
    pub(crate) alone: (&'static str, &'static str),
    /// The token that rows have where tokens have inputs of each layer besides their embedding.
    pub(crate) filler: Option<&'static str>,
    /// Seconds of a sound at most, unless the folder says otherwise; `None` where it is encoded in pieces.
    pub(crate) seconds: Option<usize>,
}

static TABLE: &[Traits] = &[
    Traits {
        kind: Kind::Voxtral,
        projector: "voxtral",
        folders: &["voxtral"],
        token: "[AUDIO]",
        around: ("", ""),
        alone: ("[BEGIN_AUDIO]", ""),
        filler: None,
        seconds: None,
    },
    Traits {
        kind: Kind::Qwen2Audio,
        projector: "qwen2a",
        folders: &["qwen2_audio"],
        token: "<|AUDIO|>",
        around: ("", ""),
        alone: ("<|audio_bos|>", "<|audio_eos|>\n"),
        filler: None,
        seconds: Some(30),
    },
    Traits {
        kind: Kind::Qwen25Omni,
        projector: "qwen2.5o",
        folders: &["qwen2_5_omni", "qwen2_5_omni_thinker"],
        token: "<|AUDIO|>",
        around: ("", ""),
        alone: ("<|audio_bos|>", "<|audio_eos|>"),
        filler: None,
        seconds: Some(300),
    },
    Traits {
        kind: Kind::Gemma3n,
        projector: "gemma3na",
        folders: &["gemma3n"],
        token: "<audio_soft_token>",
        // Behind the rows comes that of the end, which is one of the encoder's.
        around: ("\n\n<start_of_audio>", "\n\n"),
        alone: ("\n\n<start_of_audio>", "\n\n"),
        filler: None,
        seconds: Some(30),
    },
    Traits {
        kind: Kind::Gemma4,
        projector: "gemma4a",
        folders: &["gemma4"],
        token: "<|audio|>",
        around: ("<|audio>", "<audio|>"),
        alone: ("<|audio>", "<audio|>"),
        filler: Some("<pad>"),
        seconds: Some(30),
    },
];

/// The kind of a name in an `mmproj` file, or of a folder's `model_type`.
pub(crate) fn traits_of(name: &str) -> Option<&'static Traits> {
    TABLE
        .iter()
        .find(|t| t.projector == name || t.folders.contains(&name))
}

/// Names of all kinds, as `mmproj` files have them.
pub(crate) fn projectors() -> String {
    let names: Vec<&str> = TABLE.iter().map(|t| t.projector).collect();
    names.join(", ")
}
