//! What cannot be divided is refused by name, and each shard reads its part of a file only.

use super::super::formats::write_gguf;
use super::*;
use llm_worker_rocm::architectures::decoder_config;
use llm_worker_rocm::engine::shard::ShardedWeights;
use llm_worker_rocm::model::open_weights;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use worker::gguf::{Gguf, SharedBytes, TensorInfo, Weights};

/// The plan for shares of a case's folder.
fn plan_of(name: &str, shares: &[f32]) -> Result<ShardPlan, String> {
    let folder = tempfile::tempdir().unwrap();
    Case::read(name).write(folder.path());
    Source::of(folder.path()).plan(shares)
}

#[test]
fn what_has_no_parts_is_refused_by_name() {
    for name in ["mamba", "falcon-mamba", "mamba2"] {
        let reason = plan_of(name, &[1.0; 2]).unwrap_err();
        assert!(reason.contains("recurrent mixers"), "{name}: {reason}");
        assert!(reason.contains("--split layers"), "{name}: {reason}");
    }
    let reason = plan_of("llama", &[1.0; 200]).unwrap_err();
    assert!(reason.contains("architecture llama"), "{reason}");
    assert!(reason.contains("4 heads"), "{reason}");
    assert!(reason.contains("200 GPUs"), "{reason}");
    for shares in [&[][..], &[1.0, 0.0], &[1.0, f32::NAN], &[-1.0, 2.0]] {
        let reason = plan_of("llama", shares).unwrap_err();
        assert!(reason.contains("above 0"), "{reason}");
    }
}

#[test]
fn what_is_computed_whole_is_told() {
    let whole = |name: &str, shares: &[f32]| plan_of(name, shares).unwrap().whole().join("; ");
    assert_eq!(whole("llama", &[1.0; 2]), "");
    assert_eq!(whole("olmo2", &[1.0; 2]), "");
    assert!(whole("qwen3-next", &[1.0; 2]).contains("recurrent mixers"));
    assert!(whole("gemma3n", &[1.0; 2]).contains("gates close"));
    // Five GPUs, four heads.
    assert!(whole("llama", &[1.0; 5]).contains("4 heads"));
}

/// A file that counts the bytes that are read of it.
struct Counting<'a> {
    file: &'a dyn Weights,
    read: AtomicU64,
}

impl Counting<'_> {
    fn count(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Weights for Counting<'_> {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn header(&self) -> &Gguf {
        self.file.header()
    }

    fn bytes(&self, name: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        self.count(info.bytes as usize);
        self.file.bytes(name, info)
    }

    fn parts(&self, name: &str, info: &TensorInfo, ranges: &[Range<usize>]) -> Cow<'_, [u8]> {
        self.count(ranges.iter().map(|range| range.len()).sum());
        self.file.parts(name, info, ranges)
    }

    fn shared_part(
        &self,
        name: &str,
        info: &TensorInfo,
        range: Range<usize>,
    ) -> Option<SharedBytes> {
        self.file.shared_part(name, info, range)
    }

    fn give_back(&self, name: &str, info: &TensorInfo) {
        self.file.give_back(name, info);
    }
}

#[test]
fn shards_read_their_parts_only() {
    for name in ["llama", "phi3", "gpt-oss", "deepseek3", "gemma4-experts"] {
        let folder = tempfile::tempdir().unwrap();
        Case::read(name).write(folder.path());
        let path = folder.path().join("model.gguf");
        write_gguf(&*open_weights(folder.path()).unwrap(), &path);
        let file = open_weights(&path).unwrap();
        let config = decoder_config(file.header()).unwrap();
        let plan = config.divide(file.header(), &[1.0; 2]).unwrap();
        let mut shards = [0; 2];
        for (shard, all) in shards.iter_mut().enumerate() {
            let counting = Counting {
                file: &*file,
                read: AtomicU64::new(0),
            };
            let view = ShardedWeights::new(&counting, &plan, shard);
            let mut names: Vec<&str> = view.header().tensors().map(|(name, _)| name).collect();
            names.sort_unstable();
            for tensor in names {
                let info = view.header().tensor(tensor).unwrap();
                let bytes = view.bytes(tensor, info);
                assert_eq!(bytes.len() as u64, info.bytes, "{name}: {tensor}");
                *all += info.bytes;
                // Where the part lies in one piece, it is used where it lies.
                if let Some(shared) = view.shared(tensor, info) {
                    assert_eq!(*shared, *bytes, "{name}: {tensor}");
                    let lies =
                        matches!(bytes, Cow::Borrowed(own) if own.as_ptr() == shared.as_ptr());
                    assert!(lies, "{name}: {tensor}");
                }
            }
            // Zeros in place of biases are not read.
            let read = counting.read.into_inner();
            assert!(read <= *all, "{name}: {read} of {all}");
            assert_eq!(*all, plan.bytes(shard, file.header()), "{name}");
        }
        let whole = file.header().file_bytes;
        println!("{name}: {shards:?} of {whole}");
        assert!(
            shards.iter().all(|shard| *shard * 10 < whole * 9),
            "{name}: {shards:?}"
        );
    }
}
