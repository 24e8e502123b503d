//! All nodes, met.

use super::handshake::{admit, introduce, Introduction, Refusal};
use super::leader::NAP;
use super::link::connect;
use super::{Connection, Rendezvous};
use crate::Error;
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The nodes of a group, after they have met: node 0 is connected to every other one. All nodes make the same calls in
/// the same order.
#[derive(Debug)]
pub struct Meeting {
    rendezvous: Rendezvous,
    listener: TcpListener,
    connections: Vec<Connection>,
    roster: Roster,
    /// How many sets of further connections were made.
    channels: usize,
}

/// An end of a further connection: a node, and which of the things of the whole group that stand there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct End {
    pub node: usize,
    pub id: usize,
}

impl Meeting {
    pub(super) fn new(
        rendezvous: &Rendezvous,
        listener: TcpListener,
        connections: Vec<Connection>,
        roster: Roster,
    ) -> Self {
        Self {
            rendezvous: rendezvous.clone(),
            listener,
            connections,
            roster,
            channels: 0,
        }
    }

    /// This node, from 0.
    pub fn node(&self) -> usize {
        self.rendezvous.node_rank
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.rendezvous.nodes
    }

    /// How long nodes wait for each other.
    pub fn timeout(&self) -> Duration {
        self.rendezvous.timeout
    }

    /// What each node brought to the meeting, in their order.
    pub fn cards(&self) -> &[Vec<u8>] {
        &self.roster.cards
    }

    /// Where each node is reached, as `host:port`, in their order.
    pub fn addresses(&self) -> &[String] {
        &self.roster.addresses
    }

    /// On node 0 the connections to nodes 1, 2, …; on each other node the one to node 0.
    pub fn connections(&mut self) -> &mut [Connection] {
        &mut self.connections
    }

    /// The connections for the caller's own use; further sets are made by [`Meeting::star`].
    pub fn into_connections(self) -> Vec<Connection> {
        self.connections
    }

    /// Node 0's message for every node; those of the others do not count.
    ///
    /// # Errors
    /// [`Error::NodeFailed`], [`Error::NodeSilent`].
    pub fn broadcast(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        if self.node() != 0 {
            let limit = self.timeout();
            return self.connections[0].receive(Some(limit));
        }
        for connection in &mut self.connections {
            connection.send(message)?;
        }
        Ok(message.to_vec())
    }

    /// The messages of all nodes in their order, on every node.
    ///
    /// # Errors
    /// [`Error::NodeFailed`], [`Error::NodeSilent`].
    pub fn all_gather(&mut self, message: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let limit = self.timeout();
        let mut all = vec![message.to_vec()];
        if self.node() == 0 {
            for connection in &mut self.connections {
                all.push(connection.receive(Some(limit))?);
            }
        } else {
            self.connections[0].send(message)?;
        }
        let mut packed = Vec::new();
        for message in &all {
            put(&mut packed, message);
        }
        let packed = self.broadcast(&packed)?;
        let mut rest = &packed[..];
        let all: Option<Vec<Vec<u8>>> = (0..self.nodes())
            .map(|_| take(&mut rest).map(<[u8]>::to_vec))
            .collect();
        all.ok_or_else(|| Error::NodeFailed {
            node: 0,
            reason: "it sent the messages of another number of nodes".to_string(),
        })
    }

    /// Another set of connections like [`Meeting::connections`], for traffic of its own, such as signs of life.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if a node is not reached in time.
    pub fn star(&mut self) -> Result<Vec<Connection>, Error> {
        let end = |node| End { node, id: node };
        let pairs: Vec<_> = (1..self.nodes()).map(|node| (end(node), end(0))).collect();
        let mut found: Vec<(usize, TcpStream)> = self
            .link(&pairs)?
            .into_iter()
            .map(|((_, other), stream)| (other, stream))
            .collect();
        found.sort_by_key(|(node, _)| *node);
        let connections = found.into_iter();
        Ok(connections
            .map(|(node, stream)| Connection::new(node, stream))
            .collect())
    }

    /// A connection between any two ranks, of which each node has so many: for each rank here, one to each rank, and
    /// none to itself.
    pub(crate) fn mesh(&mut self, ranks: &[usize]) -> Result<Vec<Vec<Option<TcpStream>>>, Error> {
        let ends: Vec<End> = ranks
            .iter()
            .enumerate()
            .flat_map(|(node, ranks)| std::iter::repeat_n(node, *ranks))
            .enumerate()
            .map(|(id, node)| End { node, id })
            .collect();
        let lower = |end: &End| ends[..end.id].to_vec();
        let pairs: Vec<(End, End)> = ends
            .iter()
            .flat_map(|end| lower(end).into_iter().map(|other| (*end, other)))
            .collect();
        let mut found = self.link(&pairs)?;
        let here = ends.iter().filter(|end| end.node == self.node());
        let of = |own: usize, found: &mut HashMap<(usize, usize), TcpStream>| {
            let all = ends.iter().map(|other| found.remove(&(own, other.id)));
            all.collect::<Vec<_>>()
        };
        Ok(here.map(|end| of(end.id, &mut found)).collect())
    }

    /// Makes connections between pairs of ends: the first connects, the second listens. Gives those that begin or end
    /// on this node, by the own end and the other.
    fn link(&mut self, pairs: &[(End, End)]) -> Result<HashMap<(usize, usize), TcpStream>, Error> {
        self.channels += 1;
        let purpose = format!("channel {} of {}", self.channels, self.roster.session);
        let own = self.node();
        let deadline = Instant::now() + self.timeout();
        let expected: HashSet<(usize, usize)> = pairs
            .iter()
            .filter(|(_, to)| to.node == own)
            .map(|(from, to)| (from.id, to.id))
            .collect();
        let this = &*self;
        std::thread::scope(|scope| {
            let accepted = scope.spawn(|| this.accept(&purpose, expected, deadline));
            let mut found = HashMap::new();
            for (from, to) in pairs.iter().filter(|(from, _)| from.node == own) {
                let stream = this.reach(&purpose, *from, *to, deadline)?;
                found.insert((from.id, to.id), stream);
            }
            let accepted = accepted
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            found.extend(accepted?);
            Ok(found)
        })
    }

    fn reach(
        &self,
        purpose: &str,
        from: End,
        to: End,
        deadline: Instant,
    ) -> Result<TcpStream, Error> {
        let introduction = Introduction {
            purpose: format!("{purpose}: {}", to.id),
            from: from.id,
            of: self.nodes(),
        };
        let address = &self.roster.addresses[to.node];
        loop {
            let attempt = connect(address, deadline).and_then(|stream| {
                introduce(&stream, &self.rendezvous.token, &introduction, &[])?;
                Ok(stream)
            });
            let reason = match attempt {
                Ok(stream) => return Ok(stream),
                Err(Refusal::Final(reason) | Refusal::Passing(reason)) => reason,
            };
            if Instant::now() >= deadline {
                return Err(self.rendezvous.error(format!(
                    "node {} does not reach node {} at {address}: {reason}; are ports between these hosts open?",
                    from.node, to.node
                )));
            }
            std::thread::sleep(5 * NAP);
        }
    }

    /// Lets in who is expected: the ends that connect, and those that listen here.
    fn accept(
        &self,
        purpose: &str,
        mut expected: HashSet<(usize, usize)>,
        deadline: Instant,
    ) -> Result<HashMap<(usize, usize), TcpStream>, Error> {
        let mut found = HashMap::new();
        let (door, visits) = mpsc::channel();
        while !expected.is_empty() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let (door, token) = (door.clone(), self.rendezvous.token.clone());
                    let purpose = format!("{purpose}: ");
                    std::thread::spawn(move || {
                        let ends = admit(&stream, &token, |introduction, _| {
                            let to = introduction.purpose.strip_prefix(&purpose);
                            let to = to.and_then(|to| to.parse::<usize>().ok());
                            let to = to.ok_or("not now")?;
                            Ok((introduction.from, to))
                        });
                        // A stranger is of no interest here, and comes to nothing.
                        if let Ok(ends) = ends {
                            let _ = door.send((ends, stream));
                        }
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(self.rendezvous.error(error.to_string())),
            }
            let mut next = visits.recv_timeout(NAP).ok();
            while let Some(((from, to), stream)) = next {
                if expected.remove(&(from, to)) {
                    found.insert((to, from), stream);
                }
                next = visits.try_recv().ok();
            }
            if Instant::now() >= deadline && !expected.is_empty() {
                let mut missing: Vec<usize> = expected.iter().map(|(from, _)| *from).collect();
                missing.sort_unstable();
                missing.dedup();
                return Err(self.rendezvous.error(format!(
                    "node {} waited {} s for connections from {}",
                    self.node(),
                    self.timeout().as_secs(),
                    super::listed(&missing)
                )));
            }
        }
        Ok(found)
    }
}

/// What node 0 tells the others when all have come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Roster {
    /// A number that no other group has.
    session: String,
    addresses: Vec<String>,
    cards: Vec<Vec<u8>>,
}

const MET: u8 = 0;
const FAILED: u8 = 1;

impl Roster {
    pub fn new(rendezvous: &Rendezvous) -> Result<Self, Error> {
        let session = getrandom::u64().map_err(|error| {
            rendezvous.error(format!("the system gives no random numbers: {error}"))
        })?;
        Ok(Self {
            session: format!("{session:016x}"),
            addresses: Vec::new(),
            cards: Vec::new(),
        })
    }

    pub fn add(&mut self, address: String, card: Vec<u8>) {
        self.addresses.push(address);
        self.cards.push(card);
    }

    /// What is told instead if there is no meeting.
    pub fn refusal(reason: &str) -> Vec<u8> {
        [&[FAILED], reason.as_bytes()].concat()
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![MET];
        put(&mut bytes, self.session.as_bytes());
        for (address, card) in self.addresses.iter().zip(&self.cards) {
            put(&mut bytes, address.as_bytes());
            put(&mut bytes, card);
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8], rendezvous: &Rendezvous) -> Result<Self, Error> {
        let Some((MET, mut rest)) = bytes.split_first().map(|(kind, rest)| (*kind, rest)) else {
            let reason = String::from_utf8_lossy(bytes.get(1..).unwrap_or_default());
            return Err(rendezvous.error(format!("node 0 says: {reason}")));
        };
        let text = |rest: &mut &[u8]| {
            let bytes = take(rest)?.to_vec();
            String::from_utf8(bytes).ok()
        };
        let roster = (|| {
            let session = text(&mut rest)?;
            let (mut addresses, mut cards) = (Vec::new(), Vec::new());
            for _ in 0..rendezvous.nodes {
                addresses.push(text(&mut rest)?);
                cards.push(take(&mut rest)?.to_vec());
            }
            Some(Self {
                session,
                addresses,
                cards,
            })
        })();
        roster.ok_or_else(|| rendezvous.error("node 0 sent a list of nodes that is cut off"))
    }
}

/// Appends bytes with their length.
fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as u64).to_le_bytes());
    to.extend(bytes);
}

/// Takes what [`put`] appended.
fn take<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = from.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (bytes, rest) = rest.split_at_checked(length)?;
    *from = rest;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roster_is_read_as_it_was_written_or_refused() {
        let rendezvous = Rendezvous {
            address: "localhost:1".to_string(),
            node_rank: 1,
            nodes: 2,
            timeout: Duration::from_secs(1),
            token: "t".to_string(),
        };
        let mut roster = Roster::new(&rendezvous).unwrap();
        roster.add("a:1".to_string(), vec![1, 2]);
        roster.add("b:2".to_string(), vec![]);
        let bytes = roster.to_bytes();
        assert_eq!(Roster::from_bytes(&bytes, &rendezvous), Ok(roster));
        for cut in 0..bytes.len() {
            assert!(
                Roster::from_bytes(&bytes[..cut], &rendezvous).is_err(),
                "{cut}"
            );
        }
        let told = Roster::from_bytes(&Roster::refusal("too late"), &rendezvous).unwrap_err();
        assert!(told.to_string().contains("too late"), "{told}");
    }
}
