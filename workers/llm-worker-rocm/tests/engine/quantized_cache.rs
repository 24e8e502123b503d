//! Keys and values of few bits: what an engine answers does not depend on who shares them, or on who had to go.

use super::*;
use llm_worker_rocm::engine::api::KvRotation;

fn kinds() -> [EngineOptions; 3] {
    let of = |keys, values, kv_rotation| EngineOptions {
        key_dtype: Some(keys),
        value_dtype: Some(values),
        kv_rotation,
        ..options()
    };
    [
        of(KvDType::Q8_0, KvDType::Q4_0, KvRotation::Auto),
        of(KvDType::Q5_1, KvDType::Iq4Nl, KvRotation::Off),
        of(KvDType::F8, KvDType::F8, KvRotation::On),
    ]
}

/// On the CPU, where every row is computed alike, bit for bit: a GPU has other kernels for prompts than for answers, and
/// an element that they round differently is a step of a few bits away.
#[test]
fn prefixes_and_preemption_change_no_answer() {
    if !device().is_cpu() {
        return;
    }
    let mut all = Vec::new();
    for kind in kinds() {
        let alone = EngineOptions {
            prefix_cache: false,
            ..kind.clone()
        };
        let expected = answers(&start(alone), false);
        let crowded = EngineOptions {
            kv_blocks: Some(40),
            max_step_tokens: 16,
            ..kind.clone()
        };
        let engine = start(crowded);
        assert_eq!(answers(&engine, true), expected, "{kind:?}");
        let status = eventually(&engine, nothing_held);
        assert!(status.preemptions > 0, "{status:?}");
        all.push(expected);
    }
    // They are of so few bits that it shows.
    assert_ne!(all[0], all[1]);
}

#[test]
fn a_shifted_context_is_computed_anew() {
    for prefix_cache in [false, true] {
        let [kind, ..] = kinds();
        let engine = start(EngineOptions {
            context: Some(48),
            context_shift: Some(4),
            prefix_cache,
            ..kind
        });
        let asked = request(prompt(3, 20), SamplingOptions::greedy(), 70);
        let found = tokens(&mut engine.submit(asked).unwrap());
        assert_eq!(found.len(), 70);
        let status = eventually(&engine, nothing_held);
        assert!(status.context_shifts > 1, "{status:?}");
    }
}
