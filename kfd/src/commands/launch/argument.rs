//! Arguments as the command line says them.

use crate::cli::bytes as size;
use crate::lane::Lane;
use crate::session::Card;
use crate::{Error, Result};
use candle_kfd::{Kind, Memory};
use code_object::Argument as Wanted;
use memory_pattern::Pattern;
use std::str::FromStr;

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A number, as it lies in memory.
    Value(Vec<u8>),
    /// The address of memory.
    Buffer {
        /// How much.
        bytes: u64,
        /// What it holds before.
        fill: Fill,
        /// Whether it is shown afterwards.
        is_output: bool,
    },
}

/// What memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// The same word everywhere.
    Word(u32),
    /// Each word its own number.
    Index,
    /// Without order.
    Random,
}

impl FromStr for Argument {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (kind, value) = text
            .split_once(':')
            .ok_or("it must be like i32:7 or out:4096")?;
        fn number<T: FromStr>(value: &str) -> std::result::Result<T, String> {
            value
                .parse()
                .map_err(|_| format!("{value} is no such number"))
        }
        let bytes = match kind {
            "i32" => number::<i32>(value)?.to_le_bytes().to_vec(),
            "u32" => number::<u32>(value)?.to_le_bytes().to_vec(),
            "i64" => number::<i64>(value)?.to_le_bytes().to_vec(),
            "u64" => number::<u64>(value)?.to_le_bytes().to_vec(),
            "f32" => number::<f32>(value)?.to_le_bytes().to_vec(),
            "f64" => number::<f64>(value)?.to_le_bytes().to_vec(),
            "u8" => number::<u8>(value)?.to_le_bytes().to_vec(),
            "u16" => number::<u16>(value)?.to_le_bytes().to_vec(),
            "buffer" | "out" => {
                let (bytes, fill) = match value.split_once(':') {
                    Some((bytes, fill)) => (bytes, fill.parse()?),
                    None => (value, Fill::Word(0)),
                };
                return Ok(Argument::Buffer {
                    bytes: size(bytes)?,
                    fill,
                    is_output: kind == "out",
                });
            }
            _ => {
                return Err(format!(
                    "{kind} is none of i32, u32, i64, u64, f32, f64, u8, u16, buffer and out"
                ))
            }
        };
        Ok(Argument::Value(bytes))
    }
}

impl FromStr for Fill {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let word = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        match (text, word) {
            ("index", _) => Ok(Fill::Index),
            ("random", _) => Ok(Fill::Random),
            (_, Some(word)) => Ok(Fill::Word(word)),
            _ => Err(format!("{text} is neither a word nor index nor random")),
        }
    }
}

/// Memory for an argument.
#[derive(Debug)]
pub struct Buffer {
    /// Which argument.
    pub index: usize,
    /// Whether it is shown afterwards.
    pub is_output: bool,
    memory: Memory,
}

impl Buffer {
    /// What is in it.
    pub fn fetch(&self, lane: &Lane) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.memory.len()];
        lane.fetch(&self.memory, 0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Whether arguments are as many and as long as a kernel takes.
///
/// # Errors
/// [`Error::Usage`] that says what it takes.
pub fn check(given: &[Argument], wanted: &[&Wanted]) -> Result<()> {
    if given.len() != wanted.len() {
        return Err(Error::Usage(format!(
            "the kernel takes {} arguments, {} are given with --arg; `kfd launch FILE` lists them",
            wanted.len(),
            given.len()
        )));
    }
    for (i, (given, wanted)) in given.iter().zip(wanted).enumerate() {
        let bytes = match given {
            Argument::Value(bytes) => bytes.len(),
            Argument::Buffer { .. } => size_of::<u64>(),
        };
        if bytes as u64 != u64::from(wanted.size) {
            return Err(Error::Usage(format!(
                "argument {i} ({}) has {} bytes, {bytes} are given",
                wanted.name.as_deref().unwrap_or("?"),
                wanted.size,
            )));
        }
    }
    Ok(())
}

/// Allocates and fills what arguments point to.
///
/// # Errors
/// candle-kfd's.
pub fn buffers(given: &[Argument], card: &Card, lane: &Lane) -> Result<Vec<Buffer>> {
    let mut buffers = Vec::new();
    for (index, argument) in given.iter().enumerate() {
        let &Argument::Buffer {
            bytes,
            fill,
            is_output,
        } = argument
        else {
            continue;
        };
        let memory = card.gpu.allocate(bytes.try_into()?, Kind::Vram)?;
        let mut data = vec![0; memory.len().next_multiple_of(4)];
        match fill {
            Fill::Index => Pattern::Address.fill(0, 0, &mut data),
            Fill::Random => Pattern::Random.fill(index as u32, 0, &mut data),
            Fill::Word(word) => {
                for bytes in data.chunks_exact_mut(4) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        lane.send(&data[..memory.len()], &memory, 0)?;
        buffers.push(Buffer {
            index,
            is_output,
            memory,
        });
    }
    Ok(buffers)
}

/// The arguments as the kernel reads them.
pub fn bytes(given: &[Argument], wanted: &[&Wanted], buffers: &[Buffer]) -> Vec<u8> {
    let mut all = Vec::new();
    for (index, (given, wanted)) in given.iter().zip(wanted).enumerate() {
        let value = match given {
            Argument::Value(bytes) => bytes.clone(),
            Argument::Buffer { .. } => {
                let buffer = buffers.iter().find(|buffer| buffer.index == index);
                let address = buffer.map_or(0, |buffer| buffer.memory.address());
                address.to_le_bytes().to_vec()
            }
        };
        all.resize(wanted.offset as usize, 0);
        all.extend(value);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let value = |text: &str| text.parse::<Argument>();
        assert_eq!(value("i32:-1"), Ok(Argument::Value(vec![255; 4])));
        assert_eq!(value("f32:1"), Ok(Argument::Value(vec![0, 0, 128, 63])));
        assert_eq!(
            value("out:4K:0x10"),
            Ok(Argument::Buffer {
                bytes: 4096,
                fill: Fill::Word(16),
                is_output: true
            })
        );
        assert_eq!(
            value("buffer:8:random"),
            Ok(Argument::Buffer {
                bytes: 8,
                fill: Fill::Random,
                is_output: false
            })
        );
        for wrong in [
            "7",
            "i32:x",
            "i32:3000000000",
            "f16:1",
            "buffer:0",
            "out:8:x",
            ":",
        ] {
            assert!(value(wrong).is_err(), "{wrong}");
        }
    }
}
