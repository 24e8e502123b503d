//! What a first picture uses of the kernels is foreseen. On the simulated device only: what is compiled when it is used
//! is as right.

use candle_core::rocm_backend::candle_rocm::{self, CodeObject};
use sd_worker_rocm::kernels::of_precision;
use sd_worker_rocm::pipeline::{Pipeline, PipelineOptions, Precision};
use std::collections::BTreeSet;
use std::path::Path;
use worker::device::DeviceRequest;

#[test]
fn what_a_first_picture_uses_is_foreseen() {
    if !std::env::var("CANDLE_ROCM_TEST_DEVICE").is_ok_and(|name| name == "rocm") {
        return;
    }
    let device = DeviceRequest::Rocm(0).select().unwrap().device;
    let gpu = candle_rocm::Device::new(0).unwrap();
    let model = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/models/tiny-shapes-sd"
    ));
    let mut foreseen: BTreeSet<CodeObject> = BTreeSet::new();
    for precision in [Precision::F32, Precision::Auto] {
        let options = PipelineOptions {
            precision,
            ..PipelineOptions::default()
        };
        let mut pipeline = Pipeline::load(model, &device, options, &mut |_| {}).unwrap();
        pipeline.warm_up().unwrap();
        foreseen.extend(of_precision(precision));
        let loaded: BTreeSet<CodeObject> = gpu.loaded_objects().into_iter().collect();
        let unforeseen: Vec<String> = loaded
            .difference(&foreseen)
            .map(|o| o.to_string())
            .collect();
        let unused: Vec<String> = foreseen
            .difference(&loaded)
            .map(|o| o.to_string())
            .collect();
        println!("{precision:?}: {} files, unused: {unused:?}", loaded.len());
        assert!(unforeseen.is_empty(), "{precision:?}: {unforeseen:?}");
    }
}
