//! What a template takes, found out by rendering small chats with it.

use super::{message, ChatTemplate, RenderOptions};
use crate::jinja::{ErrorKind, FUEL};
use serde_json::{json, Value as Json};
use worker::{Error, Result};

/// What a template takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    /// Content as text.
    pub(super) text: bool,
    /// The roles whose content may be a list of parts.
    pub(super) parts: Parts,
    /// A system message.
    pub(super) system: bool,
    /// A second system message beside the first.
    pub(super) systems: bool,
    /// Tools.
    pub(super) tools: bool,
    /// An empty list in the place of tools where there are none.
    pub(super) empty_tools: bool,
    /// Calls in an assistant's message, and how their arguments are given.
    pub(super) arguments: Arguments,
    /// A message that only calls may have no content at all.
    pub(super) no_content: bool,
    /// The role "developer" (OpenAI's newer name of "system").
    pub(super) developer: bool,
    /// The template itself leaves places for pictures.
    pub(super) pictures: bool,
    /// The same for sounds.
    pub(super) sounds: bool,
    /// The same for videos.
    pub(super) videos: bool,
}

/// Roles whose content may be a list of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Parts {
    pub(super) system: bool,
    pub(super) user: bool,
    pub(super) assistant: bool,
    pub(super) tool: bool,
}

/// How the arguments of calls are given to a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arguments {
    Object,
    Text,
    /// The template has no calls.
    None,
}

impl Default for Form {
    fn default() -> Self {
        Self {
            text: true,
            parts: Parts::default(),
            system: true,
            systems: true,
            tools: false,
            empty_tools: false,
            arguments: Arguments::None,
            no_content: false,
            developer: false,
            pictures: false,
            sounds: false,
            videos: false,
        }
    }
}

/// Words that no template contains: a content, a function, a parameter, its value and a result.
const NEEDLE: &str = "qx7needle";
const FUNCTION: &str = "qx7function";
const KEY: &str = "qx7key";
const VALUE: &str = "qx7value";
const RESULT: &str = "qx7result";

/// About as many small chats are rendered; together they may take what one rendering may.
const PROBES: usize = 21;

/// What came of a rendering.
enum Probe {
    Text(String),
    /// The template raised an exception of its own.
    Refused,
    /// The template failed, which says nothing about what it takes.
    Failed,
}

impl Probe {
    /// Whether the text has a word; `None` if there is no text because of a fault.
    fn shows(&self, word: &str) -> Option<bool> {
        match self {
            Self::Text(text) => Some(text.contains(word)),
            Self::Refused => Some(false),
            Self::Failed => None,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

struct Prober<'t> {
    template: &'t ChatTemplate,
    /// What a chat without tools has in their place.
    no_tools: Option<&'t [Json]>,
}

impl Prober<'_> {
    /// A chat without tools.
    fn plain(&self, messages: &[Json]) -> Result<Probe> {
        self.render(messages, self.no_tools)
    }

    /// # Errors
    /// [`Error::Usage`] if the template goes beyond the limits with a chat as small as this.
    fn render(&self, messages: &[Json], tools: Option<&[Json]>) -> Result<Probe> {
        let options = RenderOptions::default();
        Ok(
            match self
                .template
                .render_as_is(messages.to_vec(), tools, &options, FUEL / PROBES)
            {
                Ok(rendered) => Probe::Text(rendered.text),
                Err(e) if e.kind == ErrorKind::Raised => Probe::Refused,
                Err(e) if e.kind == ErrorKind::Limit => {
                    return Err(Error::Usage(format!("the chat template is broken: {e}")))
                }
                Err(_) => Probe::Failed,
            },
        )
    }
}

fn parts(text: &str) -> Json {
    json!([{"type": "text", "text": text}])
}

fn tool() -> Json {
    let schema = json!({"type": "object", "properties": {KEY: {"type": "string", "description": "d"}}, "required": [KEY]});
    json!({"type": "function", "function": {"name": FUNCTION, "description": "d", "parameters": schema}})
}

impl Form {
    /// Finds out by rendering chats of a few messages and looking for their words. A chat that the template fails with
    /// says nothing; one that it refuses says no.
    ///
    /// # Errors
    /// [`Error::Usage`] if the template goes beyond the limits even with such chats.
    pub(super) fn of(template: &ChatTemplate) -> Result<Self> {
        let mut prober = Prober {
            template,
            no_tools: None,
        };
        let mention = |word: &str| template.source().contains(word);

        let as_text = [message("user", NEEDLE)];
        let as_parts = [json!({"role": "user", "content": parts(NEEDLE)})];
        let mut shown = (prober.plain(&as_text)?, prober.plain(&as_parts)?);
        let mut empty_tools = false;
        if mention("tools") && matches!(shown, (Probe::Failed, Probe::Failed)) {
            // Some iterate over tools without a look at whether there are any.
            prober.no_tools = Some(&[]);
            let retried = (prober.plain(&as_text)?, prober.plain(&as_parts)?);
            empty_tools = !matches!(retried, (Probe::Failed, Probe::Failed));
            if empty_tools {
                shown = retried;
            } else {
                prober.no_tools = None;
            }
        }
        let prober = prober;
        let (as_text, as_parts) = shown;
        let plain = |messages: &[Json]| prober.plain(messages);
        let takes_parts = shows_part(&as_parts);
        let text = as_text.shows(NEEDLE).unwrap_or(!takes_parts) || !takes_parts;
        let content = |text_of: &str| match text {
            true => Json::from(text_of),
            false => parts(text_of),
        };
        let said = |role: &str, text: &str| json!({"role": role, "content": content(text)});
        let user = || said("user", "a");

        let system = plain(&[said("system", NEEDLE), user()])?;
        let system = system.shows(NEEDLE).unwrap_or(true);
        let systems = plain(&[said("system", "a"), said("system", NEEDLE), user()])?;
        let systems = systems.shows(NEEDLE).unwrap_or(true);

        let tools = [tool()];
        let told = prober.render(&[user()], Some(&tools))?;
        let told = match told.shows(FUNCTION) {
            Some(told) => told,
            // Some speak of tools in a system message only, or fail without one.
            None => prober
                .render(&[said("system", "a"), user()], Some(&tools))?
                .shows(FUNCTION)
                .unwrap_or(true),
        };
        let mut form = Self {
            text,
            parts: Parts {
                user: takes_parts,
                ..Parts::default()
            },
            system,
            systems,
            tools: mention("tools") && told,
            empty_tools,
            arguments: Arguments::None,
            no_content: false,
            developer: mention("developer"),
            pictures: false,
            sounds: false,
            videos: false,
        };
        if takes_parts {
            let in_parts = |role: &str| json!({"role": role, "content": parts(NEEDLE)});
            form.parts.system = shows_part(&plain(&[in_parts("system"), user()])?);
            form.parts.assistant = shows_part(&plain(&[user(), in_parts("assistant"), user()])?);
        }
        let leaves_place = |kind: &str| -> Result<bool> {
            if !(takes_parts && mention(kind)) {
                return Ok(false);
            }
            let with = json!([{"type": kind}, {"type": "text", "text": NEEDLE}]);
            let with = plain(&[json!({"role": "user", "content": with})])?;
            let place = with.text().zip(as_parts.text());
            Ok(shows_part(&with) && place.is_some_and(|(with, none)| with != none))
        };
        form.pictures = leaves_place("image")?;
        form.sounds = leaves_place("audio")?;
        form.videos = leaves_place("video")?;
        if mention("tool_calls") {
            form.find_calls(&prober)?;
        }
        Ok(form)
    }

    /// How calls and their results are rendered.
    fn find_calls(&mut self, prober: &Prober) -> Result<()> {
        let content = |text: &str| match self.text {
            true => Json::from(text),
            false => parts(text),
        };
        let chat = |arguments: Json, said: Option<Json>, result: Json| {
            let function = json!({"name": FUNCTION, "arguments": arguments});
            let calls = json!([{"id": "call00001", "type": "function", "function": function}]);
            let mut assistant = json!({"role": "assistant", "tool_calls": calls});
            if let Some(said) = said {
                assistant["content"] = said;
            }
            let user = json!({"role": "user", "content": content("a")});
            let answer = json!({"role": "tool", "tool_call_id": "call00001", "name": FUNCTION, "content": result});
            [user, assistant, answer]
        };
        let object = || json!({KEY: VALUE});
        let as_text = || json!(format!("{{\"{KEY}\": \"{VALUE}\"}}"));
        let said = || Some(content(""));
        let result = || content(RESULT);
        let tools = [tool()];
        for tools in [prober.no_tools, Some(&tools[..])] {
            let objects = prober.render(&chat(object(), said(), result()), tools)?;
            let texts = prober.render(&chat(as_text(), said(), result()), tools)?;
            let Some(arguments) = told_apart(&objects, &texts) else {
                continue;
            };
            self.arguments = arguments;
            let given = || match arguments {
                Arguments::Text => as_text(),
                _ => object(),
            };
            let without = prober.render(&chat(given(), None, result()), tools)?;
            self.no_content = shows_call(&without);
            if self.parts.user {
                let result = parts(RESULT);
                let result = prober.render(&chat(given(), said(), result), tools)?;
                self.parts.tool = result.shows(RESULT) == Some(true) && !prints_keys(&result);
            }
            return Ok(());
        }
        Ok(())
    }
}

/// A template that prints a list as it is shows its keys.
fn prints_keys(probe: &Probe) -> bool {
    let text = probe.text().unwrap_or_default();
    ["'type': 'text'", "\"type\": \"text\"", "\"type\":\"text\""]
        .iter()
        .any(|keys| text.contains(keys))
}

fn shows_part(probe: &Probe) -> bool {
    probe.shows(NEEDLE) == Some(true) && !prints_keys(probe)
}

/// Whether a text has the call's function and arguments, in whatever notation: JSON, XML, Python's calls or others.
fn shows_call(probe: &Probe) -> bool {
    [FUNCTION, KEY, VALUE]
        .iter()
        .all(|word| probe.shows(word) == Some(true))
}

/// How a template wants arguments, by what it makes of an object and of its JSON; `None` if it shows neither.
fn told_apart(objects: &Probe, texts: &Probe) -> Option<Arguments> {
    let has = |probe: &Probe, word: String| probe.shows(&word) == Some(true);
    match (shows_call(objects), shows_call(texts)) {
        // An object in Python's notation where its text would be JSON: the template prints what it gets.
        (true, true)
            if has(objects, format!("'{KEY}': '{VALUE}'"))
                && has(texts, format!("{{\"{KEY}\": \"{VALUE}\"}}")) =>
        {
            match has(texts, format!("'{{\"{KEY}\": \"{VALUE}\"}}'")) {
                true => Some(Arguments::Object),
                false => Some(Arguments::Text),
            }
        }
        (true, _) => Some(Arguments::Object),
        (false, true) => Some(Arguments::Text),
        (false, false) => None,
    }
}
