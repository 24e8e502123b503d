//! Node 0: listens until all have come.

use super::handshake::{admit, Introduction, Refusal, PREFIX_BYTES};
use super::meeting::{Meeting, Roster};
use super::{listed, Connection, Rendezvous};
use crate::Error;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// How often it is said who is missing.
pub const REPORT: Duration = Duration::from_secs(5);
/// How long a loop that waits for connections sleeps.
pub const NAP: Duration = Duration::from_millis(10);
/// Strangers that are listened to at the same time.
const AT_ONCE: usize = 64;
/// What the first connection of a node is for.
pub const PURPOSE: &str = "rendezvous";

/// A node that has come.
struct Guest {
    connection: Connection,
    /// Where the other nodes reach it.
    address: String,
    card: Vec<u8>,
}

/// What becomes of somebody who connects.
enum Visit {
    Came(usize, Guest),
    SentAway(SocketAddr, String),
}

/// Waits for all nodes, and tells each who the others are.
pub fn gather(
    rendezvous: &Rendezvous,
    card: &[u8],
    mut tell: impl FnMut(String),
) -> Result<Meeting, Error> {
    let begun = Instant::now();
    let listener = listen(rendezvous)?;
    let mut guests: Vec<Option<Guest>> = (1..rendezvous.nodes).map(|_| None).collect();
    let (door, visits) = mpsc::channel();
    let mut inside = 0;
    let mut report = begun + REPORT;
    loop {
        if guests.iter().all(Option::is_some) {
            // One that came and went is waited for again.
            for place in &mut guests {
                place.take_if(|guest| !guest.connection.is_open());
            }
            if guests.iter().all(Option::is_some) {
                break;
            }
        }
        inside += let_in(rendezvous, &listener, &door, inside)?;
        inside -= receive(&visits, &mut guests, &mut tell, rendezvous);
        let missing = || -> Vec<usize> {
            let missing = guests
                .iter()
                .enumerate()
                .filter(|(_, guest)| guest.is_none());
            missing.map(|(at, _)| at + 1).collect()
        };
        let waited = begun.elapsed();
        if waited >= rendezvous.timeout {
            let reason = format!(
                "after {} s, {} of {} nodes have not come: {}; was the program started there, with this address?",
                waited.as_secs(),
                missing().len(),
                rendezvous.nodes,
                listed(&missing())
            );
            for guest in guests.iter_mut().flatten() {
                // Who cannot be told notices by itself.
                let _ = guest.connection.send(&Roster::refusal(&reason));
            }
            return Err(rendezvous.error(reason));
        }
        if Instant::now() >= report {
            report = Instant::now() + REPORT;
            tell(format!(
                "rendezvous at {}: waiting for {} of {} nodes: {} ({} s of {} s)",
                rendezvous.address,
                missing().len(),
                rendezvous.nodes,
                listed(&missing()),
                waited.as_secs(),
                rendezvous.timeout.as_secs()
            ));
        }
    }
    let guests: Vec<Guest> = guests.into_iter().flatten().collect();
    let own = listener
        .local_addr()
        .map_err(|error| rendezvous.error(error.to_string()))?;
    let mut roster = Roster::new(rendezvous)?;
    roster.add(
        format!("{}:{}", rendezvous.host(), own.port()),
        card.to_vec(),
    );
    let mut connections = Vec::with_capacity(guests.len());
    for guest in guests {
        roster.add(guest.address, guest.card);
        connections.push(guest.connection);
    }
    let bytes = roster.to_bytes();
    for connection in &mut connections {
        connection.send(&bytes)?;
    }
    Ok(Meeting::new(rendezvous, listener, connections, roster))
}

/// Listens at the address's port, for all who can reach this host unless the address means it alone.
fn listen(rendezvous: &Rendezvous) -> Result<TcpListener, Error> {
    let address = &rendezvous.address;
    let Some((host, port)) = address.rsplit_once(':') else {
        return Err(rendezvous.error("the address has no port: it is HOST:PORT"));
    };
    let port: u16 = port
        .parse()
        .map_err(|_| rendezvous.error(format!("{port} is no port: it is 1 to 65535")))?;
    let host = match rendezvous.is_on_this_host() {
        true => host,
        false if host.starts_with('[') => "[::]",
        false => "0.0.0.0",
    };
    let listener = TcpListener::bind(format!("{host}:{port}"));
    let listener = listener.and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| {
        let reason = match error.kind() {
            ErrorKind::AddrInUse => format!(
                "port {port} is in use: by another job, or by one that has just ended; choose another port"
            ),
            _ => format!("node 0 cannot listen at port {port}: {error}"),
        };
        rendezvous.error(reason)
    })
}

/// Lets in who stands at the door, a thread for each; how many.
fn let_in(
    rendezvous: &Rendezvous,
    listener: &TcpListener,
    door: &Sender<Visit>,
    inside: usize,
) -> Result<usize, Error> {
    let mut came = 0;
    loop {
        match listener.accept() {
            // Closed at once: there will be a place when it comes again.
            Ok(_) if inside + came >= AT_ONCE => {}
            Ok((stream, from)) => {
                came += 1;
                let (rendezvous, door) = (rendezvous.clone(), door.clone());
                std::thread::spawn(move || {
                    // Nobody listens any more when all have come.
                    let _ = door.send(visit(&rendezvous, stream, from));
                });
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => break,
                // Those of the connection that was lost on its way.
                ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                _ => return Err(rendezvous.error(format!("node 0 cannot listen: {error}"))),
            },
        }
    }
    Ok(came)
}

/// Listens to one who came.
fn visit(rendezvous: &Rendezvous, stream: TcpStream, from: SocketAddr) -> Visit {
    let nodes = rendezvous.nodes;
    let welcome = |introduction: Introduction, card: Vec<u8>| {
        if introduction.purpose != PURPOSE {
            return Err(format!("it came for {}", introduction.purpose));
        }
        if introduction.of != nodes {
            return Err(format!(
                "it is one of {} nodes, and this group has {nodes}",
                introduction.of
            ));
        }
        if introduction.from == 0 || introduction.from >= nodes {
            return Err(format!(
                "it says that it is node {}, and nodes 1 to {} are waited for",
                introduction.from,
                nodes.saturating_sub(1)
            ));
        }
        if card.len() < PREFIX_BYTES {
            return Err("its card is cut off".to_string());
        }
        Ok((introduction.from, card))
    };
    match admit(&stream, &rendezvous.token, welcome) {
        Ok((node, card)) => {
            let (port, card) = card.split_at(PREFIX_BYTES);
            let port = u16::from_le_bytes([port[0], port[1]]);
            // One on node 0's own host is reached there under the name of node 0.
            let address = match from.ip().to_canonical() {
                ip if ip.is_loopback() => format!("{}:{port}", rendezvous.host()),
                ip => SocketAddr::new(ip, port).to_string(),
            };
            let guest = Guest {
                connection: Connection::new(node, stream),
                address,
                card: card.to_vec(),
            };
            Visit::Came(node, guest)
        }
        Err(Refusal::Final(reason) | Refusal::Passing(reason)) => Visit::SentAway(from, reason),
    }
}

/// Takes what became of visits, and waits a moment if there was none; how many.
fn receive(
    visits: &Receiver<Visit>,
    guests: &mut [Option<Guest>],
    tell: &mut impl FnMut(String),
    rendezvous: &Rendezvous,
) -> usize {
    let mut seen = 0;
    let mut next = visits.recv_timeout(NAP);
    while let Ok(visit) = next {
        seen += 1;
        match visit {
            Visit::SentAway(from, reason) => tell(format!(
                "rendezvous at {}: {from} was sent away: {reason}",
                rendezvous.address
            )),
            Visit::Came(node, mut guest) => {
                let place = &mut guests[node - 1];
                if place
                    .as_ref()
                    .is_some_and(|before| before.connection.is_open())
                {
                    let reason = format!(
                        "there is a node {node} already: two were started with this number"
                    );
                    // Who cannot be told notices by itself.
                    let _ = guest.connection.send(&Roster::refusal(&reason));
                    tell(format!("rendezvous at {}: {reason}", rendezvous.address));
                } else {
                    // One that was started anew takes the place of the one that is gone.
                    *place = Some(guest);
                }
            }
        }
        next = visits
            .try_recv()
            .map_err(|_| mpsc::RecvTimeoutError::Timeout);
    }
    seen
}
