//! Which family's notation a model writes.

use crate::chat::ChatTemplate;

/// How calls stand in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM3.
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder.
    QwenXml,
    /// `{"name": …, "parameters": {…}}` as the whole answer, perhaps after `<|python_tag|>`: Llama 3.1 and later.
    Llama3,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]`: Mistral; later models write `[TOOL_CALLS]NAME[ARGS]{…}`.
    Mistral {
        /// Whether the template writes the later form.
        named: bool,
    },
    /// `<|tool_call|>[{"name": …, "arguments": {…}}]`: Granite 3, Phi-4-mini.
    List,
    /// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME` and a block of JSON: DeepSeek V3 and R1; V3.1 leaves `function`
    /// and the fences out.
    DeepSeek {
        /// Whether the template writes the fenced form.
        fenced: bool,
    },
}

/// What encloses a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningTags {
    /// Before it.
    pub open: &'static str,
    /// After it.
    pub close: &'static str,
}

const REASONING: [ReasoningTags; 3] = [
    ReasoningTags {
        open: "<think>",
        close: "</think>",
    },
    ReasoningTags {
        open: "[THINK]",
        close: "[/THINK]",
    },
    ReasoningTags {
        open: "<seed:think>",
        close: "</seed:think>",
    },
];

/// Notation of a model's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputFormat {
    /// Its calls.
    pub tools: ToolFormat,
    /// Its reasoning, if the model thinks aloud.
    pub reasoning: Option<ReasoningTags>,
}

impl OutputFormat {
    /// The notation that a template speaks of. A template without tools is told of them in Hermes' form, so answers
    /// come in that.
    pub fn of(template: &ChatTemplate) -> Self {
        Self::of_source(template.source(), template.describes_tools())
    }

    pub(super) fn of_source(source: &str, describes_tools: bool) -> Self {
        let has = |word: &str| source.contains(word);
        let tools = if !describes_tools {
            ToolFormat::Hermes
        } else if has("<tool_call>") && has("<function=") {
            ToolFormat::QwenXml
        } else if has("<tool_call>") {
            ToolFormat::Hermes
        } else if has("[TOOL_CALLS]") {
            ToolFormat::Mistral {
                named: has("[ARGS]"),
            }
        } else if has("<｜tool▁call▁begin｜>") {
            ToolFormat::DeepSeek {
                fenced: has("```json"),
            }
        } else if has("<|tool_call|>") {
            ToolFormat::List
        } else if has("<|python_tag|>") || has("<|start_header_id|>") {
            ToolFormat::Llama3
        } else {
            ToolFormat::Hermes
        };
        Self {
            tools,
            reasoning: REASONING.into_iter().find(|tags| has(tags.close)),
        }
    }

    /// Control tokens that this notation needs to see as text: for
    /// [`Tokenizer::detokenizer_showing`](crate::tokenizer::Tokenizer::detokenizer_showing).
    pub fn visible_tokens(&self) -> Vec<&'static str> {
        let calls: &[&'static str] = match self.tools {
            ToolFormat::Hermes | ToolFormat::QwenXml => &["<tool_call>", "</tool_call>"],
            ToolFormat::Llama3 => &["<|python_tag|>"],
            ToolFormat::Mistral { .. } => &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
            ToolFormat::List => &["<|tool_call|>", "<|/tool_call|>"],
            ToolFormat::DeepSeek { .. } => &[
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁call▁begin｜>",
                "<｜tool▁sep｜>",
                "<｜tool▁call▁end｜>",
                "<｜tool▁calls▁end｜>",
            ],
        };
        let tags = self
            .reasoning
            .iter()
            .flat_map(|tags| [tags.open, tags.close]);
        calls.iter().copied().chain(tags).collect()
    }

    /// Whether a prompt ends inside of reasoning, so that the answer begins there.
    pub fn opens_reasoning(&self, prompt: &str) -> bool {
        self.reasoning
            .is_some_and(|tags| prompt.trim_end().ends_with(tags.open))
    }

    /// What begins a call.
    pub(super) fn call_markers(&self) -> &'static [&'static str] {
        match self.tools {
            ToolFormat::Hermes | ToolFormat::QwenXml => &["<tool_call>"],
            ToolFormat::Llama3 => &["<|python_tag|>"],
            ToolFormat::Mistral { .. } => &["[TOOL_CALLS]"],
            ToolFormat::List => &["<|tool_call|>"],
            ToolFormat::DeepSeek { .. } => &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
        }
    }

    /// What closes a call, or separates it from the next.
    pub(super) fn call_ends(&self) -> &'static [&'static str] {
        match self.tools {
            ToolFormat::Hermes | ToolFormat::QwenXml => &["</tool_call>"],
            ToolFormat::Llama3 => &[";"],
            ToolFormat::Mistral { .. } => &[],
            ToolFormat::List => &["<|/tool_call|>"],
            ToolFormat::DeepSeek { .. } => &["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
        }
    }
}
