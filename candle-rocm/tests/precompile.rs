//! Compiling ahead: what is missing, and that nothing is compiled again when it is used.
//!
//! One test, since the cache of a process is one.

mod common;

use candle_rocm::{ops, precompile, CodeObject, DType, Family, Scalar, View};
use std::collections::HashSet;

#[test]
fn what_is_compiled_ahead_is_not_compiled_when_it_is_used() {
    let folder = tempfile::tempdir().unwrap();
    std::env::set_var("CANDLE_ROCM_CACHE_DIR", folder.path());
    // What it compiles would be counted.
    std::env::set_var("CANDLE_ROCM_VERIFY", "off");
    let device = common::device();
    let arch = &device.properties().full_arch;

    let all = CodeObject::all();
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    let of = |family: Family| all.iter().filter(|o| o.family() == family).count();
    assert!(Family::ALL.iter().all(|&family| of(family) > 0));
    assert!(of(Family::MatvecK) > 3 && of(Family::Fill) == 1);

    let parts = HashSet::from(["f16".to_string(), "q4k".to_string()]);
    let families = [Family::Norm, Family::Fill, Family::AttentionDecode];
    let selected: Vec<String> = CodeObject::select(&families, &parts)
        .iter()
        .map(|object| object.to_string())
        .collect();
    let decode = ["attention/decode.hip ", "attention/decode.hip f16"];
    assert_eq!(
        selected,
        [&["norm.hip f16", "fill.hip"], &decode[..]].concat()
    );

    let wanted: Vec<CodeObject> = ["ternary.hip", "fill.hip", "fill.hip"]
        .map(|text| text.parse().unwrap())
        .to_vec();
    let jobs = precompile::missing(arch, &wanted).unwrap();
    let objects: Vec<String> = jobs.iter().map(|job| job.object.to_string()).collect();
    assert_eq!(objects, ["ternary.hip", "fill.hip"]);
    jobs[1].run().unwrap();
    let jobs = precompile::missing(arch, &wanted).unwrap();
    assert_eq!(jobs.len(), 1);
    assert_eq!(precompile::cache_stats().compiled, 1);

    let seven = Scalar::U32(7);
    let buffer = device.alloc(3 * 4).unwrap();
    let view = View::contiguous(&buffer, DType::U32, &[3], &[1]);
    ops::fill::fill(&device, &view, seven).unwrap();
    assert_eq!(common::download::<u32>(&device, &buffer), [7; 3]);
    assert_eq!(precompile::cache_stats().compiled, 1);
    let loaded: Vec<String> = device
        .loaded_objects()
        .iter()
        .map(|object| object.to_string())
        .collect();
    assert_eq!(loaded, ["fill.hip"]);

    // What a GPU lacks is not compiled for it.
    let matrix: CodeObject = "attention/matrix_f16.hip".parse().unwrap();
    assert!(
        precompile::missing("gfx1030", std::slice::from_ref(&matrix))
            .unwrap()
            .is_empty()
    );
    assert_eq!(precompile::missing("gfx1100", &[matrix]).unwrap().len(), 1);

    // A damaged object counts as missing.
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "co") {
            std::fs::write(&path, "damaged").unwrap();
        }
    }
    assert_eq!(precompile::missing(arch, &wanted).unwrap().len(), 2);
}
