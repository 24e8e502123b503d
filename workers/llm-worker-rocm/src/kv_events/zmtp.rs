//! The protocol of ZeroMQ's sockets on TCP, as far as a server needs it that publishes and answers: ZMTP 3.0 without
//! security (`NULL`). <https://rfc.zeromq.org/spec/23/>
//!
//! Whoever connects is a stranger: what it sends is short, or it is let go.

use axum::body::Bytes;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// How long a greeting may take.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// How long a client may read nothing while something is sent to it.
const WRITE_TIME: Duration = Duration::from_secs(60);
/// Most bytes of a frame that a client sends: subscriptions, questions, what it tells of itself.
const MOST_FRAME: u64 = 4096;
/// The signature, version 3.0, no security, not the server of any; then fillers.
const GREETING: [u8; 64] = {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    let name = *b"NULL";
    let mut i = 0;
    while i < name.len() {
        greeting[12 + i] = name[i];
        i += 1;
    }
    greeting
};
/// Of a frame's first byte: further frames of the message follow; its length has 8 bytes; it is a command.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A frame that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// Whether further ones of its message follow.
    pub more: bool,
    is_command: bool,
    /// What it has.
    pub body: Vec<u8>,
}

/// A connection from which frames come.
pub(super) struct Frames<R> {
    stream: R,
    buffer: Vec<u8>,
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_string())
}

/// Greets a client, which is to have a socket of one of these types, as a socket of type `own`.
///
/// # Errors
/// Those of the connection; [`io::ErrorKind::InvalidData`] for a client that speaks otherwise,
/// [`io::ErrorKind::TimedOut`] for one that is slow.
pub(super) async fn greet<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    mut reader: R,
    writer: &mut W,
    own: &str,
    others: &[&str],
) -> io::Result<Frames<R>> {
    let greeting = async {
        writer.write_all(&GREETING).await?;
        let mut greeting = [0; GREETING.len()];
        reader.read_exact(&mut greeting).await?;
        if (greeting[0], greeting[9]) != (0xff, 0x7f) || greeting[10] < 3 {
            return Err(invalid("not ZMTP 3"));
        }
        if greeting[12..32] != GREETING[12..32] {
            return Err(invalid("a security mechanism that this is not"));
        }
        writer.write_all(&ready(own)).await?;
        let mut frames = Frames {
            stream: reader,
            buffer: Vec::new(),
        };
        let frame = frames.frame().await?;
        match socket_type(&frame) {
            Some(kind) if others.iter().any(|other| kind == other.as_bytes()) => Ok(frames),
            _ => Err(invalid("a socket of another type")),
        }
    };
    let greeted = tokio::time::timeout(GREETING_TIME, greeting).await;
    greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The command that tells the type of a socket.
fn ready(kind: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend((kind.len() as u32).to_be_bytes());
    body.extend(kind.as_bytes());
    let mut frame = Vec::new();
    push_frame(&mut frame, COMMAND, &body);
    frame
}

/// What such a command tells.
fn socket_type(frame: &Frame) -> Option<&[u8]> {
    let mut rest = frame.body.strip_prefix(b"\x05READY")?;
    while frame.is_command && !rest.is_empty() {
        let (length, name) = rest.split_first()?;
        let (name, value) = name.split_at_checked(usize::from(*length))?;
        let (length, value) = value.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, after) = value.split_at_checked(length)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        rest = after;
    }
    None
}

fn push_frame(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => bytes.extend([flags, length]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend(body);
}

/// A message of several frames as bytes.
pub(super) fn message(frames: &[&[u8]]) -> Bytes {
    let mut bytes = Vec::new();
    for (i, frame) in frames.iter().enumerate() {
        let more = if i + 1 < frames.len() { MORE } else { 0 };
        push_frame(&mut bytes, more, frame);
    }
    bytes.into()
}

/// Sends bytes to a client.
///
/// # Errors
/// Those of the connection; [`io::ErrorKind::TimedOut`] for a client that reads nothing for long.
pub(super) async fn send<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mut bytes: &[u8],
) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = tokio::time::timeout(WRITE_TIME, writer.write(bytes)).await;
        let written = written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
    }
    Ok(())
}

impl<R: AsyncRead + Unpin> Frames<R> {
    /// The next frame. What was read stays for the next call if this is dropped.
    async fn frame(&mut self) -> io::Result<Frame> {
        loop {
            if let Some((frame, length)) = parse(&self.buffer)? {
                self.buffer.drain(..length);
                return Ok(frame);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The next frame of a message, or what to answer to a command. What was read stays for the next call if this is
    /// dropped.
    ///
    /// # Errors
    /// Those of the connection; [`io::ErrorKind::InvalidData`] for a frame that is too long.
    pub(super) async fn next(&mut self) -> io::Result<Came> {
        loop {
            let frame = self.frame().await?;
            if !frame.is_command {
                return Ok(Came::Frame(frame));
            }
            // A heartbeat: how long it is good for, and what is to come back.
            let context = frame.body.strip_prefix(b"\x04PING");
            if let Some(context) = context.and_then(|body| body.get(2..)) {
                let body = [b"\x04PONG", context].concat();
                let mut pong = Vec::new();
                push_frame(&mut pong, COMMAND, &body);
                return Ok(Came::Heartbeat(pong));
            }
        }
    }
}

/// What a client sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// A frame of a message.
    Frame(Frame),
    /// A heartbeat, which these bytes answer.
    Heartbeat(Vec<u8>),
}

/// The frame that bytes begin with and how many it takes, if all of it is there.
fn parse(bytes: &[u8]) -> io::Result<Option<(Frame, usize)>> {
    let Some((flags, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(invalid("a frame of an unknown kind"));
    }
    let (length, rest) = match flags & LONG != 0 {
        true => match rest.split_first_chunk::<8>() {
            Some((length, rest)) => (u64::from_be_bytes(*length), rest),
            None => return Ok(None),
        },
        false => match rest.split_first() {
            Some((length, rest)) => (u64::from(*length), rest),
            None => return Ok(None),
        },
    };
    if length > MOST_FRAME {
        return Err(invalid("a frame that is too long"));
    }
    let Some(body) = rest.get(..length as usize) else {
        return Ok(None);
    };
    let frame = Frame {
        more: flags & MORE != 0,
        is_command: flags & COMMAND != 0,
        body: body.to_vec(),
    };
    Ok(Some((frame, bytes.len() - rest.len() + body.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    /// What a client sends to greet.
    fn greeting_of(kind: &str) -> Vec<u8> {
        [&GREETING[..], &ready(kind)].concat()
    }

    async fn greeted(bytes: &[u8]) -> io::Result<Vec<Came>> {
        let (mut client, server) = duplex(1 << 16);
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        let (reader, mut writer) = tokio::io::split(server);
        let mut frames = greet(reader, &mut writer, "PUB", &["SUB", "XSUB"]).await?;
        let mut came = Vec::new();
        loop {
            match frames.next().await {
                Ok(next) => came.push(next),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(came),
                Err(error) => return Err(error),
            }
        }
    }

    #[tokio::test]
    async fn greetings_and_frames() {
        let mut bytes = greeting_of("SUB");
        bytes.extend(message(&[b"\x01topic"]));
        bytes.extend(message(&[b"", b"12345678"]));
        push_frame(&mut bytes, COMMAND, b"\x04PING\x00\x0ahello");
        push_frame(&mut bytes, COMMAND, b"\x09SUBSCRIBEx");
        bytes.extend(message(&[&[7; 300]]));
        let frame = |more, body: &[u8]| {
            Came::Frame(Frame {
                more,
                is_command: false,
                body: body.to_vec(),
            })
        };
        let expected = [
            frame(false, b"\x01topic"),
            frame(true, b""),
            frame(false, b"12345678"),
            Came::Heartbeat(b"\x04\x0a\x04PONGhello".to_vec()),
            frame(false, &[7; 300]),
        ];
        assert_eq!(greeted(&bytes).await.unwrap(), expected);
    }

    #[tokio::test]
    async fn strangers_are_let_go() {
        let good = greeting_of("SUB");
        let with = |more: &[u8]| [&good[..], more].concat();
        let mut curve = good.clone();
        curve[12..17].copy_from_slice(b"CURVE");
        let mut old = good.clone();
        old[10] = 1;
        for (what, bytes) in [
            ("HTTP", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nUser-Agent: curl\r\n\r\n".to_vec()),
            ("nothing", Vec::new()),
            ("security", curve),
            ("an old version", old),
            ("another socket", greeting_of("REP")),
            ("a long frame", with(&[LONG, 0, 0, 0, 1, 0, 0, 0, 0])),
            ("an endless frame", with(&[LONG, 255, 255, 255, 255, 255, 255, 255, 255])),
            ("an unknown frame", with(&[8, 0])),
            ("no type", [&GREETING[..], &[COMMAND, 6], b"\x05READY"].concat()),
            ("a cut type", [&GREETING[..], &[COMMAND, 9], b"\x05READY\x0bSo"].concat()),
        ] {
            assert!(greeted(&bytes).await.is_err(), "{what}");
        }
    }

    #[test]
    fn parts_of_a_frame_are_waited_for() {
        let whole = message(&[&[1; 300]]);
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]).unwrap(), None);
        }
        let (frame, length) = parse(&[&whole[..], b"rest"].concat()).unwrap().unwrap();
        assert_eq!((frame.body.len(), length), (300, whole.len()));
    }
}
