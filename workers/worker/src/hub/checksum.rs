//! What a file's name on the hub, its ETag, says about its content.

use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::io::Read;

/// Longest name that is taken.
const MAX_NAME_BYTES: usize = 128;
const BUFFER_BYTES: usize = 256 << 10;

/// Whether a commit or an ETag can be the name of a file or a folder in the cache: letters, digits, `.`, `_` and `-`,
/// no dot first.
pub(super) fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=MAX_NAME_BYTES).contains(&text.len())
        && !text.starts_with('.')
        && text.chars().all(allowed)
}

/// Whether content is what an ETag names; `None` if the ETag is no checksum.
///
/// A large file's is its SHA-256. A small one's is that of a git blob, which is the SHA-1 of `blob LENGTH`, a zero byte
/// and the content; mirrors may give the SHA-1 of the content alone.
///
/// # Errors
/// Those of reading.
pub(super) fn matches(
    etag: &str,
    content: &mut impl Read,
    length: u64,
) -> std::io::Result<Option<bool>> {
    if !etag.chars().all(|c| c.is_ascii_hexdigit()) {
        return Ok(None);
    }
    let expected = etag.to_ascii_lowercase();
    match etag.len() {
        64 => {
            let mut sha256 = Sha256::new();
            each_piece(content, |piece| sha256.update(piece))?;
            Ok(Some(hex(&sha256.finalize()) == expected))
        }
        40 => {
            let mut blob = Sha1::new_with_prefix(format!("blob {length}\0"));
            let mut plain = Sha1::new();
            each_piece(content, |piece| {
                blob.update(piece);
                plain.update(piece);
            })?;
            Ok(Some(
                [blob, plain]
                    .map(|sha1| hex(&sha1.finalize()))
                    .contains(&expected),
            ))
        }
        _ => Ok(None),
    }
}

fn each_piece(content: &mut impl Read, mut act: impl FnMut(&[u8])) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => act(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(etag: &str, content: &str) -> Option<bool> {
        matches(etag, &mut content.as_bytes(), content.len() as u64).unwrap()
    }

    #[test]
    fn known_sums() {
        // `printf hello | sha256sum`, `printf hello | git hash-object --stdin`, `printf hello | sha1sum`.
        for sum in [
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
            "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0",
            "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d",
        ] {
            assert_eq!(check(sum, "hello"), Some(true), "{sum}");
            assert_eq!(check(&sum.to_uppercase(), "hello"), Some(true), "{sum}");
            assert_eq!(check(sum, "hallo"), Some(false), "{sum}");
        }
        for other in ["5d41402abc4b2a76b9719d911017c592", "etag-x", ""] {
            assert_eq!(check(other, "hello"), None, "{other}");
        }
    }

    #[test]
    fn names_stay_in_their_folder() {
        for good in ["abc", "0123-x_y.z", &"a".repeat(128)] {
            assert!(is_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            ".x",
            "a/b",
            "../a",
            "/a",
            "a\\b",
            "a b",
            "ä",
            "a\n",
            "a\0",
            &"a".repeat(129),
        ] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
