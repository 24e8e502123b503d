//! Every suite, by the file that has it.

use crate::Suite;

mod attention;
mod conv;
mod dtypes;
mod elementwise;
mod faults;
mod flash_attn;
mod fused;
mod paged;
mod quantized;
mod resample;
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
        fused::SUITES,
        paged::SUITES,
        quantized::SUITES,
        resample::SUITES,
        training::SUITES,
        views::SUITES,
    ]
    .concat()
}
