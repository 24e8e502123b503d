//! A shard's part of a model, seen as a model.

use super::cut::Cut;
use super::ShardPlan;
use std::borrow::Cow;
use std::path::Path;
use worker::gguf::{Gguf, SharedBytes, TensorInfo, Weights};

/// What one shard has of a model: its tensors are the shard's parts, under the names and in the formats of the whole
/// model's. Metadata are the whole model's.
///
/// Parts are read when they are asked for, and of a mapped file nothing else is; what lies in one piece is used where it
/// lies ([`Weights::shared`]).
pub struct ShardedWeights<'a> {
    file: &'a dyn Weights,
    plan: &'a ShardPlan,
    shard: usize,
    header: Gguf,
}

impl<'a> ShardedWeights<'a> {
    /// The part that a plan has for a shard, from 0, of the file that it was made for.
    pub fn new(file: &'a dyn Weights, plan: &'a ShardPlan, shard: usize) -> Self {
        let whole = file.header();
        let mut tensors = Vec::new();
        for (name, info) in whole.tensors() {
            let info = match plan.cut(shard, name) {
                None | Some(Cut::Zeros) => info.clone(),
                Some(Cut::Part(part)) => part.info(info),
                Some(Cut::Nothing) => continue,
            };
            tensors.push((name.to_string(), info));
        }
        // An output matrix that is the table of embeddings in the file.
        for (name, part) in plan.parts(shard) {
            if let (None, Some(info)) = (whole.tensor(name), whole.tensor(&part.of)) {
                tensors.push((name.to_string(), part.info(info)));
            }
        }
        let metadata = whole.metadata();
        let metadata = metadata.map(|(key, value)| (key.to_string(), value.clone()));
        Self {
            file,
            plan,
            shard,
            header: Gguf::from_parts(metadata, tensors),
        }
    }

    /// The file's tensor and the bytes of it that a tensor is made of, if it is a part of one.
    fn part(&self, name: &str) -> Option<(&str, &TensorInfo, Vec<std::ops::Range<usize>>)> {
        let Some(Cut::Part(part)) = self.plan.cut(self.shard, name) else {
            return None;
        };
        let whole = self.file.header().tensor(&part.of)?;
        Some((&part.of, whole, part.bytes(whole)))
    }
}

impl Weights for ShardedWeights<'_> {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn header(&self) -> &Gguf {
        &self.header
    }

    fn bytes(&self, name: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        if let Some((of, whole, bytes)) = self.part(name) {
            return self.file.parts(of, whole, &bytes);
        }
        match (
            self.plan.cut(self.shard, name),
            self.file.header().tensor(name),
        ) {
            (Some(_), _) => Cow::Owned(vec![0; info.bytes as usize]),
            (None, Some(whole)) => self.file.bytes(name, whole),
            (None, None) => Cow::Borrowed(&[]),
        }
    }

    fn shared(&self, name: &str, _: &TensorInfo) -> Option<SharedBytes> {
        if let Some((of, whole, bytes)) = self.part(name) {
            return match &bytes[..] {
                [one] => self.file.shared_part(of, whole, one.clone()),
                _ => None,
            };
        }
        match self.plan.cut(self.shard, name) {
            Some(_) => None,
            None => self.file.shared(name, self.file.header().tensor(name)?),
        }
    }

    fn give_back(&self, name: &str, _: &TensorInfo) {
        let name = self.part(name).map_or(name, |(of, ..)| of);
        if let Some(whole) = self.file.header().tensor(name) {
            self.file.give_back(name, whole);
        }
    }
}
