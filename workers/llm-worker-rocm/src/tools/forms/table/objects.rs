//! Calls as JSON objects with the name and the arguments.

use super::super::{Around, Body, CallForm};
use super::{list, USUAL};

/// Qwen's and others': the form of templates that teach none.
pub(in crate::tools::forms) const HERMES: CallForm = CallForm {
    name: "hermes",
    families: "Hermes, Qwen 2.5 and 3, QwQ, SmolLM3, Granite 4, MiMo, Bielik, Reka",
    signs: &[&["<tool_call>"]],
    call: Around {
        open: "<tool_call>\n",
        close: "\n</tool_call>",
    },
    between: "\n",
    tokens: &["<tool_call>", "</tool_call>"],
    relatives: &["qwen-coder"],
    ..USUAL
};

/// MiniMax M1.
pub(super) const MINIMAX_M1: CallForm = CallForm {
    name: "minimax-m1",
    families: "MiniMax M1",
    signs: &[&["<tool_calls>", "<beginning_of_sentence>"]],
    section: Around {
        open: "<tool_calls>\n",
        close: "\n</tool_calls>",
    },
    between: "\n",
    tokens: &["<tool_calls>", "</tool_calls>"],
    ..USUAL
};

/// Granite 3, Phi-4-mini.
pub(super) const GRANITE: CallForm = CallForm {
    families: "Granite 3, Phi-4-mini",
    signs: &[&["<|tool_call|>"]],
    tokens: &["<|tool_call|>", "<|/tool_call|>"],
    ..list("granite", "<|tool_call|>\0[", "]\0<|/tool_call|>")
};

/// Nemotron Nano 2, Nemotron Super.
pub(super) const NEMOTRON: CallForm = CallForm {
    families: "Nemotron Nano 2, Nemotron Super",
    signs: &[&["<TOOLCALL>"], &["<AVAILABLE_TOOLS>"]],
    tokens: &["<TOOLCALL>", "</TOOLCALL>"],
    ..list("nemotron", "<TOOLCALL>\0[", "]\0</TOOLCALL>")
};

/// Apriel, Hunyuan A13B, Jamba.
pub(super) const APRIEL: CallForm = CallForm {
    families: "Apriel, Hunyuan A13B, Jamba",
    signs: &[&["<tool_calls>[{"], &["<tool_calls>["], &["<tool_calls>"]],
    tokens: &["<tool_calls>", "</tool_calls>"],
    ..list("apriel", "<tool_calls>\0[", "]\0</tool_calls>")
};

/// Command R7B, Command A.
pub(super) const COMMAND: CallForm = CallForm {
    families: "Command R7B, Command A",
    signs: &[&["<|START_ACTION|>"]],
    between: ",\n    ",
    body: Body::Object {
        number: Some("tool_call_id"),
        name: "tool_name",
        arguments: "parameters",
    },
    silent: &[
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
    ],
    tokens: &[
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
    ],
    ..list(
        "command",
        "<|START_ACTION|>\0[\n    ",
        "\n]\0<|END_ACTION|>",
    )
};

/// Command R and R+.
pub(super) const COMMAND_R: CallForm = CallForm {
    families: "Command R and R+",
    signs: &[&["Action:", "```json", "tool_name"]],
    between: ",\n",
    body: Body::Object {
        number: None,
        name: "tool_name",
        arguments: "parameters",
    },
    ..list("command-r", "Action:\n```json\n[\n", "\n]\0```")
};

/// GigaChat 3.1.
pub(super) const GIGACHAT3_1: CallForm = CallForm {
    name: "gigachat3.1",
    families: "GigaChat 3.1",
    signs: &[&["<|function_call|>"]],
    call: Around {
        open: "<|function_call|>",
        close: "",
    },
    tokens: &["<|function_call|>"],
    single: true,
    ..USUAL
};

/// GigaChat 3.
pub(super) const GIGACHAT: CallForm = CallForm {
    name: "gigachat",
    families: "GigaChat 3",
    signs: &[&["function call", "role_sep"]],
    call: Around {
        open: "<|message_sep|>\n\nfunction call<|role_sep|>\n",
        close: "",
    },
    also: &["function call<|role_sep|>"],
    tokens: &["<|message_sep|>", "<|role_sep|>"],
    single: true,
    ..USUAL
};

/// Firefunction.
pub(super) const FIREFUNCTION: CallForm = CallForm {
    families: "Firefunction",
    signs: &[&["functools["]],
    ..list("firefunction", "functools[", "]")
};

/// InternLM 2 and 3.
pub(super) const INTERNLM2: CallForm = CallForm {
    name: "internlm2",
    families: "InternLM 2 and 3",
    signs: &[&["<|action_start|>", "<|plugin|>"]],
    call: Around {
        open: "<|action_start|><|plugin|>\n",
        close: "<|action_end|>",
    },
    between: "\n",
    body: Body::Object {
        number: None,
        name: "name",
        arguments: "parameters",
    },
    tokens: &["<|action_start|>", "<|plugin|>", "<|action_end|>"],
    ..USUAL
};

/// Mistral 7B v0.3 and Nemo, Mixtral, Pixtral.
pub(super) const MISTRAL_LIST: CallForm = CallForm {
    families: "Mistral 7B v0.3 and Nemo, Mixtral, Pixtral",
    tokens: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    signs: &[&["[TOOL_CALLS]"]],
    relatives: &["mistral", "mistral-id"],
    ..list("mistral-list", "[TOOL_CALLS]\0[", "]")
};

/// Llama 3.1, 3.2 and 3.3.
pub(super) const LLAMA3: CallForm = CallForm {
    name: "llama3",
    families: "Llama 3.1, 3.2 and 3.3",
    signs: &[&["<|python_tag|>"], &["<|start_header_id|>"]],
    between: "; ",
    also: &["<|python_tag|>"],
    body: Body::Object {
        number: None,
        name: "name",
        arguments: "parameters",
    },
    tokens: &["<|python_tag|>"],
    known_only: true,
    ..USUAL
};
