//! What tells the architectures apart that the decoder runs: one row of facts for each of llama.cpp's names.

/// What an architecture does where others do something else. What a file can tell by itself (sizes, biases, experts, windows) is not here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Architecture {
    pub name: &'static str,
    /// The rotary embedding turns neighbours, not halves.
    pub interleaved: bool,
    pub norm: NormKind,
    /// Norms before attention and the feed-forward part.
    pub pre_norms: bool,
    /// Norms of what these give.
    pub post_norms: bool,
    /// Norms of queries and keys, before they turn.
    pub qk_norms: bool,
    /// The same without weights, where they turn.
    pub plain_qk_norms: bool,
    pub activation: Act,
    /// How the embedding is scaled, unless the file says.
    pub embedding: EmbeddingScale,
    /// How the router's probabilities become weights.
    pub routing: Routing,
    /// The feed-forward part works on the block's input beside attention, not behind it, unless the file says otherwise.
    pub parallel: bool,
    /// What follows from the number of the block.
    pub layers: Layers,
    /// What the file's `logit_scale` does to logits.
    pub logit_scale: LogitScale,
    /// Positions beyond which attention is another (in chunks, at a temperature), and contexts end here.
    pub longest: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NormKind {
    /// Division by the root mean square.
    Rms,
    /// Mean and variance.
    Layer,
}

/// The feed-forward part's activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Silu,
    /// GELU by tanh.
    Gelu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EmbeddingScale {
    None,
    /// The square root of the width.
    Root,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Routing {
    /// Probabilities of all experts; those of the chosen ones as they are.
    Plain,
    /// Those of the chosen ones are scaled to a sum of 1.
    Normalised,
    /// The sigmoid of each chosen one's number, and it is the expert's input that is scaled.
    Input,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layers {
    /// All alike; a window is everywhere, if there is one.
    Same,
    /// All but each `n`-th block have the window; with their own rotary base, if `local_base` is given.
    Windowed {
        period: u32,
        local_base: Option<u32>,
        /// Blocks without window have no rotary embedding.
        positionless: bool,
    },
    /// Each `n`-th block has no rotary embedding.
    Positionless { period: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogitScale {
    Divides,
    Multiplies,
}

const LLAMA: Architecture = Architecture {
    name: "llama",
    interleaved: true,
    norm: NormKind::Rms,
    pre_norms: true,
    post_norms: false,
    qk_norms: false,
    plain_qk_norms: false,
    activation: Act::Silu,
    embedding: EmbeddingScale::None,
    routing: Routing::Normalised,
    parallel: false,
    layers: Layers::Same,
    logit_scale: LogitScale::Divides,
    longest: None,
};

const QWEN: Architecture = Architecture {
    name: "qwen2",
    interleaved: false,
    ..LLAMA
};

const GEMMA: Architecture = Architecture {
    name: "gemma",
    interleaved: false,
    activation: Act::Gelu,
    embedding: EmbeddingScale::Root,
    ..LLAMA
};

const COHERE: Architecture = Architecture {
    name: "command-r",
    norm: NormKind::Layer,
    parallel: true,
    logit_scale: LogitScale::Multiplies,
    ..LLAMA
};

const NEOX: Architecture = Architecture {
    name: "gptneox",
    interleaved: false,
    norm: NormKind::Layer,
    activation: Act::Gelu,
    ..LLAMA
};

/// Every architecture.
pub(super) const ALL: [Architecture; 27] = [
    LLAMA,
    Architecture {
        name: "llama4",
        plain_qk_norms: true,
        routing: Routing::Input,
        layers: Layers::Positionless { period: 4 },
        // Scores of the 8192nd position have a temperature; chunks have 8192.
        longest: Some(8191),
        ..LLAMA
    },
    Architecture {
        name: "mistral3",
        ..LLAMA
    },
    Architecture {
        name: "internlm2",
        ..LLAMA
    },
    Architecture {
        name: "ernie4_5",
        ..LLAMA
    },
    Architecture {
        name: "granite",
        ..LLAMA
    },
    Architecture {
        name: "granitemoe",
        ..LLAMA
    },
    Architecture {
        name: "smollm3",
        layers: Layers::Positionless { period: 4 },
        ..LLAMA
    },
    Architecture {
        name: "chatglm",
        ..LLAMA
    },
    Architecture {
        name: "glm4",
        post_norms: true,
        ..LLAMA
    },
    QWEN,
    Architecture {
        name: "qwen3",
        qk_norms: true,
        ..QWEN
    },
    Architecture {
        name: "qwen2moe",
        routing: Routing::Plain,
        ..QWEN
    },
    Architecture {
        name: "qwen3moe",
        qk_norms: true,
        ..QWEN
    },
    Architecture {
        name: "phi3",
        ..QWEN
    },
    Architecture {
        name: "exaone",
        ..QWEN
    },
    Architecture {
        name: "olmo2",
        pre_norms: false,
        post_norms: true,
        qk_norms: true,
        ..QWEN
    },
    Architecture {
        name: "olmoe",
        qk_norms: true,
        routing: Routing::Plain,
        ..QWEN
    },
    GEMMA,
    Architecture {
        name: "gemma2",
        post_norms: true,
        layers: Layers::Windowed {
            period: 2,
            local_base: None,
            positionless: false,
        },
        ..GEMMA
    },
    Architecture {
        name: "gemma3",
        post_norms: true,
        qk_norms: true,
        layers: Layers::Windowed {
            period: 6,
            local_base: Some(10_000),
            positionless: false,
        },
        ..GEMMA
    },
    COHERE,
    Architecture {
        parallel: true,
        ..NEOX
    },
    Architecture {
        name: "cohere2",
        layers: Layers::Windowed {
            period: 4,
            local_base: None,
            positionless: true,
        },
        ..COHERE
    },
    Architecture {
        name: "starcoder2",
        ..NEOX
    },
    Architecture {
        name: "phi2",
        parallel: true,
        ..NEOX
    },
    Architecture {
        name: "falcon",
        parallel: true,
        ..NEOX
    },
];

/// The architecture of a name.
pub(super) fn by_name(name: &str) -> Option<Architecture> {
    ALL.into_iter()
        .find(|architecture| architecture.name == name)
}
