//! Objects as they lie in memory, against what the linker says.

use candle_rocm_kernels::{Clang, CompileRequest, Compiler};
use code_object::{load, Error, Image, MAX_ZEROS};

const GFX1100: &[u8] = include_bytes!("fixtures/gfx1100.elf");

/// A place for the object that its file cannot have.
const ADDRESS: u64 = 0x7f12_3456_7000;

fn word(memory: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(memory[at as usize..][..8].try_into().unwrap())
}

#[test]
fn kernels_have_descriptors_in_the_image() {
    let (object, image) = load(GFX1100).unwrap();
    let memory = image.at(ADDRESS);
    assert_eq!(memory.len(), image.bytes());
    for kernel in &object.kernels {
        let symbol = image.symbol(&kernel.symbol).unwrap();
        assert_eq!((symbol.bytes, symbol.offset % 64), (64, 0));
        let lds = word(&memory, symbol.offset) as u32;
        assert_eq!(lds, kernel.lds_bytes, "{}", kernel.name);
        // The code begins so many bytes behind the descriptor, in the image and on a boundary of 256 bytes.
        let code = symbol.offset + word(&memory, symbol.offset + 16);
        assert!(code.is_multiple_of(256) && (code as usize) < memory.len());
    }
    assert!(image.symbol("scale").is_some() && image.symbol("absent").is_none());
    // The table of hidden arguments tells sizes by dimension.
    let scale = object.kernel("scale").unwrap();
    assert!(scale.hidden_arguments.iter().all(|a| a.is_hidden()));
    assert!(!scale.arguments.iter().any(|a| a.is_hidden()));
}

#[test]
fn addresses_of_variables_and_functions_are_relocated() {
    let clang = match Clang::find() {
        Ok(clang) => clang,
        Err(error) => return println!("nothing is compiled: {error}"),
    };
    let source = r#"
#define DEVICE __attribute__((device))
typedef void (*Function)(int *);
DEVICE int counter = 7;
DEVICE int zeros[1000];
DEVICE int *pointers[2] = {&counter, &zeros[3]};
DEVICE void more(int *at) { *at += 1; }
DEVICE Function functions[1] = {more};
extern "C" __attribute__((global)) void work(int *p) { functions[p[0] & 0](pointers[p[1] & 1]); }
"#;
    let object = clang
        .compile(&CompileRequest {
            name: "relocations.hip",
            source,
            arch: "gfx1100",
            options: &[],
        })
        .unwrap();
    let image = Image::parse(&object).unwrap();
    let symbol = |name: &str| image.symbol(name).unwrap();
    let (counter, zeros) = (symbol("counter"), symbol("zeros"));
    assert_eq!((counter.bytes, zeros.bytes), (4, 4000));
    let memory = image.at(ADDRESS);
    assert_eq!(word(&memory, counter.offset) as u32, 7);
    assert!(memory[zeros.offset as usize..][..4000]
        .iter()
        .all(|&byte| byte == 0));
    let pointers = symbol("pointers").offset;
    assert_eq!(word(&memory, pointers), ADDRESS + counter.offset);
    assert_eq!(word(&memory, pointers + 8), ADDRESS + zeros.offset + 12);
    let function = word(&memory, symbol("functions").offset);
    assert!((ADDRESS..ADDRESS + memory.len() as u64).contains(&function));
    // Elsewhere only these differ.
    let moved = image.at(ADDRESS + 0x1000);
    let differences = memory.iter().zip(&moved).filter(|(a, b)| a != b).count();
    assert_eq!(differences, 3);
}

/// The program header of the `n`th loaded segment.
fn loaded(file: &[u8], n: usize) -> usize {
    let headers = u64::from_le_bytes(file[32..40].try_into().unwrap()) as usize;
    (0..)
        .map(|at| headers + at * 56)
        .filter(|&at| file[at..at + 4] == 1_u32.to_le_bytes())
        .nth(n)
        .unwrap()
}

#[test]
fn segments_that_cannot_be_are_refused() {
    const ADDRESS_FIELD: usize = 16;
    const MEMORY_FIELD: usize = 40;
    const ALIGNMENT_FIELD: usize = 48;
    let last = loaded(GFX1100, 2);
    for (field, value) in [
        (MEMORY_FIELD, u64::MAX),
        (MEMORY_FIELD, MAX_ZEROS + GFX1100.len() as u64),
        (MEMORY_FIELD, 1),
        (ADDRESS_FIELD, u64::MAX - 8),
        (ADDRESS_FIELD, 0),
        (ALIGNMENT_FIELD, 1 << 20),
    ] {
        let mut file = GFX1100.to_vec();
        file[last + field..][..8].copy_from_slice(&value.to_le_bytes());
        match Image::parse(&file) {
            Err(Error::Malformed(_)) => {}
            other => panic!("{field}, {value:#x}: {other:?}"),
        }
    }
}

#[test]
fn any_byte_may_be_wrong() {
    let mut refused = 0;
    for at in 0..GFX1100.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut file = GFX1100.to_vec();
            file[at] ^= change;
            match Image::parse(&file) {
                // Zeros of hundreds of MiB are not written here.
                Ok(image) if image.bytes() < 1 << 20 => drop(image.at(ADDRESS)),
                Ok(_) => {}
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 200, "{refused}");
}
