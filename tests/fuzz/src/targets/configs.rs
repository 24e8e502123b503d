//! Configuration of image models' parts: what their folders' JSON files say. The first line of an input names the part.

use super::{damaged_json, JSON_WORDS};
use crate::target::{Target, Verdict};
use crate::{corpus, Random};
use sd_worker_rocm::models::clip::ClipConfig;
use sd_worker_rocm::models::transformer::flux::FluxConfig;
use sd_worker_rocm::models::transformer::sd3::Sd3Config;
use sd_worker_rocm::models::unet::config::UNetConfig;
use sd_worker_rocm::models::vae::VaeConfig;
use sd_worker_rocm::sampling::NoiseSchedule;

struct Configs(Vec<(String, String)>);

pub(crate) fn target() -> Box<dyn Target> {
    let texts = corpus::texts("image-config").into_iter();
    let split = texts.filter_map(|text| {
        let (part, json) = text.split_once('\n')?;
        Some((part.to_string(), json.to_string()))
    });
    Box::new(Configs(split.collect()))
}

impl Target for Configs {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let (part, json) = random.pick(&self.0);
        let json = damaged_json(std::slice::from_ref(json), &JSON_WORDS, random);
        [part.as_bytes(), b"\n", &json].concat()
    }

    fn read(&mut self, input: &[u8]) -> Verdict {
        let text = String::from_utf8_lossy(input);
        let (part, json) = text.split_once('\n').unwrap_or_default();
        let checked = match part {
            "unet" => parse::<UNetConfig>(json).and_then(|c| c.plan().map(drop)),
            "vae" => parse::<VaeConfig>(json).and_then(|c| c.check()),
            "clip" => parse::<ClipConfig>(json).and_then(|c| c.check()),
            "flux" => parse::<FluxConfig>(json).and_then(|c| c.check()),
            "sd3" => parse::<Sd3Config>(json).and_then(|c| c.check()),
            _ => NoiseSchedule::from_config(json)
                .map(drop)
                .map_err(|e| e.to_string()),
        };
        Verdict::of(checked)
    }

    fn memory(&self, bytes: usize) -> usize {
        256 * bytes + (16 << 20)
    }
}

fn parse<T: serde::de::DeserializeOwned>(json: &str) -> Result<T, String> {
    serde_json::from_str(json).map_err(|e| e.to_string())
}
