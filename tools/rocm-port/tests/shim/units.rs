//! Units of CUDA text, and checks of them.

use rocm_port::check::{Case, Check, Targets};
use rocm_port::model::PortedUnit;
use std::time::Duration;

/// A unit of this CUDA text with these entries, each `name(parameter types)`: kernels of that name whose entries are
/// called `rocm_` and the name.
pub fn unit(text: &str, kernels: &[(&str, usize)]) -> PortedUnit {
    let mut source = format!(
        "#include \"port/cuda.h\"\n#include \"port/ptx.h\"\nPORT_BEGIN\n#line 1 \"text.cu\"\n{text}\n"
    );
    for (kernel, parameters) in kernels {
        let list = |form: &dyn Fn(usize) -> String| {
            let each: Vec<String> = (0..*parameters).map(form).collect();
            each.join(", ")
        };
        let types = list(&|i| format!("port::argument<{i}, &{kernel}> a{i}"));
        let names = list(&|i| format!("a{i}"));
        source += &format!(
            "extern \"C\" PORT_KERNEL(1024) void rocm_{kernel}({types}) {{ {kernel}({names}); }}\n"
        );
    }
    source += "PORT_END\n";
    PortedUnit {
        name: "shim".to_string(),
        source,
        kernels: Vec::new(),
    }
}

/// Runs cases of a unit in both widths of waves, in so many orders of threads, compiles it for these archs, and panics
/// with the report if anything is found.
pub fn check(
    unit: &PortedUnit,
    archs: &[&str],
    orders: usize,
    cases: impl IntoIterator<Item = Case>,
) {
    let targets = match archs {
        [] => Targets::None,
        archs => Targets::Only(archs.iter().map(|arch| arch.to_string()).collect()),
    };
    let report = Check::new(unit)
        .options(["-fno-strict-aliasing"])
        .compile_for(targets)
        .orders(orders)
        .limit(Duration::from_secs(60))
        .cases(cases)
        .run()
        .unwrap();
    assert!(report.is_clean(), "{report}");
}
