//! What a check tells its workers, which run kernels, and what these answer: over a socket, a header in JSON and then
//! bytes. A worker may be wild, so nothing that it says is believed without bounds.

use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Longest header.
const MOST_HEADER: usize = 64 << 20;

/// An argument of a launch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Passed {
    /// By value; in the bytes, addresses of buffers are put in at these places.
    Value {
        bytes: Vec<u8>,
        align: usize,
        addresses: Vec<Address>,
    },
    /// The address of a buffer, so many bytes into it.
    Buffer { index: usize, offset: usize },
    /// No address.
    Null,
}

/// A place in bytes that gets the address of a buffer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Address {
    pub at: usize,
    pub index: usize,
}

/// A buffer of a launch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Room {
    pub bytes: usize,
    /// Whether its contents are sent; others were never written.
    pub is_written: bool,
    pub addresses: Vec<Address>,
}

/// A launch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Launch {
    pub kernel: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub arguments: Vec<Passed>,
    pub rooms: Vec<Room>,
}

impl Launch {
    /// Threads of a block.
    pub fn threads(&self) -> u64 {
        self.block.iter().map(|&n| u64::from(n)).product()
    }

    /// Blocks of the grid.
    pub fn blocks(&self) -> u128 {
        self.grid.iter().map(|&n| u128::from(n)).product()
    }
}

/// What a worker is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Compiles a source, or takes it from the cache, and loads it.
    Load {
        name: String,
        source: String,
        options: Vec<String>,
    },
    /// Runs a kernel; the contents of written buffers follow, and are answered by those of all buffers.
    Run(Launch),
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Loaded, for this arch.
    Loaded { arch: String },
    /// The source does not compile.
    Rejected { log: String },
    /// The launch ended; buffers follow if `error` is none.
    Done {
        /// What HIP says.
        error: Option<String>,
        /// What the simulator found.
        reports: Vec<String>,
    },
    /// The request cannot be carried out.
    Impossible { why: String },
}

/// Writes a header and bytes.
pub(super) fn write(
    mut to: impl Write,
    header: &impl Serialize,
    blobs: &[&[u8]],
) -> io::Result<()> {
    let header = serde_json::to_vec(header)?;
    to.write_all(&(header.len() as u64).to_le_bytes())?;
    to.write_all(&header)?;
    blobs.iter().try_for_each(|blob| to.write_all(blob))?;
    to.flush()
}

/// Reads a header.
pub(super) fn read<T: DeserializeOwned>(mut from: impl Read) -> io::Result<T> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > MOST_HEADER {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a header is too long",
        ));
    }
    let header = read_bytes(from, length)?;
    Ok(serde_json::from_slice(&header)?)
}

/// Reads so many bytes, taking memory only as they come.
pub(super) fn read_bytes(from: impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    match bytes.len() == length {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
