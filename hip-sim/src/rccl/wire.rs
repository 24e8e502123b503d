//! How ranks of other processes reach a communicator: a connection each to the process whose rank made the id, which
//! listens at the address that the id carries.
//!
//! Everything is little-endian. A rank sends [`JOIN`] and then batches: the calls of a group, answered together. What it
//! closes without [`LEAVE`] is taken for the end of its process.

use super::call::Call;
use super::comm::Calls;
use super::hub::{Error, Hub, Place, Reply, Ticket};
use super::interface;
use crate::sim::sim;
use hip_abi::rccl::{ncclUniqueId, Failure, UNIQUE_ID_BYTES};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

const MAGIC: &[u8; 8] = b"HIPSIM\x01\0";
const KEY_AT: usize = MAGIC.len();
const ADDRESS_AT: usize = KEY_AT + 16;
/// What a rank sends: key, rank and number of ranks; calls; that it takes part no more; whether all is well.
const JOIN: u8 = 1;
const BATCH: u8 = 2;
const LEAVE: u8 = 3;
const ASK: u8 = 4;
/// Bytes of a message that are read at once: what is announced may be a lie.
const CHUNK: usize = 1 << 20;
/// What a rank waits longer for an answer than the rank that it is answered by waits for others.
const ANSWER: Duration = Duration::from_secs(10);

type Key = [u8; 16];

/// A communicator, and the thread that takes in its ranks.
struct Open {
    hub: Arc<Hub>,
    listener: JoinHandle<()>,
}

/// Communicators whose id this process has made, until all their ranks have joined.
fn hubs() -> MutexGuard<'static, HashMap<Key, Open>> {
    static HUBS: OnceLock<Mutex<HashMap<Key, Open>>> = OnceLock::new();
    HUBS.get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(|e| e.into_inner())
}

/// Makes an id, and listens for the ranks that come with it.
pub(super) fn unique_id() -> io::Result<ncclUniqueId> {
    let listener = TcpListener::bind((interface::address(), 0))?;
    let address = listener.local_addr()?;
    let mut key = Key::default();
    std::fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
    let hub = Arc::new(Hub::default());
    let own = hub.clone();
    let listener = std::thread::Builder::new()
        .name("hip-sim-rccl".into())
        .spawn(move || listen(&listener, &own, &key))?;
    hubs().insert(key, Open { hub, listener });
    let mut internal = [0; UNIQUE_ID_BYTES];
    internal[..KEY_AT].copy_from_slice(MAGIC);
    internal[KEY_AT..ADDRESS_AT].copy_from_slice(&key);
    let text = address.to_string();
    internal[ADDRESS_AT..ADDRESS_AT + text.len()].copy_from_slice(text.as_bytes());
    Ok(ncclUniqueId { internal })
}

/// Key and address of an id; none if it is not one of ours.
fn parse(id: &ncclUniqueId) -> Option<(Key, SocketAddr)> {
    let key = id.internal[KEY_AT..ADDRESS_AT].try_into().ok()?;
    let text = id.internal[ADDRESS_AT..].split(|byte| *byte == 0).next()?;
    let address = std::str::from_utf8(text).ok()?.parse().ok()?;
    id.internal.starts_with(MAGIC).then_some((key, address))
}

/// How a rank reaches its communicator.
pub(super) enum Link {
    Here(Arc<Hub>),
    There(There),
}

/// A connection to another process.
pub(super) struct There {
    stream: Mutex<TcpStream>,
    /// The same connection, for ending it while a call waits on it.
    ending: TcpStream,
}

impl Link {
    /// Goes where an id leads. Connections say at once which rank comes; the answer comes when all have joined.
    pub fn join(id: &ncclUniqueId, rank: usize, size: usize, device: usize) -> Result<Link, Error> {
        let Some((key, address)) = parse(id) else {
            let message = "ncclCommInitRank: the id is not one that ncclGetUniqueId made";
            return Err(Error::finding(Failure::InvalidArgument, message));
        };
        let here = hubs().get(&key).map(|open| open.hub.clone());
        if let Some(hub) = here {
            if hub.join(rank, size, Place::Here(device))? {
                close(&key, address);
            }
            return Ok(Link::Here(hub));
        }
        There::connect(&key, address, rank, size)
            .map(Link::There)
            .map_err(|e| {
                Error::new(
                    Failure::SystemError,
                    format!("ncclCommInitRank: cannot reach {address}: {e}"),
                )
            })
    }
}

impl There {
    fn connect(key: &Key, address: SocketAddr, rank: usize, size: usize) -> io::Result<There> {
        let limit = sim().config.spin_limit + ANSWER;
        let mut stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        let mut hello = vec![JOIN];
        hello.extend_from_slice(key);
        hello.extend_from_slice(&(rank as u64).to_le_bytes());
        hello.extend_from_slice(&(size as u64).to_le_bytes());
        stream.write_all(&hello)?;
        let ending = stream.try_clone()?;
        let stream = Mutex::new(stream);
        Ok(There { stream, ending })
    }

    fn stream(&self) -> MutexGuard<'_, TcpStream> {
        self.stream.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits for the answer to [`Link::join`].
    pub fn joined(&self) -> Result<(), Error> {
        read_outcome(&mut self.stream()).map_err(lost)?.map(|_| ())
    }

    /// Sends the calls of a group, and keeps others away until their answers are read.
    pub fn send(&self, calls: Calls) -> Result<Answers<'_>, Error> {
        let mut stream = self.stream();
        let count = calls.len();
        let send = |stream: &mut TcpStream| {
            stream.write_all(&[BATCH])?;
            stream.write_all(&(count as u64).to_le_bytes())?;
            calls.iter().try_for_each(|(call, data)| {
                stream.write_all(&call.encode())?;
                write_bytes(stream, data)
            })
        };
        send(&mut stream).map_err(lost)?;
        Ok(Answers { stream, count })
    }

    /// Whether something has failed; not asked while a call is under way.
    pub fn ask(&self) -> Option<Error> {
        let mut stream = self.stream.try_lock().ok()?;
        let answer = stream
            .write_all(&[ASK])
            .and_then(|()| read_outcome(&mut stream));
        match answer {
            Ok(outcome) => outcome.err(),
            Err(e) => Some(lost(e)),
        }
    }

    /// Says that this rank takes part no more.
    pub fn leave(&self) {
        if let Ok(mut stream) = self.stream.try_lock() {
            // Whoever is gone already need not be told.
            let _ = stream.write_all(&[LEAVE]);
        }
    }

    /// Ends the connection, and with it what waits on it.
    pub fn end(&self) {
        let _ = self.ending.shutdown(std::net::Shutdown::Both);
    }
}

/// Answers that are still to be read.
pub(super) struct Answers<'a> {
    stream: MutexGuard<'a, TcpStream>,
    count: usize,
}

impl Answers<'_> {
    pub fn read(mut self) -> Result<Vec<Vec<u8>>, Error> {
        let outcomes: io::Result<Vec<_>> = (0..self.count)
            .map(|_| read_outcome(&mut self.stream))
            .collect();
        outcomes.map_err(lost)?.into_iter().collect()
    }
}

fn lost(error: io::Error) -> Error {
    let message = format!("the process that made the communicator's id is gone: {error}");
    Error::new(Failure::RemoteError, message)
}

/// Takes in ranks until all are there.
fn listen(listener: &TcpListener, hub: &Arc<Hub>, key: &Key) {
    for stream in listener.incoming() {
        if !hubs().contains_key(key) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let (hub, key) = (hub.clone(), *key);
        let address = listener.local_addr();
        // Without a thread the connection closes, and the rank fails.
        let _ = std::thread::Builder::new()
            .name("hip-sim-rccl".into())
            .spawn(move || {
                // What ends a connection is told to the others by `leave`.
                let _ = serve(stream, &hub, &key, address);
            });
    }
}

/// Lets nobody in any more: wakes [`listen`], and waits until nothing listens.
fn close(key: &Key, address: SocketAddr) {
    let Some(Open { listener, .. }) = hubs().remove(key) else {
        return;
    };
    if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
        let _ = listener.join();
    }
}

/// Does what a rank of another process asks for.
fn serve(
    mut stream: TcpStream,
    hub: &Hub,
    key: &Key,
    address: io::Result<SocketAddr>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut hello = [0; 1 + 16 + 8 + 8];
    stream.read_exact(&mut hello)?;
    if hello[0] != JOIN || hello[1..17] != *key {
        return Ok(());
    }
    let number = |at: usize| u64::from_le_bytes(hello[at..at + 8].try_into().unwrap_or_default());
    let (rank, size) = (number(17) as usize, number(25) as usize);
    if rank >= size || size > u16::MAX as usize {
        return Ok(());
    }
    match hub.join(rank, size, Place::Elsewhere) {
        Ok(true) => close(key, address?),
        Ok(false) => {}
        Err(error) => return write_outcome(&mut stream, Err(error)),
    }
    let done = (|| {
        let joined = hub.meet(rank, || is_closed(&stream));
        write_outcome(&mut stream, joined.map(|()| None))?;
        loop {
            let mut kind = [0];
            stream.read_exact(&mut kind)?;
            match kind[0] {
                BATCH => batch(&mut stream, hub, rank, size)?,
                ASK => write_outcome(&mut stream, hub.failure(rank).map_or(Ok(None), Err))?,
                _ => return Ok(()),
            }
        }
    })();
    match &done {
        Ok(()) => hub.leave(rank, "has destroyed its communicator", false),
        Err(_) => hub.leave(rank, "has ended or aborted", true),
    }
    done
}

fn batch(stream: &mut TcpStream, hub: &Hub, rank: usize, size: usize) -> io::Result<()> {
    let count = read_number(stream)?;
    let mut calls = Vec::new();
    for _ in 0..count {
        let mut encoded = [0; 18];
        stream.read_exact(&mut encoded)?;
        let call = Call::decode(encoded).ok_or(io::ErrorKind::InvalidData)?;
        let data = read_bytes(stream)?;
        if call.partner() >= size || call.send_bytes(rank, size) != Some(data.len()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        calls.push((call, data));
    }
    let tickets: Vec<Ticket> = (calls.into_iter())
        .map(|(call, data)| hub.post(rank, call, data))
        .collect();
    for (place, ticket) in tickets.iter().enumerate() {
        let outcome = hub.wait(rank, *ticket, || is_closed(stream));
        let was_gone = matches!(&outcome, Err(e) if e.status == Failure::InternalError);
        let written = write_outcome(stream, outcome.map(Some));
        match was_gone {
            true => hub.forget(&tickets[place..]),
            false => hub.delivered(),
        }
        if let Err(e) = written {
            hub.forget(&tickets[place + 1..]);
            return Err(e);
        }
    }
    Ok(())
}

/// Whether the other side has closed the connection, although it has not been asked to.
fn is_closed(stream: &TcpStream) -> bool {
    let mut byte = [0];
    if stream.set_nonblocking(true).is_err() {
        return true;
    }
    let peeked = stream.peek(&mut byte);
    let restored = stream.set_nonblocking(false);
    let is_open = match peeked {
        Ok(bytes) => bytes > 0,
        Err(e) => e.kind() == io::ErrorKind::WouldBlock,
    };
    !is_open || restored.is_err()
}

fn write_outcome(stream: &mut TcpStream, outcome: Result<Option<Reply>, Error>) -> io::Result<()> {
    match outcome {
        Ok(reply) => {
            stream.write_all(&[0])?;
            write_bytes(stream, reply.as_ref().map_or(&[], Reply::bytes))
        }
        Err(error) => {
            stream.write_all(&[error.status as u8, error.is_finding as u8])?;
            write_bytes(stream, error.message.as_bytes())
        }
    }
}

fn read_outcome(stream: &mut TcpStream) -> io::Result<Result<Vec<u8>, Error>> {
    let mut status = [0];
    stream.read_exact(&mut status)?;
    if status[0] == 0 {
        return Ok(Ok(read_bytes(stream)?));
    }
    let mut is_finding = [0];
    stream.read_exact(&mut is_finding)?;
    let message = String::from_utf8_lossy(&read_bytes(stream)?).into_owned();
    let all = [
        Failure::SystemError,
        Failure::InternalError,
        Failure::InvalidArgument,
        Failure::InvalidUsage,
    ];
    let status = all.into_iter().find(|failure| *failure as u8 == status[0]);
    Ok(Err(Error {
        status: status.unwrap_or(Failure::RemoteError),
        message,
        is_finding: is_finding[0] != 0,
    }))
}

fn write_bytes(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(bytes)
}

fn read_number(stream: &mut TcpStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn read_bytes(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::try_from(read_number(stream)?).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let (start, more) = (bytes.len(), CHUNK.min(length - bytes.len()));
        bytes.resize(start + more, 0);
        stream.read_exact(&mut bytes[start..])?;
    }
    Ok(bytes)
}
