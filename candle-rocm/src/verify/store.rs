//! What verification found, on disk beside the compiled kernels: a text file for each GPU, driver and compiler.
//!
//! A file counts as a whole or not at all: what is damaged, of another version, or of other software says nothing, and
//! all is verified again.

use crate::remembered;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// First words of the file; the key stands behind them.
const MAGIC: &str = "candle-rocm verified 1";
/// Characters of a reason that are kept.
const MOST_REASON: usize = 300;

/// Which form of something is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// It is right as it is.
    Full,
    /// Its plain form, as the full one was wrong.
    Plain,
    /// None.
    Off,
}

impl Form {
    const NAMES: [(Self, &'static str); 3] = [
        (Self::Full, "right"),
        (Self::Plain, "plain"),
        (Self::Off, "off"),
    ];
}

/// What was found of one kernel, instruction or library function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub form: Form,
    /// What was wrong; empty if nothing was.
    pub reason: String,
    /// What takes its place; empty if nothing does, or needs to.
    pub instead: String,
}

impl Outcome {
    pub fn right() -> Self {
        Outcome {
            form: Form::Full,
            reason: String::new(),
            instead: String::new(),
        }
    }

    /// One that is not used as it is.
    pub fn wrong(form: Form, reason: &str, instead: &str) -> Self {
        Outcome {
            form,
            reason: one_line(reason),
            instead: one_line(instead),
        }
    }
}

/// By names of what was verified.
pub(super) type Outcomes = BTreeMap<String, Outcome>;

fn one_line(text: &str) -> String {
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(MOST_REASON).collect()
}

/// FNV-1a: tells damaged from whole, and one key from another.
pub(super) fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// What the file says for the key; nothing if there is none that is whole.
pub(super) fn read(path: &Path, key: &str) -> Outcomes {
    remembered::text_of(path)
        .and_then(|text| parse(&text, key))
        .unwrap_or_default()
}

/// Writes outcomes beside those that another process may have written meanwhile. A reader sees all of it or none.
pub(super) fn write(path: &Path, key: &str, outcomes: &Outcomes) -> std::io::Result<()> {
    let mut all = read(path, key);
    all.extend(outcomes.iter().map(|(name, of)| (name.clone(), of.clone())));
    remembered::replace(path, &text(key, &all))
}

fn text(key: &str, outcomes: &Outcomes) -> String {
    let mut text = format!("{MAGIC}\t{}\n", one_line(key));
    for (name, outcome) in outcomes {
        let (_, form) = (Form::NAMES.iter())
            .find(|(form, _)| *form == outcome.form)
            .expect("every form has a name");
        let Outcome {
            reason, instead, ..
        } = outcome;
        writeln!(text, "{name}\t{form}\t{reason}\t{instead}").expect("strings take everything");
    }
    let sum = fingerprint(&text);
    text + &format!("{sum:016x}\n")
}

fn parse(text: &str, key: &str) -> Option<Outcomes> {
    let body = text.strip_suffix('\n')?;
    let (_, sum) = body.rsplit_once('\n')?;
    let body = &text[..body.len() - sum.len()];
    if u64::from_str_radix(sum, 16).ok()? != fingerprint(body) {
        return None;
    }
    let mut lines = body.lines();
    let (magic, of) = lines.next()?.split_once('\t')?;
    if magic != MAGIC || of != one_line(key) {
        return None;
    }
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, form, reason, instead] = fields[..] else {
                return None;
            };
            let (form, _) = Form::NAMES.iter().find(|(_, known)| *known == form)?;
            Some((name.to_string(), Outcome::wrong(*form, reason, instead)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes() -> Outcomes {
        Outcomes::from([
            ("softmax/softmax_f16".to_string(), Outcome::right()),
            (
                "instructions/lanes".to_string(),
                Outcome::wrong(Form::Plain, "word 3\tis 1,\nnot 2", "its plain form"),
            ),
        ])
    }

    #[test]
    fn what_is_written_is_read_and_what_others_wrote_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below").join("verified.tsv");
        write(&path, "one GPU", &outcomes()).unwrap();
        let more = Outcomes::from([("ck/64".to_string(), Outcome::right())]);
        write(&path, "one GPU", &more).unwrap();
        let all = read(&path, "one GPU");
        assert_eq!(all.len(), 3);
        assert_eq!(all["instructions/lanes"].reason, "word 3 is 1, not 2");
        assert_eq!(read(&path, "another GPU"), Outcomes::new());
        let left = std::fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(left.count(), 1);
    }

    #[test]
    fn a_damaged_file_says_nothing() {
        let text = text("key", &outcomes());
        assert_eq!(parse(&text, "key").map(|all| all.len()), Some(2));
        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            let damaged = String::from_utf8(damaged).unwrap();
            assert_eq!(parse(&damaged, "key"), None, "byte {at}");
            assert_eq!(parse(&text[..at], "key"), None, "{at} bytes");
        }
        for hostile in ["", "\n", "\n\n", "0000000000000000\n", "\t\t\t\n\u{fffd}\n"] {
            assert_eq!(parse(hostile, "key"), None);
        }
    }
}
