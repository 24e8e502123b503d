//! WebP's container: [RIFF chunks](https://developers.google.com/speed/webp/docs/riff_container), each with a length of
//! its own.

/// Bytes before the first chunk: `RIFF`, a length, `WEBP`.
const HEADER: usize = 12;
/// Bytes of a chunk before its content: a name and a length.
const CHUNK_HEADER: usize = 8;

/// Whether every chunk lies within the file. The decoder sets memory aside for what a chunk announces, up to 4 GiB.
pub fn chunks_fit(file: &[u8]) -> bool {
    let mut rest = file.get(HEADER..).unwrap_or_default();
    while let Some((header, content)) = rest.split_at_checked(CHUNK_HEADER) {
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if length > content.len() {
            return false;
        }
        // Content of an odd length is followed by a byte that fills up.
        rest = content.get(length + length % 2..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_that_leave_the_file_are_seen() {
        let chunk =
            |length: u32, content: &[u8]| [&b"EXIF"[..], &length.to_le_bytes(), content].concat();
        let file = |chunks: &[Vec<u8>]| [b"RIFF\0\0\0\0WEBP".to_vec(), chunks.concat()].concat();
        let good = chunk(3, b"abc\0");
        for fits in [
            file(&[]),
            file(&[good.clone(), good.clone()]),
            // A last one without the byte that fills up, and the beginning of a header.
            file(&[good.clone(), chunk(1, b"x")]),
            file(&[good.clone(), b"EXIF".to_vec()]),
            Vec::new(),
        ] {
            assert!(chunks_fit(&fits), "{fits:?}");
        }
        for (length, content) in [(u32::MAX, &b"abcd"[..]), (5, b"abcd"), (1, b"")] {
            assert!(
                !chunks_fit(&file(&[good.clone(), chunk(length, content)])),
                "{length}"
            );
        }
    }
}
