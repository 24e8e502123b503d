//! Names of modules as configurations spell them, exactly or by patterns.

use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};
use serde_json::Value as Json;

/// What a name in a configuration stands for.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    /// The module of that name.
    Exact(String),
    /// Modules whose names begin like that, as Python's `re.match` says.
    Begins(Regex),
    /// Modules whose whole names are like that.
    Whole(Regex),
    /// Modules with these names between dots, from the beginning or at the end, and what is in them.
    Parts(String),
    /// Modules of a class. Files do not tell classes: tables of embeddings have theirs, all else is linear.
    Class(String),
}

/// How a maker spells lists of modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// compressed-tensors: names, `re:` and a pattern, classes.
    Tensors,
    /// transformers: parts of names, or patterns.
    Transformers,
    /// ModelOpt and Quark: names with `*`, `?` and `[]`.
    Wildcards,
}

impl Pattern {
    /// Reads one.
    pub(super) fn read(text: &str, spelling: Spelling) -> Result<Self, String> {
        let regex = |pattern: &str| {
            let plain = syntax::Config::new().unicode(false).utf8(false);
            let made = Regex::builder().syntax(plain).build(pattern);
            made.map_err(|_| {
                format!("quantization_config: the pattern {text:?} of modules is not implemented")
            })
        };
        Ok(match spelling {
            Spelling::Tensors => match text.strip_prefix("re:") {
                Some(pattern) => Self::Begins(regex(pattern)?),
                None if text.starts_with(char::is_uppercase) && !text.contains('.') => {
                    Self::Class(text.to_string())
                }
                None => Self::Exact(text.to_string()),
            },
            Spelling::Transformers if text.contains(['*', '+', '(', '[', '\\', '^', '$', '|']) => {
                Self::Begins(regex(&format!("(?:{text})(?:\\.|$)"))?)
            }
            Spelling::Transformers => Self::Parts(text.to_string()),
            // What begins with a name and a star is all that is in a module, and the module.
            Spelling::Wildcards => match text.strip_prefix("re:") {
                Some(pattern) => Self::Begins(regex(pattern)?),
                None => Self::Whole(regex(&of_wildcards(text))?),
            },
        })
    }

    /// Whether it stands for the module of this name.
    pub(super) fn is_of(&self, module: &str) -> bool {
        let whole = |name: &String| {
            let rest = module.strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        match self {
            Self::Exact(name) => name == module,
            Self::Begins(regex) | Self::Whole(regex) => {
                let input = Input::new(module).anchored(Anchored::Yes);
                regex.is_match(input)
            }
            Self::Parts(name) => {
                let inside = |at: usize| at == 0 || module.as_bytes()[at - 1] == b'.';
                whole(name) || module.ends_with(name.as_str()) && inside(module.len() - name.len())
            }
            Self::Class(class) => {
                let is_table = module.ends_with("embed_tokens");
                class == if is_table { "Embedding" } else { "Linear" }
            }
        }
    }

    /// Names come before patterns, and those before classes.
    fn rank(&self) -> u8 {
        match self {
            Self::Exact(_) => 0,
            Self::Class(_) => 2,
            _ => 1,
        }
    }
}

/// The regular expression of a pattern as Python's `fnmatch` has it.
fn of_wildcards(text: &str) -> String {
    let mut pattern = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '*' => pattern.push_str(".*"),
            '?' => pattern.push('.'),
            '[' => {
                pattern.push('[');
                for letter in letters.by_ref() {
                    match letter {
                        '!' if pattern.ends_with('[') => pattern.push('^'),
                        letter => pattern.push(letter),
                    }
                    if letter == ']' {
                        break;
                    }
                }
            }
            letter if letter.is_ascii_alphanumeric() || letter == '_' => pattern.push(letter),
            letter => {
                pattern.push('\\');
                pattern.push(letter);
            }
        }
    }
    format!("(?:{pattern})$")
}

/// Some patterns.
#[derive(Debug, Clone, Default)]
pub(super) struct Patterns(Vec<Pattern>);

impl Patterns {
    /// Reads a list that may be absent.
    pub(super) fn read(json: &Json, key: &str, spelling: Spelling) -> Result<Self, String> {
        let list = match json {
            Json::Null => return Ok(Self::default()),
            Json::Array(list) => list,
            other => {
                return Err(format!(
                    "quantization_config: {key} must be a list of names, it is {other}"
                ))
            }
        };
        let one = |name: &Json| match name.as_str() {
            Some(name) => Pattern::read(name, spelling),
            None => Err(format!(
                "quantization_config: {key} must be a list of names, one is {name}"
            )),
        };
        Ok(Self(list.iter().map(one).collect::<Result<_, _>>()?))
    }

    /// One pattern.
    pub(super) fn one(pattern: Pattern) -> Self {
        Self(vec![pattern])
    }

    /// How well the best of them fits a module, 0 best; none if none does.
    pub(super) fn rank(&self, module: &str) -> Option<u8> {
        let fitting = self.0.iter().filter(|pattern| pattern.is_of(module));
        fitting.map(Pattern::rank).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn makers_spell_names_in_their_ways() {
        const GATE: &str = "model.layers.1.mlp.gate";
        for (spelling, text, module, expected) in [
            (Spelling::Tensors, "lm_head", "lm_head", true),
            (Spelling::Tensors, "mlp.gate", GATE, false),
            (Spelling::Tensors, "re:.*mlp.gate$", GATE, true),
            (
                Spelling::Tensors,
                "re:.*mlp.gate$",
                "model.layers.1.mlp.gate_proj",
                false,
            ),
            (Spelling::Tensors, "re:mlp", GATE, false),
            (Spelling::Tensors, r"re:model\.layers\.\d+\.mlp", GATE, true),
            (Spelling::Tensors, "Linear", GATE, true),
            (Spelling::Tensors, "Linear", "model.embed_tokens", false),
            (Spelling::Tensors, "Embedding", "model.embed_tokens", true),
            (Spelling::Transformers, "gate", GATE, true),
            (Spelling::Transformers, "ate", GATE, false),
            (
                Spelling::Transformers,
                GATE,
                "model.layers.1.mlp.gate_proj",
                false,
            ),
            (Spelling::Transformers, "model.layers.1", GATE, true),
            (
                Spelling::Transformers,
                "model.layers.1",
                "model.layers.11.mlp.gate",
                false,
            ),
            (Spelling::Transformers, "model.layers.*.gate", GATE, true),
            (Spelling::Wildcards, "model.layers.?.mlp*", GATE, true),
            (Spelling::Wildcards, "*.gate", GATE, true),
            (Spelling::Wildcards, "model.layers.[!1]*", GATE, false),
            (Spelling::Wildcards, "model", GATE, false),
        ] {
            let pattern = Pattern::read(text, spelling).unwrap();
            assert_eq!(pattern.is_of(module), expected, "{text} {module}");
        }
        let refused = Pattern::read("re:(?!a)b", Spelling::Tensors).unwrap_err();
        assert!(refused.contains("(?!a)b"), "{refused}");
    }

    #[test]
    fn names_come_before_classes() {
        let list = json!(["Linear", "re:.*q_proj", "a.q_proj"]);
        let list = Patterns::read(&list, "targets", Spelling::Tensors).unwrap();
        assert_eq!(list.rank("a.q_proj"), Some(0));
        assert_eq!(list.rank("b.q_proj"), Some(1));
        assert_eq!(list.rank("b.k_proj"), Some(2));
        assert_eq!(list.rank("embed_tokens"), None);
        assert!(Patterns::read(&json!("lm_head"), "ignore", Spelling::Tensors).is_err());
    }
}
