//! The name, then the arguments as a JSON object.

use super::{name_at, Said, Step, MAX_HEAD};

/// How far a JSON text has come.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonScan {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl JsonScan {
    /// Takes one byte; whether the outermost object or list ends with it.
    pub(super) fn ends_with(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// Reads a head, then an object that is passed on as it comes.
#[derive(Debug, Clone)]
pub(crate) struct JsonCall {
    heads: &'static [&'static str],
    scan: Option<JsonScan>,
}

impl JsonCall {
    pub(super) fn new(heads: &'static [&'static str]) -> Self {
        Self { heads, scan: None }
    }

    pub(super) fn step(&mut self, text: &str, said: &mut Vec<Said>) -> Step {
        let Some(scan) = &mut self.scan else {
            let Some(brace) = text.find('{').filter(|at| *at <= MAX_HEAD) else {
                return if text.len() > MAX_HEAD {
                    Step::Bad(0)
                } else {
                    Step::Wait
                };
            };
            let named = self
                .heads
                .iter()
                .find_map(|head| read_head(&text[..brace], head));
            let Some((name, id)) = named else {
                return Step::Bad(0);
            };
            said.push(Said::Name { name, id });
            self.scan = Some(JsonScan::default());
            return Step::Took(brace);
        };
        if text.is_empty() {
            return Step::Wait;
        }
        let end = text.bytes().position(|byte| scan.ends_with(byte));
        let end = end.map(|at| at + 1);
        said.push(Said::Arguments(
            text[..end.unwrap_or(text.len())].to_string(),
        ));
        match end {
            Some(end) => Step::Done(end),
            None => Step::Took(text.len()),
        }
    }
}

/// Name and id of a head, if it is of this form. White space may stand anywhere.
fn read_head(text: &str, head: &str) -> Option<(String, Option<String>)> {
    let (mut name, mut id) = (None, None);
    let mut text = text.trim();
    let mut head = head;
    loop {
        text = text.trim_start();
        head = head.trim_start();
        if head.is_empty() {
            return text.is_empty().then_some((name?, id));
        }
        let place = head.starts_with("{name}") || head.starts_with("{id}");
        let after = head.find('}').filter(|_| place).map(|at| &head[at + 1..]);
        match after {
            Some(after) => {
                let run = name_at(text).unwrap_or(text);
                if run.is_empty() {
                    return None;
                }
                if head.starts_with("{name}") {
                    name = Some(run.to_string());
                } else {
                    id = Some(run.to_string());
                }
                text = &text[run.len()..];
                head = after;
            }
            None => {
                let end = head
                    .find(|c: char| c == '{' || c.is_whitespace())
                    .unwrap_or(head.len());
                text = text.strip_prefix(&head[..end])?;
                head = &head[end..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let read = |text: &str, head: &str| read_head(text, head);
        let named = |name: &str, id: Option<&str>| Some((name.to_string(), id.map(str::to_string)));
        assert_eq!(
            read("functions.a.b:12<|x|>", "functions.{name}:{id}<|x|>"),
            named("a.b", Some("12"))
        );
        assert_eq!(read("f[ARGS]", "{name}[CALL_ID]{id}[ARGS]"), None);
        assert_eq!(
            read(" f \n```json\n", "{name}\n```json\n"),
            named("f", None)
        );
        assert_eq!(read("f", "{name}[ARGS]"), None);
        assert_eq!(read("f g", "{name}"), None);
        assert_eq!(read("", "{name}"), None);
    }
}
