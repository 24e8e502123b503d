//! What a request adds to logits, in OpenAI's form and in llama.cpp's.

use crate::tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::HashMap;
use std::fmt::Formatter;
use worker::http::ApiError;

/// Most entries.
const MAX_ENTRIES: usize = 100_000;
/// Longest texts of all entries together.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// What is added to logits.
#[derive(Debug, Clone, Default, JsonSchema)]
#[schemars(with = "HashMap<String, f32>")]
pub struct LogitBias(Vec<(Key, f32)>);

/// What an entry is for.
#[derive(Debug, Clone, PartialEq)]
enum Key {
    /// A token.
    Token(u32),
    /// All tokens of a text.
    Text(String),
}

impl LogitBias {
    /// The bias of each token; of several for one, the last.
    ///
    /// # Errors
    /// 400 for texts that are too long, or that the vocabulary cannot express.
    pub fn by_token(&self, tokenizer: &Tokenizer) -> Result<HashMap<u32, f32>, ApiError> {
        let texts = self.0.iter().map(|(key, _)| match key {
            Key::Token(_) => 0,
            Key::Text(text) => text.len(),
        });
        if texts.sum::<usize>() > MAX_TEXT_BYTES {
            let reason = format!("logit_bias: its texts have more than {MAX_TEXT_BYTES} bytes");
            return Err(ApiError::field("logit_bias", reason));
        }
        let mut all = HashMap::new();
        for (key, bias) in &self.0 {
            match key {
                Key::Token(token) => {
                    all.insert(*token, *bias);
                }
                Key::Text(text) => {
                    let tokens = tokenizer.encode(text, false);
                    let tokens = tokens.map_err(|e| {
                        ApiError::field("logit_bias", format!("logit_bias {text:?}: {e}"))
                    })?;
                    all.extend(tokens.into_iter().map(|token| (token, *bias)));
                }
            }
        }
        Ok(all)
    }
}

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BiasVisitor)
    }
}

struct BiasVisitor;

impl<'de> Visitor<'de> for BiasVisitor {
    type Value = LogitBias;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a map from tokens to numbers, or a list of pairs of them")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
        let mut all = Vec::new();
        while let Some((key, Amount(bias))) = map.next_entry::<String, _>()? {
            add(
                &mut all,
                key.parse().map_or(Key::Text(key), Key::Token),
                bias,
            )?;
        }
        Ok(LogitBias(all))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LogitBias, A::Error> {
        let mut all = Vec::new();
        while let Some((key, Amount(bias))) = seq.next_element::<(Key, Amount)>()? {
            add(&mut all, key, bias)?;
        }
        Ok(LogitBias(all))
    }
}

fn add<E: serde::de::Error>(all: &mut Vec<(Key, f32)>, key: Key, bias: f32) -> Result<(), E> {
    if all.len() >= MAX_ENTRIES {
        return Err(E::custom(format!("more than {MAX_ENTRIES} entries")));
    }
    all.push((key, bias));
    Ok(())
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        impl Visitor<'_> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a token or a text")
            }

            fn visit_u64<E: serde::de::Error>(self, token: u64) -> Result<Key, E> {
                let token = u32::try_from(token);
                token
                    .map(Key::Token)
                    .map_err(|_| E::custom("it is not a token's number"))
            }

            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key::Text(text.to_string()))
            }
        }

        deserializer.deserialize_any(KeyVisitor)
    }
}

/// A number, or `false` for what must not come.
struct Amount(f32);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AmountVisitor;

        impl Visitor<'_> for AmountVisitor {
            type Value = Amount;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number or false")
            }

            fn visit_f64<E>(self, bias: f64) -> Result<Amount, E> {
                Ok(Amount(bias as f32))
            }

            fn visit_i64<E>(self, bias: i64) -> Result<Amount, E> {
                Ok(Amount(bias as f32))
            }

            fn visit_u64<E>(self, bias: u64) -> Result<Amount, E> {
                Ok(Amount(bias as f32))
            }

            fn visit_bool<E: serde::de::Error>(self, allowed: bool) -> Result<Amount, E> {
                match allowed {
                    true => Err(E::custom("true is no bias, only false is")),
                    false => Ok(Amount(f32::NEG_INFINITY)),
                }
            }
        }

        deserializer.deserialize_any(AmountVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let read = |text: &str| worker::http::json::parse::<LogitBias>(text.as_bytes());
        let (a, b) = (Key::Text(" a".to_string()), Key::Token(7));
        let both = vec![(b, -1.5), (a, f32::NEG_INFINITY)];
        assert_eq!(read(r#"{"7": -1.5, " a": false}"#).unwrap().0, both);
        assert_eq!(read(r#"[[7, -1.5], [" a", false]]"#).unwrap().0, both);
        assert_eq!(read("[]").unwrap().0, []);
        for bad in [
            "3",
            "[7]",
            "[[7]]",
            "[[7, 1, 2]]",
            "[[7, true]]",
            r#"[[7, "1"]]"#,
            "[[-1, 1]]",
            "[[5000000000, 1]]",
            r#"{"7": null}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
