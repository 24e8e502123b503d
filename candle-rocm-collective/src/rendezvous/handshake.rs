//! How two processes make sure that they belong to one group.
//!
//! The one that connects says who it is and sends a random number; the one that listens answers with its own and with
//! an HMAC over both, by which the first knows that it talks to the group; it answers with an HMAC of its own and its
//! card. The last word is of the one that listens: welcome, or the reason why not.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The largest card of a node, in bytes.
pub const CARD_BYTES: usize = 64 << 10;
/// How long a stranger may take for each of its words.
const PATIENCE: Duration = Duration::from_secs(5);
/// Name and version of what is spoken.
const MAGIC: &[u8; 8] = b"CNDLGRP1";
const NONCE_BYTES: usize = 32;
/// The longest text, in bytes: a purpose, or the reason of a refusal.
const TEXT_BYTES: usize = 512;
/// What goes before a card.
pub const PREFIX_BYTES: usize = 2;
const WELCOME: u8 = 0;
const REFUSED: u8 = 1;

/// Who comes, and what for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introduction {
    /// What the connection is for.
    pub purpose: String,
    /// The one that connects, from 0.
    pub from: usize,
    /// How many there are.
    pub of: usize,
}

impl Introduction {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(10 + self.purpose.len());
        bytes.extend((self.from as u32).to_le_bytes());
        bytes.extend((self.of as u32).to_le_bytes());
        bytes.extend((self.purpose.len() as u16).to_le_bytes());
        bytes.extend(self.purpose.as_bytes());
        bytes
    }
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The other side said so, or did not know the token: it would do so again.
    Final(String),
    /// The connection broke off, or the other side speaks something else: it may be there later.
    Passing(String),
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::Passing(match error.kind() {
            std::io::ErrorKind::UnexpectedEof => "the connection was closed".to_string(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                format!("nothing was said for {PATIENCE:?}")
            }
            _ => error.to_string(),
        })
    }
}

type Outcome<T> = Result<T, Refusal>;

/// The side that connects.
pub fn introduce(
    stream: &TcpStream,
    token: &str,
    introduction: &Introduction,
    card: &[u8],
) -> Outcome<()> {
    prepare(stream)?;
    let mut stream = stream;
    let own = nonce()?;
    let who = introduction.to_bytes();
    stream.write_all(&[&MAGIC[..], &who, &own].concat())?;
    let theirs: [u8; NONCE_BYTES] = array(stream)?;
    let proof: [u8; 32] = array(stream)?;
    if !proves(token, &[b"listens", &own, &theirs, &who], &proof) {
        let reason = "who listens there has another token: all nodes need the same one";
        return Err(Refusal::Final(reason.to_string()));
    }
    let proof = prove(token, &[b"connects", &theirs, &own, &who, card]);
    let length = (card.len() as u32).to_le_bytes();
    stream.write_all(&[&proof[..], &length, card].concat())?;
    match array::<1>(stream)? {
        [WELCOME] => finish(stream),
        _ => Err(Refusal::Final(text(stream)?)),
    }
}

/// The side that listens. `welcome` takes the one that came in, or says why not; what it gives is the outcome.
pub fn admit<T>(
    stream: &TcpStream,
    token: &str,
    welcome: impl FnOnce(Introduction, Vec<u8>) -> Result<T, String>,
) -> Outcome<T> {
    prepare(stream)?;
    let mut stream = stream;
    if array(stream)? != *MAGIC {
        let reason = "it does not speak as a node of this version does";
        return Err(Refusal::Passing(reason.to_string()));
    }
    let from = u32::from_le_bytes(array(stream)?) as usize;
    let of = u32::from_le_bytes(array(stream)?) as usize;
    let introduction = Introduction {
        purpose: text(stream)?,
        from,
        of,
    };
    let who = introduction.to_bytes();
    let theirs: [u8; NONCE_BYTES] = array(stream)?;
    let own = nonce()?;
    let proof = prove(token, &[b"listens", &theirs, &own, &who]);
    stream.write_all(&[&own[..], &proof].concat())?;
    let proof: [u8; 32] = array(stream)?;
    let length = u32::from_le_bytes(array(stream)?) as usize;
    if length > CARD_BYTES + PREFIX_BYTES {
        let reason = format!("its card has {length} bytes");
        return Err(Refusal::Passing(reason));
    }
    let mut card = vec![0; length];
    stream.read_exact(&mut card)?;
    if !proves(token, &[b"connects", &own, &theirs, &who, &card], &proof) {
        let reason = "it has another token";
        return Err(Refusal::Final(reason.to_string()));
    }
    match welcome(introduction, card) {
        Ok(outcome) => {
            stream.write_all(&[WELCOME])?;
            finish(stream)?;
            Ok(outcome)
        }
        Err(reason) => {
            let text: String = reason.chars().take(TEXT_BYTES / 4).collect();
            let length = (text.len() as u16).to_le_bytes();
            stream.write_all(&[&[REFUSED][..], &length, text.as_bytes()].concat())?;
            Err(Refusal::Final(reason))
        }
    }
}

/// Nobody is waited for without a limit while it is not known who it is.
fn prepare(stream: &TcpStream) -> Outcome<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(())
}

fn finish(stream: &TcpStream) -> Outcome<()> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(())
}

fn nonce() -> Outcome<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce)
        .map_err(|error| Refusal::Final(format!("the system gives no random numbers: {error}")))?;
    Ok(nonce)
}

fn array<const N: usize>(mut stream: &TcpStream) -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn text(mut stream: &TcpStream) -> Outcome<String> {
    let length = usize::from(u16::from_le_bytes(array(stream)?));
    if length > TEXT_BYTES {
        let reason = format!("it sent a text of {length} bytes");
        return Err(Refusal::Passing(reason));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    String::from_utf8(bytes)
        .map_err(|_| Refusal::Passing("it sent a text that is none".to_string()))
}

/// HMAC-SHA256 over parts, each with its length, so that no two lists of parts give the same bytes.
fn mac(token: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
    let key = <Hmac<Sha256> as Mac>::new_from_slice(token.as_bytes());
    let mut mac = key.expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

fn prove(token: &str, parts: &[&[u8]]) -> [u8; 32] {
    mac(token, parts).finalize().into_bytes().into()
}

fn proves(token: &str, parts: &[&[u8]], proof: &[u8; 32]) -> bool {
    // In constant time.
    mac(token, parts).verify_slice(proof).is_ok()
}
