//! Two texts as one sequence, as cross-encoders read them.

use super::{with_library, Encoder, Tokenizer, TokenizerError};

/// A sequence of two texts with everything that the model's training put around them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Which of the texts each token belongs to, as the model was told: 0 or 1, or always 0.
    pub types: Vec<u32>,
}

impl Tokenizer {
    /// The tokens of two texts behind each other, of at most `max_tokens`: the second is cut.
    ///
    /// # Errors
    /// [`TokenizerError::Invalid`] for text that the vocabulary cannot express or that is too long for it, and for a
    /// first text that leaves no room for the second.
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        max_tokens: usize,
    ) -> Result<Pair, TokenizerError> {
        let (mut pair, second) = match &self.encoder {
            Encoder::Library { inner, growth } if self.framed_by_library => {
                // Both together, as the length counts for both.
                let mut found = None;
                let longer = if first.len() > second.len() {
                    first
                } else {
                    second
                };
                with_library(longer, *growth, || {
                    let encoding = inner.encode_fast((first, second), true)?;
                    let pair = Pair {
                        ids: encoding.get_ids().to_vec(),
                        types: encoding.get_type_ids().to_vec(),
                    };
                    let parts = encoding.get_sequence_ids();
                    let is_second = |part: &Option<usize>| *part == Some(1);
                    let start = parts.iter().position(is_second);
                    let end = parts.iter().rposition(is_second).map(|last| last + 1);
                    found = Some((pair, start.unwrap_or(0)..end.unwrap_or(0)));
                    Ok(Vec::new())
                })?;
                found.ok_or_else(|| TokenizerError::Invalid("it gave no tokens".to_string()))?
            }
            _ => self.framed_apart(first, second)?,
        };
        let too_many = pair.ids.len().saturating_sub(max_tokens);
        if too_many > 0 {
            if second.len() <= too_many {
                return Err(TokenizerError::Invalid(format!(
                    "the query has so many tokens that none of {max_tokens} are left for documents"
                )));
            }
            pair.ids.drain(second.end - too_many..second.end);
            pair.types.drain(second.end - too_many..second.end);
        }
        Ok(pair)
    }

    /// `[CLS] first [SEP] second [SEP]` of BERT's vocabularies, `<s> first </s></s> second </s>` of others. Gives it with
    /// the place of the second text.
    fn framed_apart(
        &self,
        first: &str,
        second: &str,
    ) -> Result<(Pair, std::ops::Range<usize>), TokenizerError> {
        let (Some(begin), Some(end)) = (&self.bos, &self.eos) else {
            return Err(TokenizerError::Invalid(
                "it has no tokens that begin and end texts; two cannot be told apart".to_string(),
            ));
        };
        let is_bert = matches!(self.encoder, Encoder::Library { .. });
        let mut ids = vec![begin.id];
        ids.extend(self.encoder.encode(first, false)?);
        ids.push(end.id);
        let mut types = vec![0; ids.len()];
        if !is_bert {
            ids.push(end.id);
        }
        let start = ids.len();
        ids.extend(self.encoder.encode(second, false)?);
        let place = start..ids.len();
        ids.push(end.id);
        types.resize(ids.len(), u32::from(is_bert));
        Ok((Pair { ids, types }, place))
    }
}
