//! SmolLM2 with its weights dequantized while loading, against float32.
//!
//! Without the rounding of activations the whole path from file to logits must agree closely, which tells errors of
//! loading, rotary embedding or attention from the noise that `greedy.rs` has to allow. A program of its own, since
//! candle reads the switch from the environment.

mod smollm2;

use llm_worker_rocm::engine::score::Scorer;
use smollm2::{cases, difference, first_logits, model};

/// Allowed difference of the ten largest logits, relative to the largest: sums in another order.
const LOGIT_TOLERANCE: f32 = 1e-3;

#[test]
fn first_logits_match_float32() {
    std::env::set_var("CANDLE_DEQUANTIZE_ALL", "1");
    let mut model = Scorer::new(model());
    let mut compared = 0;
    for case in cases() {
        let Some(reference) = &case.float32 else {
            continue;
        };
        compared += 1;
        let logits = first_logits(&mut model, &case);
        let difference = difference(&logits, &reference.first_logits_top10);
        println!("{:?}: first logits differ by {difference:.6}", case.prompt);
        assert!(
            difference <= LOGIT_TOLERANCE,
            "{:?}: {difference}",
            case.prompt
        );
    }
    assert!(compared > 0, "the fixture has float32 cases");
}
