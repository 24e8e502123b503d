//! A file's lines one after the other, however long the file.

use sha2::{Digest, Sha256};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};

/// What a file of a byte order mark begins with.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// A line that is not empty.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number, from 1; empty lines count.
    pub number: u64,
    /// Its bytes without the end, or how many there are if they are more than may be.
    pub bytes: Result<Vec<u8>, u64>,
}

/// The lines of a source.
pub struct Lines<R> {
    source: BufReader<R>,
    number: u64,
    most: usize,
}

impl<R: Read> Lines<R> {
    /// Lines of at most `most` bytes; what longer ones have is skipped, and never held.
    pub fn new(source: BufReader<R>, most: usize) -> Self {
        Self {
            source,
            number: 0,
            most,
        }
    }

    /// Whether the next line may have to be waited for.
    pub fn may_wait(&self) -> bool {
        !self.source.buffer().contains(&b'\n')
    }

    /// The next line that is not empty; nothing at the end.
    ///
    /// # Errors
    /// The operating system's.
    pub fn next_line(&mut self) -> io::Result<Option<Line>> {
        loop {
            let mut bytes = Vec::new();
            let mut length = 0u64;
            let is_last = self.read_line(&mut bytes, &mut length)?;
            if is_last && length == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.number == 1 && bytes.starts_with(MARK) {
                bytes.drain(..MARK.len());
            }
            if length > self.most as u64 {
                return Ok(Some(Line {
                    number: self.number,
                    bytes: Err(length),
                }));
            }
            if !bytes.trim_ascii().is_empty() {
                return Ok(Some(Line {
                    number: self.number,
                    bytes: Ok(bytes),
                }));
            }
        }
    }

    /// Reads to the end of a line; gives whether the source ended before it.
    fn read_line(&mut self, bytes: &mut Vec<u8>, length: &mut u64) -> io::Result<bool> {
        loop {
            let part = match self.source.fill_buf() {
                Ok(part) => part,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if part.is_empty() {
                return Ok(true);
            }
            let end = part.iter().position(|&byte| byte == b'\n');
            let own = &part[..end.unwrap_or(part.len())];
            *length += own.len() as u64;
            if *length <= self.most as u64 {
                bytes.extend_from_slice(own);
            } else {
                *bytes = Vec::new();
            }
            let taken = own.len() + usize::from(end.is_some());
            self.source.consume(taken);
            if end.is_some() {
                return Ok(false);
            }
        }
    }
}

/// What an input is known by.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fingerprint {
    /// Its length.
    pub bytes: u64,
    /// Its lines that are not empty.
    pub lines: u64,
    /// SHA-256, in hexadecimal digits.
    pub sha256: String,
}

impl Fingerprint {
    /// Reads a source to its end; `told` hears how many bytes came, and says whether to go on.
    ///
    /// # Errors
    /// The operating system's; [`ErrorKind::Interrupted`] if `told` says so.
    pub fn of(mut source: impl BufRead, mut told: impl FnMut(u64) -> bool) -> io::Result<Self> {
        let (mut bytes, mut lines, mut digest) = (0, 0, Sha256::new());
        let mut is_empty = true;
        loop {
            let part = match source.fill_buf() {
                Ok(part) => part,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if part.is_empty() {
                break;
            }
            digest.update(part);
            for &byte in part {
                if byte == b'\n' {
                    lines += u64::from(!is_empty);
                    is_empty = true;
                } else {
                    is_empty &= byte.is_ascii_whitespace();
                }
            }
            let length = part.len();
            source.consume(length);
            bytes += length as u64;
            if !told(length as u64) {
                return Err(ErrorKind::Interrupted.into());
            }
        }
        lines += u64::from(!is_empty);
        let sha256 = digest.finalize();
        Ok(Self {
            bytes,
            lines,
            sha256: sha256.iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], most: usize, buffer: usize) -> Vec<(u64, Result<Vec<u8>, u64>)> {
        let mut lines = Lines::new(BufReader::with_capacity(buffer, text), most);
        std::iter::from_fn(|| lines.next_line().unwrap())
            .map(|line| (line.number, line.bytes))
            .collect()
    }

    #[test]
    fn lines_come_whole_whatever_the_buffer() {
        let text = b"\xef\xbb\xbfone\n\n  \r\ntwo \r\n12345678901\nlast";
        let expected = [
            (1, Ok(b"one".to_vec())),
            (4, Ok(b"two \r".to_vec())),
            (5, Err(11)),
            (6, Ok(b"last".to_vec())),
        ];
        for buffer in [1, 2, 7, 100] {
            assert_eq!(lines(text, 10, buffer), expected, "{buffer}");
            let source = BufReader::with_capacity(buffer, &text[..]);
            let known = Fingerprint::of(source, |_| true).unwrap();
            assert_eq!((known.bytes, known.lines), (text.len() as u64, 4));
        }
        assert!(lines(b"", 10, 9).is_empty());
        assert!(lines(b"\n\n", 10, 9).is_empty());
    }

    #[test]
    fn a_line_without_end_is_not_held() {
        let endless = io::repeat(b'x').take(100 << 20);
        let mut lines = Lines::new(BufReader::new(endless), 1 << 10);
        let line = lines.next_line().unwrap().unwrap();
        assert_eq!(line.bytes, Err(100 << 20));
        assert_eq!(lines.next_line().unwrap(), None);
    }

    #[test]
    fn other_content_has_another_fingerprint() {
        let of = |text: &[u8]| Fingerprint::of(text, |_| true).unwrap();
        assert_eq!(of(b"a\nb"), of(b"a\nb"));
        assert_ne!(of(b"a\nb").sha256, of(b"a\nc").sha256);
        let stopped = Fingerprint::of(&b"a"[..], |_| false).unwrap_err();
        assert_eq!(stopped.kind(), ErrorKind::Interrupted);
    }
}
