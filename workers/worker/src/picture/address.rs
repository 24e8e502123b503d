//! Pictures and sounds by their address: in the address itself, on disk, on the network; the latter two where the operator
//! allows them.

use super::{from_base64, DecodeLimits};
use crate::{Error, Result};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::Agent;
use url::Url;

/// Redirects that one request may follow.
const MAX_REDIRECTS: usize = 5;
/// Time for a file to come, redirects included.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Where pictures and sounds may come from, besides `data:` URLs.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The folder whose files may be named, as paths below it or `file:` URLs.
    pub folder: Option<PathBuf>,
    /// Hosts that files may be fetched from.
    pub domains: Vec<String>,
    /// What pictures may be.
    pub limits: DecodeLimits,
}

impl Sources {
    /// The bytes of a picture's or a sound's file.
    ///
    /// # Errors
    /// [`Error::Usage`] for an address that is malformed or not allowed, for a file that is not there or longer than
    /// the limits allow.
    pub fn load(&self, address: &str) -> Result<Vec<u8>> {
        if address.starts_with("data:") {
            return match address.split_once(',') {
                Some((head, _)) if head.ends_with(";base64") => from_base64(address, &self.limits),
                _ => Err(usage("a data: URL needs \";base64,\" before the data")),
            };
        }
        if address.starts_with("http://") || address.starts_with("https://") {
            return self.fetch(address);
        }
        match address.strip_prefix("file:") {
            Some(rest) => {
                let url = Url::parse(address).ok();
                let whole = url.and_then(|url| url.to_file_path().ok());
                // As llama.cpp's server has it, the path may also begin at the folder.
                let below = rest.trim_start_matches('/');
                let found = whole.map(|path| self.read(&path)).and_then(Result::ok);
                found.map_or_else(|| self.read(Path::new(below)), Ok)
            }
            None => self.read(Path::new(address)),
        }
    }

    /// A file below the folder.
    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let Some(folder) = &self.folder else {
            return Err(usage(
                "files by path are not allowed here (--media-path FOLDER allows those in it); send a data: URL",
            ));
        };
        // One answer for all: nobody finds out what lies elsewhere.
        let refused = || usage("there is no such file in the folder of --media-path");
        let folder = folder.canonicalize().map_err(|_| refused())?;
        let path = folder.join(path).canonicalize().map_err(|_| refused())?;
        if !path.starts_with(&folder) {
            return Err(refused());
        }
        crate::file::read(&path, self.limits.max_bytes as u64).map_err(|_| refused())
    }

    fn fetch(&self, address: &str) -> Result<Vec<u8>> {
        if self.domains.is_empty() {
            return Err(usage(
                "files by address are not allowed here (--allowed-media-domains allows those of some hosts); send a data: URL",
            ));
        }
        let config = Agent::config_builder()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            // A proxy would look names up itself, out of this program's sight.
            .proxy(None)
            .user_agent(concat!("candle-rocm/", env!("CARGO_PKG_VERSION")))
            .build();
        let agent = Agent::with_parts(config, DefaultConnector::new(), Public::default());
        let mut url = Url::parse(address).map_err(|e| usage(format!("the address: {e}")))?;
        for _ in 0..=MAX_REDIRECTS {
            self.check(&url)?;
            let failed = |e: ureq::Error| usage(format!("the file does not come: {e}"));
            let response = agent.get(url.as_str()).call().map_err(failed)?;
            let (head, body) = response.into_parts();
            match head.status.as_u16() {
                200 => return self.body(body),
                301 | 302 | 303 | 307 | 308 => {
                    let location = head.headers.get("location").and_then(|l| l.to_str().ok());
                    let next = location.and_then(|location| url.join(location).ok());
                    url = next.ok_or_else(|| usage("the file's host redirects to nowhere"))?;
                }
                status => {
                    return Err(usage(format!(
                        "the file's host answers with status {status}"
                    )))
                }
            }
        }
        Err(usage("the file's host redirects too often"))
    }

    fn body(&self, body: ureq::Body) -> Result<Vec<u8>> {
        let most = self.limits.max_bytes as u64;
        let mut bytes = Vec::new();
        let mut reader = body.into_reader().take(most + 1);
        reader
            .read_to_end(&mut bytes)
            .map_err(|e| usage(format!("the file does not come: {e}")))?;
        match bytes.len() as u64 > most {
            true => Err(usage(format!("the file is longer than {most} bytes"))),
            false => Ok(bytes),
        }
    }

    /// Whether an address, of the request or a redirect, may be asked.
    fn check(&self, url: &Url) -> Result<()> {
        let plain = matches!(url.scheme(), "http" | "https")
            && url.username().is_empty()
            && url.password().is_none();
        let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
        let allowed = |domain: &String| {
            let domain = domain.trim_start_matches('.').to_ascii_lowercase();
            host == domain || host.ends_with(&format!(".{domain}"))
        };
        match plain && self.domains.iter().any(allowed) {
            true => Ok(()),
            false => Err(usage(format!(
                "files from {host:?} are not allowed here (--allowed-media-domains)"
            ))),
        }
    }
}

/// Looks names up, and knows no private addresses.
#[derive(Debug, Default)]
struct Public(DefaultResolver);

impl Resolver for Public {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> std::result::Result<ResolvedSocketAddrs, ureq::Error> {
        let all = self.0.resolve(uri, config, timeout)?;
        let mut public = self.empty();
        for address in all.iter().filter(|address| is_public(address.ip())) {
            public.push(*address);
        }
        match public.is_empty() {
            true => Err(ureq::Error::HostNotFound),
            false => Ok(public),
        }
    }
}

/// Whether an address is one of the internet, by IANA's registries of special addresses.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => is_public_v4(ip),
            None => is_public_v6(ip),
        },
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_broadcast()
        || ip.is_documentation()
        || ip.is_multicast()
        || a == 0
        || a >= 240
        // Carriers' own, protocols, benchmarks.
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (18..20).contains(&b)))
}

/// Only global unicast, without what leads to addresses of IPv4 again, and without documentation.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    let translated = a == 0x2002 || (a == 0x2001 && b < 0x200);
    (0x2000..0x4000).contains(&a) && !translated && !(a == 0x2001 && b == 0xdb8)
}

fn usage(text: impl Into<String>) -> Error {
    Error::Usage(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(sources: &Sources, address: &str) -> String {
        sources.load(address).unwrap_err().to_string()
    }

    #[test]
    fn private_addresses_are_known() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "::ffff:127.0.0.1",
            "2002:7f00:1::",
            "64:ff9b::7f00:1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in ["8.8.8.8", "172.15.0.1", "2606:4700::1111"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn only_what_is_allowed_is_read() {
        let none = Sources::default();
        assert_eq!(none.load("data:image/png;base64,aGk=").unwrap(), b"hi");
        assert!(refusal(&none, "data:image/png,hi").contains("base64"));
        assert!(refusal(&none, "/etc/hostname").contains("--media-path"));
        assert!(refusal(&none, "https://example.org/a.png").contains("--allowed-media-domains"));

        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.png"), b"a").unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        let outside = outside.path().to_str().unwrap();
        std::os::unix::fs::symlink(outside, folder.path().join("link")).unwrap();
        let sources = Sources {
            folder: Some(folder.path().to_path_buf()),
            domains: vec!["example.org".to_string(), "127.0.0.1".to_string()],
            ..Sources::default()
        };
        assert_eq!(sources.load("a.png").unwrap(), b"a");
        let url = Url::from_file_path(folder.path().canonicalize().unwrap().join("a.png"));
        assert_eq!(sources.load(url.unwrap().as_str()).unwrap(), b"a");
        for below in ["file://a.png", "file:///a.png", "file:a.png"] {
            assert_eq!(sources.load(below).unwrap(), b"a", "{below}");
        }
        assert!(refusal(&sources, "file://../a").contains("no such"));
        for path in [outside, "link", "../a", "b.png", "."] {
            assert!(refusal(&sources, path).contains("no such"), "{path}");
        }
        for url in [
            "https://example.com/a",
            "https://notexample.org/a",
            "https://user@example.org/a",
        ] {
            assert!(refusal(&sources, url).contains("not allowed"), "{url}");
        }
        // Allowed by name, and yet private.
        assert!(refusal(&sources, "http://127.0.0.1:1/a").contains("does not come"));
    }
}
