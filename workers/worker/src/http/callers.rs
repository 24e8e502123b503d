//! Which requests a server without a key answers.
//!
//! A browser sends whatever a page asks for to any address, the user's own machine included, and tells nobody that the
//! page is a stranger's. Two headers, which no page can set, tell a server:
//!
//! * `Origin` (and `Sec-Fetch-Site`) names the page's origin. A foreign one is refused unless `--cors-origin` lets it
//!   in. Links are followed all the same, and pictures shown: a page cannot read either.
//! * `Host` names the address by which the browser came. A page whose name suddenly leads to this machine (DNS
//!   rebinding) has the same origin as the server, but its own name. So names are refused that are neither this
//!   machine's nor given by `--allowed-host`. Addresses of digits are no names, and cannot be rebound; nor can names
//!   without a dot, as containers and services have: no page of the web has one.
//!
//! A server that asks for a key does neither: no page knows the key, and browsers do not add it by themselves. The one
//! exception is a name and a password (`Authorization: Basic`), which browsers keep and send with what any page asks
//! for: the origin of requests with these is looked at all the same. Their `Host` is not: browsers keep passwords by it.

use super::auth::basic;
use super::base_url::forwarded_host;
use super::ApiError;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri};
use std::net::IpAddr;
use std::sync::Arc;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Who may ask a server that asks for no key.
#[derive(Debug, Clone)]
pub struct Callers(Arc<Rules>);

#[derive(Debug)]
struct Rules {
    /// Names that this server is reached by, in lower case; one that begins with a dot stands for all that end so.
    names: Vec<String>,
    /// Origins whose pages may call, besides the server's own.
    origins: Vec<String>,
    /// Whether a key is asked for instead.
    keyed: bool,
}

impl Callers {
    /// The rules of a server. `names` are those it is reached by besides `localhost` and this
    /// machine's, `.example.org` or `*.example.org` standing for all below; `*` among them, or among `origins`, is any.
    /// `keyed` is whether it asks for a key.
    pub fn new(names: &[String], origins: &[String], keyed: bool) -> Self {
        let lower = |name: &String| {
            let name = name.trim().trim_end_matches('.').to_ascii_lowercase();
            match name.strip_prefix("*.") {
                Some(rest) => format!(".{rest}"),
                None => name,
            }
        };
        let mut names: Vec<String> = names.iter().map(lower).collect();
        names.push(".localhost".to_string());
        if let Some(own) = crate::process::host_name() {
            let own = own.to_ascii_lowercase();
            names.push(format!("{own}.local"));
            names.push(own);
        }
        Self(Arc::new(Rules {
            names,
            origins: origins
                .iter()
                .map(|origin| origin.trim().to_string())
                .collect(),
            keyed,
        }))
    }

    /// Whether to answer a request.
    ///
    /// # Errors
    /// 403 `FOREIGN_HOST` or `FOREIGN_ORIGIN`, with the option that lets it in.
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let is_kept = headers.get(AUTHORIZATION).and_then(basic).is_some();
        if self.0.keyed && !is_kept {
            return Ok(());
        }
        let forbidden = |code, message| Err(ApiError::new(StatusCode::FORBIDDEN, code, message));
        let foreign = (!self.0.keyed).then(|| self.0.foreign_host(uri, headers));
        if let Some(host) = foreign.flatten() {
            return forbidden(
                "FOREIGN_HOST",
                format!(
                    "this server is not known by the name {host:?}: call it by its address or as localhost, or start \
                     it with --allowed-host NAME or with --api-key"
                ),
            );
        }
        match self.0.foreign_origin(method, headers) {
            Some(origin) => forbidden(
                "FOREIGN_ORIGIN",
                format!(
                    "pages of {origin} may not use this server; start it with --cors-origin ORIGIN to let them, or \
                     with --api-key"
                ),
            ),
            None => Ok(()),
        }
    }
}

impl Rules {
    /// The name by which a request came, if it is none of the server's.
    fn foreign_host(&self, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let named = headers.get_all(HOST).iter().map(|host| host.as_bytes());
        let in_line = uri
            .authority()
            .map(|authority| authority.as_str().as_bytes());
        let mut hosts = named.chain(in_line);
        hosts
            .find(|host| !self.is_own_host(host))
            .map(|host| String::from_utf8_lossy(host).into_owned())
    }

    fn is_own_host(&self, host: &[u8]) -> bool {
        if self.names.iter().any(|name| name == "*") {
            return true;
        }
        let authority = std::str::from_utf8(host).ok();
        let authority = authority.and_then(|host| host.parse::<Authority>().ok());
        let Some(authority) = authority.filter(|authority| !authority.as_str().contains('@'))
        else {
            return false;
        };
        let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let digits = host.trim_start_matches('[').trim_end_matches(']');
        if digits.parse::<IpAddr>().is_ok() {
            return true;
        }
        let is_listed = |name: &String| match name.strip_prefix('.') {
            Some(_) => host.ends_with(name.as_str()),
            None => host == *name,
        };
        let is_local = !host.is_empty() && !host.contains('.');
        is_local || self.names.iter().any(is_listed)
    }

    /// The origin of the page that a request comes from, if it may not call.
    fn foreign_origin(&self, method: &Method, headers: &HeaderMap) -> Option<String> {
        if self.origins.iter().any(|origin| origin == "*") {
            return None;
        }
        let mut named = headers.get_all(ORIGIN).iter().peekable();
        if named.peek().is_some() {
            return named
                .find(|origin| !self.is_known_origin(origin.as_bytes(), headers))
                .map(|origin| String::from_utf8_lossy(origin.as_bytes()).into_owned());
        }
        let is = |name: &HeaderName, values: &[&str]| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.is_some_and(|value| values.contains(&value))
        };
        let is_foreign = is(&SEC_FETCH_SITE, &["cross-site", "same-site"]);
        let is_shown = matches!(*method, Method::GET | Method::HEAD)
            && (is(&SEC_FETCH_MODE, &["navigate"]) || is(&SEC_FETCH_DEST, &["image"]));
        (is_foreign && !is_shown).then(|| "other sites".to_string())
    }

    fn is_known_origin(&self, origin: &[u8], headers: &HeaderMap) -> bool {
        let Ok(origin) = std::str::from_utf8(origin) else {
            return false;
        };
        if self.origins.iter().any(|known| known == origin) {
            return true;
        }
        let Some((_, page)) = origin.split_once("://") else {
            return false;
        };
        let own = headers.get(HOST).and_then(|host| host.to_str().ok());
        // What a proxy in front says: no page can send these headers here without being asked for leave first.
        let forwarded = forwarded_host(headers);
        let mut own = own.into_iter().chain(forwarded.as_deref());
        own.any(|host| without_default_port(host).eq_ignore_ascii_case(without_default_port(page)))
    }
}

/// Browsers leave out the ports of `http` and `https`, proxies may not.
fn without_default_port(host: &str) -> &str {
    let shorter = host.strip_suffix(":80").or(host.strip_suffix(":443"));
    // Not the end of an IPv6 address.
    let shorter = shorter.filter(|rest| !rest.starts_with('[') || rest.ends_with(']'));
    shorter.unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        map
    }

    struct Server {
        names: &'static [&'static str],
        origins: &'static [&'static str],
        keyed: bool,
    }

    const LOOPBACK: Server = Server {
        names: &[],
        origins: &[],
        keyed: false,
    };

    impl Server {
        /// The code of the refusal.
        fn ask(&self, method: Method, lines: &[(&str, &str)]) -> Option<&'static str> {
            let texts =
                |list: &[&str]| list.iter().map(|text| text.to_string()).collect::<Vec<_>>();
            let (names, origins) = (texts(self.names), texts(self.origins));
            let callers = Callers::new(&names, &origins, self.keyed);
            let checked = callers.check(&method, &Uri::from_static("/x"), &headers(lines));
            checked.err().map(|error| {
                assert_eq!(error.status, 403);
                error.code
            })
        }

        fn host(&self, host: &str) -> Option<&'static str> {
            self.ask(Method::GET, &[("host", host)])
        }
    }

    #[test]
    fn names_that_may_be_rebound_are_refused() {
        for good in [
            "localhost",
            "localhost:8080",
            "LOCALHOST.:1",
            "app.localhost",
            "llm:8080",
            "127.0.0.1:8080",
            "10.1.2.3",
            "[::1]:8080",
            "[fe80::1]",
        ] {
            assert_eq!(LOOPBACK.host(good), None, "{good}");
        }
        for bad in [
            "attacker.example",
            "attacker.example:8080",
            "127.0.0.1.attacker.example",
            "localhost.attacker.example",
            "x@127.0.0.1",
            "not.localhost.example",
            "",
            "a b",
        ] {
            assert_eq!(LOOPBACK.host(bad), Some("FOREIGN_HOST"), "{bad}");
        }
        let own = crate::process::host_name().unwrap();
        assert_eq!(LOOPBACK.host(&own), None, "{own}");
        // HTTP/1.0 has none.
        assert_eq!(LOOPBACK.ask(Method::GET, &[]), None);
        let two = [("host", "localhost"), ("host", "attacker.example")];
        assert_eq!(LOOPBACK.ask(Method::GET, &two), Some("FOREIGN_HOST"));
        let callers = Callers::new(&[], &[], false);
        let line = Uri::from_static("http://attacker.example/v1/jobs");
        callers
            .check(&Method::GET, &line, &headers(&[("host", "localhost")]))
            .unwrap_err();
    }

    #[test]
    fn names_can_be_let_in() {
        let server = Server {
            names: &["llm.example.org", "*.cluster.local", "Home.Example"],
            ..LOOPBACK
        };
        for good in [
            "llm.example.org:80",
            "llm.ns.svc.cluster.local",
            "home.example",
        ] {
            assert_eq!(server.host(good), None, "{good}");
        }
        for bad in [
            "example.org",
            "x.llm.example.org",
            "cluster.local",
            "evilcluster.local",
        ] {
            assert_eq!(server.host(bad), Some("FOREIGN_HOST"), "{bad}");
        }
        let any = Server {
            names: &["*"],
            ..LOOPBACK
        };
        assert_eq!(any.host("attacker.example"), None);
        let keyed = Server {
            keyed: true,
            ..LOOPBACK
        };
        assert_eq!(keyed.host("attacker.example"), None);
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let post = |server: &Server, lines: &[(&str, &str)]| server.ask(Method::POST, lines);
        let host = ("host", "localhost:8080");
        assert_eq!(post(&LOOPBACK, &[host]), None);
        for own in ["http://localhost:8080", "https://LocalHost:8080"] {
            assert_eq!(post(&LOOPBACK, &[host, ("origin", own)]), None, "{own}");
        }
        for foreign in [
            "http://localhost:39301",
            "https://evil.example",
            "null",
            "",
            "http://localhost",
        ] {
            let lines = [host, ("origin", foreign)];
            assert_eq!(post(&LOOPBACK, &lines), Some("FOREIGN_ORIGIN"), "{foreign}");
            let keyed = Server {
                keyed: true,
                ..LOOPBACK
            };
            assert_eq!(post(&keyed, &lines), None, "{foreign}");
            // What a browser sends by itself.
            let kept = [host, ("origin", foreign), ("authorization", "Basic YTpi")];
            assert_eq!(post(&keyed, &kept), Some("FOREIGN_ORIGIN"), "{foreign}");
            let named = [
                ("host", "pictures.example"),
                ("authorization", "Basic YTpi"),
            ];
            assert_eq!(post(&keyed, &named), None);
        }
        let listed = Server {
            origins: &["https://pages.example"],
            ..LOOPBACK
        };
        assert_eq!(
            post(&listed, &[host, ("origin", "https://pages.example")]),
            None
        );
        let other = [host, ("origin", "https://pages.example.evil")];
        assert_eq!(post(&listed, &other), Some("FOREIGN_ORIGIN"));
        let any = Server {
            origins: &["*"],
            ..LOOPBACK
        };
        assert_eq!(post(&any, &other), None);
        // Behind a proxy that has its own name for this server.
        let page = ("origin", "https://chat.example");
        let proxied = [host, page, ("x-forwarded-host", "chat.example:443")];
        assert_eq!(post(&LOOPBACK, &proxied), None);
        assert_eq!(
            post(
                &LOOPBACK,
                &[("host", "[::1]:80"), ("origin", "http://[::1]")]
            ),
            None
        );
    }

    #[test]
    fn what_a_page_cannot_read_may_be_shown() {
        let site = |method: Method, lines: &[(&str, &str)]| LOOPBACK.ask(method, lines);
        for own in ["same-origin", "none"] {
            assert_eq!(
                site(Method::POST, &[("sec-fetch-site", own)]),
                None,
                "{own}"
            );
        }
        for foreign in ["cross-site", "same-site"] {
            let from = ("sec-fetch-site", foreign);
            assert_eq!(site(Method::POST, &[from]), Some("FOREIGN_ORIGIN"));
            assert_eq!(site(Method::GET, &[from]), Some("FOREIGN_ORIGIN"));
            assert_eq!(
                site(Method::GET, &[from, ("sec-fetch-mode", "navigate")]),
                None
            );
            assert_eq!(
                site(Method::GET, &[from, ("sec-fetch-dest", "image")]),
                None
            );
            let posted = site(Method::POST, &[from, ("sec-fetch-mode", "navigate")]);
            assert_eq!(posted, Some("FOREIGN_ORIGIN"));
        }
    }
}
