//! Every suite, by the file that has it.

use crate::Suite;

mod attention;
mod conv;
mod dtypes;
mod elementwise;
mod faults;
mod flash_attn;
mod flash_training;
mod float8;
mod fused;
mod fused_gradients;
mod paged;
mod quantized;
mod resample;
mod rows;
mod structure;
mod training;
mod views;

/// Every suite, elementary operations first.
pub fn suites() -> Vec<Suite> {
    [
        elementwise::SUITES,
        structure::SUITES,
        attention::SUITES,
        conv::SUITES,
        dtypes::SUITES,
        faults::SUITES,
        flash_attn::SUITES,
        flash_training::SUITES,
        float8::SUITES,
        fused::SUITES,
        fused_gradients::SUITES,
        paged::SUITES,
        quantized::SUITES,
        resample::SUITES,
        rows::SUITES,
        training::SUITES,
        views::SUITES,
    ]
    .concat()
}
