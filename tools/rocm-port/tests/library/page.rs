//! The table of libraries, its page, and the headers that both name.

use rocm_port::libraries::{place_of, table, Place, PARTS};
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn the_longest_name_counts() {
    let place = |name| place_of(name).map(|part| part.place);
    let cub = Some(Place::Shim("port/cub.h"));
    assert_eq!(place("cub::BlockReduce"), cub);
    assert_eq!(place("cub::WarpScan"), cub);
    let by_hand = |name| matches!(place(name), Some(Place::ByHand(_)));
    assert!(by_hand("cub::BlockRunLengthDecode"));
    assert!(by_hand("cub::DeviceReduce::ReduceByKey"));
    assert!(by_hand("thrust::set_union"));
    assert!(by_hand("curandStateMRG32k3a_t"));
    let ours = |name| matches!(place(name), Some(Place::Ours(_)));
    assert!(ours("cub::DeviceReduce::Sum"));
    assert!(ours("thrust::inclusive_scan"));
    assert!(ours("curandGenerateUniformDouble"));
    assert_eq!(place("cutlass::gemm"), None);
    assert_eq!(place(""), None);
}

#[test]
fn every_part_stands_once_and_its_header_is_there() {
    let names: BTreeSet<&str> = PARTS.iter().map(|part| part.name).collect();
    assert_eq!(names.len(), PARTS.len());
    for part in PARTS {
        if let Place::Shim(header) = part.place {
            crate::device::unit("header.hip", &format!("#include \"{header}\"\n"));
        }
    }
}

#[test]
fn the_page_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rocm-port/libraries.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let begin = page.find("| Name |").expect("the table begins");
    let end = begin
        + page[begin..]
            .find("\n\n")
            .expect("something follows the table")
        + 1;
    let renewed = format!("{}{}{}", &page[..begin], table(), &page[end..]);
    if std::env::var_os("ROCM_PORT_WRITE_DOCS").is_some() {
        std::fs::write(&path, renewed).unwrap();
    } else {
        let message = "docs/rocm-port/libraries.md is old: ROCM_PORT_WRITE_DOCS=1 renews it";
        assert!(page == renewed, "{message}");
    }
}
