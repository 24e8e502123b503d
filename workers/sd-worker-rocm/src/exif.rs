//! The user comment of EXIF, where web UIs keep the parameters of JPEG and WebP files.

use exif::experimental::Writer;
use exif::{Field, In, Reader, Tag, Value};
use std::io::Cursor;
use worker::{Error, Result};

/// What a comment begins with, by its encoding.
const UNICODE: &[u8; 8] = b"UNICODE\0";
const ASCII: &[u8; 8] = b"ASCII\0\0\0";

/// EXIF metadata (big-endian TIFF) with nothing but this comment.
///
/// # Errors
/// [`Error::Runtime`] for a text that is too long for EXIF.
pub fn with_user_comment(text: &str) -> Result<Vec<u8>> {
    let mut comment = UNICODE.to_vec();
    comment.extend(text.encode_utf16().flat_map(u16::to_be_bytes));
    let field = Field {
        tag: Tag::UserComment,
        ifd_num: In::PRIMARY,
        value: Value::Undefined(comment, 0),
    };
    let mut writer = Writer::new();
    writer.push_field(&field);
    let mut tiff = Cursor::new(Vec::new());
    writer
        .write(&mut tiff, false)
        .map_err(|e| Error::Runtime(format!("the parameters cannot be written as EXIF: {e}")))?;
    Ok(tiff.into_inner())
}

/// The user comment in EXIF metadata; `None` if there is none or it is damaged.
pub fn user_comment(metadata: &[u8]) -> Option<String> {
    let tiff = metadata.strip_prefix(b"Exif\0\0").unwrap_or(metadata);
    let read = Reader::new()
        .continue_on_error(true)
        .read_raw(tiff.to_vec())
        // Damage elsewhere does not matter.
        .or_else(|e| e.distill_partial_result(|_| {}))
        .ok()?;
    let field = read.get_field(Tag::UserComment, In::PRIMARY)?;
    let Value::Undefined(comment, _) = &field.value else {
        return None;
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_metadata_is_none() {
        let good = with_user_comment("steps: 20 é 𝄞").unwrap();
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

    #[test]
    fn comments_of_other_writers() {
        // Little-endian TIFF with a directory of one entry, which leads to one with the comment; all of it after JPEG's
        // marker.
        let tiff = |comment: &[u8]| {
            let mut tiff = b"Exif\0\0II\x2a\0\x08\0\0\0".to_vec();
            for (tag, kind, count, value) in [
                (0x8769u16, 4u16, 1u32, 26u32),
                (0x9286, 7, comment.len() as u32, 44),
            ] {
                tiff.extend(1u16.to_le_bytes());
                tiff.extend(tag.to_le_bytes());
                tiff.extend(kind.to_le_bytes());
                tiff.extend(count.to_le_bytes());
                tiff.extend(value.to_le_bytes());
                tiff.extend(0u32.to_le_bytes());
            }
            tiff.extend(comment);
            tiff
        };
        let utf16 = |bytes: fn(u16) -> [u8; 2]| {
            let mut comment = b"UNICODE\0".to_vec();
            comment.extend("Steps: 3, Seed: 5".encode_utf16().flat_map(bytes));
            comment
        };
        for comment in [
            utf16(u16::to_le_bytes),
            utf16(u16::to_be_bytes),
            b"ASCII\0\0\0Steps: 3, Seed: 5".to_vec(),
        ] {
            let read = user_comment(&tiff(&comment));
            assert_eq!(read.as_deref(), Some("Steps: 3, Seed: 5"));
        }
        assert_eq!(user_comment(&tiff(b"JIS\0\0\0\0\0x")), None);
        assert_eq!(user_comment(&tiff(b"short")), None);
    }
}
