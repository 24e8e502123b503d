//! The instances of Composable Kernel's forward attention that a build with the feature `ck` carries.

/// One instance: what is fixed when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CkInstance {
    /// Head size: one of [`CkInstance::HEADS`].
    pub head: u32,
    /// bf16; else f16.
    pub bf16: bool,
    /// Whether a row sees no key after its own, where the last row stands at the last key.
    pub causal: bool,
    /// Sequences of different lengths behind each other; else of one length.
    pub varlen: bool,
}

impl CkInstance {
    /// The head sizes that have instances.
    pub const HEADS: [u32; 2] = [64, 128];

    /// Every instance of an arch: 16.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..16usize).map(|i| Self {
            head: Self::HEADS[i / 8],
            bf16: i & 4 != 0,
            causal: i & 2 != 0,
            varlen: i & 1 != 0,
        })
    }

    /// Whether instances can be compiled for an arch: Composable Kernel has tiles for CDNA and for RDNA4.
    pub fn exist_for(arch: &str) -> bool {
        let processor = arch.split(':').next().unwrap_or(arch);
        matches!(processor, "gfx90a" | "gfx942" | "gfx950") || processor.starts_with("gfx12")
    }

    /// Rows of a block: the first size of `Tile` in `ck/fmha.hip`.
    pub fn rows_per_block(arch: &str) -> u32 {
        if arch.starts_with("gfx12") {
            64
        } else {
            128
        }
    }

    /// The kernel's name: `ck_fmha_64_bf16_causal_varlen`.
    pub fn kernel_name(self) -> String {
        let dtype = if self.bf16 { "bf16" } else { "f16" };
        let causal = if self.causal { "_causal" } else { "" };
        let varlen = if self.varlen { "_varlen" } else { "" };
        format!("ck_fmha_{}_{dtype}{causal}{varlen}", self.head)
    }
}
