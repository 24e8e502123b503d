//! Requests to a hub, and to the hosts that it sends its clients to.

use super::trouble::Trouble;
use std::time::Duration;
use ureq::http::{HeaderMap, StatusCode};
use ureq::{Agent, Body};
use url::Url;

/// Redirects that one request may follow.
const MAX_REDIRECTS: usize = 10;
/// How often a request is repeated that failed for a reason that may pass.
pub(super) const MAX_RETRIES: u32 = 4;
/// Longest wait that a hub's `Retry-After` is followed for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Longest list of files that is read.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// A hub's client. It follows redirects itself: the token goes to the hub's own scheme, host and port alone, and not
/// even there once an answer has led elsewhere.
pub(super) struct Client {
    agent: Agent,
    endpoint: Url,
    token: Option<String>,
}

/// What the hub itself says of a file, in any of its answers on the way.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub etag: Option<String>,
    pub commit: Option<String>,
    /// The size of a file that is kept elsewhere.
    pub size: Option<u64>,
}

/// An answer that is no redirect.
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Body,
    pub said: Said,
}

impl Client {
    /// A client of the hub at this address, which may be silent for `timeout`.
    pub fn new(endpoint: &str, token: Option<&str>, timeout: Duration) -> Result<Self, Trouble> {
        let wrong = |what: String| {
            Trouble::Refused(format!("HF_ENDPOINT is not the address of a hub ({what})"))
        };
        let endpoint = Url::parse(endpoint).map_err(|e| wrong(e.to_string()))?;
        if !is_web(&endpoint) || endpoint.host_str().is_none() {
            return Err(wrong("it begins with http:// or https://".to_string()));
        }
        let is_local = match endpoint.host() {
            Some(url::Host::Domain(name)) => name == "localhost",
            Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
            Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
            None => false,
        };
        if token.is_some() && endpoint.scheme() == "http" && !is_local {
            tracing::warn!("{endpoint} is asked without encryption: everyone on the way sees the access token; set HF_ENDPOINT to its https:// address");
        }
        let agent = Agent::config_builder()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_resolve(Some(timeout))
            .timeout_connect(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(timeout))
            .user_agent(concat!("candle-rocm/", env!("CARGO_PKG_VERSION")))
            // A length is that of the file only if nobody compresses it on the way.
            .accept_encoding("identity")
            .build()
            .new_agent();
        Ok(Self {
            agent,
            endpoint,
            token: token.map(str::to_string),
        })
    }

    /// The address of something on the hub; every part is escaped.
    pub fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Result<Url, Trouble> {
        let mut url = self.endpoint.clone();
        url.path_segments_mut()
            .map_err(|()| Trouble::Refused("HF_ENDPOINT is not the address of a hub".to_string()))?
            .pop_if_empty()
            .extend(parts);
        Ok(url)
    }

    /// Asks for bytes from `start` on, or for all.
    pub fn get(&self, url: &Url, start: Option<u64>) -> Result<Answer, Trouble> {
        let mut url = url.clone();
        let mut said = Said::default();
        let mut at_hub = true;
        for _ in 0..=MAX_REDIRECTS {
            at_hub &= url.origin() == self.endpoint.origin();
            let mut request = self.agent.get(url.as_str());
            if let Some(token) = self.token.as_ref().filter(|_| at_hub) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if let Some(start) = start {
                request = request.header("Range", format!("bytes={start}-"));
            }
            let response = request.call()?;
            let (head, body) = response.into_parts();
            if at_hub {
                said.read(&head.headers)?;
            }
            if !matches!(head.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(Answer {
                    status: head.status,
                    headers: head.headers,
                    body,
                    said,
                });
            }
            let location = text(&head.headers, "location")
                .ok_or_else(|| Trouble::Refused("redirects without saying where to".to_string()))?;
            let mut next = url.join(location).map_err(|e| {
                Trouble::Refused(format!("redirects to something that is no address ({e})"))
            })?;
            if !is_web(&next) || (url.scheme() == "https" && next.scheme() != "https") {
                return Err(Trouble::Refused(format!(
                    "redirects from {} to {}",
                    url.scheme(),
                    next.scheme()
                )));
            }
            // Names and passwords in an address would become a header of their own.
            if !next.username().is_empty() || next.password().is_some() {
                let cleared = next.set_password(None).and_then(|()| next.set_username(""));
                cleared.map_err(|()| {
                    Trouble::Refused("redirects to something that is no address".to_string())
                })?;
            }
            url = next;
        }
        Err(Trouble::Refused(format!(
            "redirects more than {MAX_REDIRECTS} times"
        )))
    }

    /// [`Self::get`] for all, again where the reason may pass.
    pub fn get_patiently(&self, url: &Url) -> Result<Answer, Trouble> {
        let mut failures = 0;
        loop {
            let trouble = match self.get(url, None).and_then(Answer::successful) {
                Ok(answer) => return Ok(answer),
                Err(trouble) => trouble,
            };
            failures += 1;
            if !trouble.is_transient() || failures > MAX_RETRIES {
                return Err(trouble);
            }
            wait(failures, &trouble);
        }
    }

    /// JSON of a bounded length.
    pub fn json<T: serde::de::DeserializeOwned>(&self, url: &Url) -> Result<T, Trouble> {
        let mut answer = self.get_patiently(url)?;
        let text = answer
            .body
            .with_config()
            .limit(MAX_LIST_BYTES)
            .read_to_vec()?;
        serde_json::from_slice(&text).map_err(|e| {
            Trouble::Refused(format!(
                "answers with something else than a list of files ({e})"
            ))
        })
    }
}

impl Answer {
    /// An error for statuses that say that there is no content.
    pub fn successful(self) -> Result<Self, Trouble> {
        if self.status.is_success() {
            return Ok(self);
        }
        let seconds = text(&self.headers, "retry-after").and_then(|text| text.parse().ok());
        Err(Trouble::Status {
            status: self.status.as_u16(),
            code: text(&self.headers, "x-error-code").map(str::to_string),
            retry_after: seconds.map(Duration::from_secs),
        })
    }

    /// The length of the content by `Content-Length`.
    pub fn length(&self) -> Option<u64> {
        text(&self.headers, "content-length").and_then(|text| text.trim().parse().ok())
    }

    /// First byte and size of the whole by `Content-Range`.
    pub fn range(&self) -> Option<(u64, Option<u64>)> {
        let range = text(&self.headers, "content-range")?
            .trim()
            .strip_prefix("bytes ")?;
        let (range, size) = range.split_once('/')?;
        let (first, _) = range.split_once('-')?;
        Some((first.trim().parse().ok()?, size.trim().parse().ok()))
    }

    /// Whether the content is compressed.
    pub fn is_encoded(&self) -> bool {
        text(&self.headers, "content-encoding")
            .is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity"))
    }
}

impl Said {
    /// Takes what an answer of the hub says; a later one counts more.
    fn read(&mut self, headers: &HeaderMap) -> Result<(), Trouble> {
        for name in ["x-linked-etag", "etag", "x-repo-commit", "x-linked-size"] {
            if headers.contains_key(name) && text(headers, name).is_none() {
                return Err(Trouble::Refused(format!(
                    "answers with a header {name} that is not text"
                )));
            }
        }
        let etag = text(headers, "x-linked-etag").or_else(|| text(headers, "etag"));
        if let Some(etag) = etag {
            let etag = etag.trim();
            let etag = etag.strip_prefix("W/").unwrap_or(etag);
            self.etag = Some(etag.trim_matches('"').to_string());
        }
        if let Some(commit) = text(headers, "x-repo-commit") {
            self.commit = Some(commit.trim().to_string());
        }
        if let Some(size) = text(headers, "x-linked-size") {
            self.size = size.trim().parse().ok();
        }
        Ok(())
    }
}

/// Sleeps before another attempt: longer each time, not at the same moment as others, and as long as the hub asks for.
pub(super) fn wait(failures: u32, trouble: &Trouble) {
    let asked = match trouble {
        Trouble::Status { retry_after, .. } => retry_after.unwrap_or_default(),
        _ => Duration::ZERO,
    };
    let mut byte = [0];
    // Without randomness all clients come at once, which is no fault of this one.
    let _ = getrandom::fill(&mut byte);
    let own = Duration::from_millis(100 << failures.min(6)) + Duration::from_millis(byte[0].into());
    std::thread::sleep(own.max(asked.min(MAX_RETRY_AFTER)));
}

fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
