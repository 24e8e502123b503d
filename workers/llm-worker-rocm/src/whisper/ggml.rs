//! Models as whisper.cpp has them: one `.bin` file of sizes, mel filters, vocabulary and tensors, whose names are those
//! of OpenAI's program. Seen in GGUF's terms.
//!
//! <https://github.com/ggml-org/whisper.cpp/blob/master/models/convert-pt-to-ggml.py>

use super::config::WhisperConfig;
use super::languages::LANGUAGES;
use super::names;
use memmap2::Mmap;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use worker::gguf::{give_back, map_file, Array, Format, Gguf, TensorInfo, Value, Weights};
use worker::{Error, Result};

/// What files begin with, as a number.
const MAGIC: u32 = 0x6767_6d6c;
/// Longest name of a tensor, and longest token, in bytes.
const MAX_NAME: usize = 256;
/// Most tensors: no model has a tenth.
const MAX_TENSORS: usize = 1 << 16;
/// Tokens of a model for English only; larger vocabularies have all languages.
const ENGLISH_VOCABULARY: usize = 51_864;
/// Tokens of time, from 0 s to 30 s.
const TIMES: usize = 1501;

/// A checked file.
pub(super) struct GgmlFile {
    path: PathBuf,
    header: Gguf,
    map: Mmap,
    /// Where each tensor begins.
    starts: HashMap<String, usize>,
    pub(super) config: WhisperConfig,
    /// Whether it knows more languages than English.
    pub(super) multilingual: bool,
}

/// Whether a file begins as these do.
pub(super) fn begins_like_one(path: &Path) -> bool {
    use std::io::Read;
    let mut first = [0; 4];
    let read = worker::file::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && u32::from_le_bytes(first) == MAGIC
}

/// Reads a file from its beginning, and never beyond its end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize, what: &str) -> std::result::Result<&'a [u8], String> {
        let end = self.at.checked_add(count);
        let part = end.and_then(|end| self.bytes.get(self.at..end));
        let part = part.ok_or_else(|| {
            format!(
                "truncated or damaged: {what} at byte {} needs {count} bytes",
                self.at
            )
        })?;
        self.at += count;
        Ok(part)
    }

    fn number(&mut self, what: &str) -> std::result::Result<i32, String> {
        let bytes = self.take(4, what)?;
        Ok(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// A number that counts something, at most `most`.
    fn count(&mut self, most: usize, what: &str) -> std::result::Result<usize, String> {
        let number = self.number(what)?;
        let count = usize::try_from(number).ok().filter(|&count| count <= most);
        count.ok_or_else(|| format!("damaged: {what} is {number}"))
    }
}

impl GgmlFile {
    /// Opens a file and checks it.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged, hostile or not supported.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let map = map_file(path)?;
        let read = read(&map).map_err(|reason| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        })?;
        let multilingual = read.config.vocabulary > ENGLISH_VOCABULARY;
        let (infos, starts): (Vec<_>, HashMap<_, _>) = (read.tensors.into_iter())
            .map(|(name, start, info)| ((name.clone(), info), (name, start)))
            .unzip();
        Ok(Self {
            path: path.to_path_buf(),
            header: Gguf::from_parts(read.metadata, infos),
            map,
            starts,
            config: read.config,
            multilingual,
        })
    }
}

struct Read {
    config: WhisperConfig,
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, usize, TensorInfo)>,
}

fn read(bytes: &[u8]) -> std::result::Result<Read, String> {
    let mut reader = Reader { bytes, at: 0 };
    if reader.number("magic")? as u32 != MAGIC {
        return Err("it is no file of whisper.cpp".to_string());
    }
    let mut numbers = [0; 11];
    for number in &mut numbers {
        *number = reader.number("sizes")?;
    }
    let config = WhisperConfig::of_ggml(numbers)?;
    let bands = reader.count(1 << 10, "mel bands")?;
    let bins = reader.count(1 << 16, "bins of mel filters")?;
    if bands != config.encoder.bands {
        return Err(format!(
            "damaged: filters of {bands} mel bands in a model of {}",
            config.encoder.bands
        ));
    }
    // The filters are those that every model of Whisper's has; they are computed.
    reader.take(bands * bins * 4, "mel filters")?;
    let count = reader.count(config.vocabulary, "tokens")?;
    let mut tokens = Vec::with_capacity(count);
    for _ in 0..count {
        let length = reader.count(MAX_NAME, "length of a token")?;
        tokens.push(reader.take(length, "token")?);
    }
    let metadata = vocabulary(&tokens, &config)?;
    let mut tensors: Vec<(String, usize, TensorInfo)> = Vec::new();
    while reader.at < bytes.len() {
        let tensor = tensor(&mut reader)?;
        tensors.push(tensor);
        if tensors.len() > MAX_TENSORS {
            return Err("damaged: too many tensors".to_string());
        }
    }
    let mut names: Vec<&str> = tensors.iter().map(|(name, ..)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(two) = names.windows(2).find(|two| two[0] == two[1]) {
        return Err(format!("tensor {} appears twice", two[0]));
    }
    Ok(Read {
        config,
        metadata,
        tensors,
    })
}

/// A tensor's name, where its data begins, and what it is.
fn tensor(reader: &mut Reader) -> std::result::Result<(String, usize, TensorInfo), String> {
    let rank = reader.count(4, "rank of a tensor")?;
    let length = reader.count(MAX_NAME, "length of a tensor's name")?;
    let kind = reader.number("type of a tensor")?;
    let mut dims = Vec::with_capacity(rank);
    for _ in 0..rank {
        dims.push(reader.count(1 << 28, "dimension of a tensor")? as u64);
    }
    let name = reader.take(length, "name of a tensor")?;
    let name = std::str::from_utf8(name).map_err(|_| "damaged: a tensor's name".to_string())?;
    let format = u32::try_from(kind).ok().and_then(Format::from_number);
    let format =
        format.ok_or_else(|| format!("tensor {name} has type {kind}, which is unknown"))?;
    let size = format.block_size() as u64;
    let elements = dims.iter().try_fold(1u64, |all, &d| all.checked_mul(d));
    let whole = dims.first().is_some_and(|rows| rows.is_multiple_of(size));
    let elements = elements.filter(|&all| all > 0 && whole);
    let bytes = elements
        .and_then(|all| (all / size).checked_mul(format.type_size() as u64))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| format!("tensor {name} has dimensions {dims:?}"))?;
    let start = reader.at;
    reader.take(bytes, name)?;
    let own = names::of_openai(name)
        .ok_or_else(|| format!("tensor {name} has no place in a Whisper model"))?;
    // Vectors may be stored as columns.
    while dims.len() > 1 && own.ends_with(".bias") && dims.contains(&1) {
        dims.retain(|&d| d != 1);
    }
    let info = TensorInfo {
        dims,
        format,
        offset: 0,
        bytes: bytes as u64,
    };
    Ok((own, start, info))
}

/// The vocabulary in GGUF's terms: byte-level BPE whose merges follow from the order of the tokens, and behind the
/// tokens of text those that steer.
fn vocabulary(
    tokens: &[&[u8]],
    config: &WhisperConfig,
) -> std::result::Result<Vec<(String, Value)>, String> {
    let multilingual = config.vocabulary > ENGLISH_VOCABULARY;
    // Everything but text and languages is the same in all vocabularies.
    let steering = |languages: usize| 2 + languages + 6 + TIMES;
    let texts = match multilingual {
        true => 50_257,
        false => 50_256,
    };
    let languages = config.vocabulary.checked_sub(texts + steering(0));
    let languages = languages.filter(|&count| (1..=LANGUAGES.len()).contains(&count));
    let (Some(languages), true) = (languages, tokens.len() >= texts) else {
        return Err(format!(
            "a vocabulary of {} tokens, {} of them text, is none of Whisper's",
            config.vocabulary,
            tokens.len()
        ));
    };
    let spelled: Vec<String> = tokens[..texts]
        .iter()
        .map(|bytes| spelling(bytes))
        .collect();
    let ids: HashMap<&str, usize> = spelled.iter().enumerate().map(|(i, t)| (&**t, i)).collect();
    let mut merges = Vec::new();
    for text in &spelled {
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push(format!("{left} {right}"));
            }
        }
    }
    drop(ids);
    let mut all = spelled;
    let mut kinds = vec![1i32; all.len()];
    let mut add = |text: String, kind: i32| {
        all.push(text);
        kinds.push(kind);
    };
    const CONTROL: i32 = 3;
    for text in ["endoftext", "startoftranscript"] {
        add(format!("<|{text}|>"), CONTROL);
    }
    for (code, _) in &LANGUAGES[..languages] {
        add(format!("<|{code}|>"), CONTROL);
    }
    for text in [
        "translate",
        "transcribe",
        "startoflm",
        "startofprev",
        "nospeech",
        "notimestamps",
    ] {
        add(format!("<|{text}|>"), CONTROL);
    }
    for time in 0..TIMES {
        add(format!("<|{:.2}|>", time as f64 * 0.02), CONTROL);
    }
    let strings = |list: Vec<String>| Value::Array(Array::String(list));
    let entry = |key: &str, value: Value| (format!("tokenizer.ggml.{key}"), value);
    let end = Value::U32(texts as u32);
    Ok(vec![
        entry("model", Value::String("gpt2".to_string())),
        entry("pre", Value::String("gpt-2".to_string())),
        entry("tokens", strings(all)),
        entry("token_type", Value::Array(Array::I32(kinds))),
        entry("merges", strings(merges)),
        entry("bos_token_id", end.clone()),
        entry("eos_token_id", end),
    ])
}

/// Bytes as byte-level vocabularies spell them: a printable character each.
fn spelling(bytes: &[u8]) -> String {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let character = |&byte: &u8| match printable(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
            char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    };
    bytes.iter().map(character).collect()
}

impl Weights for GgmlFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn header(&self) -> &Gguf {
        &self.header
    }

    fn bytes(&self, name: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        let Some(&start) = self.starts.get(name) else {
            return Cow::Borrowed(&[]);
        };
        let bytes = &self.map[start..start + info.bytes as usize];
        // Nothing is aligned in these files; fresh memory is.
        match start % 16 {
            0 => Cow::Borrowed(bytes),
            _ => Cow::Owned(bytes.to_vec()),
        }
    }

    fn give_back(&self, name: &str, info: &TensorInfo) {
        if let Some(&start) = self.starts.get(name) {
            give_back(&self.map, start, info.bytes as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;
    use crate::whisper::tokens::Words;

    #[test]
    fn bytes_are_spelled_as_byte_level_vocabularies_do() {
        assert_eq!(spelling(b" Hi\n"), "ĠHiĊ");
        assert_eq!(spelling(&[0xc3, 0xa9]), "Ã©");
        let all: Vec<u8> = (0..=255).collect();
        let mut spelled: Vec<char> = spelling(&all).chars().collect();
        spelled.sort_unstable();
        spelled.dedup();
        assert_eq!(spelled.len(), 256);
    }

    #[test]
    fn the_order_of_tokens_says_what_is_joined() {
        let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        tokens.extend([&b"ab"[..], b"abc", b" x"].map(<[u8]>::to_vec));
        tokens.extend((tokens.len()..50_257).map(|id| format!("~{id}~").into_bytes()));
        let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
        let sizes = [51_865, 1500, 64, 2, 2, 448, 64, 2, 2, 80, 1];
        let config = WhisperConfig::of_ggml(sizes).unwrap();
        let header = Gguf::from_parts(vocabulary(&tokens, &config).unwrap(), []);
        let tokenizer = Tokenizer::from_gguf(&header).unwrap();
        let encoded = tokenizer.encode("abc ab x", false).unwrap();
        assert_eq!(encoded, [257, 32, 256, 258]);
        let words = Words::new(tokenizer, 51_865, true, &serde_json::Value::Null).unwrap();
        // As whisper.cpp counts them.
        let steering = [words.end, words.start, words.translate, words.transcribe];
        assert_eq!(steering, [50_257, 50_258, 50_358, 50_359]);
        assert_eq!((words.previous, words.silence), (50_361, Some(50_362)));
        assert_eq!((words.timeless, words.first_time), (50_363, 50_364));
        assert_eq!(words.languages.len(), 99);
        assert_eq!(words.languages[1], ("zh", 50_260));
        assert_eq!(words.text(&[50_258, 257, 50_365, 258, 50_257]), "abc x");
        assert!(words.suppressed.contains(&u32::from(b'(')));
        assert_eq!(words.suppressed_first, [32, 50_257]);
        let small = vocabulary(&tokens[..300], &config).err().unwrap();
        assert!(small.contains("300 of them text"), "{small}");
    }

    #[test]
    fn damage_is_named() {
        let message = |bytes: &[u8]| read(bytes).err().unwrap();
        assert!(message(b"").contains("truncated"));
        assert!(message(b"GGUF").contains("no file of whisper.cpp"));
        let mut file = MAGIC.to_le_bytes().to_vec();
        file.extend(
            [51_865i32, 1500, 64, 2, 2, 448, 64, 2, 2, 80, 1]
                .iter()
                .flat_map(|n| n.to_le_bytes()),
        );
        assert!(message(&file).contains("mel bands"));
        file.extend([80i32, 201].iter().flat_map(|n| n.to_le_bytes()));
        assert!(message(&file).contains("mel filters"));
        file.extend(vec![0; 80 * 201 * 4]);
        file.extend(3i32.to_le_bytes());
        file.extend([1, 0, 0, 0, b'a', 1, 0, 0, 0, b'b']);
        assert!(message(&file).contains("truncated"));
        file.extend([255, 255, 255, 255]);
        assert!(message(&file).contains("length of a token is -1"));
    }
}
