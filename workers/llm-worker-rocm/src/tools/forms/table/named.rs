//! A name, then the arguments as a JSON object.

use super::super::{Around, Body, CallForm, Ids};
use super::{list, USUAL};

const DEEPSEEK_TOKENS: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
];

/// gpt-oss.
pub(super) const HARMONY: CallForm = CallForm {
    name: "harmony",
    families: "gpt-oss",
    signs: &[&["<|channel|>", "commentary"]],
    call: Around {
        open: "<|channel|>commentary to=functions.",
        close: "<|call|>",
    },
    also: &[
        "<|channel|>analysis to=functions.",
        "<|start|>assistant to=functions.",
        "to=functions.",
    ],
    body: Body::Json {
        heads: &[
            "{name} <|constrain|>json<|message|>",
            "{name}<|channel|>commentary <|constrain|>json<|message|>",
            "{name}<|channel|>analysis <|constrain|>json<|message|>",
            "{name}<|channel|>commentary json<|message|>",
            "{name}<|channel|>commentary<|message|>",
            "{name} json<|message|>",
            "{name}<|message|>",
        ],
    },
    silent: &[
        "<|channel|>final <|constrain|>json<|message|>",
        "<|channel|>final json<|message|>",
        "<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>",
        "<|start|>assistant",
        "<|end|>",
        "<|return|>",
        "<|call|>",
    ],
    tokens: &[
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|start|>",
        "<|end|>",
        "<|call|>",
    ],
    single: true,
    ..USUAL
};

/// Kimi K2.
pub(super) const KIMI: CallForm = CallForm {
    name: "kimi",
    families: "Kimi K2",
    signs: &[&["<|tool_calls_section_begin|>"]],
    section: Around {
        open: "<|tool_calls_section_begin|>",
        close: "<|tool_calls_section_end|>",
    },
    call: Around {
        open: "<|tool_call_begin|>",
        close: "<|tool_call_end|>",
    },
    body: Body::Json {
        heads: &[
            "functions.{name}:{id}<|tool_call_argument_begin|>",
            "{name}:{id}<|tool_call_argument_begin|>",
            "functions.{name}<|tool_call_argument_begin|>",
            "{name}<|tool_call_argument_begin|>",
        ],
    },
    tokens: &[
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ],
    ids: Ids::Numbered,
    ..USUAL
};

/// DeepSeek V2.5, V3, R1 and their distillations.
pub(super) const DEEPSEEK_R1: CallForm = CallForm {
    name: "deepseek-r1",
    families: "DeepSeek V2.5, V3, R1 and their distillations",
    signs: &[&["<｜tool▁call▁begin｜>", "```json"]],
    section: Around {
        open: "<｜tool▁calls▁begin｜>",
        close: "<｜tool▁calls▁end｜>",
    },
    call: Around {
        open: "<｜tool▁call▁begin｜>",
        close: "\n```\0<｜tool▁call▁end｜>",
    },
    between: "\n",
    body: Body::Json {
        heads: &[
            "function<｜tool▁sep｜>{name}\n```json\n",
            "{name}<｜tool▁sep｜>",
        ],
    },
    tokens: DEEPSEEK_TOKENS,
    // Their templates do not tell of tools, so that these are described in the common form.
    relatives: &["hermes"],
    ..USUAL
};

/// DeepSeek V3.1.
pub(super) const DEEPSEEK_V3_1: CallForm = CallForm {
    name: "deepseek-v3.1",
    families: "DeepSeek V3.1",
    signs: &[&["<｜tool▁call▁begin｜>"]],
    section: Around {
        open: "<｜tool▁calls▁begin｜>",
        close: "<｜tool▁calls▁end｜>",
    },
    call: Around {
        open: "<｜tool▁call▁begin｜>",
        close: "<｜tool▁call▁end｜>",
    },
    body: Body::Json {
        heads: &[
            "{name}<｜tool▁sep｜>",
            "function<｜tool▁sep｜>{name}\n```json\n",
        ],
    },
    tokens: DEEPSEEK_TOKENS,
    // Their templates do not tell of tools, so that these are described in the common form.
    relatives: &["hermes"],
    ..USUAL
};

/// Solar Open.
pub(super) const SOLAR: CallForm = CallForm {
    name: "solar",
    families: "Solar Open",
    signs: &[&["<|tool_call:begin|>"]],
    section: Around {
        open: "<|tool_calls|>",
        close: "<|calls|>",
    },
    call: Around {
        open: "<|tool_call:begin|>",
        close: "<|tool_call:end|>",
    },
    body: Body::Json {
        heads: &[
            "{id}<|tool_call:name|>{name}<|tool_call:args|>",
            "{name}<|tool_call:args|>",
        ],
    },
    silent: &["<|content|>", "<|begin|>assistant", "<|end|>", "<|flush|>"],
    tokens: &[
        "<|tool_calls|>",
        "<|calls|>",
        "<|tool_call:begin|>",
        "<|tool_call:name|>",
        "<|tool_call:args|>",
        "<|tool_call:end|>",
        "<|content|>",
        "<|begin|>",
        "<|end|>",
        "<|flush|>",
    ],
    ..USUAL
};

/// Apertus.
pub(super) const APERTUS: CallForm = CallForm {
    families: "Apertus",
    signs: &[&["<|tools_prefix|>"]],
    call: Around {
        open: "{\"",
        close: "}",
    },
    body: Body::Json {
        heads: &["{name}\": "],
    },
    tokens: &["<|tools_prefix|>", "<|tools_suffix|>"],
    ..list("apertus", "<|tools_prefix|>\0[", "]\0<|tools_suffix|>")
};

/// Mistral Small 3.2.
pub(super) const MISTRAL_ID: CallForm = CallForm {
    name: "mistral-id",
    families: "Mistral Small 3.2",
    signs: &[&["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]],
    call: Around {
        open: "[TOOL_CALLS]",
        close: "",
    },
    body: Body::Json {
        heads: &["{name}[CALL_ID]{id}[ARGS]", "{name}[ARGS]", "{name}"],
    },
    tokens: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    relatives: &["mistral-list"],
    ..USUAL
};

/// Devstral, Ministral 3, Magistral, Mistral Large 3.
pub(super) const MISTRAL: CallForm = CallForm {
    name: "mistral",
    families: "Devstral, Ministral 3, Magistral, Mistral Large 3",
    signs: &[&["[TOOL_CALLS]", "[ARGS]"]],
    call: Around {
        open: "[TOOL_CALLS]",
        close: "",
    },
    body: Body::Json {
        heads: &["{name}[ARGS]", "{name}[CALL_ID]{id}[ARGS]", "{name}"],
    },
    tokens: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    relatives: &["mistral-list"],
    ..USUAL
};

/// Functionary 3.1.
pub(super) const FUNCTIONARY3_1: CallForm = CallForm {
    name: "functionary3.1",
    families: "Functionary 3.1",
    signs: &[&["<function=", "</function>"]],
    call: Around {
        open: "<function=",
        close: "</function>",
    },
    body: Body::Json {
        heads: &["{name}>"],
    },
    ..USUAL
};

/// Functionary 3.2.
pub(super) const FUNCTIONARY3_2: CallForm = CallForm {
    name: "functionary3.2",
    families: "Functionary 3.2",
    signs: &[&[">>>all"]],
    call: Around {
        open: ">>>",
        close: "",
    },
    body: Body::Json {
        heads: &["{name}\n"],
    },
    silent: &[">>>all\n"],
    known_only: true,
    ..USUAL
};
