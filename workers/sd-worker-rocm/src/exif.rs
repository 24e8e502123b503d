//! The user comment of EXIF, where web UIs keep the parameters of JPEG and WebP files.

/// Tags of TIFF's directories.
const TAG_EXIF: u16 = 0x8769;
const TAG_USER_COMMENT: u16 = 0x9286;
/// Types of a directory's entries.
const TYPE_LONG: u16 = 4;
const TYPE_UNDEFINED: u16 = 7;
/// What a comment in UTF-16 begins with.
const UNICODE: &[u8; 8] = b"UNICODE\0";
const ASCII: &[u8; 8] = b"ASCII\0\0\0";

/// EXIF metadata (big-endian TIFF) with nothing but this comment.
pub fn with_user_comment(text: &str) -> Vec<u8> {
    let mut comment = UNICODE.to_vec();
    comment.extend(text.encode_utf16().flat_map(u16::to_be_bytes));
    // Header 8; a directory of one entry: count 2, entry 12, next 4.
    const DIRECTORY: u32 = 18;
    let mut tiff = b"MM\0\x2a\0\0\0\x08".to_vec();
    let mut directory = |tag: u16, kind: u16, count: u32, value: u32| {
        tiff.extend(1u16.to_be_bytes());
        tiff.extend(tag.to_be_bytes());
        tiff.extend(kind.to_be_bytes());
        tiff.extend(count.to_be_bytes());
        tiff.extend(value.to_be_bytes());
        tiff.extend(0u32.to_be_bytes());
    };
    directory(TAG_EXIF, TYPE_LONG, 1, 8 + DIRECTORY);
    let length = comment.len() as u32;
    directory(TAG_USER_COMMENT, TYPE_UNDEFINED, length, 8 + 2 * DIRECTORY);
    tiff.extend(comment);
    tiff
}

/// The user comment in EXIF metadata; `None` if there is none or the metadata is damaged.
pub fn user_comment(metadata: &[u8]) -> Option<String> {
    let tiff = metadata.strip_prefix(b"Exif\0\0").unwrap_or(metadata);
    let reader = Reader {
        tiff,
        big_endian: match tiff.get(..4)? {
            b"MM\0\x2a" => true,
            b"II\x2a\0" => false,
            _ => return None,
        },
    };
    let exif = reader.entry(reader.u32(4)? as usize, TAG_EXIF)?;
    let entry = reader.entry(reader.u32(exif + 8)? as usize, TAG_USER_COMMENT)?;
    let length = reader.u32(entry + 4)? as usize;
    let start = reader.u32(entry + 8)? as usize;
    let comment = tiff.get(start..start.checked_add(length)?)?;
    let (kind, text) = comment.split_at_checked(8)?;
    if kind == ASCII {
        return Some(String::from_utf8_lossy(text).into_owned());
    }
    if kind != UNICODE {
        return None;
    }
    let units: Vec<u16> = text
        .chunks_exact(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
        .collect();
    // Writers disagree about the byte order; a text in the wrong one has its ASCII in the high bytes.
    let swapped = units.iter().filter(|u| **u & 0xFF == 0).count() > units.len() / 2;
    let units = units
        .into_iter()
        .map(|u| if swapped { u.swap_bytes() } else { u });
    Some(
        char::decode_utf16(units)
            .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect(),
    )
}

struct Reader<'a> {
    tiff: &'a [u8],
    big_endian: bool,
}

impl Reader<'_> {
    fn u16(&self, at: usize) -> Option<u16> {
        let bytes = self.tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if self.big_endian {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_le_bytes(bytes)
        })
    }

    fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if self.big_endian {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    }

    /// Where the entry of a tag begins in the directory at `at`.
    fn entry(&self, at: usize, tag: u16) -> Option<usize> {
        let count = usize::from(self.u16(at)?);
        (0..count)
            .map(|i| at + 2 + 12 * i)
            .find(|entry| self.u16(*entry) == Some(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_metadata_is_none() {
        let good = with_user_comment("steps: 20 é 𝄞");
        assert_eq!(user_comment(&good).as_deref(), Some("steps: 20 é 𝄞"));
        for end in 0..good.len() - 1 {
            assert_eq!(user_comment(&good[..end]), None, "{end}");
        }
        for at in 0..44 {
            let mut bad = good.clone();
            bad[at] = 0xFF;
            user_comment(&bad);
        }
    }
}
