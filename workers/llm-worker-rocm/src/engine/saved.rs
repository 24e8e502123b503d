//! A known prefix in a file: its tokens, and what the memories of the model and of one that guesses for it have of it.
//!
//! Numbers are little-endian. Behind [`MAGIC`] come the counts of tokens, of pictures and of parts (u32 each), the tokens
//! (u32 each), the pictures (the 32 bytes that each is known by), and for each part, the model's first: the model's 32
//! bytes, the format's length (u32) and text, of how many of the tokens the part is, the counts of blocks, blocks of
//! windows and states (u32 each), and the bytes of one of each of the last three (u64 each). Then what the places of all
//! parts hold, and the SHA-256 of all before.
//!
//! Where a token is of a picture, its number counts down from the largest one by the picture's place.

use super::snapshots::{Place, Snapshots};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const MAGIC: &[u8; 8] = b"LLMSLOT3";
/// Longest text that names a format.
const LONGEST_FORMAT: u32 = 256;
/// More tokens are in no context.
const MOST_TOKENS: u32 = 1 << 28;
/// A model and one that guesses for it.
const MOST_PARTS: u32 = 2;

/// What a file tells before what the places hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub tokens: Vec<u32>,
    /// What its pictures are known by.
    pub pictures: Vec<[u8; 32]>,
    /// Of the model, then of one that guesses for it if there is one.
    pub parts: Vec<Part>,
}

/// What is of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub model: [u8; 32],
    pub format: String,
    /// How many of the tokens it is of.
    pub tokens: u32,
    /// Numbers of blocks, blocks of windows and states.
    pub counts: [u32; 3],
    /// Bytes of one of each.
    pub bytes: [u64; 3],
}

impl Part {
    /// That of a model, whose places come with the first number of each kind.
    pub(super) fn of(snapshots: &dyn Snapshots, tokens: usize, counts: [u32; 3]) -> Self {
        let kinds = [Place::Block(0), Place::WindowBlock(0), Place::State(0)];
        Self {
            model: snapshots.model(),
            format: snapshots.format(),
            tokens: tokens as u32,
            counts,
            bytes: kinds.map(|kind| snapshots.bytes(kind) as u64),
        }
    }

    /// Why a model with such a part, but for its numbers, cannot take that of a file.
    pub(super) fn difference(&self, file: &Self) -> Option<String> {
        if self.model != file.model {
            return Some("it was saved from another model".to_string());
        }
        if self.format != file.format {
            return Some(format!(
                "it was saved as {}; this worker keeps keys and values as {}",
                file.format, self.format
            ));
        }
        (self.bytes != file.bytes).then(|| {
            format!(
                "its blocks and states have {:?} bytes, those of this worker {:?}",
                file.bytes, self.bytes
            )
        })
    }

    /// Bytes of all of its places, if there can be such.
    fn place_bytes(&self) -> Option<u64> {
        let places = self.counts.iter().zip(self.bytes);
        let mut places = places.map(|(count, bytes)| u64::from(*count).checked_mul(bytes));
        places.try_fold(0u64, |sum, bytes| sum.checked_add(bytes?))
    }

    /// Bytes of it in a file, if there can be such.
    fn file_bytes(&self) -> Option<u64> {
        let head = 32 + 4 + self.format.len() + 4 + 12 + 24;
        self.place_bytes()?.checked_add(head as u64)
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.model)?;
        out.write_all(&(self.format.len() as u32).to_le_bytes())?;
        out.write_all(self.format.as_bytes())?;
        out.write_all(&self.tokens.to_le_bytes())?;
        for count in self.counts {
            out.write_all(&count.to_le_bytes())?;
        }
        for bytes in self.bytes {
            out.write_all(&bytes.to_le_bytes())?;
        }
        Ok(())
    }

    fn read(input: &mut impl Read) -> io::Result<Self> {
        let mut model = [0; 32];
        input.read_exact(&mut model)?;
        let count = u32_of(input)?;
        if count > LONGEST_FORMAT {
            return Err(damaged(format!("the name of its format has {count} bytes")));
        }
        let mut format = vec![0; count as usize];
        input.read_exact(&mut format)?;
        let format = String::from_utf8(format).map_err(|_| damaged("its format is no text"))?;
        let tokens = u32_of(input)?;
        let counts = [u32_of(input)?, u32_of(input)?, u32_of(input)?];
        let mut bytes = [0; 3];
        for bytes in &mut bytes {
            let mut number = [0; 8];
            input.read_exact(&mut number)?;
            *bytes = u64::from_le_bytes(number);
        }
        Ok(Self {
            model,
            format,
            tokens,
            counts,
            bytes,
        })
    }
}

fn u32_of(input: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Takes the sum of what goes through.
struct Summed<T> {
    inner: T,
    sum: Sha256,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.sum.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(bytes)?;
        self.sum.update(&bytes[..count]);
        Ok(count)
    }
}

/// Writes a file beside its place and moves it there when it is complete. `place` gives what each of a part's places
/// holds, in their order. Gives its bytes.
pub(super) fn write(
    path: &Path,
    contents: &Contents,
    mut place: impl FnMut(usize, usize, &mut Vec<u8>) -> io::Result<()>,
) -> io::Result<u64> {
    let unfinished = path.with_extension(format!("{}.part", uuid::Uuid::new_v4().simple()));
    let mut write = || -> io::Result<u64> {
        // Its tokens are chats.
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)?;
        let mut out = Summed {
            inner: BufWriter::new(file),
            sum: Sha256::new(),
        };
        out.write_all(MAGIC)?;
        out.write_all(&(contents.tokens.len() as u32).to_le_bytes())?;
        out.write_all(&(contents.pictures.len() as u32).to_le_bytes())?;
        out.write_all(&(contents.parts.len() as u32).to_le_bytes())?;
        for token in &contents.tokens {
            out.write_all(&token.to_le_bytes())?;
        }
        for picture in &contents.pictures {
            out.write_all(picture)?;
        }
        for part in &contents.parts {
            part.write(&mut out)?;
        }
        let mut held = Vec::new();
        for (number, part) in contents.parts.iter().enumerate() {
            for index in 0..part.counts.iter().sum::<u32>() as usize {
                held.clear();
                place(number, index, &mut held)?;
                out.write_all(&held)?;
            }
        }
        let sum = out.sum.finalize();
        out.inner.write_all(&sum)?;
        let file = out
            .inner
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        let bytes = file.metadata()?.len();
        std::fs::rename(&unfinished, path)?;
        Ok(bytes)
    };
    let written = write();
    if written.is_err() {
        // It may not be there at all.
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

/// A file that is read.
pub(super) struct Saved {
    pub contents: Contents,
    input: Summed<BufReader<File>>,
}

fn damaged(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

impl Saved {
    /// Reads what a file tells before what the places hold, and compares its length.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = worker::file::open(path)?;
        let length = file.metadata()?.len();
        let mut input = Summed {
            inner: BufReader::new(file),
            sum: Sha256::new(),
        };
        let mut magic = [0; 8];
        let known = input.read_exact(&mut magic).is_ok() && &magic == MAGIC;
        if !known {
            return Err(damaged("it is no saved slot of this version"));
        }
        let contents = Contents::read(&mut input, length).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged("it ends too early"),
            _ => error,
        })?;
        let expected = contents.file_bytes();
        if expected != Some(length) {
            return Err(damaged(format!(
                "it has {length} bytes, and what it tells of itself takes {}",
                expected.map_or("more than there can be".to_string(), |bytes| bytes
                    .to_string())
            )));
        }
        Ok(Self { contents, input })
    }

    /// What the next place holds.
    pub(super) fn next(&mut self, bytes: usize, held: &mut Vec<u8>) -> io::Result<()> {
        held.resize(bytes, 0);
        self.input.read_exact(held)
    }

    /// Reads over what the places of a part hold.
    pub(super) fn skip(&mut self, part: &Part) -> io::Result<()> {
        let bytes = part.place_bytes().unwrap_or(u64::MAX);
        let mut rest = (&mut self.input).take(bytes);
        match io::copy(&mut rest, &mut io::sink())? == bytes {
            true => Ok(()),
            false => Err(damaged("it ends too early")),
        }
    }

    /// Compares the sum behind all places.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let sum = self.input.sum.finalize_reset();
        let mut expected = [0; 32];
        self.input.inner.read_exact(&mut expected)?;
        match sum[..] == expected {
            true => Ok(()),
            false => Err(damaged("its checksum is another one: it is damaged")),
        }
    }
}

impl Contents {
    /// Bytes of a whole file, if there can be such.
    fn file_bytes(&self) -> Option<u64> {
        let head = MAGIC.len() + 12 + 4 * self.tokens.len() + 32 * self.pictures.len();
        let mut parts = self.parts.iter().map(Part::file_bytes);
        parts.try_fold(head as u64 + 32, |sum, bytes| sum.checked_add(bytes?))
    }

    fn read(input: &mut impl Read, length: u64) -> io::Result<Self> {
        let [count, pictures, parts] = [u32_of(input)?, u32_of(input)?, u32_of(input)?];
        // Before memory is taken for them.
        if count > MOST_TOKENS || 4 * u64::from(count) > length {
            return Err(damaged(format!("it has {count} tokens in {length} bytes")));
        }
        if pictures > count || 32 * u64::from(pictures) > length {
            return Err(damaged(format!(
                "it has {pictures} pictures in {count} tokens"
            )));
        }
        if !(1..=MOST_PARTS).contains(&parts) {
            return Err(damaged(format!("it is of {parts} models")));
        }
        let tokens = (0..count).map(|_| u32_of(input));
        let tokens = tokens.collect::<io::Result<_>>()?;
        let pictures = (0..pictures).map(|_| {
            let mut picture = [0; 32];
            input.read_exact(&mut picture).map(|()| picture)
        });
        let pictures = pictures.collect::<io::Result<_>>()?;
        let parts = (0..parts).map(|_| Part::read(input));
        let parts = parts.collect::<io::Result<_>>()?;
        Ok(Self {
            tokens,
            pictures,
            parts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(tokens: u32) -> Part {
        Part {
            model: [7; 32],
            format: "f16".to_string(),
            tokens,
            counts: [2, 1, 1],
            bytes: [8, 4, 6],
        }
    }

    fn contents() -> Contents {
        Contents {
            tokens: vec![1, u32::MAX, u32::MAX - 1, 4],
            pictures: vec![[3; 32], [5; 32]],
            parts: vec![part(4), part(2)],
        }
    }

    fn held(part: usize, index: usize) -> Vec<u8> {
        vec![(part * 16 + index) as u8; [8, 8, 4, 6][index]]
    }

    fn read(path: &Path) -> io::Result<(Contents, Vec<Vec<u8>>)> {
        let mut saved = Saved::open(path)?;
        let mut places = Vec::new();
        for bytes in [8, 8, 4, 6] {
            let mut held = Vec::new();
            saved.next(bytes, &mut held)?;
            places.push(held);
        }
        saved.skip(&part(2))?;
        saved.finish()?;
        Ok((saved.contents, places))
    }

    #[test]
    fn what_is_written_is_read_and_what_was_changed_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slot.bin");
        let place = |part, index, out: &mut Vec<u8>| {
            out.extend(held(part, index));
            Ok(())
        };
        let bytes = write(&path, &contents(), place).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(bytes, whole.len() as u64);
        let (found, places) = read(&path).unwrap();
        assert_eq!(found, contents());
        let own: Vec<Vec<u8>> = (0..4).map(|index| held(0, index)).collect();
        assert_eq!(places, own);
        // Any byte that is another, and any length.
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x41;
            std::fs::write(&path, &changed).unwrap();
            assert!(read(&path).is_err(), "byte {at}");
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(read(&path).is_err(), "{at} bytes");
        }
        std::fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
        assert!(read(&path).is_err());
        // Whatever a file tells, no memory is taken for it.
        let mut hostile = whole;
        let counts = MAGIC.len() + 12 + 16 + 64 + 32 + 4 + 3 + 4;
        hostile[counts..counts + 36].fill(0xff);
        std::fs::write(&path, &hostile).unwrap();
        assert!(read(&path).is_err());
    }

    #[test]
    fn a_file_that_is_not_complete_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slot.bin");
        let fails = |_, _, _: &mut Vec<u8>| Err(damaged("the device is gone"));
        assert!(write(&path, &contents(), fails).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_differs_is_named() {
        let own = part(4);
        assert_eq!(own.difference(&part(2)), None);
        let other = Part {
            model: [8; 32],
            ..part(4)
        };
        assert!(own.difference(&other).unwrap().contains("another model"));
        let other = Part {
            format: "q8_0".to_string(),
            ..part(4)
        };
        assert!(own.difference(&other).unwrap().contains("q8_0"));
    }
}
