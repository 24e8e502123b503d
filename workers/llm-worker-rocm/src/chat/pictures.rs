//! Pictures in messages: where they come from.

use super::messages::PICTURES;
use serde_json::Value as Json;
use worker::{Error, Result};

/// The addresses of the pictures in messages, in their order.
///
/// # Errors
/// [`Error::Usage`] naming the message whose picture has no address.
pub fn picture_addresses(messages: &[Json]) -> Result<Vec<&str>> {
    let mut addresses = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        for part in message["content"].as_array().into_iter().flatten() {
            let kind = part["type"].as_str().unwrap_or_default();
            if !PICTURES.contains(&kind) {
                continue;
            }
            // OpenAI's forms, and the names that templates and other clients use.
            let homes = [
                &part["image_url"]["url"],
                &part["image_url"],
                &part["image"],
                &part["url"],
            ];
            let address = homes.iter().find_map(|home| home.as_str());
            addresses.push(address.ok_or_else(|| {
                Error::Usage(format!(
                    "messages[{index}]: a picture needs its address, as \"image_url\": {{\"url\": \"data:image/png;base64,...\"}}"
                ))
            })?);
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{message_with_parts, picture_part, ChatTemplate, RenderOptions};
    use crate::media::PICTURE_MARK;
    use serde_json::json;

    /// The rendering of a user's message with a picture.
    fn rendered(template: &str) -> crate::chat::Rendered {
        let template = ChatTemplate::new(template, None, None).unwrap();
        let messages = [message_with_parts(vec![picture_part("data:,")], "What?")];
        let options = RenderOptions::default();
        template.render(&messages, None, &options).unwrap()
    }

    #[test]
    fn a_template_leaves_a_place_or_a_mark_does() {
        const SEES: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
        let seen = rendered(SEES);
        assert_eq!(seen.text, "<image>What?");
        // The place is the template's, not somebody's text.
        assert_eq!(seen.input.as_slice(), std::slice::from_ref(&(7..12)));
        for blind in [
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
        ] {
            assert_eq!(rendered(blind).text, format!("{PICTURE_MARK}What?"), "{blind}");
        }
    }

    #[test]
    fn each_form_has_its_address() {
        let messages = [
            json!({"role": "system", "content": "no picture"}),
            json!({"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "a", "detail": "low"}},
                {"type": "text", "text": "and"},
                {"type": "input_image", "image_url": "b"},
                {"type": "image", "image": "c"},
                {"type": "image", "url": "d"},
            ]}),
        ];
        assert_eq!(picture_addresses(&messages).unwrap(), ["a", "b", "c", "d"]);
        let none = [json!({"role": "user", "content": [{"type": "image"}]})];
        let error = picture_addresses(&none).unwrap_err().to_string();
        assert!(error.contains("messages[0]"), "{error}");
    }
}
