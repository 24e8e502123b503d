//! Grammars over the vocabulary of a real model: whatever tokens are drawn from the masks, the text is as the grammar
//! says.

mod calls;
mod templates;

use llm_worker_rocm::engine::api::Constraint;
use llm_worker_rocm::grammar::Grammars;
use llm_worker_rocm::tokenizer::Tokenizer;
use serde_json::{json, Value as Json};
use std::path::PathBuf;
use worker::gguf::{MappedGguf, Weights};

/// Longest answer that is drawn.
const MAX_TOKENS: usize = 4000;

fn tokenizer() -> Tokenizer {
    let path: PathBuf = std::env::var_os("CANDLE_ROCM_SMOLLM2")
        .expect("CANDLE_ROCM_SMOLLM2 is not set: run scripts/test, or set it to the output of scripts/fetch-smollm2")
        .into();
    Tokenizer::from_gguf(MappedGguf::open(&path).unwrap().header()).unwrap()
}

/// Draws tokens as the masks allow.
struct Walk<'a> {
    tokenizer: &'a Tokenizer,
    constraint: Box<dyn Constraint>,
    state: u64,
    tokens: Vec<u32>,
}

impl<'a> Walk<'a> {
    fn new(tokenizer: &'a Tokenizer, constraint: Box<dyn Constraint>, seed: u64) -> Self {
        Self {
            tokenizer,
            constraint,
            state: seed,
            tokens: Vec::new(),
        }
    }

    fn allowed(&mut self) -> Vec<u32> {
        let mask = self.constraint.mask().unwrap();
        assert!(mask.len() * 32 >= self.tokenizer.vocab_size());
        (0..self.tokenizer.vocab_size() as u32)
            .filter(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1)
            .collect()
    }

    /// Takes tokens that are given; each must be allowed.
    fn follow(&mut self, text: &str) {
        for token in self.tokenizer.encode(text, false).unwrap() {
            let next = self.tokenizer.decode(&[token]);
            assert!(
                self.allowed().contains(&token),
                "{text}: {next:?} after {:?}",
                self.text()
            );
            self.constraint.accept(token).unwrap();
            self.tokens.push(token);
        }
    }

    /// Goes on at random up to the end.
    fn finish(mut self) -> String {
        while self.tokens.len() < MAX_TOKENS {
            let allowed = self.allowed();
            assert!(!allowed.is_empty(), "{}", self.text());
            self.state = self
                .state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let token = allowed[(self.state >> 33) as usize % allowed.len()];
            self.constraint.accept(token).unwrap();
            if self.tokenizer.is_end(token) {
                return self.text();
            }
            self.tokens.push(token);
        }
        panic!(
            "no end after {}",
            self.text().chars().take(1500).collect::<String>()
        );
    }

    fn text(&self) -> String {
        self.tokenizer.decode(&self.tokens)
    }
}

#[test]
fn json_is_what_its_schema_says() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "size": {"enum": ["small", "large"]},
            "counts": {"type": "array", "items": {"$ref": "#/$defs/count"}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "size", "counts"],
        "additionalProperties": false,
        "$defs": {"count": {"type": "integer", "minimum": 0, "maximum": 99}},
    });
    for seed in 0..4 {
        let text = Walk::new(&tokenizer, grammars.json_schema(&schema).unwrap(), seed).finish();
        let json: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(
            json["name"].as_str().unwrap().chars().count() <= 6,
            "{text}"
        );
        assert!(
            ["small", "large"].contains(&json["size"].as_str().unwrap()),
            "{text}"
        );
        let counts = json["counts"].as_array().unwrap();
        assert!((1..=3).contains(&counts.len()), "{text}");
        assert!(counts.iter().all(|n| n.as_u64().unwrap() < 100), "{text}");
        assert_eq!(json.as_object().unwrap().len(), 3, "{text}");
    }
    let mut object = Walk::new(&tokenizer, grammars.json_object().unwrap(), 0);
    object.follow("{\"any\": [1, {\"thing\": null}]}");
    assert!(object.allowed().iter().any(|t| tokenizer.is_end(*t)));
}

#[test]
fn regular_expressions_lark_and_gbnf() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    for seed in 0..4 {
        let text = Walk::new(
            &tokenizer,
            grammars.regex("(ab|cd){2}-[0-9]{3}é?").unwrap(),
            seed,
        )
        .finish();
        assert!(text.len() >= 8 && text.contains('-'), "{text}");
        let lark = grammars
            .lark(
                "start: greeting \" \" NAME\ngreeting: \"hi\" | \"hello\"\nNAME: /[A-Z][a-z]{2,5}/",
            )
            .unwrap();
        let text = Walk::new(&tokenizer, lark, seed).finish();
        let (greeting, name) = text.split_once(' ').unwrap();
        assert!(["hi", "hello"].contains(&greeting), "{text}");
        assert!((3..=6).contains(&name.len()), "{text}");
        let gbnf = grammars
            .gbnf("root ::= \"x=\" num (\",\" num){1,2}\nnum ::= [1-9] [0-9]{0,2}")
            .unwrap();
        let text = Walk::new(&tokenizer, gbnf, seed).finish();
        let numbers: Vec<u32> = text[2..].split(',').map(|n| n.parse().unwrap()).collect();
        assert!(
            (2..=3).contains(&numbers.len()) && numbers.iter().all(|n| (1..1000).contains(n)),
            "{text}"
        );
    }
}

#[test]
fn what_the_grammar_forbids_is_refused() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let mut constraint = grammars.regex("yes|no").unwrap();
    let token = tokenizer.encode("maybe", false).unwrap()[0];
    assert!(constraint
        .accept(token)
        .unwrap_err()
        .contains("does not allow"));
    let error = |constraint: worker::Result<Box<dyn Constraint>>| {
        let error = constraint.err().expect("it must be refused");
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    };
    assert!(error(grammars.json_schema(&json!({"type": "no such type"}))).contains("JSON schema"));
    assert!(
        error(grammars.json_schema(&json!({"$ref": "http://localhost/schema"})))
            .contains("JSON schema")
    );
    assert!(error(grammars.regex("(")).contains("regular expression"));
    assert!(error(grammars.lark("start: missing")).contains("missing"));
    assert!(error(grammars.gbnf("root ::= missing")).contains("missing"));
    assert!(error(grammars.lark(&"a".repeat(2 << 20))).contains("longer"));
}

/// Guesses are cut at what the grammar forbids, and asking changes nothing.
#[test]
fn guesses_are_allowed_as_far_as_masks_allow_them() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let mut constraint = grammars.regex("the cat (sat|ran)( away)?").unwrap();
    let encode = |text: &str| tokenizer.encode(text, false).unwrap();
    let right = encode("the cat sat away");
    let (head, wrong) = (encode("the cat"), encode("the cat barks"));
    assert_eq!(constraint.allowed(&right), right.len());
    assert_eq!(constraint.allowed(&wrong), head.len());
    assert_eq!(constraint.allowed(&encode("a dog")), 0);
    for (i, token) in right.iter().enumerate() {
        assert_eq!(constraint.allowed(&right[i..]), right.len() - i);
        let mask = constraint.mask().unwrap();
        assert_eq!(mask[*token as usize / 32] >> (token % 32) & 1, 1);
        constraint.accept(*token).unwrap();
    }
    assert_eq!(constraint.allowed(&right), 0);
}
