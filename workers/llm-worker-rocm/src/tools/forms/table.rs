//! The forms. A template is asked for their signs from the first row to the last.

use super::{Around, Attribute, Body, CallForm, Ids, Tags, NOTHING};

/// A row's usual values.
const USUAL: CallForm = CallForm {
    name: "",
    families: "",
    signs: &[],
    section: NOTHING,
    call: NOTHING,
    between: "",
    also: &[],
    body: OBJECT,
    silent: &[],
    tokens: &[],
    ids: Ids::Letters,
    known_only: false,
    single: false,
    relatives: &[],
};

const OBJECT: Body = Body::Object {
    number: None,
    name: "name",
    arguments: "arguments",
};

/// Qwen's and others': the form of templates that teach none.
pub(super) const HERMES: CallForm = CallForm {
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

const DEEPSEEK_TOKENS: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
];

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

/// A list of objects between two marks, as many families write it.
const fn list(name: &'static str, open: &'static str, close: &'static str) -> CallForm {
    CallForm {
        name,
        section: Around { open, close },
        between: ", ",
        ..USUAL
    }
}

/// All forms. A constant of this size is written once, here.
pub static FORMS: &[CallForm] = &[
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
        families: "Granite 3, Phi-4-mini",
        signs: &[&["<|tool_call|>"]],
        tokens: &["<|tool_call|>", "<|/tool_call|>"],
        ..list("granite", "<|tool_call|>\0[", "]\0<|/tool_call|>")
    },
    CallForm {
        families: "Nemotron Nano 2, Nemotron Super",
        signs: &[&["<TOOLCALL>"], &["<AVAILABLE_TOOLS>"]],
        tokens: &["<TOOLCALL>", "</TOOLCALL>"],
        ..list("nemotron", "<TOOLCALL>\0[", "]\0</TOOLCALL>")
    },
    CallForm {
        families: "Apriel, Hunyuan A13B, Jamba",
        signs: &[&["<tool_calls>[{"], &["<tool_calls>["], &["<tool_calls>"]],
        tokens: &["<tool_calls>", "</tool_calls>"],
        ..list("apriel", "<tool_calls>\0[", "]\0</tool_calls>")
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
        families: "Command R and R+",
        signs: &[&["Action:", "```json", "tool_name"]],
        between: ",\n",
        body: Body::Object {
            number: None,
            name: "tool_name",
            arguments: "parameters",
        },
        ..list("command-r", "Action:\n```json\n[\n", "\n]\0```")
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
        families: "Firefunction",
        signs: &[&["functools["]],
        ..list("firefunction", "functools[", "]")
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
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
    },
    CallForm {
        families: "Mistral 7B v0.3 and Nemo, Mixtral, Pixtral",
        tokens: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
        signs: &[&["[TOOL_CALLS]"]],
        relatives: &["mistral", "mistral-id"],
        ..list("mistral-list", "[TOOL_CALLS]\0[", "]")
    },
    CallForm {
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
    },
    CallForm {
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
    },
    HERMES,
    CallForm {
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
    },
    CallForm {
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
    },
];
