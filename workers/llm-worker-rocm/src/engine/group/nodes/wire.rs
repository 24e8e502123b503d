//! Messages as bytes: MessagePack without names of fields, as all nodes have the same version of this program.

use serde::de::{DeserializeOwned, Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use worker::{Error, Result};

/// A message as bytes.
///
/// # Errors
/// [`Error::Runtime`] for one that cannot be written.
pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    rmp_serde::to_vec(message)
        .map_err(|e| Error::Runtime(format!("a message for another node: {e}")))
}

/// The message of these bytes.
///
/// # Errors
/// [`Error::Runtime`] for bytes that are none.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    rmp_serde::from_slice(bytes)
        .map_err(|e| Error::Runtime(format!("a message that cannot be understood: {e}")))
}

/// Bytes that travel as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct OfBytes;

        impl Visitor<'_> for OfBytes {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: serde::de::Error>(
                self,
                bytes: &[u8],
            ) -> std::result::Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }

            fn visit_byte_buf<E: serde::de::Error>(
                self,
                bytes: Vec<u8>,
            ) -> std::result::Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
        }

        deserializer
            .deserialize_byte_buf(OfBytes)
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let message = (
            vec![1u32, 70_000],
            Some("text".to_string()),
            Bytes(vec![0, 255, 7]),
        );
        let bytes = encode(&message).unwrap();
        let read: (Vec<u32>, Option<String>, Bytes) = decode(&bytes).unwrap();
        assert_eq!(read, message);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        // Cut off, a list of 2^32 - 1 numbers of which none is there, text in place of a list, and nothing.
        for bytes in [
            &[0x92, 1][..],
            &[0xdd, 255, 255, 255, 255],
            &[0xa1, b'x'],
            &[],
        ] {
            assert!(decode::<Vec<u32>>(bytes).is_err(), "{bytes:?}");
        }
    }
}
