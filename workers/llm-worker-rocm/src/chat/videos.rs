//! Videos in messages: where they come from.

use super::messages::VIDEOS;
use crate::media::VideoPart;
use serde_json::Value as Json;
use worker::{Error, Result};

/// The videos in messages, in their order.
///
/// # Errors
/// [`Error::Usage`] naming the message and what is wrong with its video.
pub fn video_parts(messages: &[Json]) -> Result<Vec<VideoPart<'_>>> {
    let mut videos = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        for part in message["content"].as_array().into_iter().flatten() {
            if VIDEOS.contains(&part["type"].as_str().unwrap_or_default()) {
                let bad = |reason| Error::Usage(format!("messages[{index}]: {reason}"));
                videos.push(video(part).map_err(bad)?);
            }
        }
    }
    Ok(videos)
}

/// A video of a part: one address, or one for each frame, and how many frames are a second.
fn video(part: &Json) -> std::result::Result<VideoPart<'_>, String> {
    let homes = [
        &part["video_url"]["url"],
        &part["video_url"],
        &part["video"],
        &part["url"],
    ];
    let addresses = homes.iter().find_map(|home| match home {
        Json::String(address) => Some(vec![address.as_str()]),
        Json::Array(frames) => frames.iter().map(Json::as_str).collect(),
        _ => None,
    });
    let addresses = addresses.filter(|addresses| !addresses.is_empty()).ok_or(
        "a video needs its address or those of its frames, as \"video_url\": {\"url\": \"data:video/jpeg;base64,FRAME,FRAME,...\"}",
    )?;
    let said = |key: &str| {
        [&part[key], &part["video_url"][key]]
            .into_iter()
            .find(|v| !v.is_null())
    };
    let fps = said("fps").map(|fps| match fps.as_f64() {
        Some(fps) if fps > 0.0 && fps <= 1000.0 => Ok(fps),
        _ => Err(format!("\"fps\" must be a number above 0, it is {fps}")),
    });
    let frames = said("max_frames").map(|frames| match frames.as_u64() {
        Some(frames @ 1..=65_536) => Ok(frames as usize),
        _ => Err(format!(
            "\"max_frames\" must be a whole number above 0, it is {frames}"
        )),
    });
    Ok(VideoPart {
        addresses,
        fps: fps.transpose()?,
        frames: frames.transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{ChatTemplate, RenderOptions};
    use crate::media::VIDEO_MARK;
    use serde_json::json;

    #[test]
    fn a_template_that_knows_pictures_only_has_a_mark_for_videos() {
        const SEES: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}<i>{% elif p.type == 'KIND' %}<v>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
        let message = json!({"role": "user", "content": [
            {"type": "video_url", "video_url": {"url": "a"}}, {"type": "image", "url": "b"}, {"type": "text", "text": "c"}
        ]});
        let rendered = |kind: &str| {
            let template = ChatTemplate::new(&SEES.replace("KIND", kind), None, None).unwrap();
            let options = RenderOptions::default();
            let rendered = template.render(std::slice::from_ref(&message), None, &options);
            rendered.unwrap().text
        };
        assert_eq!(rendered("video"), "<v><i>c");
        assert_eq!(rendered("sound"), format!("{VIDEO_MARK}<i>c"));
    }

    #[test]
    fn videos_have_one_address_or_one_for_each_frame() {
        let of = |part: Json| {
            let messages = [json!({"role": "user", "content": [part]})];
            video_parts(&messages)
                .map(|parts| format!("{parts:?}"))
                .map_err(|e| e.to_string())
        };
        let video = |addresses: Vec<&'static str>, fps: Option<f64>, frames: Option<usize>| {
            let part = VideoPart {
                addresses,
                fps,
                frames,
            };
            Ok(format!("{:?}", [part]))
        };
        assert_eq!(
            of(json!({"type": "video_url", "video_url": {"url": "a", "fps": 2.5}})),
            video(vec!["a"], Some(2.5), None)
        );
        assert_eq!(
            of(json!({"type": "video", "video": ["a", "b"], "max_frames": 3})),
            video(vec!["a", "b"], None, Some(3))
        );
        for (part, why) in [
            (json!({"type": "video"}), "messages[0]: a video needs"),
            (json!({"type": "video", "video": []}), "a video needs"),
            (json!({"type": "video", "video": "a", "fps": 0}), "\"fps\""),
            (
                json!({"type": "video", "video": "a", "max_frames": 0.5}),
                "\"max_frames\"",
            ),
        ] {
            let refusal = of(part).unwrap_err();
            assert!(refusal.contains(why), "{refusal}");
        }
    }
}
