//! Code objects without a compiler: kernels that have arguments and end at once, whose work a closure of the mock does.

mod metadata;

use metadata::{metadata, note};

/// Bytes of a page, to which segments are aligned.
const PAGE: usize = 4096;
/// Bytes of a kernel's code.
const CODE: usize = 256;
/// Bytes of a kernel's descriptor.
const DESCRIPTOR: usize = 64;

/// A kernel of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MockKernel {
    name: String,
    arguments: Vec<Argument>,
    lds_bytes: u32,
    scratch_bytes: u32,
    most_threads: u32,
    hidden: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Argument {
    bytes: u32,
    is_buffer: bool,
}

impl MockKernel {
    /// Without arguments, LDS and scratch memory; for blocks of up to 1024 threads.
    pub fn new(name: &str) -> Self {
        MockKernel {
            name: name.to_string(),
            arguments: Vec::new(),
            lds_bytes: 0,
            scratch_bytes: 0,
            most_threads: 1024,
            hidden: false,
        }
    }

    /// Takes an address of memory next.
    pub fn buffer(mut self) -> Self {
        self.arguments.push(Argument {
            bytes: 8,
            is_buffer: true,
        });
        self
    }

    /// Takes a value of so many bytes next, aligned as a number of that size is.
    pub fn value(mut self, bytes: u32) -> Self {
        self.arguments.push(Argument {
            bytes,
            is_buffer: false,
        });
        self
    }

    /// Takes counts and sizes of blocks behind its arguments, which the runtime passes.
    pub fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// Has static LDS.
    pub fn lds(mut self, bytes: u32) -> Self {
        self.lds_bytes = bytes;
        self
    }

    /// Needs scratch memory for each lane.
    pub fn scratch(mut self, bytes: u32) -> Self {
        self.scratch_bytes = bytes;
        self
    }

    /// Takes blocks of so many threads at most.
    pub fn threads(mut self, most: u32) -> Self {
        self.most_threads = most;
        self
    }
}

/// A code object of version 5 for a target such as `gfx1100` with these kernels.
pub fn object(target: &str, kernels: &[MockKernel]) -> Vec<u8> {
    Layout::new(target, kernels).file()
}

/// Type, flags, where, how long, of which other section, information, alignment, size of an entry.
type Section = (u32, u64, usize, usize, u32, u32, u64, usize);

/// Where the parts of an object are: addresses are offsets in the file.
struct Layout<'a> {
    target: &'a str,
    kernels: &'a [MockKernel],
    note: Vec<u8>,
    strings: Vec<u8>,
    /// Where each kernel's name and its descriptor's begin among the strings.
    names: Vec<[usize; 2]>,
    note_at: usize,
    symbols_at: usize,
    hash_at: usize,
    strings_at: usize,
    descriptors_at: usize,
    code_at: usize,
    dynamic_at: usize,
}

/// Names of sections, as they follow each other in `.shstrtab`.
const SECTIONS: [&str; 9] = [
    "",
    ".note",
    ".dynsym",
    ".hash",
    ".dynstr",
    ".rodata",
    ".text",
    ".dynamic",
    ".shstrtab",
];
const HEADER: usize = 64;
const SEGMENTS: usize = 5;
const SEGMENT: usize = 56;
const SYMBOL: usize = 24;
const DYNAMIC: [u64; 6] = [4, 5, 6, 10, 11, 0];

impl<'a> Layout<'a> {
    fn new(target: &'a str, kernels: &'a [MockKernel]) -> Self {
        let note = note(&metadata(target, kernels));
        let mut strings = vec![0];
        let mut name = |text: String| {
            let at = strings.len();
            strings.extend(text.bytes());
            strings.push(0);
            at
        };
        let names: Vec<[usize; 2]> = (kernels.iter())
            .map(|kernel| {
                [
                    name(kernel.name.clone()),
                    name(format!("{}.kd", kernel.name)),
                ]
            })
            .collect();
        let note_at = HEADER + SEGMENTS * SEGMENT;
        let symbols_at = (note_at + note.len()).next_multiple_of(8);
        let symbols = 1 + 2 * kernels.len();
        let hash_at = symbols_at + symbols * SYMBOL;
        let strings_at = hash_at + 4 * (2 + 1 + symbols);
        let descriptors_at = (strings_at + strings.len()).next_multiple_of(DESCRIPTOR);
        let code_at = (descriptors_at + kernels.len() * DESCRIPTOR).next_multiple_of(PAGE);
        let dynamic_at = (code_at + kernels.len() * CODE).next_multiple_of(PAGE);
        Layout {
            target,
            kernels,
            note,
            strings,
            names,
            note_at,
            symbols_at,
            hash_at,
            strings_at,
            descriptors_at,
            code_at,
            dynamic_at,
        }
    }

    fn descriptor(&self, i: usize) -> u64 {
        (self.descriptors_at + i * DESCRIPTOR) as u64
    }

    fn code(&self, i: usize) -> u64 {
        (self.code_at + i * CODE) as u64
    }

    fn file(&self) -> Vec<u8> {
        let mut file = Vec::new();
        let sections_at = self.header(&mut file);
        self.segments(&mut file);
        file.resize(self.note_at, 0);
        file.extend(&self.note);
        file.resize(self.symbols_at, 0);
        self.symbols(&mut file);
        self.hash(&mut file);
        file.extend(&self.strings);
        for (i, kernel) in self.kernels.iter().enumerate() {
            file.resize(self.descriptor(i) as usize, 0);
            self.write_descriptor(&mut file, i, kernel);
        }
        for i in 0..self.kernels.len() {
            file.resize(self.code(i) as usize, 0);
            self.write_code(&mut file);
        }
        file.resize(self.dynamic_at, 0);
        let values = [
            self.hash_at as u64,
            self.strings_at as u64,
            self.symbols_at as u64,
            self.strings.len() as u64,
            SYMBOL as u64,
            0,
        ];
        for (tag, value) in DYNAMIC.into_iter().zip(values) {
            push(&mut file, &[tag, value]);
        }
        for name in SECTIONS {
            file.extend(name.bytes());
            file.push(0);
        }
        file.resize(sections_at, 0);
        self.sections(&mut file);
        file
    }

    fn section_names_at(&self) -> usize {
        self.dynamic_at + DYNAMIC.len() * 16
    }

    /// Writes the file's header, and returns where the table of sections is to be.
    fn header(&self, file: &mut Vec<u8>) -> usize {
        let names: usize = SECTIONS.iter().map(|name| name.len() + 1).sum();
        let sections_at = (self.section_names_at() + names).next_multiple_of(8);
        file.extend(*b"\x7fELF\x02\x01\x01");
        // The system HSA, version 5 of the format.
        file.extend([64, 3, 0, 0, 0, 0, 0, 0, 0]);
        // A shared object for AMD's GPUs. The processor's number among the flags is left out: the metadata names it.
        file.extend([3, 0, 0xe0, 0, 1, 0, 0, 0]);
        push(file, &[0, HEADER as u64, sections_at as u64]);
        file.extend(0u32.to_le_bytes());
        for half in [
            HEADER,
            SEGMENT,
            SEGMENTS,
            64,
            SECTIONS.len(),
            SECTIONS.len() - 1,
        ] {
            file.extend((half as u16).to_le_bytes());
        }
        sections_at
    }

    fn segments(&self, file: &mut Vec<u8>) {
        let read_only = self.descriptor(self.kernels.len()) as usize;
        let code_end = self.code(self.kernels.len()) as usize;
        let dynamic = DYNAMIC.len() * 16;
        // Type, what may be done (4: read, 2: write, 1: execute), where, how long, aligned to what.
        for (kind, may, at, bytes, alignment) in [
            (1u32, 4u32, 0, read_only, PAGE),
            (1, 5, self.code_at, code_end - self.code_at, PAGE),
            (1, 6, self.dynamic_at, dynamic, PAGE),
            (2, 6, self.dynamic_at, dynamic, 8),
            (4, 4, self.note_at, self.note.len(), 4),
        ] {
            file.extend(kind.to_le_bytes());
            file.extend(may.to_le_bytes());
            push(
                file,
                &[at, at, at, bytes, bytes, alignment].map(|value| value as u64),
            );
        }
    }

    fn symbols(&self, file: &mut Vec<u8>) {
        file.extend([0; SYMBOL]);
        for (i, names) in self.names.iter().enumerate() {
            // Global and protected: a function of the section .text, an object of .rodata.
            for (name, kind, section, at, bytes) in [
                (names[0], 0x12, 6u16, self.code(i), CODE),
                (names[1], 0x11, 5, self.descriptor(i), DESCRIPTOR),
            ] {
                file.extend((name as u32).to_le_bytes());
                file.extend([kind, 3]);
                file.extend(section.to_le_bytes());
                push(file, &[at, bytes as u64]);
            }
        }
    }

    /// A table of one chain that holds all symbols.
    fn hash(&self, file: &mut Vec<u8>) {
        let symbols = 1 + 2 * self.kernels.len() as u32;
        let first = if symbols > 1 { 1 } else { 0 };
        let chain = (0..symbols).map(|i| if i > 0 && i + 1 < symbols { i + 1 } else { 0 });
        for word in [1, symbols, first].into_iter().chain(chain) {
            file.extend(word.to_le_bytes());
        }
    }

    fn newer(&self) -> bool {
        ["gfx11", "gfx12"]
            .iter()
            .any(|start| self.target.starts_with(start))
    }

    fn write_descriptor(&self, file: &mut Vec<u8>, i: usize, kernel: &MockKernel) {
        const KERNARG_POINTER: u16 = 1 << 3;
        const WAVE32: u16 = 1 << 10;
        let at = self.descriptor(i);
        let (_, arguments) = kernel.layout();
        let mut bytes = [0; DESCRIPTOR];
        let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        set(0, &kernel.lds_bytes.to_le_bytes());
        set(4, &kernel.scratch_bytes.to_le_bytes());
        set(8, &arguments.to_le_bytes());
        set(16, &(self.code(i) - at).to_le_bytes());
        // Two scalar registers with the arguments' address.
        set(52, &(2u32 << 1).to_le_bytes());
        let wave = if self.target.starts_with("gfx9") {
            0
        } else {
            WAVE32
        };
        set(56, &(KERNARG_POINTER | wave).to_le_bytes());
        file.extend(bytes);
    }

    /// `s_endpgm`, and `s_code_end` to the end.
    fn write_code(&self, file: &mut Vec<u8>) {
        let end: u32 = if self.newer() {
            0xbfb0_0000
        } else {
            0xbf81_0000
        };
        file.extend(end.to_le_bytes());
        for _ in 1..CODE / 4 {
            file.extend(0xbf9f_0000u32.to_le_bytes());
        }
    }

    fn sections(&self, file: &mut Vec<u8>) {
        let symbols = 1 + 2 * self.kernels.len();
        let descriptors = self.kernels.len() * DESCRIPTOR;
        let code = self.kernels.len() * CODE;
        let names: usize = SECTIONS.iter().map(|name| name.len() + 1).sum();
        let rows: [Section; 9] = [
            (0, 0, 0, 0, 0, 0, 0, 0),
            (7, 2, self.note_at, self.note.len(), 0, 0, 4, 0),
            (11, 2, self.symbols_at, symbols * SYMBOL, 4, 1, 8, SYMBOL),
            (5, 2, self.hash_at, 4 * (3 + symbols), 2, 0, 4, 4),
            (3, 2, self.strings_at, self.strings.len(), 0, 0, 1, 0),
            (
                1,
                2,
                self.descriptors_at,
                descriptors,
                0,
                0,
                DESCRIPTOR as u64,
                0,
            ),
            (1, 6, self.code_at, code, 0, 0, CODE as u64, 0),
            (6, 3, self.dynamic_at, DYNAMIC.len() * 16, 4, 0, 8, 16),
            (3, 0, self.section_names_at(), names, 0, 0, 1, 0),
        ];
        let mut name = 0u32;
        for (row, text) in rows.into_iter().zip(SECTIONS) {
            let (kind, flags, at, bytes, link, information, alignment, entry) = row;
            file.extend(name.to_le_bytes());
            file.extend(kind.to_le_bytes());
            let address = if flags & 2 != 0 { at } else { 0 };
            push(file, &[flags, address as u64, at as u64, bytes as u64]);
            file.extend(link.to_le_bytes());
            file.extend(information.to_le_bytes());
            push(file, &[alignment, entry as u64]);
            name += text.len() as u32 + 1;
        }
    }
}

fn push(file: &mut Vec<u8>, values: &[u64]) {
    for value in values {
        file.extend(value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_reads_what_is_written() {
        let kernels = [
            MockKernel::new("add")
                .buffer()
                .buffer()
                .value(4)
                .hidden()
                .lds(512),
            MockKernel::new("other")
                .value(1)
                .value(8)
                .scratch(64)
                .threads(256),
        ];
        for target in ["gfx1100", "gfx942", "gfx1030"] {
            let file = object(target, &kernels);
            let read = code_object::CodeObject::parse(&file).unwrap();
            assert_eq!((read.version, read.target.processor()), (5, target));
            let [add, other] = &read.kernels[..] else {
                panic!("{:?}", read.kernels);
            };
            assert_eq!(
                (add.name.as_str(), add.lds_bytes, add.argument_bytes),
                ("add", 512, 24 + 256)
            );
            let offsets: Vec<u32> = add
                .arguments
                .iter()
                .map(|argument| argument.offset)
                .collect();
            assert_eq!(offsets, [0, 8, 16]);
            assert_eq!((other.scratch_bytes, other.max_block), (64, 256));
            assert_eq!(other.arguments[1].offset, 8);
            let descriptor = other.descriptor.as_ref().unwrap();
            assert_eq!(
                (descriptor.scratch_bytes, descriptor.argument_bytes),
                (64, 16)
            );
            assert_eq!(descriptor.wave_size, other.wave_size);
        }
        assert!(code_object::CodeObject::parse(&object("gfx1100", &[])).is_ok());
    }
}
