//! How the processes of several hosts find each other.
//!
//! Each process is a node. Node 0 listens at an address that all know; the others come to it, until all are there or
//! the time is over. Both sides prove that they know the same token, by HMAC-SHA256 ([RFC 2104]) over random numbers of
//! both, so that a stranger, a scanner of ports or a process of another job is sent away and the token is not on the
//! wire. What is said afterwards is neither encrypted nor signed: hosts meet in a network that they trust.
//!
//! [`Rendezvous::from_env`] takes the place of a process from what mpirun, Slurm, Kubernetes' LeaderWorkerSet or
//! torchrun put into the environment. What a [`Meeting`] gives can carry the messages of a program
//! ([`Connection`]), tensors over TCP ([`tcp`](crate::tcp)), or the identity that RCCL starts from
//! ([`rccl`](crate::rccl)).
//!
//! ```
//! use candle_rocm_collective::rendezvous::Rendezvous;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), candle_rocm_collective::Error> {
//! let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
//! let place = |node_rank| Rendezvous {
//!     address: format!("127.0.0.1:{port}"),
//!     node_rank,
//!     nodes: 2,
//!     timeout: Duration::from_secs(60),
//!     token: "shared".to_string(),
//! };
//! std::thread::scope(|scope| {
//!     let other = scope.spawn(move || place(1).meet(b"two GPUs"));
//!     let mut first = place(0).meet(b"one GPU")?;
//!     assert_eq!(first.cards(), [b"one GPU".to_vec(), b"two GPUs".to_vec()]);
//!     let mut other = other.join().unwrap()?;
//!     first.connections()[0].send(b"begin")?;
//!     assert_eq!(other.connections()[0].receive(None)?, b"begin");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! [RFC 2104]: https://www.rfc-editor.org/rfc/rfc2104

mod connection;
mod handshake;
mod launcher;
mod leader;
mod link;
mod meeting;

pub use connection::Connection;
pub use launcher::{first_host, Launcher, Place, DEFAULT_PORT, TOKEN_VARIABLE};
pub use meeting::Meeting;

use crate::Error;
use std::net::IpAddr;
use std::time::Duration;

/// Where and with whom a process meets the others.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// `host:port` at which node 0 listens and to which the others come; `[address]:port` for IPv6.
    pub address: String,
    /// This process, from 0.
    pub node_rank: usize,
    /// Number of processes.
    pub nodes: usize,
    /// How long is waited for the others.
    pub timeout: Duration,
    /// What all processes of the group know and nobody else: a secret, or at least the job's number.
    pub token: String,
}

impl std::fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the token: this ends up in logs.
        f.debug_struct("Rendezvous")
            .field("address", &self.address)
            .field("node_rank", &self.node_rank)
            .field("nodes", &self.nodes)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// How long is waited unless told otherwise: hosts of one job may start minutes apart.
pub const TIMEOUT: Duration = Duration::from_secs(600);

impl Rendezvous {
    /// The place that a launcher gave this process; `None` if no launcher's variables are there, or just one process.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] for variables that contradict each other, or say no address.
    pub fn from_env() -> Result<Option<Self>, Error> {
        Place::from_env()?.map_or(Ok(None), |place| place.rendezvous().map(Some))
    }

    /// Meets the other nodes, and tells on the error output who is missing. `card` is what the others get to read of
    /// this node ([`Meeting::cards`]), at most 64 KiB.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if not all came in time, or if node 0 sent this one away.
    pub fn meet(&self, card: &[u8]) -> Result<Meeting, Error> {
        self.meet_telling(card, |line| eprintln!("{line}"))
    }

    /// The same for programs that have a log of their own: `tell` gets a line each few seconds that says who is
    /// missing, and one for each stranger who was sent away.
    ///
    /// # Errors
    /// Those of [`Rendezvous::meet`].
    pub fn meet_telling(&self, card: &[u8], tell: impl FnMut(String)) -> Result<Meeting, Error> {
        self.check(card)?;
        match self.node_rank {
            0 => leader::gather(self, card, tell),
            _ => link::join(self, card, tell),
        }
    }

    fn check(&self, card: &[u8]) -> Result<(), Error> {
        let reason = if self.nodes == 0 || self.node_rank >= self.nodes {
            format!(
                "there is no node {} among {}: nodes count from 0",
                self.node_rank, self.nodes
            )
        } else if u32::try_from(self.nodes).is_err() {
            format!("{} nodes are too many", self.nodes)
        } else if card.len() > handshake::CARD_BYTES {
            format!(
                "a node's card has {} bytes, more than {}",
                card.len(),
                handshake::CARD_BYTES
            )
        } else if self.token.is_empty() {
            format!("nodes know each other by a token, and there is none: set the same {TOKEN_VARIABLE} for all")
        } else {
            return Ok(());
        };
        Err(self.error(reason))
    }

    fn error(&self, reason: impl Into<String>) -> Error {
        Error::Rendezvous {
            address: self.address.clone(),
            reason: reason.into(),
        }
    }

    /// Whether the address means this host alone. A name may stand for an address that only the host itself knows, so
    /// that nothing is said of it.
    fn is_on_this_host(&self) -> bool {
        let host = self.host();
        let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// The host of the address, without port.
    fn host(&self) -> &str {
        self.address.rsplit_once(':').map_or("", |(host, _)| host)
    }
}

/// Numbers as people list them: `2, 3`; a long list is cut.
fn listed(numbers: &[usize]) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<String> = numbers.iter().take(SHOWN).map(usize::to_string).collect();
    let more = numbers.len().saturating_sub(SHOWN);
    match more {
        0 => shown.join(", "),
        _ => format!("{} and {more} more", shown.join(", ")),
    }
}
