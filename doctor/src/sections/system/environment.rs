//! Variables that change how the driver, ROCm or this product work.

use crate::Check;
use candle_rocm::topology::Topology;
use serde_json::{Map, Value};

/// What a variable that is set means.
enum Effect {
    /// It hides GPUs.
    Hides,
    /// It makes everything slower, for hunting faults.
    Slow,
    /// It may break things; the text says how.
    Risk(&'static str),
}

/// Variables worth a finding. Sources: <https://rocm.docs.amd.com/projects/HIP/en/latest/reference/env_variables.html>,
/// <https://rocm.docs.amd.com/projects/rocBLAS/en/latest/reference/env-variables.html>.
const VARIABLES: &[(&str, Effect)] = &[
    ("HIP_VISIBLE_DEVICES", Effect::Hides),
    ("ROCR_VISIBLE_DEVICES", Effect::Hides),
    ("CUDA_VISIBLE_DEVICES", Effect::Hides),
    ("GPU_DEVICE_ORDINAL", Effect::Hides),
    ("AMD_SERIALIZE_KERNEL", Effect::Slow),
    ("AMD_SERIALIZE_COPY", Effect::Slow),
    ("HIP_LAUNCH_BLOCKING", Effect::Slow),
    ("AMD_LOG_LEVEL", Effect::Slow),
    ("ROCBLAS_LAYER", Effect::Slow),
    ("CANDLE_ROCM_SYNC", Effect::Slow),
    ("CANDLE_ROCM_ALLOC", Effect::Slow),
    (
        "HSA_ENABLE_SDMA",
        Effect::Risk("copies do without the copy engines if it is 0"),
    ),
    (
        "HSA_ENABLE_INTERRUPT",
        Effect::Risk("waiting keeps a processor busy if it is 0"),
    ),
    (
        "HSA_XNACK",
        Effect::Risk("kernels are made for memory that may be absent"),
    ),
    ("HSA_CU_MASK", Effect::Risk("only some compute units work")),
    (
        "ROCBLAS_TENSILE_LIBPATH",
        Effect::Risk("rocBLAS takes its kernels from another folder"),
    ),
    (
        "ROCBLAS_USE_HIPBLASLT",
        Effect::Risk("rocBLAS is told whether to use hipBLASLt"),
    ),
    (
        "LD_PRELOAD",
        Effect::Risk("a library is put before all others"),
    ),
    ("HSA_TOOLS_LIB", Effect::Risk("a profiler is loaded")),
];

/// What the names of further variables that are told begin with.
const PREFIXES: &[&str] = &[
    "AMD_",
    "CANDLE_ROCM_",
    "DEBUG_HIP_",
    "GPU_",
    "HIP_",
    "HIPBLASLT_",
    "HSA_",
    "LD_",
    "MIOPEN_",
    "ROCBLAS_",
    "ROCM_",
    "ROCR_",
    "TENSILE_",
];

/// The variable by which a GPU is taken for another.
const OVERRIDE: &str = "HSA_OVERRIDE_GFX_VERSION";

/// Tells which variables are set and what they do.
pub(super) fn look(
    check: &Check,
    topology: &Topology,
    variables: impl Iterator<Item = (String, String)>,
) -> Value {
    let mut told: Vec<(String, String)> = variables
        .filter(|(name, _)| {
            PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || is_listed(name)
        })
        .collect();
    told.sort();
    for (name, value) in &told {
        if name == OVERRIDE {
            overridden(check, topology, value);
            continue;
        }
        let Some((_, effect)) = VARIABLES.iter().find(|(known, _)| known == name) else {
            continue;
        };
        let unset = format!("unset {name} if that is not meant");
        let code = "variable";
        match effect {
            Effect::Hides => check.info(code, format!("{name}={value}: it may hide GPUs"), unset),
            Effect::Slow if matches!(value.as_str(), "" | "0" | "cached") => {}
            Effect::Slow => {
                check.warning(code, format!("{name}={value}: everything is slower"), unset)
            }
            Effect::Risk(how) => check.info(code, format!("{name}={value}: {how}"), unset),
        }
    }
    let pairs = told
        .into_iter()
        .map(|(name, value)| (name, Value::String(value)));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn is_listed(name: &str) -> bool {
    VARIABLES.iter().any(|(known, _)| *known == name)
}

/// `10.3.0` makes every GPU a gfx1030.
fn overridden(check: &Check, topology: &Topology, value: &str) {
    let own: Vec<&str> = topology
        .gpus
        .iter()
        .filter_map(|gpu| gpu.arch.as_deref())
        .collect();
    let numbers: Vec<u32> = value
        .split('.')
        .filter_map(|part| part.parse().ok())
        .collect();
    let [major, minor, step] = numbers[..] else {
        check.error(
            "override",
            format!("{OVERRIDE}={value} is no version like 10.3.0"),
            format!("unset {OVERRIDE}"),
        );
        return;
    };
    let arch = format!("gfx{major}{minor:x}{step:x}");
    match own.iter().all(|own| *own == arch) && !own.is_empty() {
        true => check.info("override", format!("{OVERRIDE}={value} says what the GPU is anyway"), ""),
        false => check.warning(
            "override",
            format!("{OVERRIDE}={value} makes ROCm take every GPU ({}) for {arch}", own.join(", ")),
            "kernels for another processor may compute wrong or end the process: the sections kernels and operations tell whether they do; this product needs no override",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Finding, Severity};
    use crate::section::Event;
    use crate::Options;
    use candle_rocm::topology::KernelGpu;

    fn findings(variables: &[(&str, &str)]) -> (Vec<Finding>, Value) {
        let options = Options::default();
        let gpu = KernelGpu {
            arch: Some("gfx1031".to_string()),
            ..KernelGpu::default()
        };
        let topology = Topology { gpus: vec![gpu] };
        let (sender, events) = std::sync::mpsc::channel();
        let check = Check::new("system", None, &options, move |event| {
            let _ = sender.send(event);
        });
        let own = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        let facts = look(&check, &topology, variables.iter().map(own));
        let found = events.try_iter().filter_map(|event| match event {
            Event::Found(finding) => Some(finding),
            _ => None,
        });
        (found.collect(), facts)
    }

    #[test]
    fn an_override_is_judged_by_what_the_gpu_is() {
        for (value, severity) in [
            ("10.3.0", Severity::Warning),
            ("10.3.1", Severity::Info),
            ("gfx1030", Severity::Error),
        ] {
            let (found, _) = findings(&[(OVERRIDE, value)]);
            assert_eq!((found.len(), found[0].severity), (1, severity), "{value}");
        }
    }

    #[test]
    fn variables_of_rocm_are_told_and_others_are_not() {
        let (found, facts) = findings(&[
            ("AMD_SERIALIZE_KERNEL", "3"),
            ("CANDLE_ROCM_SYNC", "0"),
            ("HIP_VISIBLE_DEVICES", "1"),
            ("MIOPEN_FIND_MODE", "1"),
            ("SECRET", "x"),
        ]);
        let severities: Vec<Severity> = found.iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Severity::Warning, Severity::Info]);
        let names: Vec<&String> = facts.as_object().unwrap().keys().collect();
        assert_eq!(
            names,
            [
                "AMD_SERIALIZE_KERNEL",
                "CANDLE_ROCM_SYNC",
                "HIP_VISIBLE_DEVICES",
                "MIOPEN_FIND_MODE"
            ]
        );
    }
}
