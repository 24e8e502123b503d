//! Where ranks of other processes are waited for.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr};

/// The address to listen at: of the first interface that `NCCL_SOCKET_IFNAME` allows (a comma list of beginnings; `=`
/// before it asks for whole names, `^` excludes them), else of the first one that is neither the loopback nor Docker's,
/// else the loopback.
pub(super) fn address() -> IpAddr {
    let wish = std::env::var("NCCL_SOCKET_IFNAME").unwrap_or_default();
    let interfaces = interfaces();
    let found = match wish.is_empty() {
        true => choose(&interfaces, "^lo,docker"),
        false => choose(&interfaces, &wish),
    };
    found.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The first interface that a value of `NCCL_SOCKET_IFNAME` allows.
fn choose(interfaces: &[(String, IpAddr)], wish: &str) -> Option<IpAddr> {
    let excludes = wish.starts_with('^');
    let list = wish.trim_start_matches('^');
    let (whole, list) = (list.starts_with('='), list.trim_start_matches('='));
    let fits = |name: &str| {
        (list.split(',')).any(|wanted| {
            if whole {
                name == wanted
            } else {
                name.starts_with(wanted)
            }
        })
    };
    let allowed = interfaces.iter().find(|(name, _)| fits(name) != excludes);
    allowed.map(|(_, address)| *address)
}

/// Names and IPv4 addresses of the interfaces that are up.
fn interfaces() -> Vec<(String, IpAddr)> {
    let mut found = Vec::new();
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the pointer receives a list.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return found;
    }
    let mut next = first;
    // SAFETY: the list ends with null, and its entries live until it is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        // SAFETY: an address is null or tells its family in its beginning.
        let family = unsafe { entry.ifa_addr.as_ref() }.map(|address| address.sa_family);
        if is_up && family == Some(libc::AF_INET as libc::sa_family_t) {
            // SAFETY: of this family, an address is a sockaddr_in; the name is a C string.
            let (address, name) = unsafe {
                let address = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                (address.sin_addr.s_addr, CStr::from_ptr(entry.ifa_name))
            };
            let address = Ipv4Addr::from(address.to_ne_bytes());
            found.push((name.to_string_lossy().into_owned(), IpAddr::V4(address)));
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs.
    unsafe { libc::freeifaddrs(first) };
    found
}

#[cfg(test)]
mod tests {
    use super::{choose, IpAddr, Ipv4Addr};

    #[test]
    fn interfaces_are_chosen_as_nccl_does() {
        let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        let interfaces = ["lo", "docker0", "eth0", "eth01"].map(str::to_string);
        let interfaces: Vec<_> = (interfaces.into_iter().zip(0..))
            .map(|(n, i)| (n, address(i)))
            .collect();
        for (wish, last) in [
            ("^lo,docker", Some(2)),
            ("eth", Some(2)),
            ("=eth01", Some(3)),
            ("^=lo,docker0,eth0", Some(3)),
            ("lo", Some(0)),
            ("ib", None),
        ] {
            assert_eq!(choose(&interfaces, wish), last.map(address), "{wish}");
        }
    }
}
