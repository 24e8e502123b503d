//! The other nodes: they come to node 0. And further connections between any two nodes.

use super::handshake::{introduce, Introduction, Refusal};
use super::leader::{PURPOSE, REPORT};
use super::meeting::{Meeting, Roster};
use super::{Connection, Rendezvous};
use crate::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Comes to node 0, and waits with it for the others.
pub fn join(
    rendezvous: &Rendezvous,
    card: &[u8],
    mut tell: impl FnMut(String),
) -> Result<Meeting, Error> {
    let begun = Instant::now();
    let deadline = begun + rendezvous.timeout;
    let own = Introduction {
        purpose: PURPOSE.to_string(),
        from: rendezvous.node_rank,
        of: rendezvous.nodes,
    };
    let mut report = begun + REPORT;
    let (stream, listener) = loop {
        let reason = match come(rendezvous, &own, card, deadline) {
            Ok(found) => break found,
            Err(Refusal::Final(reason)) => {
                return Err(rendezvous.error(format!(
                    "node {} was sent away: {reason}",
                    rendezvous.node_rank
                )))
            }
            Err(Refusal::Passing(reason)) => reason,
        };
        let waited = begun.elapsed();
        if waited >= rendezvous.timeout {
            return Err(rendezvous.error(format!(
                "node {} did not reach node 0 within {} s: {reason}; was it started, is its port open to this host?",
                rendezvous.node_rank,
                waited.as_secs()
            )));
        }
        if Instant::now() >= report {
            report = Instant::now() + REPORT;
            tell(format!(
                "node {}: waiting for node 0 at {} ({} s of {} s): {reason}",
                rendezvous.node_rank,
                rendezvous.address,
                waited.as_secs(),
                rendezvous.timeout.as_secs()
            ));
        }
        std::thread::sleep(PAUSE);
    };
    let mut connection = Connection::new(0, stream);
    let roster = loop {
        // Node 0 waits no longer than it was told to, which may be longer than here.
        let left = deadline.saturating_duration_since(Instant::now());
        match connection.receive(Some(left.min(REPORT))) {
            Ok(bytes) => break Roster::from_bytes(&bytes, rendezvous)?,
            Err(Error::NodeSilent { .. }) if !left.is_zero() => tell(format!(
                "node {}: connected to {}, waiting for the other nodes ({} s of {} s)",
                rendezvous.node_rank,
                rendezvous.address,
                begun.elapsed().as_secs(),
                rendezvous.timeout.as_secs()
            )),
            Err(error) => return Err(rendezvous.error(error.to_string())),
        }
    };
    Ok(Meeting::new(rendezvous, listener, vec![connection], roster))
}

/// One attempt; on success with what other nodes reach this one by.
fn come(
    rendezvous: &Rendezvous,
    own: &Introduction,
    card: &[u8],
    deadline: Instant,
) -> Result<(TcpStream, TcpListener), Refusal> {
    let stream = connect(&rendezvous.address, deadline)?;
    // One that shares node 0's host may have come over an address that others do not reach.
    let here: IpAddr = match stream.local_addr()?.ip() {
        ip if rendezvous.is_on_this_host() => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let listener = TcpListener::bind((here, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port().to_le_bytes();
    introduce(&stream, &rendezvous.token, own, &[&port, card].concat())?;
    Ok((stream, listener))
}

/// Connects to a `host:port`. Names are resolved each time: they may appear later than this process.
pub fn connect(address: &str, deadline: Instant) -> Result<TcpStream, Refusal> {
    let mut reason = "its name has no address".to_string();
    for found in address.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&found, left.min(ATTEMPT)) {
            Ok(stream) => return Ok(stream),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(Refusal::Passing(reason))
}
