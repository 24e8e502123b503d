//! The address under which a client reached this server, for answers that carry whole URLs.

use axum::http::header::{FORWARDED, HOST};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName};

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// `scheme://host` as the client knows it: what a proxy in front says in `Forwarded` (RFC 7239) or `X-Forwarded-Proto`
/// and `X-Forwarded-Host`, else `http` and `Host`, else this machine with `port`.
///
/// A client can make these headers up; it is misled by nobody but itself. What is no scheme or no host counts as not
/// there.
pub fn base_url(headers: &HeaderMap, port: u16) -> String {
    let scheme = forwarded(headers, "proto")
        .into_iter()
        .chain(first(headers, X_FORWARDED_PROTO))
        .map(|scheme| scheme.to_ascii_lowercase())
        .find(|scheme| ["http", "https"].contains(&scheme.as_str()));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = forwarded_host(headers).or(host.filter(|host| is_host(host)).map(str::to_string));
    format!(
        "{}://{}",
        scheme.as_deref().unwrap_or("http"),
        host.unwrap_or_else(|| format!("127.0.0.1:{port}"))
    )
}

/// The host by which the client knows this server, if a proxy in front says so.
pub fn forwarded_host(headers: &HeaderMap) -> Option<String> {
    forwarded(headers, "host")
        .into_iter()
        .chain(first(headers, X_FORWARDED_HOST))
        .find(|host| is_host(host))
}

/// The first entry of a header that lists some: each proxy adds one, and the first one stood before the client.
fn first(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    let text = headers.get(name).and_then(|value| value.to_str().ok())?;
    text.split(',').next().map(|first| first.trim().to_string())
}

/// What `Forwarded` says of a thing.
fn forwarded(headers: &HeaderMap, name: &str) -> Option<String> {
    first(headers, FORWARDED)?.split(';').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let value = value.trim().trim_matches('"').to_string();
        key.trim().eq_ignore_ascii_case(name).then_some(value)
    })
}

/// Whether a text is a name or an address with or without a port, and nothing else. An authority may have more signs
/// (`'`, `(`, `;`, `%`) than names of hosts do; whoever puts the address into a page or a shell would meet them.
fn is_host(text: &str) -> bool {
    let Ok(authority) = text.parse::<Authority>() else {
        return false;
    };
    let host = authority.host();
    let address = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let is_right = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
        }
    };
    let port = match authority.port() {
        Some(port) => format!(":{port}"),
        None => String::new(),
    };
    is_right && text == format!("{host}{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&str, &str)]) -> String {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        base_url(&map, 8080)
    }

    #[test]
    fn what_stands_in_front_of_the_server_counts() {
        assert_eq!(of(&[]), "http://127.0.0.1:8080");
        let host = ("host", "inner:8080");
        assert_eq!(of(&[host]), "http://inner:8080");
        assert_eq!(of(&[("host", "[::1]:8080")]), "http://[::1]:8080");
        let proto = ("x-forwarded-proto", "https");
        assert_eq!(of(&[host, proto]), "https://inner:8080");
        let two = ("x-forwarded-proto", "HTTPS, http");
        let outer = ("x-forwarded-host", "outer.example, inner");
        assert_eq!(of(&[host, two, outer]), "https://outer.example");
        let rfc = "for=192.0.2.1;proto=https;Host=\"outer.example:8443\", for=10.0.0.1;proto=http";
        assert_eq!(
            of(&[host, ("forwarded", rfc)]),
            "https://outer.example:8443"
        );
    }

    #[test]
    fn nonsense_counts_as_absent() {
        let host = ("host", "inner");
        for (name, value) in [
            ("x-forwarded-proto", "javascript"),
            ("x-forwarded-proto", ""),
            ("x-forwarded-host", "a b"),
            ("x-forwarded-host", "user@outer"),
            ("x-forwarded-host", "outer/path"),
            ("x-forwarded-host", "outer';alert(1)"),
            ("x-forwarded-host", "%3cscript%3e"),
            ("x-forwarded-host", "[::1"),
            ("x-forwarded-host", "[a'b]"),
            ("x-forwarded-host", "outer:"),
            ("x-forwarded-host", ":80"),
            ("forwarded", "proto; host=\"<script>\""),
            ("forwarded", ";;=,"),
        ] {
            assert_eq!(
                of(&[host, (name, value)]),
                "http://inner",
                "{name}: {value}"
            );
        }
    }
}
