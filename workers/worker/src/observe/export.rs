//! Traces on their way to a collector: OTLP over HTTP, protobuf (<https://opentelemetry.io/docs/specs/otlp/>).
//!
//! A thread of the SDK's sends what has ended in batches. The queue before it is bounded and drops what does not fit,
//! and a collector that does not answer is one warning, whatever it misses.

use super::part::Part;
use crate::{Error, Result};
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, KeyValue};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData, SpanExporter};
use opentelemetry_sdk::Resource;
use percent_encoding::percent_decode_str;
use prost::Message;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// How long a collector may take for a batch, unless OTEL_EXPORTER_OTLP_TIMEOUT says otherwise.
const EXPORT_TIME: Duration = Duration::from_secs(10);
/// How long the last batch may take when the program ends.
const LAST_EXPORT_TIME: Duration = Duration::from_secs(2);
/// Where collectors take traces, below their address.
const TRACES_PATH: &str = "v1/traces";
/// The variable that [`TraceArgs`] reads the address from.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// The variable with the whole address for traces, which comes before the other one.
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

/// Where traces go.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Traces")]
pub struct TraceArgs {
    /// Address of an OpenTelemetry collector that gets a trace of each request (OTLP over HTTP), as
    /// http://localhost:4318; without it there are none. OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and
    /// OTEL_TRACES_SAMPLER count as usual.
    #[arg(long, env = ENDPOINT, hide_env_values = true, value_name = "URL")]
    otlp_endpoint: Option<String>,
}

impl TraceArgs {
    /// The whole address for traces, if they are wanted.
    fn address(&self) -> Result<Option<Url>> {
        let is_off = variable("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"))
            || variable("OTEL_TRACES_EXPORTER").is_some_and(|v| v == "none");
        let given = self.otlp_endpoint.clone().filter(|given| !given.is_empty());
        // What stands on the command line comes before all variables.
        let of_traces = variable(TRACES_ENDPOINT).filter(|_| given == variable(ENDPOINT));
        let (text, is_whole) = match (of_traces, given) {
            _ if is_off => return Ok(None),
            (Some(whole), _) => (whole, true),
            (None, Some(given)) => (given, false),
            (None, None) => return Ok(None),
        };
        let bad = |reason: &str| Error::Usage(format!("--otlp-endpoint {text}: {reason}"));
        let mut url = Url::parse(&text).map_err(|e| bad(&e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(bad("this is no http:// or https:// address"));
        }
        if !is_whole && !url.path().ends_with(TRACES_PATH) {
            let path = format!("{}/{TRACES_PATH}", url.path().trim_end_matches('/'));
            url.set_path(&path);
        }
        Ok(Some(url))
    }

    /// Starts sending, if that is wanted. The program is called `name`, its instance `id`, unless the environment says
    /// otherwise.
    ///
    /// # Errors
    /// [`Error::Usage`] for an address that is none.
    pub fn start(&self, name: &'static str, version: &'static str, id: &str) -> Result<Traces> {
        let Some(url) = self.address()? else {
            return Ok(Traces::default());
        };
        let exporter = Exporter::new(url);
        tracing::info!("traces go to {}", exporter.shown);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource(name, version, id))
            .build();
        let tracer = provider.tracer(name);
        Ok(Traces(Some(Arc::new(Exporting { provider, tracer }))))
    }
}

/// Who sends the traces, as far as the environment does not say.
fn resource(name: &'static str, version: &'static str, id: &str) -> Resource {
    let said = Resource::builder().build();
    let own = [
        KeyValue::new("service.name", name),
        KeyValue::new("service.version", version),
        KeyValue::new("service.instance.id", id.to_string()),
    ];
    let is_missing = |own: &KeyValue| match said.get(&own.key) {
        None => true,
        // What the SDK calls a service without a name.
        Some(value) => value.as_str().starts_with("unknown_service"),
    };
    let missing: Vec<KeyValue> = own.into_iter().filter(is_missing).collect();
    Resource::builder().with_attributes(missing).build()
}

/// Where traces go; the default is nowhere. Clones are handles to the same.
#[derive(Clone, Default)]
pub struct Traces(Option<Arc<Exporting>>);

struct Exporting {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Whether there is somebody who wants them.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn tracer(&self) -> Option<&SdkTracer> {
        self.0.as_ref().map(|exporting| &exporting.tracer)
    }

    /// Adds a part below a span.
    pub(super) fn record(&self, part: Part, parent: &Context) {
        if let Some(tracer) = self.tracer() {
            part.record(tracer, parent);
        }
    }

    /// Sends what is left, for two seconds at most. Blocks.
    pub fn stop(&self) {
        if let Some(exporting) = &self.0 {
            // What does not get there is dropped, as everywhere.
            let _ = exporting.provider.shutdown_with_timeout(LAST_EXPORT_TIME);
        }
    }
}

impl std::fmt::Debug for Traces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Traces({})", if self.is_on() { "on" } else { "off" })
    }
}

/// A variable that says something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Sends batches, on the SDK's thread.
#[derive(Debug)]
struct Exporter {
    agent: ureq::Agent,
    url: Url,
    /// The address without a password.
    shown: String,
    headers: Vec<(String, String)>,
    resource: ResourceAttributesWithSchema,
    /// The last batch did not arrive, and that was told.
    failing: AtomicBool,
}

impl Exporter {
    fn new(url: Url) -> Self {
        let milliseconds = variable("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
            .or_else(|| variable("OTEL_EXPORTER_OTLP_TIMEOUT"))
            .and_then(|time| time.parse().ok());
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(
                milliseconds.map_or(EXPORT_TIME, Duration::from_millis),
            ))
            .http_status_as_error(false)
            .max_redirects(0)
            .build()
            .new_agent();
        let mut shown = url.clone();
        // An address with a host can do without.
        let _ = shown.set_password(None);
        let headers = variable("OTEL_EXPORTER_OTLP_TRACES_HEADERS")
            .or_else(|| variable("OTEL_EXPORTER_OTLP_HEADERS"));
        Self {
            agent,
            url,
            shown: shown.to_string(),
            headers: parse_headers(&headers.unwrap_or_default()),
            resource: ResourceAttributesWithSchema::default(),
            failing: AtomicBool::new(false),
        }
    }

    /// Sends a batch; else says why it was not taken.
    fn post(&self, batch: &[u8]) -> std::result::Result<(), String> {
        let mut request = self.agent.post(self.url.as_str());
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let answer = request.content_type("application/x-protobuf").send(batch);
        let status = answer.map_err(|e| e.to_string())?.status();
        match status.is_success() {
            true => Ok(()),
            false => Err(format!("it answers {status}")),
        }
    }

    /// Warns when batches begin to be lost, and says when they arrive again.
    fn tell(&self, sent: &std::result::Result<(), String>) {
        match sent {
            Err(problem) if !self.failing.swap(true, Ordering::Relaxed) => tracing::warn!(
                "{} takes no traces: {problem}; they are dropped until it does",
                self.shown
            ),
            Ok(()) if self.failing.swap(false, Ordering::Relaxed) => {
                tracing::info!("{} takes traces again", self.shown);
            }
            _ => {}
        }
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let batch = ExportTraceServiceRequest {
            resource_spans: group_spans_by_resource_and_scope(batch, &self.resource),
        };
        let sent = self.post(&batch.encode_to_vec());
        self.tell(&sent);
        sent.map_err(OTelSdkError::InternalFailure)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.into();
    }
}

/// `NAME=VALUE,NAME=VALUE`, values percent-encoded; what is none is left out.
fn parse_headers(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    let decoded = pairs.filter_map(|(name, value)| {
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((name.trim().to_string(), value.into_owned()))
    });
    decoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(given: &str) -> Result<Option<String>> {
        let otlp_endpoint = Some(given.to_string());
        let address = TraceArgs { otlp_endpoint }.address()?;
        Ok(address.map(String::from))
    }

    #[test]
    fn addresses() {
        for (given, whole) in [
            ("http://h:4318", "http://h:4318/v1/traces"),
            ("https://h/otlp/", "https://h/otlp/v1/traces"),
            ("http://h:4318/v1/traces", "http://h:4318/v1/traces"),
        ] {
            assert_eq!(address(given).unwrap().as_deref(), Some(whole));
        }
        assert_eq!(address("").unwrap(), None);
        for bad in ["localhost:4318", "h", "ftp://h", "http://"] {
            assert_eq!(address(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
        let headers = parse_headers("Authorization=Bearer%20k, x = 1,nothing");
        let expected = [("Authorization", "Bearer k"), ("x", "1")];
        assert_eq!(
            headers,
            expected.map(|(n, v)| (n.to_string(), v.to_string()))
        );
        assert!(!TraceArgs::default().start("n", "1", "i").unwrap().is_on());
    }
}
