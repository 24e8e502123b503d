//! Words of a rendered chat in the places of others.

use super::Expansion;
use crate::jinja::Rendered;
use std::ops::Range;

/// Where a word stands outside of some ranges.
pub(super) fn find(text: &str, word: &str, without: &[Range<usize>]) -> Vec<Range<usize>> {
    let overlaps = |place: &Range<usize>| {
        let mut ranges = without.iter();
        ranges.any(|range| range.start < place.end && place.start < range.end)
    };
    let places = text.match_indices(word);
    places
        .map(|(at, word)| at..at + word.len())
        .filter(|place| !overlaps(place))
        .collect()
}

/// A text with other words at some places. Their neighbours stay what they were, the words are the template's.
pub(super) fn replaced<'a>(
    rendered: &Rendered,
    words: impl Iterator<Item = (&'a Range<usize>, &'a Expansion)>,
) -> Rendered {
    let mut text = String::new();
    let mut input = Vec::new();
    let mut done = 0;
    // Input between `done` and an end, moved to where it is now.
    let mut keep = |text: &mut String, from: usize, to: usize| {
        let start = text.len();
        for range in &rendered.input {
            let (first, end) = (range.start.max(from), range.end.min(to));
            if first < end {
                input.push(start + first - from..start + end - from);
            }
        }
        text.push_str(&rendered.text[from..to]);
    };
    for (place, word) in words {
        keep(&mut text, done, place.start);
        text.push_str(&word.text);
        done = place.end;
    }
    keep(&mut text, done, rendered.text.len());
    Rendered { text, input }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::PICTURE_MARK as MARK;

    #[test]
    fn words_are_replaced_and_input_stays_input() {
        let rendered = Rendered {
            text: format!("ab{MARK}cd<i>e"),
            // All but the first and the last character: a mark in input, too.
            input: vec![
                1..2 + MARK.len() + 2,
                2 + MARK.len() + 2..2 + MARK.len() + 5,
            ],
        };
        // A placeholder that somebody spelled is none.
        assert!(find(&rendered.text, "<i>", &rendered.input).is_empty());
        let places = find(&rendered.text, MARK, &[]);
        let words = [Expansion {
            text: "[picture]".to_string(),
            runs: vec![1],
        }];
        let new = replaced(&rendered, places.iter().zip(&words));
        assert_eq!(new.text, "ab[picture]cd<i>e");
        assert_eq!(new.input, [1..2, 11..13, 13..16]);
    }
}
