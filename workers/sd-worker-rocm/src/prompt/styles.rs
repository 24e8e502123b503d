//! Styles: named texts that prompts are put into, from a file as AUTOMATIC1111's web UI has it.
//!
//! `styles.csv` has the columns `name`, `prompt` and `negative_prompt`. A style's text with `{prompt}` in it takes the
//! prompt there, another one stands behind it.

use std::path::Path;
use worker::{Error, Result};

/// Largest file, in bytes.
const MOST_BYTES: u64 = 16 << 20;
/// Where a style takes the prompt.
const MARK: &str = "{prompt}";

/// A named pair of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Style {
    /// What a request calls it.
    pub name: String,
    /// For the prompt.
    pub prompt: String,
    /// For the negative prompt.
    pub negative_prompt: String,
}

/// The styles of a file.
#[derive(Debug, Clone, Default)]
pub struct Styles(Vec<Style>);

impl Styles {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Usage`] if it cannot be read, or has no such columns.
    pub fn open(path: &Path) -> Result<Self> {
        let wrong = |e: String| Error::Usage(format!("{}: {e}", path.display()));
        let bytes = worker::file::read(path, MOST_BYTES).map_err(|e| wrong(e.to_string()))?;
        Self::read(&String::from_utf8_lossy(&bytes)).map_err(wrong)
    }

    fn read(text: &str) -> std::result::Result<Self, String> {
        let mut rows = rows(text.trim_start_matches('\u{feff}'))?.into_iter();
        let head = rows.next().unwrap_or_default();
        let column = |names: &[&str]| head.iter().position(|cell| names.contains(&cell.trim()));
        let name = column(&["name"]).ok_or("there is no column name")?;
        // Old files call it text.
        let prompt = column(&["prompt", "text"]).ok_or("there is no column prompt")?;
        let negative = column(&["negative_prompt"]);
        let cell = |row: &[String], at: Option<usize>| {
            at.and_then(|at| row.get(at)).cloned().unwrap_or_default()
        };
        let styles = rows
            .map(|row| Style {
                name: cell(&row, Some(name)),
                prompt: cell(&row, Some(prompt)),
                negative_prompt: cell(&row, negative),
            })
            .filter(|style| !style.name.is_empty());
        Ok(Self(styles.collect()))
    }

    /// All of them.
    pub fn list(&self) -> &[Style] {
        &self.0
    }

    /// A prompt and a negative prompt with styles of these names; empty names are none.
    ///
    /// # Errors
    /// [`Error::Usage`] for a style that does not exist.
    pub fn apply(
        &self,
        names: &[String],
        prompt: &str,
        negative: &str,
    ) -> Result<(String, String)> {
        let (mut prompt, mut negative) = (prompt.to_string(), negative.to_string());
        for name in names.iter().filter(|name| !name.is_empty()) {
            let Some(style) = self.0.iter().find(|style| style.name == *name) else {
                let known: Vec<&str> = self.0.iter().map(|style| style.name.as_str()).collect();
                return Err(Error::Usage(match known.is_empty() {
                    true => {
                        format!("there is no style {name:?}: no styles are known (--styles-file)")
                    }
                    false => format!("there is no style {name:?}; there are {}", known.join(", ")),
                }));
            };
            prompt = merged(&style.prompt, &prompt);
            negative = merged(&style.negative_prompt, &negative);
        }
        Ok((prompt, negative))
    }
}

fn merged(style: &str, prompt: &str) -> String {
    if style.contains(MARK) {
        return style.replace(MARK, prompt);
    }
    let parts = [prompt.trim(), style.trim()];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}

/// The rows of a CSV file (RFC 4180): cells in quotes may have commas, line breaks and doubled quotes.
fn rows(text: &str) -> std::result::Result<Vec<Vec<String>>, String> {
    let (mut rows, mut row, mut cell) = (Vec::new(), Vec::new(), String::new());
    let mut chars = text.chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if cell.is_empty() => quoted = true,
            ',' if !quoted => row.push(std::mem::take(&mut cell)),
            '\r' if !quoted && chars.peek() == Some(&'\n') => {}
            '\n' if !quoted => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            c => cell.push(c),
        }
    }
    if quoted {
        return Err("a quote has no end".to_string());
    }
    if !cell.is_empty() || !row.is_empty() {
        row.push(cell);
        rows.push(row);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "name,prompt,negative_prompt\r\nink,\"{prompt}, \"\"ink\"\", line\nart\",colour\n,x,y\nsoft,soft light,\nfull,\"oil of {prompt}\",{prompt} hard\n";

    #[test]
    fn styles_of_a_file() {
        let styles = Styles::read(FILE).unwrap();
        let names: Vec<&str> = styles.list().iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["ink", "soft", "full"]);
        let apply = |names: &[&str], prompt, negative| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            styles.apply(&names, prompt, negative)
        };
        for (names, expected) in [
            (&[][..], ("a cat", "dog")),
            (&["", ""], ("a cat", "dog")),
            (&["ink"], ("a cat, \"ink\", line\nart", "dog, colour")),
            (&["soft", "full"], ("oil of a cat, soft light", "dog hard")),
            (&["full", "soft"], ("oil of a cat, soft light", "dog hard")),
        ] {
            let (prompt, negative) = apply(names, "a cat", "dog").unwrap();
            assert_eq!((prompt.as_str(), negative.as_str()), expected);
        }
        assert_eq!(apply(&["soft"], "", "").unwrap().0, "soft light");
        let error = apply(&["oil"], "", "").unwrap_err().to_string();
        assert!(error.contains("ink, soft, full"), "{error}");
    }

    #[test]
    fn files_that_are_none() {
        assert!(Styles::read("a,b\n1,2").is_err());
        assert!(Styles::read("name,prompt\n\"x").is_err());
        assert!(Styles::read("").is_err());
        let old = Styles::read("\u{feff}name,text\na,b").unwrap();
        assert_eq!(old.list()[0].prompt, "b");
    }
}
