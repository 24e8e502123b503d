//! The tokens that steer Whisper, and those that it must not say.

use super::languages::LANGUAGES;
use crate::tokenizer::Tokenizer;
use serde_json::Value as Json;

/// Seconds from one token of time to the next.
pub(super) const TIME_STEP: f64 = 0.02;
/// What the first token of time is at most, in steps, where the file does not say: one second.
const MAX_FIRST_TIME: u32 = 50;
/// Signs that stand for sounds which nobody says. <https://github.com/openai/whisper/blob/main/whisper/tokenizer.py>
const UNSPOKEN: [&str; 45] = [
    "\"", "#", "(", ")", "*", "+", "/", ":", ";", "<", "=", ">", "@", "[", "\\", "]", "^", "_",
    "`", "{", "|", "}", "~", "「", "」", "『", "』", "<<", ">>", "<<<", ">>>", "--", "---", "-(",
    "-[", "('", "(\"", "((", "))", "(((", ")))", "[[", "]]", "{{", "}}",
];
/// The same of music, whose signs are several tokens of which the first says enough.
const MUSIC: [&str; 9] = ["♪♪", "♪♪♪", "♩", "♪", "♫", "♬", "♭", "♮", "♯"];

/// The vocabulary as the decoder is steered by it.
pub(super) struct Words {
    pub(super) tokenizer: Tokenizer,
    /// Ends the answer; all tokens from here on are no text.
    pub(super) end: u32,
    /// Begins the answer.
    pub(super) start: u32,
    pub(super) translate: u32,
    pub(super) transcribe: u32,
    /// Begins the text before the answer.
    pub(super) previous: u32,
    /// Says that there is no speech.
    pub(super) silence: Option<u32>,
    /// Asks for no tokens of time.
    pub(super) timeless: u32,
    /// The first token of time, which is that of 0 s.
    pub(super) first_time: u32,
    /// Tokens of all languages and their codes; none of a model for English only.
    pub(super) languages: Vec<(&'static str, u32)>,
    /// What is never said.
    pub(super) suppressed: Vec<u32>,
    /// What is not said first.
    pub(super) suppressed_first: Vec<u32>,
    /// The last token of time that may come first.
    pub(super) last_first_time: u32,
    /// Heads of the decoder (block and head) that look at the sound of the words they write; none if the model does not
    /// say.
    pub(super) alignment: Vec<(usize, usize)>,
}

impl Words {
    /// By the names of control tokens, with what `generation_config.json` says.
    ///
    /// # Errors
    /// What is missing or does not go together.
    pub(super) fn new(
        tokenizer: Tokenizer,
        vocabulary: usize,
        multilingual: bool,
        settings: &Json,
    ) -> Result<Self, String> {
        let any = |names: &[&str]| names.iter().find_map(|name| tokenizer.control_id(name));
        let need = |names: &[&str]| {
            any(names).ok_or_else(|| format!("its vocabulary has no token {}", names[0]))
        };
        let timeless = need(&["<|notimestamps|>"])?;
        let first_time = timeless + 1;
        if first_time as usize >= vocabulary {
            return Err("its vocabulary has no tokens of time".to_string());
        }
        let languages = LANGUAGES.iter().filter_map(|(code, _)| {
            let token = tokenizer.control_id(&format!("<|{code}|>"))?;
            Some((*code, token))
        });
        let languages: Vec<_> = match multilingual {
            true => languages.collect(),
            false => Vec::new(),
        };
        if multilingual && languages.is_empty() {
            return Err("its vocabulary has no tokens of languages".to_string());
        }
        let most = settings["max_initial_timestamp_index"].as_u64();
        let most = most.and_then(|n| u32::try_from(n).ok());
        let end = need(&["<|endoftext|>"])?;
        let mut words = Self {
            end,
            start: need(&["<|startoftranscript|>"])?,
            translate: need(&["<|translate|>"])?,
            transcribe: need(&["<|transcribe|>"])?,
            previous: need(&["<|startofprev|>"])?,
            silence: any(&["<|nospeech|>", "<|nocaptions|>"]),
            timeless,
            first_time,
            languages,
            suppressed: Vec::new(),
            suppressed_first: Vec::new(),
            last_first_time: first_time.saturating_add(most.unwrap_or(MAX_FIRST_TIME)),
            alignment: pairs(&settings["alignment_heads"]),
            tokenizer,
        };
        let listed = |key: &str| -> Option<Vec<u32>> {
            let list = settings[key].as_array()?.iter();
            let ids = list.filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
            Some(ids.collect())
        };
        words.suppressed = match listed("suppress_tokens") {
            Some(list) => list,
            None => words.usually_suppressed()?,
        };
        words.suppressed_first = match listed("begin_suppress_tokens") {
            Some(list) => list,
            None => {
                let mut list = words.encoded(" ")?;
                list.push(end);
                list
            }
        };
        let mut all = [&words.suppressed[..], &words.suppressed_first].concat();
        all.extend(words.languages.iter().map(|(_, token)| token));
        all.extend([words.end, words.start, words.translate, words.transcribe]);
        all.extend([words.previous, words.timeless]);
        all.extend(words.silence);
        match all.into_iter().find(|&id| id as usize >= vocabulary) {
            Some(id) => Err(format!("token {id} is outside of its {vocabulary}")),
            None => Ok(words),
        }
    }

    fn encoded(&self, text: &str) -> Result<Vec<u32>, String> {
        let tokens = self.tokenizer.encode(text, false);
        tokens.map_err(|e| e.to_string())
    }

    /// What OpenAI's program does not let models say: signs for sounds, and what steers.
    fn usually_suppressed(&self) -> Result<Vec<u32>, String> {
        let mut list = vec![self.start, self.translate, self.transcribe, self.previous];
        list.extend(self.silence);
        list.extend(self.tokenizer.control_id("<|startoflm|>"));
        for text in [" -", " '"] {
            list.extend(self.encoded(text)?.first());
        }
        for sign in UNSPOKEN.iter().chain(&MUSIC) {
            let is_music = MUSIC.contains(sign) && sign.chars().count() == 1;
            for text in [sign.to_string(), format!(" {sign}")] {
                let tokens = self.encoded(&text)?;
                if tokens.len() == 1 || is_music {
                    list.extend(tokens.first());
                }
            }
        }
        list.sort_unstable();
        list.dedup();
        Ok(list)
    }

    /// A text before the answer, as tokens; control tokens that it spells are left out.
    ///
    /// # Errors
    /// For a text that the vocabulary cannot express.
    pub(super) fn prompt(&self, text: &str) -> Result<Vec<u32>, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let mut tokens = self.encoded(&format!(" {text}"))?;
        tokens.retain(|&token| token < self.end);
        Ok(tokens)
    }

    /// The text of some tokens, those of time and others that are no text left out.
    pub(super) fn text(&self, tokens: &[u32]) -> String {
        let text: Vec<u32> = tokens.iter().copied().filter(|&t| t < self.end).collect();
        self.tokenizer.decode(&text)
    }

    /// What begins an answer: the language and the task, of models that have them.
    pub(super) fn beginning(&self, language: Option<u32>, translate: bool) -> Vec<u32> {
        let task = match translate {
            true => self.translate,
            false => self.transcribe,
        };
        let mut tokens = vec![self.start];
        if let Some(language) = language {
            tokens.extend([language, task]);
        }
        tokens
    }

    /// The step of a token of time.
    pub(super) fn time(&self, token: u32) -> Option<u32> {
        token.checked_sub(self.first_time)
    }
}

/// Pairs of numbers.
fn pairs(json: &Json) -> Vec<(usize, usize)> {
    let number = |json: &Json| json.as_u64().map(|n| n as usize);
    let pair = |json: &Json| Some((number(&json[0])?, number(&json[1])?));
    let list = json.as_array().into_iter().flatten();
    list.filter_map(pair).collect()
}
