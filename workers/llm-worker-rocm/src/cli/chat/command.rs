//! What can be typed instead of a message.

use std::path::PathBuf;
use std::str::FromStr;
use worker::{Error, Result};

/// What `/help` prints.
pub(super) const HELP: &str = "\
/help              this list
/clear             forget the conversation, keep the system message
/system [TEXT]     start again with this system message, or none
/regen             answer the last message again
/image FILE        show a picture with the next message
/audio FILE        play a sound with the next message
/video FILE        show a video: an animation, or a folder of frames
/save FILE         write the conversation as JSON
/load FILE         go on with a conversation
/stats             figures of the last answer and of the cache
/set               show the settings
/set NAME VALUE    temperature, top-k, top-p, min-p, repeat-penalty, seed, max-tokens (each a number, or off), thinking (true, false or off)
/quit              leave
A line that ends in a backslash goes on; text between lines of \"\"\" is one message.";

/// A command.
#[derive(Debug, PartialEq)]
pub(super) enum Command {
    Help,
    Clear,
    System(Option<String>),
    Image(PathBuf),
    Audio(PathBuf),
    Video(PathBuf),
    Save(PathBuf),
    Load(PathBuf),
    Regenerate,
    Stats,
    Settings,
    Set(Setting),
    Quit,
}

/// A setting with its value; `None` is off.
#[derive(Debug, PartialEq)]
pub(super) enum Setting {
    Temperature(f32),
    TopK(Option<usize>),
    TopP(Option<f32>),
    MinP(Option<f32>),
    RepeatPenalty(f32),
    Seed(Option<u64>),
    MaxTokens(Option<usize>),
    Thinking(Option<bool>),
}

impl Command {
    /// Reads a line; `None` if it is a message.
    pub(super) fn parse(line: &str) -> Option<Result<Self>> {
        let rest = line.trim().strip_prefix('/')?;
        let (name, argument) = match rest.split_once(char::is_whitespace) {
            Some((name, argument)) => (name, argument.trim()),
            None => (rest, ""),
        };
        let file = || match argument {
            "" => Err(Error::Usage(format!("/{name} needs a file"))),
            path => Ok(PathBuf::from(path)),
        };
        Some(match name {
            "help" | "?" => Ok(Self::Help),
            "clear" | "new" => Ok(Self::Clear),
            "system" => Ok(Self::System(
                (!argument.is_empty()).then(|| argument.to_string()),
            )),
            "image" => file().map(Self::Image),
            "audio" => file().map(Self::Audio),
            "video" => file().map(Self::Video),
            "save" => file().map(Self::Save),
            "load" => file().map(Self::Load),
            "regen" => Ok(Self::Regenerate),
            "stats" => Ok(Self::Stats),
            "set" if argument.is_empty() => Ok(Self::Settings),
            "set" => Setting::parse(argument).map(Self::Set),
            "quit" | "exit" | "q" => Ok(Self::Quit),
            _ => Err(Error::Usage(format!(
                "there is no command /{name}; /help lists them"
            ))),
        })
    }
}

impl Setting {
    fn parse(text: &str) -> Result<Self> {
        let mut words = text.split_whitespace();
        let (name, value) = match (words.next(), words.next(), words.next()) {
            (Some(name), Some(value), None) => (name, value),
            _ => return Err(Error::Usage("/set NAME VALUE".to_string())),
        };
        Ok(match name.replace('_', "-").as_str() {
            "temperature" | "temp" => Self::Temperature(number(name, value, 0.0)?),
            "top-k" => Self::TopK(optional(name, value)?),
            "top-p" => Self::TopP(optional(name, value)?),
            "min-p" => Self::MinP(optional(name, value)?),
            "repeat-penalty" => Self::RepeatPenalty(number(name, value, 1.0)?),
            "seed" => Self::Seed(optional(name, value)?),
            "max-tokens" => Self::MaxTokens(optional(name, value)?),
            "thinking" => Self::Thinking(optional(name, value)?),
            _ => {
                return Err(Error::Usage(format!(
                    "there is no setting {name}; /help lists them"
                )))
            }
        })
    }
}

fn optional<T: FromStr>(name: &str, value: &str) -> Result<Option<T>> {
    match value {
        "off" | "none" => Ok(None),
        value => value
            .parse()
            .map(Some)
            .map_err(|_| Error::Usage(format!("{name} cannot be {value}"))),
    }
}

fn number<T: FromStr>(name: &str, value: &str, off: T) -> Result<T> {
    Ok(optional(name, value)?.unwrap_or(off))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_messages() {
        let parse = |line: &str| Command::parse(line).unwrap().unwrap();
        assert!(Command::parse("hello /help").is_none());
        assert_eq!(parse("/help"), Command::Help);
        assert_eq!(
            parse(" /system  be brief "),
            Command::System(Some("be brief".to_string()))
        );
        assert_eq!(parse("/system"), Command::System(None));
        assert_eq!(parse("/image a.png"), Command::Image("a.png".into()));
        assert_eq!(parse("/save a b.json"), Command::Save("a b.json".into()));
        assert_eq!(parse("/set"), Command::Settings);
        assert_eq!(
            parse("/set temperature 0.5"),
            Command::Set(Setting::Temperature(0.5))
        );
        assert_eq!(parse("/set top_k off"), Command::Set(Setting::TopK(None)));
        assert_eq!(
            parse("/set thinking false"),
            Command::Set(Setting::Thinking(Some(false)))
        );
        for bad in [
            "/nothing",
            "/save",
            "/set x 1",
            "/set top-k x",
            "/set top-k",
        ] {
            assert!(Command::parse(bad).unwrap().is_err(), "{bad}");
        }
    }
}
