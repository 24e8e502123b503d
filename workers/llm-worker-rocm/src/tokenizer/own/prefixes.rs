//! Which tokens begin a text.

/// A vocabulary's spellings, sorted: those that begin a text are found in one walk over its bytes.
#[derive(Debug)]
pub(super) struct Prefixes {
    entries: Vec<(Box<[u8]>, u32)>,
    /// Where the entries of each first byte begin; the last is the end.
    starts: Vec<usize>,
}

impl Prefixes {
    /// Of equal spellings the last counts; empty ones match nothing.
    pub(super) fn new(spellings: impl Iterator<Item = (Vec<u8>, u32)>) -> Self {
        let mut entries: Vec<(Box<[u8]>, u32)> = spellings
            .filter(|(bytes, _)| !bytes.is_empty())
            .map(|(bytes, id)| (bytes.into_boxed_slice(), id))
            .collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        entries.dedup_by(|later, kept| later.0 == kept.0);
        let starts = (0..=256usize)
            .map(|byte| entries.partition_point(|(bytes, _)| usize::from(bytes[0]) < byte))
            .collect();
        Self { entries, starts }
    }

    /// Calls `found` with the length in bytes and the id of each token that begins `text`, the shortest first.
    pub(super) fn each(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let Some(&first) = text.first() else { return };
        let first = usize::from(first);
        let (mut low, mut high) = (self.starts[first], self.starts[first + 1]);
        let mut depth = 1;
        // All entries between the two share their first `depth` bytes with the text.
        while low < high {
            let (bytes, id) = &self.entries[low];
            if bytes.len() == depth {
                found(depth, *id);
                low += 1;
            }
            let Some(&next) = text.get(depth) else { return };
            let rest = &self.entries[low..high];
            let begin = rest.partition_point(|(bytes, _)| bytes[depth] < next);
            let end = rest.partition_point(|(bytes, _)| bytes[depth] <= next);
            (low, high) = (low + begin, low + end);
            depth += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_begin_a_text_are_found_in_order_of_length() {
        let words = ["a", "ab", "abc", "abd", "b", "", "é", "ab"];
        let prefixes = Prefixes::new(
            words
                .iter()
                .zip(0..)
                .map(|(w, id)| (w.as_bytes().to_vec(), id)),
        );
        let found = |text: &str| {
            let mut all = Vec::new();
            prefixes.each(text.as_bytes(), |length, id| all.push((length, id)));
            all
        };
        assert_eq!(found("abcd"), [(1, 0), (2, 7), (3, 2)]);
        assert_eq!(found("b"), [(1, 4)]);
        assert_eq!(found("éa"), [(2, 6)]);
        assert_eq!(found("xab"), []);
        assert_eq!(found(""), []);
    }
}
