//! The two text formats for figures: Prometheus' own, version 0.0.4, and OpenMetrics 1.0.
//!
//! Most scrapers that are not Prometheus itself read only the former, and say nothing in `Accept`, or `*/*`. So
//! OpenMetrics goes to those alone who name it, and like it at least as well.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>

use axum::http::header::ACCEPT;
use axum::http::HeaderMap;

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exposition {
    /// Prometheus' own.
    Prometheus,
    OpenMetrics,
}

impl Exposition {
    /// The one that a request's `Accept` likes best.
    pub(super) fn wanted(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(ACCEPT).iter();
        let lines = lines.filter_map(|line| line.to_str().ok());
        let ranges: Vec<Range> = lines
            .flat_map(|line| line.split(','))
            .filter_map(Range::of)
            .collect();
        let weight = |kinds: &[&str], versions: &[&str]| {
            // The most specific range counts, and of those the best.
            kinds.iter().find_map(|kind| {
                let of_kind = ranges.iter().filter(|range| {
                    let version = range.version.as_deref();
                    range.kind == *kind && version.is_none_or(|version| versions.contains(&version))
                });
                of_kind.map(|range| range.weight).reduce(f32::max)
            })
        };
        let open = weight(&["application/openmetrics-text"], &["1.0.0", "0.0.1"]);
        let plain = weight(&["text/plain", "text/*", "*/*"], &["0.0.4"]);
        match open {
            Some(open) if open > 0.0 && open >= plain.unwrap_or(0.0) => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }

    /// For `Content-Type`.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// This format's text of what is OpenMetrics.
    pub(super) fn of_openmetrics(self, text: String) -> String {
        match self {
            Self::OpenMetrics => text,
            Self::Prometheus => to_prometheus(&text),
        }
    }
}

/// One of the media types that `Accept` lists.
struct Range {
    /// `type/subtype`, in lower case.
    kind: String,
    version: Option<String>,
    /// How much it is liked, from 0 to 1.
    weight: f32,
}

impl Range {
    fn of(text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let mut range = Self {
            kind: parts.next()?.to_ascii_lowercase(),
            version: None,
            weight: 1.0,
        };
        for part in parts {
            let Some((name, value)) = part.split_once('=') else {
                continue;
            };
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "version" => range.version = Some(value.to_string()),
                // What is no number is not liked.
                "q" => range.weight = value.parse().unwrap_or(0.0),
                _ => {}
            }
        }
        (!range.kind.is_empty()).then_some(range)
    }
}

/// Prometheus' format names a counter with the ending of its samples, knows fewer types and has no last line.
fn to_prometheus(text: &str) -> String {
    let mut plain = String::with_capacity(text.len() + text.len() / 16);
    let mut help = "";
    for line in text.lines() {
        let of_comment = |word: &str| {
            line.strip_prefix("# ")?
                .strip_prefix(word)?
                .strip_prefix(' ')
        };
        if let Some(rest) = of_comment("HELP") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = of_comment("TYPE").and_then(|rest| rest.split_once(' '))
        {
            let (ending, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            plain += &format!("# HELP {name}{ending} {help}\n# TYPE {name}{ending} {kind}\n");
        } else if line != "# EOF" && of_comment("UNIT").is_none() {
            plain += line;
            plain.push('\n');
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use Exposition::{OpenMetrics, Prometheus};

    fn wanted(lines: &[&str]) -> Exposition {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(ACCEPT, line.parse().unwrap());
        }
        Exposition::wanted(&headers)
    }

    #[test]
    fn openmetrics_goes_to_those_who_like_it_best() {
        for (lines, expected) in [
            (&[][..], Prometheus),
            (&["*/*"], Prometheus),
            (&["text/plain"], Prometheus),
            (&["application/json"], Prometheus),
            (&["application/openmetrics-text"], OpenMetrics),
            (&["Application/OpenMetrics-Text; version=\"1.0.0\""], OpenMetrics),
            (&["application/openmetrics-text; version=2.0.0"], Prometheus),
            (&["application/openmetrics-text;q=0"], Prometheus),
            (&["application/openmetrics-text;q=0.4, text/plain;q=0.5"], Prometheus),
            (&["application/openmetrics-text;q=0.4", "text/plain;q=0.3"], OpenMetrics),
            // What Prometheus 3 sends, and Prometheus 2.
            (
                &["application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                   application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                   text/plain;version=0.0.4;q=0.3,*/*;q=0.2"],
                OpenMetrics,
            ),
            (
                &["application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"],
                OpenMetrics,
            ),
            // The most specific range counts: plain text is liked less than anything else.
            (&["application/openmetrics-text;q=0.5, text/plain;q=0.2, */*"], OpenMetrics),
            (&["application/openmetrics-text;q=0.5, */*"], Prometheus),
            (&["application/openmetrics-text;q=x"], Prometheus),
            (&[";;;,,=;q"], Prometheus),
        ] {
            assert_eq!(wanted(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn counters_are_named_as_their_samples() {
        let open = "# HELP llm_answers Answers.\n# TYPE llm_answers counter\nllm_answers_total{a=\"b\"} 3\n\
                    # HELP llm_wait_seconds Waiting.\n# TYPE llm_wait_seconds histogram\n\
                    # UNIT llm_wait_seconds seconds\nllm_wait_seconds_sum 1.5\n\
                    # HELP x:build Build.\n# TYPE x:build info\nx:build_info{v=\"1\"} 1\n# EOF\n";
        let plain = "# HELP llm_answers_total Answers.\n# TYPE llm_answers_total counter\n\
                     llm_answers_total{a=\"b\"} 3\n\
                     # HELP llm_wait_seconds Waiting.\n# TYPE llm_wait_seconds histogram\nllm_wait_seconds_sum 1.5\n\
                     # HELP x:build_info Build.\n# TYPE x:build_info gauge\nx:build_info{v=\"1\"} 1\n";
        assert_eq!(to_prometheus(open), plain);
    }
}
