//! A request's name and its place in a trace, from its headers.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use std::str::FromStr;

/// The header with a request's name, in requests and in answers.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header of an answer with the name of the job that the request made: proxies learn by it where a job is.
pub const X_JOB_ID: HeaderName = HeaderName::from_static("x-job-id");
/// The header that names the trace and the span that a request belongs to
/// (<https://www.w3.org/TR/trace-context/>).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header with what tracing systems add to it.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Longest name that is taken, in bytes.
const MAX_ID: usize = 128;
/// Longest `tracestate` that is passed on, in bytes; the specification asks for at least this much.
const MAX_STATE: usize = 512;

/// The request's name: its own if that is short and of visible characters, else a new one.
pub fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(&X_REQUEST_ID);
    let is_sound = |id: &&HeaderValue| {
        (1..=MAX_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    given.filter(is_sound).cloned().unwrap_or_else(|| {
        let id = crate::ids::uuid().simple().to_string();
        // Hexadecimal digits are always a header's value.
        HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("unnamed"))
    })
}

/// The span of the caller's that a request belongs to; `None` without a well-formed `traceparent`. A `tracestate` that
/// is malformed or too long is left out.
pub fn caller_span(headers: &HeaderMap) -> Option<SpanContext> {
    let mut given = headers.get_all(&TRACEPARENT).iter();
    let (Some(parent), None) = (given.next(), given.next()) else {
        return None;
    };
    let (trace, span, flags) = parse_parent(parent.to_str().ok()?)?;
    let context = SpanContext::new(trace, span, flags, true, state(headers));
    context.is_valid().then_some(context)
}

/// `VERSION-TRACE-SPAN-FLAGS`, all in lower-case hexadecimal digits; later versions may have more behind it.
fn parse_parent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    const LENGTH: usize = 55;
    let (known, rest) = text.split_at_checked(LENGTH)?;
    let parts: Vec<&str> = known.split('-').collect();
    let [version, trace, span, flags] = parts[..] else {
        return None;
    };
    let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    let sizes = [version.len(), trace.len(), span.len(), flags.len()];
    let fits = sizes == [2, 32, 16, 2] && parts.iter().all(|part| part.bytes().all(is_hex));
    let may_go_on = version != "00" && rest.starts_with('-');
    if !fits || version == "ff" || !(rest.is_empty() || may_go_on) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    Some((
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        flags,
    ))
}

fn state(headers: &HeaderMap) -> TraceState {
    let mut all = String::new();
    for value in headers.get_all(&TRACESTATE) {
        let Ok(value) = value.to_str() else {
            return TraceState::default();
        };
        if all.len() + value.len() >= MAX_STATE {
            return TraceState::default();
        }
        if !all.is_empty() {
            all.push(',');
        }
        all.push_str(value);
    }
    // The crate takes members without a name.
    let is_named = |member: &str| !member.trim_start().starts_with('=');
    match all.split(',').all(is_named) {
        true => TraceState::from_str(&all).unwrap_or_default(),
        false => TraceState::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    #[test]
    fn sound_names_are_kept_and_others_replaced() {
        for good in ["a", "req_1/2:3", &"x".repeat(128)] {
            assert_eq!(request_id(&headers(&[("x-request-id", good)])), good);
        }
        for bad in ["", "a b", "a\tb", "é", &"x".repeat(129)] {
            let id = request_id(&headers(&[("x-request-id", bad)]));
            assert_eq!(id.len(), 32, "{bad:?} became {id:?}");
        }
        let none = HeaderMap::new();
        assert_ne!(request_id(&none), request_id(&none));
    }

    #[test]
    fn callers_spans() {
        const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
        const SPAN: &str = "b7ad6b7169203331";
        let of = |parent: &str| caller_span(&headers(&[("traceparent", parent)]));
        let good = of(&format!("00-{TRACE}-{SPAN}-01")).unwrap();
        assert_eq!(good.trace_id().to_string(), TRACE);
        assert_eq!(good.span_id().to_string(), SPAN);
        assert!(good.is_sampled() && good.is_remote());
        assert!(!of(&format!("00-{TRACE}-{SPAN}-00")).unwrap().is_sampled());
        // A later version, whose flags may mean more.
        assert!(of(&format!("cc-{TRACE}-{SPAN}-09-what"))
            .unwrap()
            .is_sampled());
        let upper = TRACE.to_uppercase();
        for bad in [
            String::new(),
            "00".to_string(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-what"),
            format!("cc-{TRACE}-{SPAN}-01what"),
            format!("00-{upper}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-0"),
            format!("00-{TRACE}-{SPAN}-+1"),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}é-{SPAN}-01", &TRACE[..30]),
        ] {
            assert_eq!(of(&bad), None, "{bad:?}");
        }
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let parent = ("traceparent", parent.as_str());
        assert_eq!(caller_span(&headers(&[parent, parent])), None);
    }

    #[test]
    fn states_are_passed_on_or_left_out() {
        const PARENT: (&str, &str) = (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        );
        let of = |lines: &[(&'static str, &str)]| {
            let lines: Vec<_> = std::iter::once(&PARENT).chain(lines).copied().collect();
            let span = caller_span(&headers(&lines)).unwrap();
            span.trace_state().header()
        };
        assert_eq!(of(&[("tracestate", "a=1,b=2")]), "a=1,b=2");
        assert_eq!(
            of(&[("tracestate", "a=1"), ("tracestate", "b=2")]),
            "a=1,b=2"
        );
        for bad in ["nonsense", "=", &format!("a={}", "x".repeat(512))] {
            assert_eq!(of(&[("tracestate", bad)]), "", "{bad}");
        }
    }
}
