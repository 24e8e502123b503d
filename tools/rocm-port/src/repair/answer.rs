//! From a model's message to a new text of the kernel file.

use super::guard::{items, Part, Piece, ADDED};
use super::lexer::tokens;
use super::patch::{apply, hunks, Hunk, PatchError};

/// Why a message is no answer; said to the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("there is neither a unified diff nor a whole function in the answer")]
    Nothing,
    #[error("the diff is for {0:?}: only the kernel file {1:?} may change")]
    OtherFile(String, String),
    #[error("the diff creates, deletes or renames a file")]
    Files,
    #[error(transparent)]
    Patch(#[from] PatchError),
    #[error("the answer has {0} blocks of code and no diff, so what it replaces is not clear")]
    Blocks(usize),
    #[error("the block of code has more than functions in it: send a unified diff")]
    MoreThanFunctions,
    #[error("the file has no single function like {0:?} of the block of code")]
    NoSuchFunction(String),
    #[error("the answer changes nothing")]
    Unchanged,
}

/// Applies a message to the text of the file `name`.
pub(crate) fn apply_answer(message: &str, name: &str, text: &str) -> Result<String, AnswerError> {
    let message = without_thoughts(message);
    let blocks = fences(message);
    let diffs: Vec<&str> = blocks.iter().copied().filter(|b| is_diff(b)).collect();
    let found = if !diffs.is_empty() {
        let mut all = Vec::new();
        for diff in diffs {
            all.extend(of_file(diff, name)?);
        }
        apply(text, &all)?
    } else if is_diff(message) {
        let outside = strip_fences(message);
        apply(text, &of_file(&outside, name)?)?
    } else {
        let code: Vec<&str> = blocks
            .into_iter()
            .filter(|b| items(b).pieces.iter().any(is_function))
            .collect();
        match code.as_slice() {
            [] => return Err(AnswerError::Nothing),
            [only] => replace_functions(only, text)?,
            several => return Err(AnswerError::Blocks(several.len())),
        }
    };
    match found == text {
        true => Err(AnswerError::Unchanged),
        false => Ok(found),
    }
}

/// What comes after a model's thoughts.
fn without_thoughts(message: &str) -> &str {
    match message.rfind("</think>") {
        Some(at) => &message[at + "</think>".len()..],
        None => message,
    }
}

/// The insides of the fenced blocks. One that is not closed ends with the message.
fn fences(message: &str) -> Vec<&str> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, usize)> = None;
    let mut at = 0;
    for line in message.split_inclusive('\n') {
        let trimmed = line.trim();
        let fence = ["```", "~~~"].into_iter().find(|f| trimmed.starts_with(f));
        match (open, fence) {
            (None, Some(fence)) => open = Some((fence, at + line.len())),
            (Some((opened, start)), Some(fence)) if opened == fence && trimmed == fence => {
                blocks.push(&message[start..at]);
                open = None;
            }
            _ => {}
        }
        at += line.len();
    }
    if let Some((_, start)) = open {
        blocks.push(&message[start..]);
    }
    blocks
}

fn strip_fences(message: &str) -> String {
    let lines = message
        .lines()
        .filter(|line| !line.trim().starts_with("```"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn is_diff(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("@@"))
}

/// The hunks of a diff, if they are all for this file.
fn of_file(diff: &str, name: &str) -> Result<Vec<Hunk>, AnswerError> {
    let lines: Vec<&str> = diff.lines().collect();
    let mut kept = String::new();
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        let next = lines.get(at + 1).copied().unwrap_or("");
        if line.starts_with("--- ") && next.starts_with("+++ ") {
            for header in [line, next] {
                let path = header[4..].split('\t').next().unwrap_or("").trim();
                if path == "/dev/null" {
                    return Err(AnswerError::Files);
                }
                let file = path.rsplit(['/', '\\']).next().unwrap_or(path);
                if file != name.rsplit('/').next().unwrap_or(name) {
                    return Err(AnswerError::OtherFile(
                        path.chars().take(120).collect(),
                        name.into(),
                    ));
                }
            }
            at += 2;
            continue;
        }
        let word = line.split(' ').next().unwrap_or("");
        if ["rename", "copy", "deleted", "new"].contains(&word) && line.contains(" file mode ")
            || line.starts_with("rename from ")
            || line.starts_with("GIT binary patch")
        {
            return Err(AnswerError::Files);
        }
        if !line.starts_with("diff ") && !line.starts_with("index ") {
            kept.push_str(line);
            kept.push('\n');
        }
        at += 1;
    }
    Ok(hunks(&kept))
}

fn is_function(piece: &Piece) -> bool {
    matches!(piece.part, Part::Function | Part::Body)
}

/// Puts whole functions, or a whole file, in the place of those that are there.
fn replace_functions(block: &str, text: &str) -> Result<String, AnswerError> {
    let (new, old) = (items(block), items(text));
    let frame =
        |frame: &[(String, usize)]| frame.iter().map(|(w, _)| w.clone()).collect::<Vec<_>>();
    if old.pieces.len() > 1 && frame(&new.frame) == frame(&old.frame) {
        return Ok(block.to_string());
    }
    let inside = |at: usize| {
        new.pieces
            .iter()
            .any(|p| is_function(p) && (p.start..p.end).contains(&at))
    };
    if tokens(block).iter().any(|t| !inside(t.start)) {
        return Err(AnswerError::MoreThanFunctions);
    }
    let mut changes: Vec<(std::ops::Range<usize>, String)> = Vec::new();
    let mut added = String::new();
    for piece in &new.pieces {
        let code = &block[piece.start..piece.end];
        let same_head = only(
            old.pieces
                .iter()
                .filter(|p| is_function(p) && p.key == piece.key),
        );
        let same_name = || {
            only(
                old.pieces
                    .iter()
                    .filter(|p| is_function(p) && p.name == piece.name),
            )
        };
        match same_head.or_else(same_name) {
            Some(old) => changes.push((old.start..old.end, code.to_string())),
            None if piece.name.starts_with(ADDED) => {
                added.push_str(code);
                added.push_str("\n\n");
            }
            None => {
                return Err(AnswerError::NoSuchFunction(
                    piece.name.chars().take(120).collect(),
                ))
            }
        }
    }
    changes.sort_by_key(|(range, _)| range.start);
    if let Some((_, first)) = changes.first_mut() {
        first.insert_str(0, &added);
    }
    let mut result = text.to_string();
    for (range, code) in changes.into_iter().rev() {
        result.replace_range(range, &code);
    }
    Ok(result)
}

fn only<T>(mut found: impl Iterator<Item = T>) -> Option<T> {
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "__device__ float f(float x) {\n    return x;\n}\n\
                        extern \"C\" __global__ void k(float *y) {\n    y[0] = f(1);\n}\n";

    fn answered(message: &str) -> Result<String, AnswerError> {
        apply_answer(message, "src/k.hip", FILE)
    }

    #[test]
    fn diffs_are_found_fenced_and_plain() {
        let wanted = FILE.replace("f(1)", "f(2)");
        let diff =
            "--- a/k.hip\n+++ b/k.hip\n@@ -5,3 +5,3 @@\n-    y[0] = f(1);\n+    y[0] = f(2);\n }\n";
        for message in [
            format!("Sure:\n```diff\n{diff}```\nThat is it."),
            diff.to_string(),
            format!("<think>@@ no\n-x\n+y\n</think>\n{diff}"),
            format!("diff --git a/k.hip b/k.hip\nindex 1..2 100644\n{diff}").replace('\n', "\r\n"),
            format!("~~~\n{diff}"),
        ] {
            assert_eq!(
                answered(&message).as_deref(),
                Ok(wanted.as_str()),
                "{message}"
            );
        }
    }

    #[test]
    fn whole_functions_replace_their_like() {
        let answer = "```cpp\n__device__ float fix_one() { return 1; }\n\
                      __device__ float f(float x) {\n    return x * fix_one();\n}\n```";
        let wanted = "__device__ float fix_one() { return 1; }\n\n\
                      __device__ float f(float x) {\n    return x * fix_one();\n}\n";
        assert!(
            answered(answer).is_ok_and(|text| text.starts_with(wanted) && text.contains("void k("))
        );
        let whole = FILE.replace("return x;", "return 2 * x;");
        assert_eq!(answered(&format!("```\n{whole}```")), Ok(whole));
    }

    #[test]
    fn what_is_no_answer_says_why() {
        use AnswerError::*;
        let other = "--- a/cases.toml\n+++ b/cases.toml\n@@ -1 +1 @@\n-a\n+b\n";
        let new = "--- /dev/null\n+++ b/k.hip\n@@ -0,0 +1 @@\n+b\n";
        let blocks = "```\nvoid f(){}\n```\n```\nvoid k(){}\n```";
        assert_eq!(answered("I cannot."), Err(Nothing));
        assert!(matches!(answered(other), Err(OtherFile(..))));
        assert_eq!(answered(new), Err(Files));
        assert_eq!(answered(blocks), Err(Blocks(2)));
        assert!(matches!(
            answered("```\nvoid g(int a){}\n```"),
            Err(NoSuchFunction(_))
        ));
        assert_eq!(
            answered("```\n#include <x>\nvoid f(){}\n```"),
            Err(MoreThanFunctions)
        );
        assert_eq!(answered(&format!("```\n{FILE}```")), Err(Unchanged));
    }
}
