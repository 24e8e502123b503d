//! What a code object says of its kernels, in msgpack (LLVM's AMDGPUUsage, "Code Object V5 Metadata").

use super::MockKernel;

/// Hidden arguments of code objects of version 5 (LLVM's AMDGPUUsage): offset behind the others, size, kind.
const HIDDEN: [(u32, u32, &str); 13] = [
    (0, 4, "hidden_block_count_x"),
    (4, 4, "hidden_block_count_y"),
    (8, 4, "hidden_block_count_z"),
    (12, 2, "hidden_group_size_x"),
    (14, 2, "hidden_group_size_y"),
    (16, 2, "hidden_group_size_z"),
    (18, 2, "hidden_remainder_x"),
    (20, 2, "hidden_remainder_y"),
    (22, 2, "hidden_remainder_z"),
    (40, 8, "hidden_global_offset_x"),
    (48, 8, "hidden_global_offset_y"),
    (56, 8, "hidden_global_offset_z"),
    (64, 2, "hidden_grid_dims"),
];
/// All that a compiler sets aside for hidden arguments.
const HIDDEN_BYTES: u32 = 256;

impl MockKernel {
    /// Offset, size and kind of each argument, and the size of all.
    pub(super) fn layout(&self) -> (Vec<(u32, u32, &'static str)>, u32) {
        let mut arguments = Vec::new();
        let mut end = 0u32;
        for argument in &self.arguments {
            let alignment = argument.bytes.next_power_of_two().clamp(1, 16);
            let offset = end.next_multiple_of(alignment);
            let kind = if argument.is_buffer {
                "global_buffer"
            } else {
                "by_value"
            };
            arguments.push((offset, argument.bytes, kind));
            end = offset + argument.bytes;
        }
        if self.hidden {
            let start = end.next_multiple_of(8);
            arguments.extend(HIDDEN.map(|(at, bytes, kind)| (start + at, bytes, kind)));
            end = start + HIDDEN_BYTES;
        }
        (arguments, end)
    }
}

/// A note of AMD's with metadata.
pub(super) fn note(metadata: &[u8]) -> Vec<u8> {
    let mut note = Vec::new();
    for word in [7, metadata.len() as u32, 32] {
        note.extend(word.to_le_bytes());
    }
    note.extend(*b"AMDGPU\0\0");
    note.extend(metadata);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

/// The metadata in msgpack.
pub(super) fn metadata(target: &str, kernels: &[MockKernel]) -> Vec<u8> {
    let mut pack = Pack(Vec::new());
    pack.map(3);
    pack.text("amdhsa.version").array(2).number(1).number(2);
    pack.text("amdhsa.target")
        .text(&format!("amdgcn-amd-amdhsa--{target}"));
    pack.text("amdhsa.kernels").array(kernels.len());
    let wave = if target.starts_with("gfx9") { 64 } else { 32 };
    for kernel in kernels {
        let (arguments, bytes) = kernel.layout();
        let numbers = [
            (".kernarg_segment_size", bytes),
            (".kernarg_segment_align", 8),
            (".group_segment_fixed_size", kernel.lds_bytes),
            (".private_segment_fixed_size", kernel.scratch_bytes),
            (".wavefront_size", wave),
            (".max_flat_workgroup_size", kernel.most_threads),
            (".vgpr_count", 4),
            (".sgpr_count", 8),
        ];
        pack.map(3 + numbers.len());
        pack.text(".name").text(&kernel.name);
        pack.text(".symbol").text(&format!("{}.kd", kernel.name));
        for (name, number) in numbers {
            pack.text(name).number(number);
        }
        pack.text(".args").array(arguments.len());
        for (offset, bytes, kind) in arguments {
            let is_buffer = kind == "global_buffer";
            pack.map(if is_buffer { 4 } else { 3 });
            pack.text(".offset").number(offset);
            pack.text(".size").number(bytes);
            pack.text(".value_kind").text(kind);
            if is_buffer {
                pack.text(".address_space").text("global");
            }
        }
    }
    pack.0
}

/// Writes msgpack, every value in its form of 32 bits.
struct Pack(Vec<u8>);

impl Pack {
    fn tagged(&mut self, tag: u8, value: u32) -> &mut Self {
        self.0.push(tag);
        self.0.extend(value.to_be_bytes());
        self
    }

    fn map(&mut self, entries: usize) -> &mut Self {
        self.tagged(0xdf, entries as u32)
    }

    fn array(&mut self, entries: usize) -> &mut Self {
        self.tagged(0xdd, entries as u32)
    }

    fn number(&mut self, number: u32) -> &mut Self {
        self.tagged(0xce, number)
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.tagged(0xdb, text.len() as u32);
        self.0.extend(text.bytes());
        self
    }
}
