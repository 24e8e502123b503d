//! What is read of objects that are made here, against what their source says.

use candle_rocm_kernels::{Clang, CompileRequest, Compiler};
use code_object::{json, read, text, CodeObject, Error, Facts, Kernel, Kind, Setting};

const GFX1100: &[u8] = include_bytes!("fixtures/gfx1100.elf");

/// Offset and size of each argument.
fn layout(kernel: &Kernel) -> Vec<(u32, u32)> {
    let arguments = kernel.arguments.iter();
    arguments
        .map(|argument| (argument.offset, argument.size))
        .collect()
}

/// What the source decides, whatever the compiler's version.
fn check(object: &CodeObject, wave_size: u32) {
    let names: Vec<&str> = object
        .kernels
        .iter()
        .map(|kernel| kernel.name.as_str())
        .collect();
    assert_eq!(names, ["scale", "scramble", "nothing"]);
    assert!(object.undefined.is_empty());
    let [scale, scramble, nothing] = names.map_to_kernels(object);
    assert_eq!(layout(scale), [(0, 8), (8, 8), (16, 28), (44, 1), (48, 8)]);
    let kinds: Vec<&str> = scale
        .arguments
        .iter()
        .map(|a| a.value_kind.as_str())
        .collect();
    assert_eq!(
        kinds,
        [
            "global_buffer",
            "global_buffer",
            "by_value",
            "by_value",
            "by_value"
        ]
    );
    assert_eq!(
        (scale.argument_bytes, scale.lds_bytes, scale.max_block),
        (56, 256, 256)
    );
    assert_eq!(layout(scramble), [(0, 8), (8, 4)]);
    assert_eq!(scramble.max_block, 1024);
    assert!(scramble.scratch_bytes >= 64 && scramble.vgprs >= 91 && scramble.sgprs >= 61);
    assert_eq!(
        (layout(nothing), nothing.max_block, nothing.scratch_bytes),
        (vec![], 64, 0)
    );
    for kernel in &object.kernels {
        assert_eq!(
            (kernel.wave_size, kernel.spills(), kernel.dynamic_stack),
            (wave_size, 0, false)
        );
        let descriptor = kernel.descriptor.as_ref().expect("every kernel has one");
        assert_eq!(descriptor.wave_size, wave_size);
        assert_eq!(descriptor.lds_bytes, kernel.lds_bytes);
        assert_eq!(descriptor.scratch_bytes, kernel.scratch_bytes);
        assert_eq!(descriptor.argument_bytes, kernel.argument_bytes);
        // Rounded up to a granule, at least one.
        let rounded = kernel.vgprs.max(1).next_multiple_of(8);
        assert_eq!(descriptor.vgprs, rounded, "{}", kernel.name);
    }
}

trait MapToKernels {
    fn map_to_kernels<'a>(&self, object: &'a CodeObject) -> [&'a Kernel; 3];
}

impl MapToKernels for Vec<&str> {
    fn map_to_kernels<'a>(&self, object: &'a CodeObject) -> [&'a Kernel; 3] {
        [0, 1, 2].map(|at| object.kernel(self[at]).unwrap())
    }
}

#[test]
fn the_object_that_lies_here() {
    let object = CodeObject::parse(GFX1100).unwrap();
    assert_eq!(
        (object.version, object.target.to_string().as_str()),
        (5, "gfx1100")
    );
    assert_eq!(object.bytes, GFX1100.len());
    check(&object, 32);
    let scramble = object.kernel("scramble").unwrap();
    assert_eq!(
        (scramble.vgprs, scramble.sgprs, scramble.scratch_bytes),
        (91, 61, 80)
    );
    // 96 registers: 1536 / 96.
    assert_eq!(scramble.waves_per_simd, Some(16));
    assert!(object.kernel("scramble.kd").is_none());
}

#[test]
fn a_file_may_lie_at_any_address() {
    let mut moved = vec![0];
    moved.extend_from_slice(GFX1100);
    assert_eq!(
        CodeObject::parse(&moved[1..]).unwrap(),
        CodeObject::parse(GFX1100).unwrap()
    );
}

/// The committed object's source, in the versions and with the registers that it does not have.
#[test]
fn objects_as_clang_makes_them() {
    let clang = match Clang::find() {
        Ok(clang) => clang,
        Err(error) => return println!("nothing is compiled: {error}"),
    };
    let compile = |arch: &str, version: u8| {
        let object = clang.compile(&CompileRequest {
            name: "kernels.hip",
            source: include_str!("fixtures/kernels.hip"),
            arch,
            options: &[format!("-mcode-object-version={version}")],
        });
        let object = CodeObject::parse(&object.unwrap()).unwrap();
        assert_eq!(
            (object.version, object.target.to_string().as_str()),
            (version, arch)
        );
        object
    };
    check(&compile("gfx1100", 5), 32);
    check(&compile("gfx11-generic", 6), 32);
    check(&compile("gfx1201", 4), 32);
    let mi250 = compile("gfx90a:sramecc+:xnack-", 4);
    check(&mi250, 64);
    assert_eq!(mi250.target.xnack, Some(Setting::Off));
    let scramble = mi250.kernel("scramble").unwrap();
    assert!(scramble.agprs >= 6, "{scramble:?}");
    let descriptor = scramble.descriptor.as_ref().unwrap();
    let offset = descriptor.accumulation_offset.unwrap();
    assert_eq!(scramble.vgprs, offset + scramble.agprs);
    assert_eq!(descriptor.sgprs, scramble.sgprs.next_multiple_of(16));
}

/// `.vgpr_count` of the metadata, under a name of the same length that nothing knows.
#[test]
fn registers_that_metadata_lacks_are_those_of_the_descriptor() {
    let without = replace(GFX1100, b".vgpr_count", b".count_vgpr");
    let object = CodeObject::parse(&without).unwrap();
    assert_eq!(object.kernel("scramble").unwrap().vgprs, 96);
    let neither = replace(&without, b"scramble.kd", b"scrumble.kd");
    // The metadata's mention and the symbol agree on the new name.
    let mut renamed = object.clone();
    renamed.kernels[1].symbol = "scrumble.kd".to_string();
    assert_eq!(CodeObject::parse(&neither).unwrap(), renamed);
    let at = find(&without, b"scramble.kd");
    let mut neither = without.clone();
    neither[at] = b'X';
    let error = CodeObject::parse(&neither).unwrap_err();
    assert!(
        matches!(&error, Error::Metadata(what) if what.contains("scramble")),
        "{error}"
    );
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes
        .windows(what.len())
        .position(|window| window == what)
        .unwrap()
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = bytes.to_vec();
    while let Some(at) = bytes.windows(from.len()).position(|window| window == from) {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    bytes
}

#[test]
fn what_is_no_code_object_is_said_to_be_so() {
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let error = read(&own).unwrap_err();
    assert!(
        matches!(error, Error::NotACodeObject(Kind::OtherElf(_))),
        "{error}"
    );
    let error = read(b"not at all").unwrap_err();
    assert!(
        matches!(error, Error::NotACodeObject(Kind::Unknown)),
        "{error}"
    );

    let mut old = GFX1100.to_vec();
    old[8] = 1;
    assert!(matches!(CodeObject::parse(&old), Err(Error::Version(3))));
    old[8] = 9;
    assert!(matches!(CodeObject::parse(&old), Err(Error::Version(11))));
    old[7] = 0;
    assert!(matches!(CodeObject::parse(&old), Err(Error::Malformed(_))));

    // The flags of gfx1200 on the metadata of gfx1100.
    let mut other = GFX1100.to_vec();
    other[48] = 0x48;
    let error = CodeObject::parse(&other).unwrap_err().to_string();
    assert!(
        error.contains("gfx1200") && error.contains("gfx1100"),
        "{error}"
    );
    // One that is not known yet is believed.
    other[48] = 0xfe;
    assert!(CodeObject::parse(&other).is_ok());
}

#[test]
fn a_table_and_json_say_the_same() {
    let facts = [Facts::new("gfx1100.elf", read(GFX1100).unwrap())];
    let table = text(&facts);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines[0],
        "gfx1100.elf: gfx1100, code object version 5, 6952 bytes, 3 kernels"
    );
    assert!(lines[2].ends_with("*8@0 *8@8 28@16 1@44 8@48"), "{table}");
    let words: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(
        words,
        ["scramble", "91", "0", "61", "0", "0", "80", "32", "1024", "16", "*8@0", "4@8"]
    );
    let json: serde_json::Value = serde_json::from_str(&json(&facts).unwrap()).unwrap();
    let object = &json[0]["objects"][0];
    assert_eq!(object["target"], "gfx1100");
    assert_eq!(object["kernels"][1]["scratch_bytes"], 80);
    assert_eq!(object["kernels"][0]["arguments"][2]["size"], 28);
}
