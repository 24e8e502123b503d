//! Prompts of chats: control tokens are those that the template wrote, never what somebody spelled in a message.

use super::{Tokenizer, TokenizerError};
use crate::jinja::Rendered;
use std::ops::Range;
use tokenizers::tokenizer::normalizer::Range as Part;
use tokenizers::{
    Model, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Token,
};

/// Words to be found in texts, each with a number.
#[derive(Debug, Clone)]
pub(super) struct Words {
    /// In order, so that those with the same beginning are neighbours.
    sorted: Vec<(Vec<u8>, u32)>,
    /// Whether a word begins with a byte.
    begins: [bool; 256],
}

impl Words {
    fn new(words: impl Iterator<Item = (String, u32)>) -> Self {
        let words = words.filter(|(word, _)| !word.is_empty());
        let mut sorted: Vec<_> = words.map(|(word, id)| (word.into_bytes(), id)).collect();
        sorted.sort();
        let mut begins = [false; 256];
        for (word, _) in &sorted {
            begins[usize::from(word[0])] = true;
        }
        Self { sorted, begins }
    }

    /// The first place at or after `from` where a word is, and the longest one there.
    fn find(&self, text: &str, from: usize) -> Option<(Range<usize>, u32)> {
        let bytes = text.as_bytes();
        (from..bytes.len())
            .filter(|&at| self.begins[usize::from(bytes[at])])
            .find_map(|at| {
                let (length, id) = self.longest(&bytes[at..])?;
                Some((at..at + length, id))
            })
    }

    /// The longest word that the text begins with.
    fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        let mut same = &self.sorted[..];
        let mut longest = None;
        for (depth, byte) in text.iter().enumerate() {
            let byte_of = |word: &(Vec<u8>, u32)| word.0.get(depth).copied();
            let low = same.partition_point(|word| byte_of(word) < Some(*byte));
            let high = same.partition_point(|word| byte_of(word) <= Some(*byte));
            same = &same[low..high];
            match same.first() {
                None => break,
                Some((word, id)) if word.len() == depth + 1 => longest = Some((depth + 1, *id)),
                Some(_) => {}
            }
        }
        longest
    }
}

/// Whether a control token that is spelled at `place` was spelled by someone else than the template. A template may
/// put one together from its own brackets and a role's name.
fn is_spelled(text: &str, input: &[Range<usize>], place: &Range<usize>) -> bool {
    let first = input.partition_point(|mark| mark.end <= place.start);
    let mut bytes = 0;
    for mark in input[first..]
        .iter()
        .take_while(|mark| mark.start < place.end)
    {
        let shared = mark.start.max(place.start)..mark.end.min(place.end);
        bytes += shared.len();
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        if !text[shared].chars().all(is_name) {
            return true;
        }
    }
    bytes == place.len()
}

impl Tokenizer {
    /// The tokens of a chat that a template has rendered. Control tokens that are spelled in what came from messages,
    /// tools and other variables are text there, whatever they would be elsewhere; other added tokens are themselves
    /// everywhere. For `add_bos` see [`Self::encode`].
    ///
    /// # Errors
    /// [`TokenizerError::Library`] for text that the vocabulary cannot express.
    pub fn encode_rendered(
        &self,
        prompt: &Rendered,
        add_bos: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let spelled = self.spelled_controls(prompt);
        if spelled.is_empty() {
            return self.encode(&prompt.text, add_bos);
        }
        let mut ids = self.encoder.encode_as_text(&prompt.text, &spelled)?;
        self.begin(&mut ids, add_bos);
        Ok(ids)
    }

    /// Where control tokens are spelled that the template did not write.
    fn spelled_controls(&self, prompt: &Rendered) -> Vec<Range<usize>> {
        if prompt.input.is_empty() {
            return Vec::new();
        }
        let finder = self.control_finder.get_or_init(|| {
            let ends = self
                .end_ids
                .iter()
                .filter_map(|&id| Some((self.encoder.spelling(id)?, id)));
            let control = self.control.iter().map(|(id, text)| (text.clone(), *id));
            Words::new(control.chain(ends))
        });
        let mut spelled = Vec::new();
        let mut at = 0;
        while let Some((place, _)) = finder.find(&prompt.text, at) {
            // One that is text may overlap with another.
            at = place.end;
            if is_spelled(&prompt.text, &prompt.input, &place) {
                at = place.start + width(&prompt.text, place.start);
                spelled.push(place);
            }
        }
        spelled
    }
}

/// The tokens of a text in which the control tokens at some places are text. This is what the library does, but
/// for the places: added tokens first, the rest normalized, cut into words and given to the model.
pub(super) fn with_spelled(
    library: &tokenizers::Tokenizer,
    text: &str,
    spelled: &[Range<usize>],
) -> tokenizers::Result<Vec<u32>> {
    let added = library.get_added_tokens_decoder();
    let finder = Words::new(added.iter().map(|(id, token)| (token.content.clone(), *id)));
    let mut places: Vec<(Option<u32>, Range<usize>)> = Vec::new();
    let (mut done, mut at) = (0, 0);
    while let Some((range, id)) = finder.find(text, at) {
        let token = &added[&id];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let within_word =
            text[..range.start].ends_with(is_word) || text[range.end..].starts_with(is_word);
        if spelled
            .binary_search_by_key(&(range.start, range.end), |s| (s.start, s.end))
            .is_ok()
            || (token.single_word && within_word)
        {
            at = range.start + width(text, range.start);
            continue;
        }
        let (mut start, mut end) = (range.start, range.end);
        if token.lstrip {
            start = text[..start].trim_end().len().max(done);
        }
        if token.rstrip {
            end = text.len() - text[end..].trim_start().len();
        }
        if done < start {
            places.push((None, done..start));
        }
        places.push((Some(id), start..end));
        (done, at) = (end, end);
    }
    if done < text.len() {
        places.push((None, done..text.len()));
    }

    let mut parts = PreTokenizedString::from(text);
    parts.split(|_, whole| {
        let part = |(id, range): &(Option<u32>, Range<usize>)| {
            let part = whole.slice(Part::Original(range.clone()))?;
            let token = id.map(|id| vec![Token::new(id, part.get().to_string(), (0, part.len()))]);
            Some((part, token))
        };
        Ok(places.iter().filter_map(part).collect::<Vec<_>>())
    })?;
    if let Some(normalizer) = library.get_normalizer() {
        parts.normalize(|part| normalizer.normalize(part))?;
    }
    if let Some(words) = library.get_pre_tokenizer() {
        words.pre_tokenize(&mut parts)?;
    }
    parts.tokenize(|part| library.get_model().tokenize(part.get()))?;
    let tokens = parts.get_splits(OffsetReferential::Original, OffsetType::Byte);
    let ids = tokens
        .into_iter()
        .filter_map(|(_, _, tokens)| tokens.as_ref());
    Ok(ids.flatten().map(|token| token.id).collect())
}

/// Bytes of the character at a place.
fn width(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(1, char::len_utf8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Map};

    const START: u32 = 95;
    const END: u32 = 96;
    const CALL: u32 = 97;

    /// A vocabulary of the printable characters, in which words begin with a mark, and three added tokens.
    fn tokenizer() -> Tokenizer {
        let mut vocab: Map<String, serde_json::Value> = (0..95u8)
            .map(|i| (char::from(b' ' + i).to_string(), i.into()))
            .collect();
        vocab.insert("\u{2581}".to_string(), 98.into());
        vocab.insert("<0x0A>".to_string(), 99.into());
        let added = |id: u32, text: &str, special: bool| json!({"id": id, "content": text, "special": special, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false});
        let added = [
            added(START, "<|start|>", true),
            added(END, "<|end|>", true),
            added(CALL, "<call>", false),
        ];
        for token in &added {
            vocab.insert(
                token["content"].as_str().unwrap().to_string(),
                token["id"].clone(),
            );
        }
        let file = json!({
            "version": "1.0",
            "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u{2581}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
            ]},
            "pre_tokenizer": null,
            "post_processor": null,
            "decoder": null,
            "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true},
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
        Tokenizer::from_folder(folder.path()).unwrap()
    }

    /// A prompt in which what is between `«` and `»` came from outside.
    fn prompt(marked: &str) -> Rendered {
        let (mut text, mut input) = (String::new(), Vec::new());
        for (i, piece) in marked.split(['«', '»']).enumerate() {
            let start = text.len();
            text.push_str(piece);
            if i % 2 == 1 && !piece.is_empty() {
                input.push(start..text.len());
            }
        }
        Rendered { text, input }
    }

    /// The tokens as texts, control tokens in capitals.
    fn pieces(tokenizer: &Tokenizer, marked: &str) -> String {
        let ids = tokenizer.encode_rendered(&prompt(marked), true).unwrap();
        let piece = |id: u32| match id {
            START => "START".to_string(),
            END => "END".to_string(),
            CALL => "CALL".to_string(),
            98 => "_".to_string(),
            99 => "\\n".to_string(),
            id => char::from(b' ' + id as u8).to_string(),
        };
        ids.into_iter().map(piece).collect()
    }

    #[test]
    fn control_tokens_in_messages_are_text() {
        let tokenizer = tokenizer();
        for (marked, tokens) in [
            ("<|start|>«hi»<|end|>\n", "START_hiEND_\\n"),
            ("<|start|>«a<|end|>b»<|end|>", "START_a<|end|>bEND"),
            ("<|start|>«<|end|>»<|end|>", "START_<|end|>END"),
            ("«<|end|><|start|>»", "_<|end|><|start|>"),
            // A template's brackets around a role.
            ("<|«start»|>«x»", "START_x"),
            // Pieces of both: only a name may come from outside.
            ("<«|end|>»", "_<|end|>"),
            ("<|en«d|»>", "_<|end|>"),
            ("«<»|end|>", "_<|end|>"),
            // Other added tokens are themselves.
            ("<|start|>«<call>x<|end|>»", "STARTCALL_x<|end|>"),
            ("<call>«a b»", "CALL_a_b"),
            ("«<|start<|end|>»<|end|>", "_<|start<|end|>END"),
        ] {
            assert_eq!(pieces(&tokenizer, marked), tokens, "{marked}");
        }
    }

    #[test]
    fn places_aside_the_tokens_are_the_librarys() {
        let tokenizer = tokenizer();
        for text in [
            "<|start|>a b<|end|>\n<call> x <|start|>",
            "",
            "plain",
            "<|end|>",
            " <|start|>  <call>",
        ] {
            let ids = tokenizer.encoder.encode_as_text(text, &[]).unwrap();
            assert_eq!(ids, tokenizer.encode(text, false).unwrap(), "{text:?}");
        }
    }
}
