//! Transcripts as text, subtitles and JSON.

use super::{Segment, Transcript};
use serde_json::{json, Value as Json};

/// A form of transcripts, by OpenAI's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TranscriptFormat {
    /// The text.
    #[default]
    Text,
    /// Subtitles in SubRip's form.
    Srt,
    /// Subtitles in the web's form.
    Vtt,
    /// The text in JSON.
    Json,
    /// JSON with segments, and words if they were asked for.
    VerboseJson,
}

impl TranscriptFormat {
    /// All names.
    pub const NAMES: [&'static str; 5] = ["text", "srt", "vtt", "json", "verbose_json"];

    /// By its name, in which `-` stands for `_`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name.replace('-', "_").as_str() {
            "text" => Self::Text,
            "srt" => Self::Srt,
            "vtt" => Self::Vtt,
            "json" => Self::Json,
            "verbose_json" => Self::VerboseJson,
            _ => return None,
        })
    }

    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Srt => "application/x-subrip; charset=utf-8",
            Self::Vtt => "text/vtt; charset=utf-8",
            Self::Json | Self::VerboseJson => "application/json",
        }
    }

    /// What stands before all segments.
    pub fn head(self) -> &'static str {
        match self {
            Self::Vtt => "WEBVTT\n\n",
            _ => "",
        }
    }

    /// A segment, in the forms that are written segment by segment; the others are empty.
    pub fn segment(self, segment: &Segment) -> String {
        let text = segment.text.trim();
        match self {
            Self::Text => format!("{text}\n"),
            Self::Srt | Self::Vtt => {
                let mark = if self == Self::Srt { ',' } else { '.' };
                let times = [segment.start, segment.end].map(|seconds| clock(seconds, mark));
                // An arrow in a text would be a time.
                let text = text.replace("-->", "->");
                let number = match self {
                    Self::Srt => format!("{}\n", segment.id + 1),
                    _ => String::new(),
                };
                format!("{number}{} --> {}\n{text}\n\n", times[0], times[1])
            }
            Self::Json | Self::VerboseJson => String::new(),
        }
    }

    /// A whole transcript.
    pub fn whole(self, transcript: &Transcript, translated: bool) -> String {
        match self {
            Self::Text => format!("{}\n", transcript.text()),
            Self::Srt | Self::Vtt => {
                let segments = transcript.segments.iter().map(|s| self.segment(s));
                let head = std::iter::once(self.head().to_string());
                head.chain(segments).collect()
            }
            Self::Json => brief(transcript).to_string(),
            Self::VerboseJson => verbose(transcript, translated).to_string(),
        }
    }
}

/// What is billed elsewhere: seconds, rounded up.
fn usage(transcript: &Transcript) -> Json {
    json!({"type": "duration", "seconds": transcript.duration.ceil() as u64})
}

/// A transcript as OpenAI's `json`.
pub fn brief(transcript: &Transcript) -> Json {
    json!({"text": transcript.text(), "usage": usage(transcript)})
}

/// A transcript as OpenAI's `verbose_json`; words are there if segments have them.
pub fn verbose(transcript: &Transcript, translated: bool) -> Json {
    let task = match translated {
        true => "translate",
        false => "transcribe",
    };
    let segment = |segment: &Segment| {
        json!({
            "id": segment.id,
            "seek": segment.seek,
            "start": rounded(segment.start),
            "end": rounded(segment.end),
            "text": segment.text,
            "tokens": segment.tokens,
            "temperature": segment.temperature,
            "avg_logprob": segment.avg_logprob,
            "compression_ratio": segment.compression_ratio,
            "no_speech_prob": segment.no_speech_prob,
        })
    };
    let mut json = json!({
        "task": task,
        "language": transcript.language_name(),
        "duration": rounded(transcript.duration),
        "text": transcript.text(),
        "segments": transcript.segments.iter().map(segment).collect::<Vec<_>>(),
        "usage": usage(transcript),
    });
    let words = transcript.segments.iter().flat_map(|s| &s.words);
    let words: Vec<Json> = words
        .map(|word| {
            json!({
                "word": word.word.trim(),
                "start": rounded(word.start),
                "end": rounded(word.end),
            })
        })
        .collect();
    if !words.is_empty() {
        json["words"] = words.into();
    }
    json
}

/// Hundredths of a second are what models tell.
fn rounded(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

/// Hours, minutes, seconds and thousandths.
fn clock(seconds: f64, mark: char) -> String {
    let all = (seconds.max(0.0) * 1000.0).round() as u64;
    let (seconds, thousandths) = (all / 1000, all % 1000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!(
        "{hours:02}:{minutes:02}:{:02}{mark}{thousandths:03}",
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let segment = |id: usize, start: f64, text: &str| Segment {
            id,
            seek: 0,
            start,
            end: start + 1.5,
            text: text.to_string(),
            tokens: vec![1],
            temperature: 0.0,
            avg_logprob: -0.5,
            compression_ratio: 1.0,
            no_speech_prob: 0.25,
            words: Vec::new(),
        };
        Transcript {
            language: "de",
            duration: 3661.2,
            segments: vec![
                segment(0, 0.0, " Hallo,"),
                segment(1, 3659.48, " Welt --> hier."),
            ],
        }
    }

    #[test]
    fn subtitles() {
        let srt = TranscriptFormat::Srt.whole(&transcript(), false);
        assert_eq!(
            srt,
            "1\n00:00:00,000 --> 00:00:01,500\nHallo,\n\n2\n01:00:59,480 --> 01:01:00,980\nWelt -> hier.\n\n"
        );
        let vtt = TranscriptFormat::Vtt.whole(&transcript(), false);
        assert!(vtt.starts_with("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHallo,\n\n"));
    }

    #[test]
    fn names_lead_to_forms() {
        for name in TranscriptFormat::NAMES {
            assert!(TranscriptFormat::from_name(name).is_some());
        }
        let verbose = TranscriptFormat::from_name("verbose-json");
        assert_eq!(verbose, Some(TranscriptFormat::VerboseJson));
        assert_eq!(TranscriptFormat::from_name("xml"), None);
    }

    #[test]
    fn json_has_what_openais_has() {
        let json = verbose(&transcript(), true);
        assert_eq!(json["task"], "translate");
        assert_eq!(json["language"], "german");
        assert_eq!(json["text"], "Hallo, Welt --> hier.");
        assert_eq!(json["segments"][1]["end"], 3660.98);
        assert!(json.get("words").is_none());
        assert_eq!(brief(&transcript())["usage"]["seconds"], 3662);
    }
}
