//! Calls in notations that are neither JSON nor text between marks.

use super::super::{Around, Body, CallForm};
use super::USUAL;

/// MiniMax M3.
pub(super) const MINIMAX_M3: CallForm = CallForm {
    name: "minimax-m3",
    families: "MiniMax M3",
    signs: &[&["]<]minimax[>["]],
    section: Around {
        open: "]<]minimax[>[<tool_call>\n",
        close: "]<]minimax[>[</tool_call>",
    },
    call: Around {
        open: "]<]minimax[>[<invoke name=\"",
        close: "]<]minimax[>[</invoke>\n",
    },
    body: Body::Elements {
        prefix: "]<]minimax[>[",
    },
    tokens: &["]<]minimax[>["],
    ..USUAL
};

/// Gemma 4.
pub(super) const GEMMA4: CallForm = CallForm {
    name: "gemma4",
    families: "Gemma 4",
    signs: &[&["<|tool_call>", "<tool_call|>"]],
    call: Around {
        open: "<|tool_call>call:",
        close: "<tool_call|>",
    },
    body: Body::Braces { quote: "<|\"|>" },
    silent: &["<|tool_response>"],
    tokens: &["<|tool_call>", "<tool_call|>", "<|\"|>", "<|tool_response>"],
    ..USUAL
};

/// LFM2, LFM2.5.
pub(super) const LFM2: CallForm = CallForm {
    name: "lfm2",
    families: "LFM2, LFM2.5",
    signs: &[
        &["<|tool_call_start|>"],
        &["<|tool_list_start|>"],
        &["\"List of tools: "],
    ],
    section: Around {
        open: "<|tool_call_start|>\0[",
        close: "]\0<|tool_call_end|>",
    },
    between: ", ",
    body: Body::Python,
    tokens: &["<|tool_call_start|>", "<|tool_call_end|>"],
    ..USUAL
};

/// OLMo 3.
pub(super) const OLMO3: CallForm = CallForm {
    name: "olmo3",
    families: "OLMo 3",
    signs: &[&["<function_calls>", "<functions>"]],
    section: Around {
        open: "<function_calls>\n",
        close: "\n</function_calls>",
    },
    between: "\n",
    body: Body::Python,
    tokens: &["<function_calls>", "</function_calls>"],
    ..USUAL
};

/// Llama 4.
pub(super) const LLAMA4: CallForm = CallForm {
    name: "llama4",
    families: "Llama 4",
    signs: &[&["<|python_start|>"], &["<|header_start|>"]],
    section: Around {
        open: "[",
        close: "]",
    },
    between: ", ",
    also: &[],
    body: Body::Python,
    tokens: &["<|python_start|>", "<|python_end|>"],
    silent: &["<|python_start|>", "<|python_end|>"],
    known_only: true,
    ..USUAL
};
