//! An element for each parameter, elements in it for objects and lists, as MiniMax M3 writes.

use super::super::forms::{eat, follow, Follow};
use super::super::python::MAX_DEPTH;
use super::super::schema::{branches, kind, properties, typed_value, Kind};
use super::super::Tool;
use super::parameters::Arguments;
use super::{call_name, parameters_of, Said, Step, MAX_HEAD};
use serde_json::{Map, Value as Json};

/// Reads a call; each parameter is passed on once its element is complete.
#[derive(Debug, Clone)]
pub(crate) struct Elements {
    prefix: &'static str,
    close: &'static str,
    name: Option<String>,
    begun: bool,
    arguments: Arguments,
    searched: usize,
}

impl Elements {
    pub(super) fn new(prefix: &'static str, close: &'static str) -> Self {
        Self {
            prefix,
            close,
            name: None,
            begun: false,
            arguments: Arguments::default(),
            searched: 0,
        }
    }

    pub(super) fn finish(&self, said: &mut Vec<Said>) {
        if self.name.is_some() {
            self.arguments.end(said);
        }
    }

    pub(super) fn step(&mut self, text: &str, tools: &[Tool], said: &mut Vec<Said>) -> Step {
        let Some(function) = self.name.clone() else {
            return match call_name(text, said) {
                Ok((name, taken)) => {
                    self.name = Some(name);
                    Step::Took(taken)
                }
                Err(step) => step,
            };
        };
        if !self.begun {
            let Some(end) = eat(text, "\">") else {
                return Step::Wait;
            };
            self.begun = true;
            return Step::Took(end);
        }
        let start = text.trim_start();
        let blank = text.len() - start.len();
        match follow(start, self.close) {
            Follow::Done(_) => {
                self.arguments.end(said);
                return Step::Done(blank);
            }
            Follow::More => return Step::Wait,
            Follow::No => {}
        }
        let Some((head, key)) = opening(start, self.prefix) else {
            // An element has to begin here.
            let may_begin = match start.strip_prefix(self.prefix) {
                Some(rest) => !rest.contains('>') && (rest.is_empty() || rest.starts_with('<')),
                None => self.prefix.starts_with(start),
            };
            return match may_begin && start.len() <= MAX_HEAD {
                true => Step::Wait,
                false => Step::Bad(0),
            };
        };
        let mark = format!("{}</{key}>", self.prefix);
        let from = self.searched.saturating_sub(mark.len()).max(blank + head);
        let from = worker::text::beginning(text, from).len();
        let Some(at) = text[from..].find(&mark) else {
            self.searched = text.len();
            return Step::Wait;
        };
        // An element of the same name inside ends first; the outer one ends where all are closed.
        let open = format!("{}<{key}>", self.prefix);
        let mut end = from + at + mark.len();
        loop {
            let inner = &text[blank..end];
            if inner.matches(&open).count() <= inner.matches(&mark).count() {
                break;
            }
            match text[end..].find(&mark) {
                Some(at) => end += at + mark.len(),
                None => return Step::Wait,
            }
        }
        self.searched = 0;
        let root = parameters_of(tools, &function);
        let list = properties(root, root).unwrap_or_default();
        let own = list.iter().find(|p| p.key == key).map(|p| &p.schema);
        let body = &text[blank + head..end - mark.len()];
        let value = value(body, self.prefix, own.unwrap_or(&Json::Null), root, 0);
        self.arguments.add(&key, &value, said);
        Step::Took(end)
    }
}

/// The key of an element that begins here, and the bytes of its tag.
fn opening(text: &str, prefix: &str) -> Option<(usize, String)> {
    let rest = text.strip_prefix(prefix)?.strip_prefix('<')?;
    let end = rest.find('>').filter(|at| (1..=MAX_HEAD).contains(at))?;
    let key = &rest[..end];
    (!key.starts_with('/')).then(|| (prefix.len() + end + 2, key.to_string()))
}

/// The elements that a text consists of; `None` if it does not.
fn children<'a>(text: &'a str, prefix: &str) -> Option<Vec<(String, &'a str)>> {
    let mut rest = text.trim();
    let mut list = Vec::new();
    while !rest.is_empty() {
        let (head, key) = opening(rest, prefix)?;
        let (open, close) = (format!("{prefix}<{key}>"), format!("{prefix}</{key}>"));
        let mut end = head;
        loop {
            end += rest[end..].find(&close)? + close.len();
            let whole = &rest[..end];
            if whole.matches(&open).count() <= whole.matches(&close).count() {
                break;
            }
        }
        list.push((key, &rest[head..end - close.len()]));
        rest = rest[end..].trim_start();
    }
    Some(list)
}

fn value(text: &str, prefix: &str, schema: &Json, root: &Json, depth: usize) -> Json {
    let branches = branches(schema, root);
    let branch = |wanted: Kind| branches.iter().find(|branch| kind(branch) == wanted);
    let nested = children(text, prefix).filter(|_| depth < MAX_DEPTH);
    let items = |list: Vec<(String, &str)>, schema: &Json| {
        let item = &schema["items"];
        let values = list
            .into_iter()
            .map(|(_, text)| value(text, prefix, item, root, depth + 1));
        Json::Array(values.collect())
    };
    match (nested, branch(Kind::Object), branch(Kind::List)) {
        (Some(list), _, Some(schema)) if list.iter().all(|(key, _)| key == "item") => {
            if list.is_empty() && branch(Kind::Text).is_some() {
                return Json::from(text);
            }
            items(list, schema)
        }
        (Some(list), Some(schema), _) if !list.is_empty() || branch(Kind::Text).is_none() => {
            let known = properties(schema, root).unwrap_or_default();
            let mut object = Map::new();
            for (key, text) in list {
                let own = known.iter().find(|p| p.key == key).map(|p| &p.schema);
                let own = own.unwrap_or(&schema["additionalProperties"]);
                let inner = value(text, prefix, own, root, depth + 1);
                object.entry(key).or_insert(inner);
            }
            Json::Object(object)
        }
        (Some(list), None, None) if !list.is_empty() && branch(Kind::Any).is_some() => {
            if list.iter().all(|(key, _)| key == "item") {
                return items(list, &Json::Null);
            }
            let mut object = Map::new();
            for (key, text) in list {
                let inner = value(text, prefix, &Json::Null, root, depth + 1);
                object.entry(key).or_insert(inner);
            }
            Json::Object(object)
        }
        _ => typed_value(text, schema, root),
    }
}
