//! Parameters one by one between marks.

use super::super::{Around, Attribute, Body, CallForm, Tags};
use super::USUAL;

const DSML: Tags = Tags {
    after_name: "\">\n",
    key_open: "<｜DSML｜parameter name=\"",
    key_end: "\"",
    attribute: Attribute::IsString,
    value_open: ">",
    value_close: "</｜DSML｜parameter>\n",
};

const DSML_CALL: Around = Around {
    open: "<｜DSML｜invoke name=\"",
    close: "</｜DSML｜invoke>",
};

const GLM_TOKENS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];

/// Kimi K3.
pub(super) const KIMI_K3: CallForm = CallForm {
    name: "kimi-k3",
    families: "Kimi K3",
    signs: &[&["<|open|>", "<|sep|>"]],
    section: Around {
        open: "<|open|>tools<|sep|>",
        close: "<|close|>tools<|sep|>",
    },
    call: Around {
        open: "<|open|>call tool=\"",
        close: "<|close|>call<|sep|>",
    },
    body: Body::Tagged(Tags {
        after_name: "\" index=\"{n}\"<|sep|>",
        key_open: "<|open|>argument key=\"",
        key_end: "\"",
        attribute: Attribute::Type,
        value_open: "<|sep|>",
        value_close: "<|close|>argument<|sep|>",
    }),
    silent: &[
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ],
    tokens: &["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"],
    ..USUAL
};

/// MiniMax M2.
pub(super) const MINIMAX_M2: CallForm = CallForm {
    name: "minimax-m2",
    families: "MiniMax M2",
    signs: &[&["<minimax:tool_call>"]],
    section: Around {
        open: "<minimax:tool_call>\n",
        close: "\n</minimax:tool_call>",
    },
    call: Around {
        open: "<invoke name=\"",
        close: "</invoke>",
    },
    between: "\n",
    body: Body::Tagged(Tags {
        after_name: "\">\n",
        key_open: "<parameter name=\"",
        key_end: "\"",
        attribute: Attribute::None,
        value_open: ">",
        value_close: "</parameter>\n",
    }),
    tokens: &["<minimax:tool_call>", "</minimax:tool_call>"],
    ..USUAL
};

/// DeepSeek V3.2.
pub(super) const DEEPSEEK_V3_2: CallForm = CallForm {
    name: "deepseek-v3.2",
    families: "DeepSeek V3.2",
    signs: &[&["DSML", "function_calls"]],
    section: Around {
        open: "<｜DSML｜function_calls>\n",
        close: "\n</｜DSML｜function_calls>",
    },
    call: DSML_CALL,
    between: "\n",
    body: Body::Tagged(DSML),
    tokens: &["｜DSML｜"],
    ..USUAL
};

/// DeepSeek V4.
pub(super) const DEEPSEEK_V4: CallForm = CallForm {
    name: "deepseek-v4",
    families: "DeepSeek V4",
    signs: &[&["DSML"]],
    section: Around {
        open: "<｜DSML｜tool_calls>\n",
        close: "\n</｜DSML｜tool_calls>",
    },
    call: DSML_CALL,
    between: "\n",
    body: Body::Tagged(DSML),
    tokens: &["｜DSML｜"],
    ..USUAL
};

/// Step 3.
pub(super) const STEP3: CallForm = CallForm {
    name: "step3",
    families: "Step 3",
    signs: &[&["steptml"]],
    section: Around {
        open: "<｜tool_calls_begin｜>\n",
        close: "\n<｜tool_calls_end｜>",
    },
    call: Around {
        open: "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"",
        close: "</steptml:invoke><｜tool_call_end｜>",
    },
    between: "\n",
    body: Body::Tagged(Tags {
        after_name: "\">\n",
        key_open: "<steptml:parameter name=\"",
        key_end: "\"",
        attribute: Attribute::None,
        value_open: ">",
        value_close: "</steptml:parameter>\n",
    }),
    tokens: &[
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
        "<｜tool_call_begin｜>",
        "<｜tool_call_end｜>",
        "<｜tool_sep｜>",
    ],
    ..USUAL
};

/// Seed-OSS.
pub(super) const SEED: CallForm = CallForm {
    name: "seed",
    families: "Seed-OSS",
    signs: &[&["<seed:tool_call>"]],
    call: Around {
        open: "<seed:tool_call>\n<function=",
        close: "</function>\n</seed:tool_call>",
    },
    between: "\n",
    body: Body::Tagged(Tags {
        after_name: ">\n",
        key_open: "<parameter=",
        key_end: ">",
        attribute: Attribute::None,
        value_open: "",
        value_close: "</parameter>\n",
    }),
    tokens: &["<seed:tool_call>", "</seed:tool_call>"],
    ..USUAL
};

/// Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5.
pub(super) const QWEN_CODER: CallForm = CallForm {
    name: "qwen-coder",
    families: "Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5",
    signs: &[&["<tool_call>", "<function="]],
    call: Around {
        open: "<tool_call>\n<function=",
        close: "</function>\n</tool_call>",
    },
    between: "\n",
    body: Body::Tagged(Tags {
        after_name: ">\n",
        key_open: "<parameter=",
        key_end: ">",
        attribute: Attribute::None,
        value_open: "\n",
        value_close: "\n</parameter>\n",
    }),
    tokens: &["<tool_call>", "</tool_call>"],
    relatives: &["hermes"],
    ..USUAL
};

/// Hunyuan 3.
pub(super) const HUNYUAN: CallForm = CallForm {
    name: "hunyuan",
    families: "Hunyuan 3",
    signs: &[&["<tool_sep", ":opensource"], &["<tool_sep{}>"]],
    section: Around {
        open: "<tool_calls:opensource>\n",
        close: "\n</tool_calls:opensource>",
    },
    call: Around {
        open: "<tool_call:opensource>",
        close: "</tool_call:opensource>",
    },
    between: "\n",
    body: Body::Tagged(Tags {
        after_name: "<tool_sep:opensource>\n",
        key_open: "<arg_key:opensource>",
        key_end: "</arg_key:opensource>",
        attribute: Attribute::None,
        value_open: "\n<arg_value:opensource>",
        value_close: "</arg_value:opensource>\n",
    }),
    tokens: &[
        "<tool_calls:opensource>",
        "</tool_calls:opensource>",
        "<tool_call:opensource>",
        "</tool_call:opensource>",
        "<tool_sep:opensource>",
        "<arg_key:opensource>",
        "</arg_key:opensource>",
        "<arg_value:opensource>",
        "</arg_value:opensource>",
    ],
    ..USUAL
};

/// GLM 4.7 and 5, Laguna S.
pub(super) const GLM_4_7: CallForm = CallForm {
    name: "glm-4.7",
    families: "GLM 4.7 and 5, Laguna S",
    signs: &[
        &["<arg_key>", "}<arg_key>"],
        &["<arg_key>", "' ~ '<arg_key>'"],
        &["</arg_key><arg_value>"],
    ],
    call: Around {
        open: "<tool_call>",
        close: "</tool_call>",
    },
    body: Body::Tagged(Tags {
        after_name: "",
        key_open: "<arg_key>",
        key_end: "</arg_key>",
        attribute: Attribute::None,
        value_open: "\0<arg_value>",
        value_close: "</arg_value>",
    }),
    tokens: GLM_TOKENS,
    ..USUAL
};

/// GLM 4.5 and 4.6, Ling 3, Laguna XS.
pub(super) const GLM: CallForm = CallForm {
    name: "glm",
    families: "GLM 4.5 and 4.6, Ling 3, Laguna XS",
    signs: &[&["<arg_key>"]],
    call: Around {
        open: "<tool_call>",
        close: "</tool_call>",
    },
    between: "\n",
    body: Body::Tagged(Tags {
        after_name: "\n",
        key_open: "<arg_key>",
        key_end: "</arg_key>",
        attribute: Attribute::None,
        value_open: "\n<arg_value>",
        value_close: "</arg_value>\n",
    }),
    tokens: GLM_TOKENS,
    ..USUAL
};

/// Muse Glimmer.
pub(super) const GLIMMER: CallForm = CallForm {
    name: "glimmer",
    families: "Muse Glimmer",
    signs: &[&["atem:"]],
    section: Around {
        open: "<atem:function_calls>\n",
        close: "\n</atem:function_calls>",
    },
    call: Around {
        open: "<atem:invoke name=\"",
        close: "</atem:invoke>",
    },
    between: "\n",
    body: Body::Tagged(Tags {
        after_name: "\">\n",
        key_open: "<atem:parameter name=\"",
        key_end: "\"",
        attribute: Attribute::None,
        value_open: ">",
        value_close: "</atem:parameter>\n",
    }),
    silent: &[
        "<|start|>assistant to={tool}<|message|>",
        "to={tool}<|message|>",
        "<|start|>assistant<|message|>",
        "<|start|>assistant",
        "<|message|>",
        "<|eom|>",
    ],
    tokens: &["<|start|>", "<|message|>", "<|eom|>"],
    ..USUAL
};

/// MiniCPM 5.
pub(super) const MINICPM5: CallForm = CallForm {
    name: "minicpm5",
    families: "MiniCPM 5",
    signs: &[&["<function name=", "<param name="]],
    call: Around {
        open: "<function name=\"",
        close: "</function>",
    },
    between: "\n",
    body: Body::Tagged(Tags {
        after_name: "\">",
        key_open: "<param name=\"",
        key_end: "\"",
        attribute: Attribute::None,
        value_open: ">",
        value_close: "</param>",
    }),
    tokens: &["</function>", "</param>"],
    ..USUAL
};
