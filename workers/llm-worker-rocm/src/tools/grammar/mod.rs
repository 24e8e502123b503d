//! Grammars of calls, in llguidance's variant of Lark.

mod call;
mod nested;
mod rules;
mod texts;

use super::format::OutputFormat;
use super::forms::{pieces, Body, Opening, Piece};
use super::{Tool, ToolChoice};
use crate::tokenizer::Tokenizer;
use rules::Rules;
use serde_json::Value as Json;
use worker::{Error, Result};

/// Calls in one answer where parallel calls are allowed.
const MAX_CALLS: usize = 16;

/// What a request says of calls, and how its prompt ends.
#[derive(Debug, Clone, Copy)]
pub struct CallRules<'a> {
    /// The tools.
    pub tools: &'a [Json],
    /// Which of them may or must be called.
    pub choice: &'a ToolChoice,
    /// Whether an answer may have several calls.
    pub parallel: bool,
    /// Whether the prompt ends inside of reasoning ([`OutputFormat::opens_reasoning`]).
    pub in_reasoning: bool,
    /// Whether the prompt ends with what begins a call ([`OutputFormat::opens_call`]).
    pub in_call: bool,
}

/// Grammars of calls that the model makes of itself: each is of a text that begins in the token in which the mark of
/// the calls begins, and ends with the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedGrammars {
    /// For each mark that begins calls, the form's own first; an empty one for calls that nothing marks.
    pub marked: Vec<(&'static str, String)>,
    /// For a call that the prompt has begun already.
    pub begun: Option<String>,
}

impl OutputFormat {
    /// A grammar (for [`Grammars::lark`](crate::grammar::Grammars::lark)) of answers that call a tool in this notation;
    /// `None` where the choice forces nothing. Reasoning may come first. A function that the choice names is called
    /// once.
    ///
    /// # Errors
    /// [`Error::Usage`] if a tool is malformed, there is none, or none of the name that the choice asks for.
    pub fn forced_grammar(
        &self,
        rules: &CallRules,
        tokenizer: &Tokenizer,
    ) -> Result<Option<String>> {
        let name = match rules.choice {
            ToolChoice::Auto | ToolChoice::None => return Ok(None),
            ToolChoice::Required => None,
            ToolChoice::Named(name) => Some(name),
        };
        let mut tools = Tool::all_from_json(rules.tools)?;
        if let Some(name) = name {
            tools.retain(|tool| tool.name == *name);
        }
        if tools.is_empty() {
            return Err(Error::Usage(match name {
                Some(name) => {
                    format!("tool_choice names the function {name}, which is not among the tools")
                }
                None => "tool_choice asks for a call, but there are no tools".to_string(),
            }));
        }
        let most = if rules.parallel && name.is_none() {
            self.most_calls()
        } else {
            1
        };
        let mut lark = Rules::new(self.calls, tokenizer);
        let thoughts = self.thoughts(rules.in_reasoning, &mut lark);
        let calls = lark.answer(&tools, most, rules.in_call);
        Ok(Some(lark.finish(&format!("{thoughts}{calls}"))))
    }

    /// Grammars of the calls in answers that may have some. `lenient` leaves out of a schema what cannot be followed,
    /// but of tools that are declared strict.
    ///
    /// # Errors
    /// [`Error::Usage`] if a tool is malformed.
    pub fn offered_grammars(
        &self,
        rules: &CallRules,
        lenient: bool,
        tokenizer: &Tokenizer,
    ) -> Result<Option<OfferedGrammars>> {
        let mut tools = Tool::all_from_json(rules.tools)?;
        if *rules.choice != ToolChoice::Auto || tools.is_empty() {
            return Ok(None);
        }
        if lenient {
            let loose = |tool: &mut Tool| {
                if let (false, Some(schema)) = (tool.strict, tool.parameters.as_object_mut()) {
                    schema.insert(
                        "x-guidance".to_string(),
                        serde_json::json!({"lenient": true}),
                    );
                }
            };
            tools.iter_mut().for_each(loose);
        }
        let most = if rules.parallel { self.most_calls() } else { 1 };
        let marked = self.openings(&tools, most, tokenizer);
        let begun = rules.in_call.then(|| {
            let mut lark = Rules::new(self.calls, tokenizer);
            let calls = lark.answer(&tools, most, true);
            lark.finish(&calls)
        });
        Ok(Some(OfferedGrammars { marked, begun }))
    }

    fn most_calls(&self) -> usize {
        if self.calls.single {
            1
        } else {
            MAX_CALLS
        }
    }

    fn thoughts(&self, in_reasoning: bool, lark: &mut Rules) -> String {
        let Some(tags) = self.reasoning else {
            return String::new();
        };
        // A lazy rule ends with the first closing mark.
        let close = lark.spell_with(tags.close, tags.marks());
        let rule = match close.starts_with('"') {
            false => lark.rule(&format!("/(?s:.*)/ {close}")),
            true => lark.lazy(tags.close),
        };
        let after = match tags.after {
            "" => "/\\s*/ ".to_string(),
            after => format!("{} ", lark.spell_with(after, tags.marks())),
        };
        match in_reasoning {
            true => format!("{rule} {after}"),
            false => {
                let open = lark.spell_with(tags.open, tags.marks());
                format!("({open} {rule} {after})? ")
            }
        }
    }

    /// Calls with each of the marks that may begin them, after the beginning of the token in which the mark begins.
    fn openings(
        &self,
        tools: &[Tool],
        most: usize,
        tokenizer: &Tokenizer,
    ) -> Vec<(&'static str, String)> {
        let form = self.calls;
        let mut grammars = Vec::new();
        for (mark, what) in form.openings() {
            let mut lark = Rules::new(form, tokenizer);
            let lead = lark.lead(mark);
            let calls = match what {
                Opening::Section => lark.after_section(tools, most),
                Opening::Call => lark.after_call_mark(tools, most),
            };
            grammars.push((mark, lark.finish(&format!("{lead} {calls}"))));
        }
        let mut lark = Rules::new(form, tokenizer);
        let bare = match form.body {
            Body::Object { .. } if form.begins_bare('{') => {
                let calls = lark.after_name_key(tools, most);
                Some(format!("/\\s*\\{{\\s*\"name\"\\s*:\\s*/ {calls}"))
            }
            Body::Python if form.begins_bare('[') => {
                let calls = lark.after_section(tools, most);
                Some(format!("/\\s*\\[\\s*/ {calls}"))
            }
            _ => None,
        };
        grammars.extend(bare.map(|start| ("", lark.finish(&start))));
        grammars
    }
}

/// The first characters of a mark, up to white space.
fn first_text(mark: &str) -> Option<&str> {
    pieces(mark).find_map(|piece| match piece {
        Piece::Text(text) => Some(text),
        Piece::Space | Piece::Number => None,
    })
}
