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
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    // Each proxy adds an entry; the first one stood before the client.
    let first = |text: &'_ str| {
        text.split(',')
            .next()
            .unwrap_or_default()
            .trim()
            .to_string()
    };
    let forwarded = text(FORWARDED).map(first).unwrap_or_default();
    let pair = |name: &str| {
        forwarded.split(';').find_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            let value = value.trim().trim_matches('"').to_string();
            key.trim().eq_ignore_ascii_case(name).then_some(value)
        })
    };
    let scheme = pair("proto")
        .into_iter()
        .chain(text(X_FORWARDED_PROTO).map(first))
        .map(|scheme| scheme.to_ascii_lowercase())
        .find(|scheme| ["http", "https"].contains(&scheme.as_str()));
    let host = pair("host")
        .into_iter()
        .chain(text(X_FORWARDED_HOST).map(first))
        .chain(text(HOST).map(str::to_string))
        .find(|host| is_host(host));
    format!(
        "{}://{}",
        scheme.as_deref().unwrap_or("http"),
        host.unwrap_or_else(|| format!("127.0.0.1:{port}"))
    )
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
