//! What clang for AMD makes of the units of these tests, without any header, for each family of GPUs.

use crate::device::{full, unit};
use candle_rocm_kernels::{Clang, CompileRequest, Compiler};

const ARCHS: [&str; 6] = [
    "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201",
];
const UNITS: [(&str, &str); 8] = [
    ("groups.hip", include_str!("kernels/groups.hip")),
    ("items.hip", include_str!("kernels/items.hip")),
    ("matrix.hip", include_str!("kernels/matrix.hip")),
    ("random.hip", include_str!("kernels/random.hip")),
    ("reduce.hip", include_str!("kernels/reduce.hip")),
    ("sort.hip", include_str!("kernels/sort.hip")),
    ("thrust.hip", include_str!("kernels/thrust.hip")),
    ("warps.hip", include_str!("kernels/warps.hip")),
];

fn object(name: &str, source: &str, arch: &str) -> Result<Vec<u8>, String> {
    let clang = Clang::find().map_err(|error| error.to_string())?;
    let source = unit(name, source);
    let request = CompileRequest {
        name,
        source: &source,
        arch,
        options: &[],
    };
    clang.compile(&request).map_err(|error| error.to_string())
}

#[test]
fn every_unit_compiles_for_every_family_of_gpus() {
    for (name, source) in UNITS {
        // Without all of them: one, and where a unit has more than one way, one of the others.
        let archs = match name {
            _ if full() => &ARCHS[..],
            "matrix.hip" => &["gfx942", "gfx1201"],
            _ => &["gfx942"],
        };
        for arch in archs {
            let object = object(name, source, arch).unwrap_or_else(|error| panic!("{error}"));
            assert!(object.starts_with(b"\x7fELF"), "{name} for {arch}");
        }
    }
}

/// A unit of one kernel.
fn kernel(header: &str, body: &str) -> String {
    format!(
        "#include \"port/{header}\"\nPORT_BEGIN\n\
         extern \"C\" PORT_KERNEL(64) void k(int* out) {{ {body} }}\nPORT_END\n"
    )
}

#[test]
fn what_is_by_hand_does_not_compile_and_says_so() {
    let refused = [
        (
            "cooperative_groups.h",
            "cooperative_groups::this_grid().sync();",
            "grid_group::sync() is by hand",
        ),
        (
            "cooperative_groups.h",
            "auto block = cooperative_groups::this_thread_block();
             out[0] = cooperative_groups::tiled_partition<64>(block).size();",
            "tiles of more than a warp are by hand",
        ),
        (
            "pipeline.h",
            "__shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
             auto role = threadIdx.x < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
             auto pipe = cuda::make_pipeline(cooperative_groups::this_thread_block(), &state, role);",
            "with producers and consumers of their own are by hand",
        ),
        (
            "pipeline.h",
            "__shared__ cuda::barrier<cuda::thread_scope_device> b; b.arrive();",
            "barriers beyond a block are by hand",
        ),
        (
            "cub.h",
            "int items[3] = {}; cub::BlockExchange<int, 50, 3>().WarpStripedToBlocked(items); out[0] = items[0];",
            "warp-striped items need whole warps",
        ),
    ];
    for (header, body, reason) in refused {
        let error = object("refused.hip", &kernel(header, body), "gfx942").expect_err(body);
        assert!(error.contains(reason), "{body}: {error}");
    }
}
