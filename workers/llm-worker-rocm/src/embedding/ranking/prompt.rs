//! What a decoder is asked about a query and a document.

use crate::jinja::Rendered;
use crate::tokenizer::{Pair, Tokenizer};
use worker::gguf::Gguf;

/// The words around query and document, as Qwen3-Reranker was trained with them
/// (<https://huggingface.co/Qwen/Qwen3-Reranker-0.6B>); llama.cpp writes them into GGUF files.
const USUAL: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
     Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: \
     Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: \
     {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";

/// A text with a place for the query and one for the document behind it.
pub(super) struct Prompt {
    before: String,
    between: String,
    after: String,
}

impl Default for Prompt {
    fn default() -> Self {
        Self::parse(USUAL).expect("it has both places")
    }
}

impl Prompt {
    fn parse(text: &str) -> Option<Self> {
        let (before, rest) = text.split_once(QUERY)?;
        let (between, after) = rest.split_once(DOCUMENT)?;
        Some(Self {
            before: before.to_string(),
            between: between.to_string(),
            after: after.to_string(),
        })
    }

    /// That of a file, or the usual one.
    ///
    /// # Errors
    /// A text if the file's has no place for query and document, in this order.
    pub(super) fn of_gguf(header: &Gguf) -> Result<Self, String> {
        const KEY: &str = "tokenizer.chat_template.rerank";
        match header.get_str(KEY).map_err(|e| e.to_string())? {
            None => Ok(Self::default()),
            Some(text) => Self::parse(text)
                .ok_or_else(|| format!("metadata {KEY} has no {QUERY} with {DOCUMENT} behind it")),
        }
    }

    /// The prompt's tokens, at most `max_tokens`: of a longer one the document's end is left out.
    ///
    /// # Errors
    /// A text if they cannot be expressed, or the query leaves no room for a document.
    pub(super) fn tokens(
        &self,
        tokenizer: &Tokenizer,
        query: &str,
        document: &str,
        max_tokens: usize,
    ) -> Result<Pair, String> {
        // Control tokens are the prompt's own; those that query and document spell are text.
        let front = |document: &str| {
            let mut text = self.before.clone();
            let mut input = Vec::new();
            for (part, next) in [(query, self.between.as_str()), (document, "")] {
                input.push(text.len()..text.len() + part.len());
                text.push_str(part);
                text.push_str(next);
            }
            let rendered = Rendered { text, input };
            tokenizer
                .encode_rendered(&rendered, false)
                .map_err(|e| e.to_string())
        };
        let after = tokenizer
            .encode(&self.after, false)
            .map_err(|e| e.to_string())?;
        let room = max_tokens.saturating_sub(after.len());
        let mut ids = front(document)?;
        if ids.len() > room {
            if front("")?.len() >= room {
                return Err(format!(
                    "the query has so many tokens that none of {max_tokens} are left for documents"
                ));
            }
            ids.truncate(room);
        }
        ids.extend(after);
        Ok(Pair {
            types: vec![0; ids.len()],
            ids,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_places_for_both() {
        let usual = Prompt::default();
        assert!(usual.before.ends_with("<Query>: "), "{}", usual.before);
        assert_eq!(usual.between, "\n<Document>: ");
        assert!(usual.after.ends_with("</think>\n\n"));
        assert!(Prompt::parse("{document} {query}").is_none());
    }
}
