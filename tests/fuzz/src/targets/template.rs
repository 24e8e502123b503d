//! Chat templates, and conversations through them.

use crate::target::{Target, Verdict};
use crate::{corpus, mutate, Random};
use llm_worker_rocm::chat::{ChatTemplate, RenderOptions};
use serde_json::{json, Value as Json};

/// Words of the language.
const WORDS: [&str; 40] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "{%-",
    "-%}",
    "for x in messages",
    "endfor",
    "if",
    "endif",
    "elif 0",
    "set n=",
    "namespace()",
    "n.a=n",
    "macro m()",
    "endmacro",
    "m()",
    "not ",
    "1+",
    "'a'*",
    "9999999",
    "range(",
    ")",
    "|tojson",
    "|list",
    "|join",
    "|reverse",
    "[0]",
    ".items()",
    "~",
    "messages",
    "loop.index",
    "(",
    "[",
    "raise_exception('x')",
    " is defined",
    "{% generation %}",
    "|safe",
];

struct Templates {
    corpus: Vec<String>,
    chats: Vec<Vec<Json>>,
    tools: Vec<Json>,
}

pub(crate) fn target() -> Box<dyn Target> {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    Box::new(Templates {
        corpus: corpus::texts("template"),
        chats: vec![
            vec![json!({"role": "user", "content": "hi {{ x }} {% y"})],
            vec![
                json!({"role": "system", "content": "s"}),
                json!({"role": "user", "content": [{"type": "text", "text": "a"}]}),
                json!({"role": "assistant", "content": "", "tool_calls": [call]}),
                json!({"role": "tool", "tool_call_id": "c", "content": "1"}),
                json!({"role": "user", "content": "\u{0}<|im_end|>é"}),
            ],
        ],
        tools: vec![
            json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}),
        ],
    })
}

impl Target for Templates {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let (text, other): (&String, &String) =
            (random.pick(&self.corpus), random.pick(&self.corpus));
        mutate::text(text, &WORDS, other, random).into_bytes()
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        let source = String::from_utf8_lossy(input);
        let Ok(template) = ChatTemplate::new(&source, Some("<s>"), Some("</s>")) else {
            return Verdict::Refused;
        };
        let rendered = self.chats.iter().flat_map(|chat| {
            [None, Some(&self.tools[..])]
                .map(|tools| template.render(chat, tools, &RenderOptions::default()))
        });
        match rendered.filter(Result::is_ok).count() {
            0 => Verdict::Refused,
            _ => Verdict::Accepted,
        }
    }

    fn memory(&self, bytes: usize) -> usize {
        1024 * bytes + (768 << 20)
    }
}
