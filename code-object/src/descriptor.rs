//! Kernel descriptors: the 64 bytes behind a kernel's symbol that the hardware is set up from.

use serde::Serialize;

/// What a kernel is started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Descriptor {
    /// Vector registers that each lane gets.
    pub vgprs: u32,
    /// Scalar registers that each wave gets.
    pub sgprs: u32,
    /// Where accumulation registers begin among the vector registers; none where they are a file of their own.
    pub accumulation_offset: Option<u32>,
    /// Static LDS of a block, in bytes.
    pub lds_bytes: u32,
    /// Scratch memory of a lane, in bytes.
    pub scratch_bytes: u32,
    /// Size of all arguments, in bytes.
    pub argument_bytes: u32,
    /// Lanes of a wave.
    pub wave_size: u32,
    /// Whether it needs a stack whose size is not known.
    pub dynamic_stack: bool,
}

impl Descriptor {
    /// Size of a descriptor.
    pub(crate) const BYTES: usize = 64;

    /// Of a processor by its name: granules and settings differ from one generation to the next.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES], processor: &str) -> Self {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let properties = word(56);
        let (rsrc1, rsrc3) = (word(48), word(44));
        let is_gfx9 = processor.starts_with("gfx9");
        let unified = ["gfx90a", "gfx94", "gfx95", "gfx9-4"]
            .iter()
            .any(|start| processor.starts_with(start));
        let wave32 = !is_gfx9 && properties >> 10 & 1 != 0;
        let granule = if unified || wave32 { 8 } else { 4 };
        Descriptor {
            vgprs: ((rsrc1 & 0x3f) + 1) * granule,
            sgprs: if is_gfx9 {
                ((rsrc1 >> 6 & 0xf) / 2 + 1) * 16
            } else {
                // Every wave gets all.
                128
            },
            accumulation_offset: unified.then(|| ((rsrc3 & 0x3f) + 1) * 4),
            lds_bytes: word(0),
            scratch_bytes: word(4),
            argument_bytes: word(8),
            wave_size: if wave32 { 32 } else { 64 },
            dynamic_stack: properties >> 11 & 1 != 0,
        }
    }
}
