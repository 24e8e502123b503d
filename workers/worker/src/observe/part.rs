//! A part of a request's time, for its trace.

use opentelemetry::trace::{Event, Span, SpanBuilder, Status, TraceContextExt, Tracer};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use std::borrow::Cow;
use std::time::{Instant, SystemTime};

/// A part of a request's time: a span, made once it has ended.
#[derive(Debug, Clone)]
pub struct Part {
    name: Cow<'static, str>,
    start: SystemTime,
    end: SystemTime,
    attributes: Vec<KeyValue>,
    events: Vec<Event>,
    failure: Option<String>,
    parts: Vec<Part>,
}

impl Part {
    /// What took from `start` to `end`.
    pub fn new(name: impl Into<Cow<'static, str>>, start: Instant, end: Instant) -> Self {
        Self::between(name, wall_time(start), wall_time(end))
    }

    /// As [`Self::new`], by the system's clock.
    pub fn between(name: impl Into<Cow<'static, str>>, start: SystemTime, end: SystemTime) -> Self {
        Self {
            name: name.into(),
            start,
            end: end.max(start),
            attributes: Vec::new(),
            events: Vec::new(),
            failure: None,
            parts: Vec::new(),
        }
    }

    /// Adds an attribute.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push(KeyValue::new(name, value));
        self
    }

    /// Adds an attribute if there is a value for it.
    pub fn with_some(self, name: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds an attribute of several texts.
    pub fn with_texts(self, name: &'static str, texts: &[&str]) -> Self {
        let texts = texts.iter().map(|text| StringValue::from(text.to_string()));
        self.with(name, Value::Array(Array::String(texts.collect())))
    }

    /// Adds something that happened at a moment.
    pub fn event(mut self, name: &'static str, at: Instant) -> Self {
        self.events
            .push(Event::new(name, wall_time(at), Vec::new(), 0));
        self
    }

    /// Says that it went wrong: `kind` is a word of few, `reason` a sentence.
    pub fn failed(self, kind: &'static str, reason: impl Into<String>) -> Self {
        Self {
            failure: Some(reason.into()),
            ..self.with("error.type", kind)
        }
    }

    /// Adds a part of this part.
    pub fn part(mut self, part: Self) -> Self {
        self.parts.push(part);
        self
    }

    /// Hands it over as a span below `parent`'s.
    pub(super) fn record<T>(self, tracer: &T, parent: &Context)
    where
        T: Tracer,
        T::Span: Send + Sync + 'static,
    {
        let mut span = SpanBuilder::from_name(self.name)
            .with_start_time(self.start)
            .with_attributes(self.attributes)
            .with_events(self.events)
            .start_with_context(tracer, parent);
        if let Some(reason) = self.failure {
            span.set_status(Status::error(reason));
        }
        let context = parent.with_span(span);
        for part in self.parts {
            part.record(tracer, &context);
        }
        context.span().end_with_timestamp(self.end);
    }
}

/// A moment by the system's clock.
fn wall_time(at: Instant) -> SystemTime {
    let (now, wall) = (Instant::now(), SystemTime::now());
    match now.checked_duration_since(at) {
        Some(ago) => wall.checked_sub(ago).unwrap_or(wall),
        None => wall + (at - now),
    }
}
