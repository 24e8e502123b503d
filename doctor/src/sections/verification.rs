//! What the product's own verification of its kernels found on this GPU.

use crate::{Check, Failure, Options, Section};
use candle_rocm::config::Verify;
use std::time::Duration;

/// See the [module](self).
pub struct Verification;

impl Section for Verification {
    fn name(&self) -> &'static str {
        "verification"
    }

    fn about(&self) -> &'static str {
        "which kernels gave wrong results on this GPU when they were first used, and what takes their place"
    }

    fn limit(&self, _: &Options) -> Duration {
        Duration::from_secs(120)
    }

    fn run(&self, check: &Check) -> Result<(), Failure> {
        let found = check.device()?.verification();
        if found.mode == Verify::Off {
            check.warning(
                "off",
                "kernels are used without having been compared with the host",
                "unset CANDLE_ROCM_VERIFY",
            );
        }
        for off in &found.switched_off {
            let advice = "please send the report, with the version of ROCm in it";
            match off.instead {
                Some(_) => check.warning("switched_off", off.to_string(), advice),
                None => check.error("switched_off", off.to_string(), advice),
            }
        }
        check.note(format!(
            "{} kernels and ways to call libraries were verified until now, {} are switched off",
            found.verified.len(),
            found.switched_off.len()
        ));
        check.facts(serde_json::json!({
            "verified": found.verified,
            "switched_off": found.switched_off.iter().map(|off| &off.name).collect::<Vec<_>>(),
        }));
        Ok(())
    }
}
