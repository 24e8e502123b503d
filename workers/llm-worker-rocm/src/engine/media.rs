//! Pictures in prompts, as the engine has them: rows whose embeddings come from an encoder.

use super::forward::Forward;
use crate::sound::Frames;
use crate::vision::{Pixels, Video};
use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Bytes of features that are kept for prompts to come.
const KEPT_BYTES: usize = 256 << 20;
/// Pictures that are known by name at most.
const KEPT_NAMES: usize = 1 << 16;

/// Something that is not text, as its encoder takes it.
#[derive(Debug)]
pub struct MediaItem {
    /// SHA-256 of its content: what it is known by.
    pub key: [u8; 32],
    /// The encoder's input.
    pub content: Content,
}

/// What an item is.
#[derive(Debug)]
pub enum Content {
    /// A picture.
    Picture(Pixels),
    /// A sound.
    Sound(Frames),
    /// A video.
    Video(Video),
}

impl MediaItem {
    /// An item with its key.
    pub fn new(content: Content) -> Self {
        let mut hash = Sha256::new();
        match &content {
            Content::Picture(pixels) => add_pixels(&mut hash, pixels),
            Content::Video(video) => {
                add_pixels(&mut hash, &video.pixels);
                // Rows turn by it.
                hash.update(video.interval.to_le_bytes());
            }
            Content::Sound(frames) => {
                hash.update(b"sound");
                for piece in &frames.pieces {
                    for count in [piece.frames, piece.kept] {
                        hash.update((count as u64).to_le_bytes());
                    }
                    for value in &piece.mel {
                        hash.update(value.to_le_bytes());
                    }
                }
            }
        }
        Self {
            key: hash.finalize().into(),
            content,
        }
    }
}

fn add_pixels(hash: &mut Sha256, pixels: &Pixels) {
    fn add(hash: &mut Sha256, sizes: &[usize]) {
        for size in sizes {
            hash.update((*size as u64).to_le_bytes());
        }
    }
    add(hash, &[pixels.grid.0, pixels.grid.1, pixels.tiles.len()]);
    if let Some(lines) = &pixels.lines {
        let (size, margin) = (lines.size, lines.margin);
        add(hash, &[size.0, size.1, margin.0, margin.1]);
    }
    for tile in &pixels.tiles {
        add(hash, &[tile.rows, tile.columns, tile.second.len()]);
        hash.update(&tile.patches);
        hash.update(&tile.second);
    }
}

/// What an encoder gives for a picture.
#[derive(Debug, Clone)]
pub struct Features {
    /// `(rows of the prompt, width)`.
    pub rows: Tensor,
    /// As many further ones, added behind the decoder's first blocks.
    pub deep: Vec<Tensor>,
}

impl Features {
    fn bytes(&self) -> usize {
        let tensors = self.deep.iter().chain([&self.rows]);
        tensors
            .map(|t| t.elem_count() * t.dtype().size_in_bytes())
            .sum()
    }
}

/// Tokens of a prompt that stand for an item, or a part of it.
#[derive(Debug, Clone)]
pub struct Span {
    /// The first one.
    pub start: usize,
    /// How many there are.
    pub len: usize,
    /// What they stand for.
    pub item: Arc<MediaItem>,
    /// The first of the item's rows that it has.
    pub first: usize,
}

/// Time, row and column that a token is turned by.
pub type Turn = [u32; 3];

/// The pictures of a prompt.
#[derive(Debug, Default)]
pub struct Media {
    /// Where they stand, in their order.
    pub spans: Vec<Span>,
    /// What each token of the prompt is turned by, where that is not its place.
    pub turns: Option<Vec<Turn>>,
    /// Tokens of pictures and videos see all of their span, not only those before them.
    pub whole: bool,
}

impl Media {
    /// Whether tokens of a span see all of it: those of sounds do not.
    fn sees_all(&self, span: &Span) -> bool {
        self.whole && !matches!(span.item.content, Content::Sound(_))
    }

    /// What is wrong with them in a prompt of so many tokens.
    pub(super) fn refuse(&self, prompt: usize) -> Option<String> {
        let mut end = 0;
        for span in &self.spans {
            if span.start < end || span.len == 0 || span.start + span.len > prompt {
                return Some(format!(
                    "a picture at token {} of {} does not fit a prompt of {prompt}",
                    span.start, span.len
                ));
            }
            end = span.start + span.len;
        }
        let turns = self.turns.as_ref().map_or(prompt, Vec::len);
        (turns != prompt).then(|| format!("{turns} positions for a prompt of {prompt} tokens"))
    }
}

/// What a step's rows have besides their tokens.
#[derive(Debug, Clone, Default)]
pub struct StepMedia {
    /// Rows whose embeddings are others: the first one, and what they are.
    pub rows: Vec<(usize, Features)>,
    /// What each row is turned by; empty if that is its place in its sequence.
    pub turns: Vec<Turn>,
    /// Rows that see beyond themselves: the first one, how many, and the sequence's tokens up to the last they see.
    pub ahead: Vec<Ahead>,
}

/// Rows that see all tokens up to the last one of their span.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ahead {
    /// The first row.
    pub row: usize,
    /// How many there are.
    pub rows: usize,
    /// Which sequence of the step has them.
    pub sequence: usize,
    /// Tokens of the sequence up to the end of the span.
    pub keys: usize,
}

impl StepMedia {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.turns.is_empty() && self.ahead.is_empty()
    }
}

/// A sequence's pictures.
pub(super) struct SequenceMedia {
    pub media: Arc<Media>,
    /// For each span, the number that stands for its picture where prefixes are told apart.
    names: Vec<u32>,
    /// For each span, the picture's features, while they are needed.
    features: Vec<Option<Features>>,
    /// What the first token behind the prompt is turned by.
    next: u32,
}

impl SequenceMedia {
    /// Tokens from `start` on with the pictures' names in the places of their spans.
    pub(super) fn named(&self, start: usize, tokens: &[u32]) -> Vec<u32> {
        let mut named = tokens.to_vec();
        for (span, name) in self.media.spans.iter().zip(&self.names) {
            let first = span.start.max(start);
            let end = (span.start + span.len).min(start + tokens.len());
            if first < end {
                named[first - start..end - start].fill(*name);
            }
        }
        named
    }

    /// Rows from `computed` on that can be computed now, of `rows` that there is room for: up to the first picture
    /// whose features are missing, and none of a part of a picture whose rows see all of it.
    pub(super) fn ready(&self, computed: usize, rows: usize) -> usize {
        let end = computed + rows;
        for (span, features) in self.media.spans.iter().zip(&self.features) {
            let span_end = span.start + span.len;
            if span_end <= computed {
                continue;
            }
            if span.start >= end {
                break;
            }
            if features.is_none() {
                return span.start.saturating_sub(computed);
            }
            if self.media.sees_all(span) && span_end > end {
                // All of it, if nothing comes before.
                return match span.start > computed {
                    true => span.start - computed,
                    false => span_end - computed,
                };
            }
        }
        rows
    }

    /// The first span among the next `rows` whose features are missing.
    pub(super) fn missing(&self, computed: usize, rows: usize) -> Option<usize> {
        let spans = self.media.spans.iter().zip(&self.features);
        let mut spans = spans.enumerate();
        let found = spans.find(|(_, (span, features))| {
            span.start + span.len > computed && span.start < computed + rows && features.is_none()
        });
        found.map(|(index, _)| index)
    }

    pub(super) fn item(&self, span: usize) -> &Arc<MediaItem> {
        &self.media.spans[span].item
    }

    /// Takes a picture's features for all of its spans.
    pub(super) fn take(&mut self, key: &[u8; 32], features: &Features) {
        for (span, place) in self.media.spans.iter().zip(&mut self.features) {
            if span.item.key == *key {
                *place = Some(features.clone());
            }
        }
    }

    /// Forgets what is computed.
    pub(super) fn forget(&mut self, computed: usize) {
        for (span, features) in self.media.spans.iter().zip(&mut self.features) {
            if span.start + span.len <= computed {
                *features = None;
            }
        }
    }

    /// What a token is turned by.
    fn turn(&self, position: usize) -> Option<Turn> {
        let turns = self.media.turns.as_ref()?;
        Some(match turns.get(position) {
            Some(turn) => *turn,
            None => [self.next + (position - turns.len()) as u32; 3],
        })
    }

    /// What a token is turned by that stands with those that follow it, `rows` in all, as text does behind pictures: by
    /// one number, and each by the one behind.
    pub(super) fn turn_of_text(&self, start: usize, rows: usize) -> Option<u32> {
        let [first, ..] = self.turn(start)?;
        let end = start + rows;
        let in_prompt = start..end.min(self.media.turns.as_ref()?.len());
        let goes_on = |place: usize| self.turn(place) == Some([first + (place - start) as u32; 3]);
        in_prompt.into_iter().all(goes_on).then_some(first)
    }

    /// Adds what `rows` tokens from `start` on have to a step, of which they are `sequence` and begin at `row`.
    pub(super) fn add(
        &self,
        step: &mut StepMedia,
        (sequence, row): (usize, usize),
        (start, rows): (usize, usize),
    ) -> candle_core::Result<()> {
        for (span, features) in self.media.spans.iter().zip(&self.features) {
            let (first, end) = (
                span.start.max(start),
                (span.start + span.len).min(start + rows),
            );
            if first >= end {
                continue;
            }
            let Some(features) = features else {
                candle_core::bail!("a picture's rows are computed before it is encoded")
            };
            let (from, count) = (span.first + first - span.start, end - first);
            let part = |tensor: &Tensor| tensor.narrow(0, from, count);
            let features = Features {
                rows: part(&features.rows)?,
                deep: features.deep.iter().map(part).collect::<Result<_, _>>()?,
            };
            step.rows.push((row + first - start, features));
            if self.media.sees_all(span) {
                step.ahead.push(Ahead {
                    row: row + first - start,
                    rows: count,
                    sequence,
                    keys: end,
                });
            }
        }
        Ok(())
    }

    /// What the same tokens are turned by.
    pub(super) fn turns(&self, start: usize, rows: usize) -> Option<Vec<Turn>> {
        (start..start + rows)
            .map(|place| self.turn(place))
            .collect()
    }
}

/// What is known of pictures: numbers that stand for them, and the features of the last ones.
pub(super) struct MediaStore {
    names: HashMap<[u8; 32], u32>,
    next: u32,
    /// The last used ones at the end.
    features: VecDeque<([u8; 32], Features)>,
    bytes: usize,
}

impl MediaStore {
    pub(super) fn new() -> Self {
        Self {
            names: HashMap::new(),
            next: u32::MAX,
            features: VecDeque::new(),
            bytes: 0,
        }
    }

    /// A sequence's pictures. Names count down from the largest number, far beyond every vocabulary, and none is used
    /// twice: a picture that was forgotten gets another one, and prefixes with it are computed anew.
    pub(super) fn sequence(&mut self, media: Arc<Media>) -> SequenceMedia {
        if self.names.len() >= KEPT_NAMES {
            self.names.clear();
        }
        let names = media.spans.iter().map(|span| self.name(span.item.key));
        let names = names.collect();
        let turns = media.turns.iter().flatten().flatten();
        SequenceMedia {
            names,
            features: vec![None; media.spans.len()],
            next: turns.max().map_or(0, |last| last + 1),
            media,
        }
    }

    /// The number that stands for a picture.
    pub(super) fn name(&mut self, key: [u8; 32]) -> u32 {
        let next = &mut self.next;
        *self.names.entry(key).or_insert_with(|| {
            *next -= 1;
            *next + 1
        })
    }

    /// Tokens and the pictures among them, as a file tells them; without what comes from a forgotten picture on.
    pub(super) fn to_file(&self, named: &[u32], vocabulary: usize) -> (Vec<u32>, Vec<[u8; 32]>) {
        let mut pictures: Vec<([u8; 32], u32)> = Vec::new();
        let mut tokens = Vec::with_capacity(named.len());
        for token in named {
            if (*token as usize) < vocabulary {
                tokens.push(*token);
                continue;
            }
            let known = pictures.iter().position(|(_, name)| name == token);
            let index = match known {
                Some(index) => index,
                None => {
                    let Some((key, name)) = self.names.iter().find(|(_, name)| *name == token)
                    else {
                        break;
                    };
                    pictures.push((*key, *name));
                    pictures.len() - 1
                }
            };
            tokens.push(u32::MAX - index as u32);
        }
        (tokens, pictures.into_iter().map(|(key, _)| key).collect())
    }

    /// The opposite; `None` if the tokens are none of a vocabulary of this size and none of the pictures.
    pub(super) fn of_file(
        &mut self,
        tokens: &[u32],
        pictures: &[[u8; 32]],
        vocabulary: usize,
    ) -> Option<Vec<u32>> {
        let names: Vec<u32> = pictures.iter().map(|key| self.name(*key)).collect();
        let named = tokens.iter().map(|token| {
            let index = (u32::MAX - token) as usize;
            match (*token as usize) < vocabulary {
                true => Some(*token),
                false => names.get(index).copied(),
            }
        });
        named.collect()
    }

    /// A picture's features, from an earlier prompt or computed now.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn features(
        &mut self,
        forward: &mut dyn Forward,
        item: &MediaItem,
    ) -> candle_core::Result<Features> {
        let known = self.features.iter().position(|(key, _)| *key == item.key);
        if let Some(known) = known.and_then(|index| self.features.remove(index)) {
            let features = known.1.clone();
            self.features.push_back(known);
            return Ok(features);
        }
        let features = forward.encode(item)?;
        self.bytes += features.bytes();
        self.features.push_back((item.key, features.clone()));
        while self.bytes > KEPT_BYTES {
            match self.features.pop_front() {
                Some((_, old)) => self.bytes -= old.bytes(),
                None => break,
            }
        }
        Ok(features)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    fn picture(rows: usize) -> Arc<MediaItem> {
        Arc::new(MediaItem::new(Content::Picture(Pixels {
            grid: (rows, 1),
            ..Pixels::default()
        })))
    }

    /// Tokens 2 to 5 stand for a picture, 8 and 9 for another one.
    fn sequence(store: &mut MediaStore, whole: bool) -> SequenceMedia {
        let span = |start, len| Span {
            start,
            len,
            item: picture(len),
            first: 0,
        };
        store.sequence(Arc::new(Media {
            spans: vec![span(2, 4), span(8, 2)],
            turns: None,
            whole,
        }))
    }

    fn features(rows: usize) -> Features {
        Features {
            rows: Tensor::zeros((rows, 1), DType::F32, &Device::Cpu).unwrap(),
            deep: Vec::new(),
        }
    }

    #[test]
    fn rows_wait_for_their_picture() {
        let mut media = sequence(&mut MediaStore::new(), false);
        // Up to the picture, and none of it.
        assert_eq!((media.ready(0, 9), media.ready(2, 9)), (2, 0));
        assert_eq!((media.missing(0, 2), media.missing(0, 3)), (None, Some(0)));
        let key = media.item(0).key;
        media.take(&key, &features(4));
        // A part of it, and what follows up to the next one.
        assert_eq!((media.ready(0, 4), media.ready(0, 20)), (4, 8));
        assert_eq!(media.missing(3, 20), Some(1));
        // Once computed, its features are not kept.
        media.forget(6);
        assert_eq!((media.ready(6, 1), media.missing(6, 2)), (1, None));
        assert_eq!(media.ready(5, 1), 0);
    }

    #[test]
    fn a_picture_that_sees_all_of_itself_is_not_cut() {
        let mut media = sequence(&mut MediaStore::new(), true);
        let key = media.item(0).key;
        media.take(&key, &features(4));
        // Before it, then all of it, whatever there is room for.
        assert_eq!((media.ready(0, 4), media.ready(2, 1)), (2, 4));
        assert_eq!(media.ready(0, 7), 7);
        // A prefix that was known may end within it.
        assert_eq!(media.ready(3, 1), 3);
    }

    #[test]
    fn names_outlive_their_process() {
        let mut store = MediaStore::new();
        let names = [store.name([1; 32]), store.name([2; 32])];
        let named = [5, names[1], names[1], 6, names[0], 7];
        let (tokens, pictures) = store.to_file(&named, 100);
        assert_eq!(pictures, [[2; 32], [1; 32]]);
        let mut other = MediaStore::new();
        other.name([9; 32]);
        let found = other.of_file(&tokens, &pictures, 100).unwrap();
        let expected = [other.name([2; 32]), other.name([1; 32])];
        assert_eq!(found, [5, expected[0], expected[0], 6, expected[1], 7]);
        // A picture that the file does not have, and one that was forgotten.
        assert_eq!(other.of_file(&tokens, &pictures[..1], 100), None);
        store.names.remove(&[1; 32]);
        assert_eq!(store.to_file(&named, 100).0.len(), 4);
    }

    #[test]
    fn pictures_have_names_of_their_own() {
        let mut store = MediaStore::new();
        let tokens: Vec<u32> = (0..10).collect();
        let first = sequence(&mut store, false).named(0, &tokens);
        let again = sequence(&mut store, false);
        assert_eq!(again.named(0, &tokens), first);
        assert_eq!(again.named(4, &tokens[4..8]), first[4..8]);
        assert_eq!((first[1], first[6]), (1, 6));
        assert!(first[2..6].iter().all(|name| *name == first[2]) && first[2] > 1 << 31);
        assert_ne!(first[2], first[8]);
        // Forgotten names are not used again.
        store.names.clear();
        let new = sequence(&mut store, false).named(0, &tokens);
        assert!(!first.contains(&new[2]) && !first.contains(&new[8]));
    }

    #[test]
    fn answers_turn_by_what_follows_the_prompt() {
        let mut store = MediaStore::new();
        let media = store.sequence(Arc::new(Media {
            turns: Some(vec![[0; 3], [1, 1, 2], [1, 2, 1], [3; 3]]),
            ..Media::default()
        }));
        let turns = media.turns(2, 4).unwrap();
        assert_eq!(turns, [[1, 2, 1], [3; 3], [4; 3], [5; 3]]);
        // Text behind the picture, in the prompt and behind it.
        assert_eq!(media.turn_of_text(3, 2), Some(3));
        assert_eq!(media.turn_of_text(5, 1), Some(5));
        assert_eq!(media.turn_of_text(2, 2), None);
        assert_eq!(media.turn_of_text(1, 1), None);
    }
}
