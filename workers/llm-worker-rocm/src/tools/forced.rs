//! Grammars that leave nothing but calls.

use super::format::{OutputFormat, ToolFormat};
use super::{Tool, ToolChoice};
use crate::tokenizer::Tokenizer;
use serde_json::{json, Value as Json};
use worker::{Error, Result};

/// Calls in one answer where parallel calls are allowed.
const MAX_CALLS: usize = 16;

impl OutputFormat {
    /// A Lark grammar (for [`Grammars::lark`](crate::grammar::Grammars::lark)) of answers that call a tool in this
    /// notation; `None` where `choice` forces nothing. Reasoning may come first; `in_reasoning` says that the prompt
    /// has opened it already.
    ///
    /// # Errors
    /// [`Error::Usage`] if a tool is malformed, there is none, or none of the name that `choice` asks for.
    pub fn call_grammar(
        &self,
        tools: &[Json],
        choice: &ToolChoice,
        parallel: bool,
        in_reasoning: bool,
        tokenizer: &Tokenizer,
    ) -> Result<Option<String>> {
        let name = match choice {
            ToolChoice::Auto | ToolChoice::None => return Ok(None),
            ToolChoice::Required => None,
            ToolChoice::Named(name) => Some(name),
        };
        let mut tools = Tool::all_from_json(tools)?;
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
        let writer = Writer { tokenizer };
        let most = if parallel { MAX_CALLS } else { 1 };
        let mut lines = vec![format!(
            "start: {}answer",
            self.thoughts(in_reasoning, &writer)
        )];
        if let Some(tags) = self.reasoning {
            // A lazy rule ends with the first closing tag.
            lines.push(match tokenizer.control_id(tags.close) {
                Some(_) => format!("thought: /(.|\\n)*/ {}", writer.mark(tags.close)),
                None => format!("thought[suffix={}]: /(.|\\n)*/", literal(tags.close)),
            });
        }
        lines.extend(self.answer(&tools, most, &writer)?);
        Ok(Some(lines.join("\n") + "\n"))
    }

    fn thoughts(&self, in_reasoning: bool, writer: &Writer) -> String {
        match self.reasoning {
            Some(_) if in_reasoning => "thought /\\s*/ ".to_string(),
            Some(tags) => format!("({} thought /\\s*/)? ", writer.mark(tags.open)),
            None => String::new(),
        }
    }

    fn answer(&self, tools: &[Tool], most: usize, writer: &Writer) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        let names: Vec<String> = (0..tools.len()).map(|i| format!("call_{i}")).collect();
        let any = format!("call: {}", names.join(" | "));
        let more = most - 1;
        // The object around the arguments, its two keys in the order that the family writes them.
        let object = |tool: &Tool, i: usize, key: &str| {
            let head = format!("{{\"name\": {}, \"{key}\": ", json!(tool.name));
            format!("{} args_{i} \"}}\"", literal(&head))
        };
        let mark = |text: &str| writer.mark(text);
        let calls = |separator: &str| match more {
            0 => "call".to_string(),
            more => format!("call ({separator}call){{0,{more}}}"),
        };
        let repeated = |separator: &str| format!("answer: {}", calls(separator));
        match self.tools {
            ToolFormat::Hermes => {
                lines.push(repeated("\"\\n\" "));
                for (i, tool) in tools.iter().enumerate() {
                    let (open, close) = (mark("<tool_call>"), mark("</tool_call>"));
                    lines.push(format!(
                        "call_{i}: {open} \"\\n\" {} \"\\n\" {close}",
                        object(tool, i, "arguments")
                    ));
                }
            }
            ToolFormat::QwenXml => {
                lines.push(repeated("\"\\n\" "));
                for (i, tool) in tools.iter().enumerate() {
                    lines.extend(xml_call(tool, i, writer));
                }
                lines.push(any);
                return Ok(lines);
            }
            ToolFormat::Llama3 => {
                lines.push("answer: call".to_string());
                for (i, tool) in tools.iter().enumerate() {
                    lines.push(format!("call_{i}: {}", object(tool, i, "parameters")));
                }
            }
            ToolFormat::List | ToolFormat::Mistral { named: false } => {
                let (open, close) = match self.tools {
                    ToolFormat::List => (mark("<|tool_call|>"), mark("<|/tool_call|>")),
                    _ => (mark("[TOOL_CALLS]"), String::new()),
                };
                // Granite's answers end without a closing mark.
                let close = match writer.tokenizer.control_id("<|/tool_call|>") {
                    Some(_) => close,
                    None => String::new(),
                };
                lines.push(format!(
                    "answer: {open} \"[\" {} \"]\" {close}",
                    calls("\", \" ")
                ));
                for (i, tool) in tools.iter().enumerate() {
                    lines.push(format!("call_{i}: {}", object(tool, i, "arguments")));
                }
            }
            ToolFormat::Mistral { named: true } => {
                lines.push(repeated(""));
                for (i, tool) in tools.iter().enumerate() {
                    lines.push(format!(
                        "call_{i}: {} {} {} args_{i}",
                        mark("[TOOL_CALLS]"),
                        literal(&tool.name),
                        mark("[ARGS]")
                    ));
                }
            }
            ToolFormat::DeepSeek { fenced } => {
                let (begin, end) = (mark("<｜tool▁calls▁begin｜>"), mark("<｜tool▁calls▁end｜>"));
                let separator = if fenced { "\"\\n\" " } else { "" };
                lines.push(format!("answer: {begin} {} {end}", calls(separator)));
                for (i, tool) in tools.iter().enumerate() {
                    let (open, sep, close) = (
                        mark("<｜tool▁call▁begin｜>"),
                        mark("<｜tool▁sep｜>"),
                        mark("<｜tool▁call▁end｜>"),
                    );
                    lines.push(if fenced {
                        let head = literal(&format!("{}\n```json\n", tool.name));
                        format!("call_{i}: {open} \"function\" {sep} {head} args_{i} \"\\n```\" {close}")
                    } else {
                        format!("call_{i}: {open} {} {sep} args_{i} {close}", literal(&tool.name))
                    });
                }
            }
        }
        lines.push(any);
        for (i, tool) in tools.iter().enumerate() {
            lines.push(format!("args_{i}: %json {}", tool.parameters));
        }
        Ok(lines)
    }
}

/// Required parameters in the schema's order, others may be left out.
fn xml_call(tool: &Tool, i: usize, writer: &Writer) -> Vec<String> {
    let head = literal(&format!("\n<function={}>\n", tool.name));
    let mut call = format!("call_{i}: {} {head}", writer.mark("<tool_call>"));
    let mut rules = Vec::new();
    let properties = tool.parameters["properties"].as_object();
    for (j, (key, schema)) in properties.into_iter().flatten().enumerate() {
        let required = tool.parameters["required"]
            .as_array()
            .is_some_and(|names| names.contains(&Json::from(key.as_str())));
        call.push_str(&format!(" par_{i}_{j}{}", if required { "" } else { "?" }));
        let open = literal(&format!("<parameter={key}>\n"));
        let close = "\n</parameter>\n";
        if schema["type"] == "string" && schema.get("enum").is_none() {
            rules.push(format!("par_{i}_{j}: {open} text_{i}_{j}"));
            rules.push(format!(
                "text_{i}_{j}[suffix={}]: /(.|\\n)*/",
                literal(close)
            ));
        } else if let Some(values) = schema["enum"].as_array() {
            let words: Vec<String> = values
                .iter()
                .map(|v| literal(v.as_str().unwrap_or(&v.to_string())))
                .collect();
            rules.push(format!(
                "par_{i}_{j}: {open} ({}) {}",
                words.join(" | "),
                literal(close)
            ));
        } else {
            rules.push(format!(
                "par_{i}_{j}: {open} value_{i}_{j} {}",
                literal(close)
            ));
            rules.push(format!("value_{i}_{j}: %json {schema}"));
        }
    }
    call.push_str(&format!(
        " \"</function>\\n\" {}",
        writer.mark("</tool_call>")
    ));
    rules.insert(0, call);
    rules
}

struct Writer<'a> {
    tokenizer: &'a Tokenizer,
}

impl Writer<'_> {
    /// A mark: one token where the vocabulary has it as a control token, else its text.
    fn mark(&self, text: &str) -> String {
        match self.tokenizer.control_id(text) {
            Some(id) => format!("<[{id}]>"),
            None => literal(text),
        }
    }
}

/// Lark's literals are those of JSON.
fn literal(text: &str) -> String {
    Json::from(text).to_string()
}
