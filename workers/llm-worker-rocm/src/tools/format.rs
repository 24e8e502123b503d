//! How a model marks calls and reasoning in its answers.

use super::forms::{CallForm, FORMS};
use crate::chat::{ChatTemplate, RenderOptions};
use serde_json::json;
use worker::{Error, Result};

/// What encloses a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningTags {
    /// Before it.
    pub open: &'static str,
    /// After it.
    pub close: &'static str,
    /// What the model writes between reasoning and what follows it; empty for most.
    pub after: &'static str,
    /// Whether reasoning may come several times; else it comes first or not at all.
    pub again: bool,
    /// Parts of these marks that may be control tokens.
    tokens: &'static [&'static str],
}

const fn tags(open: &'static str, close: &'static str) -> ReasoningTags {
    ReasoningTags {
        open,
        close,
        after: "",
        again: false,
        tokens: &[],
    }
}

/// The marks in use, each with the words of a template that tell them. The first whose words are all there counts.
const REASONING: &[(&[&str], ReasoningTags)] = &[
    (
        &["<|channel|>", "analysis"],
        ReasoningTags {
            after: "<|start|>assistant",
            again: true,
            tokens: &["<|channel|>", "<|message|>", "<|end|>", "<|start|>"],
            ..tags("<|channel|>analysis<|message|>", "<|end|>")
        },
    ),
    (
        &["<|tool_call:begin|>", "<|think|>"],
        ReasoningTags {
            after: "<|begin|>assistant",
            tokens: &["<|think|>", "<|end|>", "<|begin|>"],
            ..tags("<|think|>", "<|end|>")
        },
    ),
    (
        &["<|open|>", "<|sep|>"],
        ReasoningTags {
            tokens: &["<|open|>", "<|close|>", "<|sep|>"],
            ..tags("<|open|>think<|sep|>", "<|close|>think<|sep|>")
        },
    ),
    (
        &["atem:", "to=self"],
        ReasoningTags {
            after: "<|start|>assistant",
            again: true,
            tokens: &["<|message|>", "<|eom|>", "<|start|>"],
            ..tags("to=self<|message|>", "<|eom|>")
        },
    ),
    (
        &["<|channel>", "<channel|>"],
        ReasoningTags {
            tokens: &["<|channel>", "<channel|>"],
            ..tags("<|channel>thought\n", "<channel|>")
        },
    ),
    (
        &["<|START_THINKING|>"],
        ReasoningTags {
            tokens: &["<|START_THINKING|>", "<|END_THINKING|>"],
            ..tags("<|START_THINKING|>", "<|END_THINKING|>")
        },
    ),
    (
        &["<|inner_prefix|>"],
        ReasoningTags {
            tokens: &["<|inner_prefix|>", "<|inner_suffix|>"],
            ..tags("<|inner_prefix|>", "<|inner_suffix|>")
        },
    ),
    (
        &["[BEGIN FINAL RESPONSE]"],
        ReasoningTags {
            tokens: &["[BEGIN FINAL RESPONSE]"],
            ..tags("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]")
        },
    ),
    (
        &["[/THINK]"],
        ReasoningTags {
            tokens: &["[THINK]", "[/THINK]"],
            ..tags("[THINK]", "[/THINK]")
        },
    ),
    (
        &["</seed:think>"],
        ReasoningTags {
            tokens: &["<seed:think>", "</seed:think>"],
            ..tags("<seed:think>", "</seed:think>")
        },
    ),
    (
        &["</mm:think>"],
        ReasoningTags {
            tokens: &["<mm:think>", "</mm:think>"],
            ..tags("<mm:think>", "</mm:think>")
        },
    ),
    (
        &["<think{}>", ":opensource"],
        ReasoningTags {
            tokens: &["<think:opensource>", "</think:opensource>"],
            ..tags("<think:opensource>", "</think:opensource>")
        },
    ),
    (
        &["</think>"],
        ReasoningTags {
            tokens: &["<think>", "</think>"],
            ..tags("<think>", "</think>")
        },
    ),
];

impl ReasoningTags {
    /// `<think>` and `</think>`, which most models write.
    pub const THINK: Self = ReasoningTags {
        tokens: &["<think>", "</think>"],
        ..tags("<think>", "</think>")
    };

    /// Parts of the marks that may be control tokens.
    pub(super) fn marks(&self) -> &'static [&'static str] {
        self.tokens
    }
}

/// Notation of a model's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputFormat {
    /// Its calls.
    pub calls: &'static CallForm,
    /// Its reasoning, if the model thinks aloud.
    pub reasoning: Option<ReasoningTags>,
}

impl OutputFormat {
    /// The notation that a template speaks of. A template that knows of no calls is told of them in Hermes' form, so
    /// answers come in that.
    ///
    /// Where the template writes a call of the chat as a family does, that is the form; else its words tell.
    pub fn of(template: &ChatTemplate) -> Self {
        let mut format = Self::of_source(template.source(), template.describes_tools());
        if let Some(form) = written_by(template) {
            format.calls = form;
        }
        format
    }

    /// The same, with the form of calls by its name where one is given.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that is none.
    pub fn choose(template: &ChatTemplate, name: Option<&str>) -> Result<Self> {
        let mut format = Self::of(template);
        if let Some(name) = name {
            format.calls = CallForm::named(name).ok_or_else(|| {
                Error::Usage(format!(
                    "--tool-format {name}: there is no such form of calls; there are {}",
                    CallForm::names().join(", ")
                ))
            })?;
        }
        Ok(format)
    }

    pub(super) fn of_source(source: &str, describes_tools: bool) -> Self {
        let told = |words: &[&str]| words.iter().all(|word| source.contains(word));
        let reasoning = REASONING.iter().find(|(words, _)| told(words));
        Self {
            calls: match describes_tools {
                true => CallForm::of_source(source),
                false => CallForm::common(),
            },
            reasoning: reasoning.map(|(_, tags)| *tags),
        }
    }

    /// Control tokens that this notation needs to see as text: for
    /// [`Tokenizer::detokenizer_showing`](crate::tokenizer::Tokenizer::detokenizer_showing).
    pub fn visible_tokens(&self) -> Vec<&'static str> {
        let relatives = self.calls.relatives.iter();
        let forms = relatives.filter_map(|name| CallForm::named(name));
        let calls = forms.chain([self.calls]).flat_map(|form| form.tokens);
        let reasoning = self.reasoning.iter().flat_map(|tags| tags.tokens);
        let mut tokens: Vec<&str> = calls.chain(reasoning).copied().collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    /// Whether a prompt ends inside of reasoning, so that the answer begins there.
    pub fn opens_reasoning(&self, prompt: &str) -> bool {
        self.reasoning
            .is_some_and(|tags| prompt.trim_end().ends_with(tags.open.trim_end()))
    }

    /// Whether a prompt ends with what begins a call, as Functionary's does: the answer goes on with a function's name
    /// or says that it is text.
    pub fn opens_call(&self, prompt: &str) -> bool {
        let open = self.calls.call.open;
        self.calls.known_only && !open.is_empty() && prompt.trim_end().ends_with(open)
    }
}

/// The form in which a template writes a call, if it is a family's to the letter.
fn written_by(template: &ChatTemplate) -> Option<&'static CallForm> {
    const NAME: &str = "look_up";
    let arguments = json!({"word": "needle"});
    let function = json!({"name": NAME, "arguments": arguments.to_string()});
    let messages = [
        json!({"role": "user", "content": "a"}),
        json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "call00000", "type": "function", "function": function},
        ]}),
        json!({"role": "tool", "tool_call_id": "call00000", "name": NAME, "content": "b"}),
    ];
    // JSON is written with spaces here and without there.
    let plain = |text: &str| text.replace("\": ", "\":").replace(", \"", ",\"");
    let prompt = template
        .render(&messages, None, &RenderOptions::default())
        .ok()?;
    let prompt = plain(&prompt.text);
    let writes = |form: &&CallForm| {
        let call = plain(&form.write(&[(NAME, &arguments)]));
        // The common form is also what templates without calls are given.
        *form != CallForm::common() && !form.known_only && prompt.contains(call.trim())
    };
    FORMS.iter().find(writes)
}
