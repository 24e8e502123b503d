//! Where an answer comes to a grammar that does not begin with it: at a token, a word, or what a pattern finds.
//!
//! An answer is looked through while it is made, on the thread that serves everyone. So all words and patterns become
//! one deterministic automaton, whose size is limited, and each byte of an answer is one step of it, whatever the
//! patterns are.

use regex_automata::dfa::{dense, Automaton, StartKind};
use regex_automata::meta::Regex;
use regex_automata::nfa::thompson;
use regex_automata::util::{primitives::StateID, start, syntax};
use regex_automata::{Anchored, MatchKind};
use worker::{Error, Result};

/// Most triggers of a grammar, and the longest of them.
const MOST: usize = 64;
const LONGEST: usize = 4096;
/// Most bytes of the automaton, of what it is made in, and of what finds the beginning of a match.
const AUTOMATON: usize = 4 << 20;
const MAKING: usize = 16 << 20;
const FINDING: usize = 1 << 20;

/// What begins a grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// A token, which the grammar then begins with.
    Token(u32),
    /// A text, with which the grammar then begins.
    Word(String),
    /// A regular expression that is found somewhere in the answer. The grammar begins with its first group that is not
    /// empty, or with all of it.
    Pattern(String),
    /// The same of one that has to match all of the answer so far.
    FullPattern(String),
}

/// What begins a grammar, compiled.
#[derive(Debug)]
pub(super) struct Triggers {
    tokens: Vec<u32>,
    /// Tells where one of the words and patterns has matched.
    automaton: Option<(dense::DFA<Vec<u32>>, StateID)>,
    /// Each of them by itself, in their order, to find where its match begins.
    patterns: Vec<Regex>,
}

/// How far an answer has come in the automaton; `None` once nothing can match any more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place(Option<StateID>);

impl Triggers {
    /// Compiles triggers.
    ///
    /// # Errors
    /// [`Error::Usage`] for none or too many of them, and for a pattern that is malformed or too large.
    pub(super) fn new(triggers: &[Trigger]) -> Result<Self> {
        let refused = |reason: String| Error::Usage(format!("grammar_triggers: {reason}"));
        let refuse = |reason: String| Err(refused(reason));
        if triggers.is_empty() || triggers.len() > MOST {
            return refuse(format!(
                "{} of them; 1 to {MOST} are possible",
                triggers.len()
            ));
        }
        let (mut tokens, mut patterns) = (Vec::new(), Vec::new());
        for trigger in triggers {
            let (text, pattern) = match trigger {
                Trigger::Token(token) => {
                    tokens.push(*token);
                    continue;
                }
                Trigger::Word(word) => (word, quoted(word)),
                Trigger::Pattern(pattern) => (pattern, pattern.clone()),
                Trigger::FullPattern(pattern) => {
                    let inner = pattern.strip_prefix('^').unwrap_or(pattern);
                    let inner = match inner.strip_suffix('$') {
                        // What is escaped is a sign of the text.
                        Some(before) if !before.ends_with('\\') => before,
                        _ => inner,
                    };
                    (pattern, format!(r"\A(?:{inner})\z"))
                }
            };
            if text.is_empty() || text.len() > LONGEST {
                return refuse(format!("a word or pattern has 1 to {LONGEST} bytes"));
            }
            patterns.push(pattern);
        }
        let compiled = patterns.iter().map(|pattern| {
            let config = Regex::config()
                .nfa_size_limit(Some(FINDING))
                .utf8_empty(false);
            let mut builder = Regex::builder();
            let built = builder.configure(config).syntax(of_bytes()).build(pattern);
            built.map_err(|e| refused(format!("{pattern:?} cannot be used: {}", cause(&e))))
        });
        Ok(Self {
            tokens,
            patterns: compiled.collect::<Result<_>>()?,
            automaton: match patterns.is_empty() {
                true => None,
                false => Some(automaton(&patterns).map_err(refused)?),
            },
        })
    }

    /// The beginning of an answer.
    pub(super) fn start(&self) -> Place {
        Place(self.automaton.as_ref().map(|(_, start)| *start))
    }

    /// Whether a token is one of the triggers.
    pub(super) fn is_token(&self, token: u32) -> bool {
        self.tokens.contains(&token)
    }

    /// Goes on with the text of a token. Gives whether a word or pattern has matched.
    pub(super) fn advance(&self, place: &mut Place, text: &[u8]) -> bool {
        let (Some((automaton, _)), Some(mut state)) = (&self.automaton, place.0) else {
            return false;
        };
        for byte in text {
            state = automaton.next_state(state, *byte);
            // A match is told one byte late, or by the end of the text.
            if automaton.is_match_state(state) {
                return true;
            }
            if automaton.is_dead_state(state) || automaton.is_quit_state(state) {
                place.0 = None;
                return false;
            }
        }
        place.0 = Some(state);
        automaton.is_match_state(automaton.next_eoi_state(state))
    }

    /// Where the grammar begins in an answer that has matched: by the first trigger that is found in it.
    pub(super) fn find(&self, text: &[u8]) -> Option<usize> {
        self.patterns.iter().find_map(|pattern| {
            let mut found = pattern.create_captures();
            pattern.captures(text, &mut found);
            let groups = (1..found.group_len()).filter_map(|group| found.get_group(group));
            let filled = groups.into_iter().find(|group| !group.is_empty());
            Some(filled.or(found.get_match().map(|m| m.span()))?.start)
        })
    }
}

/// Patterns are those of bytes and of ASCII's classes, as in ECMAScript.
fn of_bytes() -> syntax::Config {
    syntax::Config::new().unicode(false).utf8(false)
}

fn automaton(patterns: &[String]) -> std::result::Result<(dense::DFA<Vec<u32>>, StateID), String> {
    let config = dense::Config::new()
        .match_kind(MatchKind::LeftmostFirst)
        .start_kind(StartKind::Unanchored)
        .dfa_size_limit(Some(AUTOMATON))
        .determinize_size_limit(Some(MAKING));
    let nfa = thompson::Config::new()
        .utf8(false)
        .nfa_size_limit(Some(FINDING));
    let built = dense::Builder::new()
        .configure(config)
        .syntax(of_bytes())
        .thompson(nfa)
        .build_many(patterns);
    let automaton = built.map_err(|e| {
        let reason = cause(&e);
        format!("the words and patterns together cannot be used: {reason}")
    })?;
    let start = start::Config::new().anchored(Anchored::No);
    let start = automaton.start_state(&start);
    let start = start.map_err(|e| format!("the patterns have no beginning: {e}"))?;
    Ok((automaton, start))
}

/// What an error comes from, in one line.
fn cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string().replace('\n', " ")
}

/// A pattern that matches a text and nothing else.
fn quoted(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        // Others must not have a backslash: `\<` is the beginning of a word.
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Trigger {
        Trigger::Word(text.to_string())
    }

    fn pattern(text: &str) -> Trigger {
        Trigger::Pattern(text.to_string())
    }

    fn full(text: &str) -> Trigger {
        Trigger::FullPattern(text.to_string())
    }

    /// After which piece a trigger is met, and where in the text so far the grammar begins.
    fn met(triggers: &[Trigger], pieces: &[&str]) -> Option<(usize, usize)> {
        let triggers = Triggers::new(triggers).unwrap();
        let mut place = triggers.start();
        let mut text = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            text.extend_from_slice(piece.as_bytes());
            if triggers.advance(&mut place, piece.as_bytes()) {
                return Some((index, triggers.find(&text).unwrap()));
            }
        }
        None
    }

    #[test]
    fn words_are_met_across_tokens_and_within_them() {
        let pieces = ["say ", "<to", "ol>", "{"];
        assert_eq!(met(&[word("<tool>")], &pieces), Some((2, 4)));
        assert_eq!(met(&[word("<tool>{")], &pieces), Some((3, 4)));
        assert_eq!(met(&[word("a.c")], &["abc", "a.c"]), Some((1, 3)));
        assert_eq!(met(&[word("b")], &["abc"]), Some((0, 1)));
        assert_eq!(met(&[word("é")], &["x", "é!"]), Some((1, 1)));
        assert_eq!(met(&[word("é")], &["x", "e!"]), None);
        // The first that is listed tells where, if several are met at once.
        assert_eq!(met(&[word("cd"), word("b")], &["abcd"]), Some((0, 2)));
    }

    #[test]
    fn patterns_begin_at_their_first_group() {
        let call = pattern(r"(?:<think>[\s\S]*?</think>)?\s*(<tool_call>)[\s\S]*");
        assert_eq!(
            met(std::slice::from_ref(&call), &["so ", "<tool_call>"]),
            Some((1, 3))
        );
        assert_eq!(
            met(&[call], &["<think>x</think> ", "<tool_call>"]),
            Some((1, 17))
        );
        assert_eq!(met(&[pattern(r"\d+")], &["a", "12"]), Some((1, 1)));
        assert_eq!(met(&[pattern(r"^\{")], &["{"]), Some((0, 0)));
        assert_eq!(met(&[pattern(r"^\{")], &[" ", "{"]), None);
        assert_eq!(met(&[pattern("(x)?(y)")], &["y"]), Some((0, 0)));
        // The end of the text so far is an end, as each token is looked at.
        assert_eq!(met(&[pattern("a$")], &["a b", " a", "c"]), Some((1, 4)));
        // Any byte is one, also within a character.
        assert_eq!(met(&[pattern("<.>")], &["<é>", "<x>"]), Some((1, 4)));
    }

    #[test]
    fn full_patterns_match_all_of_the_answer() {
        let call = full(r"^\s*\[[a-z]+\(");
        assert_eq!(
            met(std::slice::from_ref(&call), &[" [", "get", "("]),
            Some((2, 0))
        );
        assert_eq!(met(&[call], &["so [get("]), None);
        assert_eq!(met(&[full(r"a\$")], &["a", "$"]), Some((1, 0)));
        assert_eq!(met(&[full("ab$")], &["ab", "c"]), Some((0, 0)));
        assert_eq!(met(&[full("ab$")], &["abc"]), None);
        assert_eq!(met(&[full(".*(b)")], &["aab"]), Some((0, 2)));
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let exponential = format!("(a|b)*a{}", "[ab]".repeat(40));
        for (triggers, word) in [
            (vec![], "0 of them"),
            (vec![word("x"); 65], "65 of them"),
            (vec![word("")], "bytes"),
            (vec![word(&"x".repeat(4097))], "bytes"),
            (vec![pattern("(")], "unclosed"),
            (vec![pattern("(?!x)")], "look-around"),
            (vec![pattern(&exponential)], "together"),
            (vec![pattern("x{1000}{1000}")], "cannot be used"),
        ] {
            let error = Triggers::new(&triggers).unwrap_err().to_string();
            assert!(error.contains(word), "{triggers:?}: {error}");
        }
    }
}
