//! The lines of a file of prompts: a prompt with options of `generate` behind it, or a JSON object with the same options.
//!
//! ```text
//! # a comment
//! a red circle
//! a blue square --steps 20 --seed 5 --negative-prompt "green"
//! --prompt "two circles" -b 4
//! {"prompt": "a yellow triangle", "steps": 20, "lora": ["ink=0.5", "soft"]}
//! ```

use crate::cli::request::RequestArgs;
use clap::builder::Resettable;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value};

/// Longest file.
pub(super) const MAX_FILE: u64 = 64 << 20;
/// Most lines.
const MAX_LINES: usize = 100_000;
/// What the option is called that is the prompt.
const PROMPT: &str = "prompt";

/// A line that asks for pictures.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// Its number in the file, from 1.
    pub number: usize,
    /// As it stands in the file.
    pub text: String,
    pub prompt: String,
    pub request: RequestArgs,
}

/// The lines of a file, each with its own options before those of `usual`.
///
/// # Errors
/// Numbers of lines, and what is wrong with each.
pub(super) fn read(text: &str, usual: &RequestArgs) -> Result<Vec<Line>, Vec<(usize, String)>> {
    let mut lines = Vec::new();
    let mut wrong = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let (number, text) = (index + 1, text.trim());
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if lines.len() == MAX_LINES {
            wrong.push((number, format!("there are more than {MAX_LINES} prompts")));
            break;
        }
        match line(text, usual) {
            Ok((prompt, request)) => lines.push(Line {
                number,
                text: text.to_string(),
                prompt,
                request,
            }),
            Err(reason) => wrong.push((number, reason)),
        }
    }
    match wrong.is_empty() {
        true => Ok(lines),
        false => Err(wrong),
    }
}

/// The prompt and the options of a line.
fn line(text: &str, usual: &RequestArgs) -> Result<(String, RequestArgs), String> {
    let command = command();
    let (before, words) = match text.starts_with('{') {
        true => {
            let fields: Map<String, Value> =
                serde_json::from_str(text).map_err(|e| e.to_string())?;
            (String::new(), options_of(fields, &command)?)
        }
        false => {
            let (prompt, options) = split(text);
            (prompt.to_string(), words(options)?)
        }
    };
    let mut matches = command.try_get_matches_from(words).map_err(|e| said(&e))?;
    let named: Option<String> = matches.remove_one(PROMPT);
    let prompt = match (before.is_empty(), named) {
        (true, Some(named)) => named,
        (false, None) => before,
        (true, None) => return Err("there is no prompt".to_string()),
        (false, Some(_)) => return Err("there are two prompts".to_string()),
    };
    Ok((prompt, updated(usual, &mut matches)?))
}

fn updated(usual: &RequestArgs, matches: &mut ArgMatches) -> Result<RequestArgs, String> {
    let mut request = usual.clone();
    request
        .update_from_arg_matches_mut(matches)
        .map_err(|e| said(&e))?;
    Ok(request)
}

/// The options of a line. Nothing has a default: what is not said is as on the command line.
fn command() -> Command {
    let command = Command::new("line")
        .no_binary_name(true)
        .disable_help_flag(true)
        .arg(Arg::new(PROMPT).long(PROMPT).num_args(1));
    RequestArgs::augment_args_for_update(command).mut_args(|argument| {
        argument
            .default_value(Resettable::Reset)
            .env(Resettable::Reset)
    })
}

/// What clap says, without its advice about a program that is none.
fn said(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines = text.lines().take_while(|line| !line.starts_with("Usage:"));
    let lines: Vec<&str> = lines
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ")
}

/// A prompt, and the options behind it: from the first word on that begins with `--` and a letter.
fn split(text: &str) -> (&str, &str) {
    let mut from = 0;
    while let Some(at) = text[from..].find("--") {
        let at = from + at;
        let begins = at == 0 || text[..at].ends_with(char::is_whitespace);
        if begins && text[at + 2..].starts_with(|c: char| c.is_ascii_alphabetic()) {
            return (text[..at].trim(), &text[at..]);
        }
        from = at + 2;
    }
    (text, "")
}

/// Words as a shell reads them: quotes hold them together, a backslash takes the next character as it is.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => {
                let next = chars.next().ok_or("the line ends with a backslash")?;
                word.get_or_insert_default().push(next);
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quotation has no end".to_string());
    }
    words.extend(word);
    Ok(words)
}

/// The options of a JSON object: names with `_` or `-`, lists for what may be given several times.
fn options_of(fields: Map<String, Value>, command: &Command) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    for (name, value) in fields {
        let long = name.replace('_', "-");
        let known = command.get_arguments().find(|argument| {
            let others = argument.get_visible_aliases().unwrap_or_default();
            argument.get_long() == Some(&long) || others.contains(&long.as_str())
        });
        let known = known.ok_or_else(|| format!("{name} is no option of generate"))?;
        let values = match value {
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            match (value, known.get_action()) {
                (Value::Null, _) | (Value::Bool(false), ArgAction::SetTrue) => {}
                (Value::Bool(true), ArgAction::SetTrue) => words.push(format!("--{long}")),
                (_, ArgAction::SetTrue) => return Err(format!("{name} is true or false")),
                (Value::Bool(on), _) => words.push(format!("--{long}={on}")),
                (Value::Number(number), _) => words.push(format!("--{long}={number}")),
                (Value::String(text), _) => words.push(format!("--{long}={text}")),
                (Value::Array(_) | Value::Object(_), _) => {
                    return Err(format!(
                        "{name} is a text, a number, true, false or a list of these"
                    ))
                }
            }
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Usual {
        #[command(flatten)]
        request: RequestArgs,
    }

    fn lines(text: &str, options: &[&str]) -> Result<Vec<Line>, Vec<(usize, String)>> {
        let usual = Usual::parse_from(std::iter::once(&"x").chain(options));
        read(text, &usual.request)
    }

    fn is(line: &Line, prompt: &str, options: &[&str]) {
        let expected = Usual::parse_from(std::iter::once(&"x").chain(options)).request;
        assert_eq!(line.prompt, prompt);
        assert_eq!(
            format!("{:?}", line.request),
            format!("{expected:?}"),
            "{}",
            line.text
        );
    }

    #[test]
    fn options_of_a_line_come_first() {
        let text = "# a comment\n\na red circle\n\
                    a blue -- square --steps 20 --negative-prompt \"a 'green' one\" -W 64\n\
                    --prompt 'two circles' -b 4\n\
                    {\"prompt\": \"three\", \"steps\": 5, \"mask_invert\": true, \"lora\": [\"ink=0.5\", \"soft\"], \"seed\": null}\n";
        let usual = ["--steps", "7", "--seed", "3", "--lora", "mood"];
        let read = lines(text, &usual).unwrap();
        let numbers: Vec<_> = read.iter().map(|line| line.number).collect();
        assert_eq!(numbers, [3, 4, 5, 6]);
        is(&read[0], "a red circle", &usual);
        is(
            &read[1],
            "a blue -- square",
            &[
                "--steps",
                "20",
                "--seed",
                "3",
                "--lora",
                "mood",
                "--negative-prompt",
                "a 'green' one",
                "-W",
                "64",
            ],
        );
        is(
            &read[2],
            "two circles",
            &["--steps", "7", "--seed", "3", "--lora", "mood", "-b", "4"],
        );
        is(
            &read[3],
            "three",
            &[
                "--steps",
                "5",
                "--seed",
                "3",
                "--lora",
                "ink=0.5",
                "--lora",
                "soft",
                "--mask-invert",
            ],
        );
    }

    #[test]
    fn every_wrong_line_is_named() {
        let text = "fine\nx --nowhere 3\nx --steps many\n{\"steps\": 3}\n{\"prompt\": \"x\", \"nowhere\": 1}\n\
                    x --negative-prompt \"open\n--steps 3\nx --prompt y\n{\"prompt\": \"x\", \"steps\": {}}\n{\nx --help\n\
                    {\"prompt\": \"x\", \"mask_invert\": 3}";
        let wrong = lines(text, &[]).unwrap_err();
        let numbers: Vec<_> = wrong.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (2..=12).collect::<Vec<_>>(), "{wrong:?}");
        for (index, part) in [
            (0, "--nowhere"),
            (1, "many"),
            (2, "no prompt"),
            (3, "nowhere"),
            (6, "two prompts"),
        ] {
            assert!(wrong[index].1.contains(part), "{:?}", wrong[index]);
            assert!(!wrong[index].1.contains('\n'));
        }
    }

    #[test]
    fn words_are_a_shells() {
        assert_eq!(
            words(r#"a "b c"  d\ e 'f"' "" "\"""#).unwrap(),
            ["a", "b c", "d e", "f\"", "", "\""]
        );
        assert!(words("a\\").is_err());
    }
}
