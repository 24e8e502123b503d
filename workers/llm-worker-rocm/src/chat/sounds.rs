//! Sounds in messages: where they come from.

use super::messages::SOUNDS;
use serde_json::Value as Json;
use std::borrow::Cow;
use worker::{Error, Result};

/// The addresses of the sounds in messages, in their order: those of `input_audio` are `data:` URLs.
///
/// # Errors
/// [`Error::Usage`] naming the message whose sound has no address.
pub fn sound_addresses(messages: &[Json]) -> Result<Vec<Cow<'_, str>>> {
    let mut addresses = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        for part in message["content"].as_array().into_iter().flatten() {
            let kind = part["type"].as_str().unwrap_or_default();
            if !SOUNDS.contains(&kind) {
                continue;
            }
            let address = address(part).ok_or_else(|| {
                Error::Usage(format!(
                    "messages[{index}]: a sound needs its data, as \"input_audio\": {{\"data\": \"...\", \"format\": \"wav\"}}"
                ))
            })?;
            addresses.push(address);
        }
    }
    Ok(addresses)
}

fn address(part: &Json) -> Option<Cow<'_, str>> {
    if let Some(data) = part["input_audio"]["data"].as_str() {
        // The format is told by the data itself.
        return Some(match data.starts_with("data:") {
            true => Cow::Borrowed(data),
            false => Cow::Owned(format!("data:audio/*;base64,{data}")),
        });
    }
    // vLLM's form, and the names that templates use.
    let homes = [
        &part["audio_url"]["url"],
        &part["audio_url"],
        &part["audio"],
        &part["url"],
    ];
    homes
        .iter()
        .find_map(|home| home.as_str())
        .map(Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{message_with_parts, sound_part, ChatTemplate, RenderOptions};
    use crate::media::SOUND_MARK;
    use serde_json::json;

    #[test]
    fn a_template_leaves_a_place_or_a_mark_does() {
        const HEARS: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'audio' %}<sound>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
        let rendered = |template: &str| {
            let template = ChatTemplate::new(template, None, None).unwrap();
            let messages = [message_with_parts(vec![sound_part("data:,")], "What?")];
            let options = RenderOptions::default();
            template.render(&messages, None, &options).unwrap()
        };
        let heard = rendered(HEARS);
        assert_eq!(heard.text, "<sound>What?");
        // The place is the template's, not somebody's text.
        assert_eq!(heard.input.as_slice(), std::slice::from_ref(&(7..12)));
        const DEAF: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";
        assert_eq!(rendered(DEAF).text, format!("{SOUND_MARK}What?"));
    }

    #[test]
    fn each_form_has_its_address() {
        let messages = [json!({"role": "user", "content": [
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
            {"type": "text", "text": "and"},
            {"type": "audio_url", "audio_url": {"url": "b"}},
            {"type": "audio", "audio": "c"},
            {"type": "image", "url": "no sound"},
        ]})];
        let found = sound_addresses(&messages).unwrap();
        assert_eq!(found, ["data:audio/*;base64,aGk=", "b", "c"]);
        let none = [json!({"role": "user", "content": [{"type": "input_audio"}]})];
        let error = sound_addresses(&none).unwrap_err().to_string();
        assert!(error.contains("messages[0]"), "{error}");
    }
}
