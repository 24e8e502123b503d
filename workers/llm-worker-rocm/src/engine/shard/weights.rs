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

    fn intact(&self) -> worker::Result<()> {
        self.file.intact()
    }
}

#[cfg(test)]
// Ranges are what is compared.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use crate::engine::shard::Part;
    use candle_core::quantized::{QStorage, QTensor};
    use candle_core::Device;
    use std::collections::HashMap;
    use std::ops::Range;
    use worker::gguf::Format;

    /// Columns and rows of the tensors: two of the largest blocks.
    const COLUMNS: usize = 512;
    const ROWS: usize = 5;

    /// A model with a tensor of each format.
    struct Memory {
        header: Gguf,
        data: HashMap<String, Vec<u8>>,
    }

    impl Memory {
        fn new() -> Self {
            let (mut tensors, mut data) = (Vec::new(), HashMap::new());
            for format in Format::ALL {
                let bytes = ROWS * COLUMNS / format.block_size() * format.type_size();
                let info = TensorInfo {
                    dims: vec![COLUMNS as u64, ROWS as u64],
                    format: *format,
                    offset: 0,
                    bytes: bytes as u64,
                };
                // All bits, but of numbers that are finite as halves and as binary32.
                let byte = |i: usize| (i * i * 31 + i * 7) as u8 & 0xbb;
                data.insert(format.name().to_string(), (0..bytes).map(byte).collect());
                tensors.push((format.name().to_string(), info));
            }
            let header = Gguf::from_parts([], tensors);
            Self { header, data }
        }
    }

    impl Weights for Memory {
        fn path(&self) -> &Path {
            Path::new("memory")
        }

        fn header(&self) -> &Gguf {
            &self.header
        }

        fn bytes(&self, name: &str, _: &TensorInfo) -> Cow<'_, [u8]> {
            Cow::Borrowed(&self.data[name])
        }

        fn give_back(&self, _: &str, _: &TensorInfo) {}
    }

    /// The bits of a tensor's numbers.
    fn numbers(weights: &dyn Weights, name: &str) -> Vec<Vec<u32>> {
        let info = weights.header().tensor(name).unwrap();
        let bytes = weights.bytes(name, info);
        assert_eq!(bytes.len() as u64, info.bytes, "{name}");
        let shape = (info.dims[1] as usize, info.dims[0] as usize);
        let storage = QStorage::from_data(bytes, &Device::Cpu, info.dtype().unwrap()).unwrap();
        let tensor = QTensor::new(storage, shape).unwrap();
        let floats = tensor.dequantize(&Device::Cpu).unwrap();
        let rows: Vec<Vec<f32>> = floats.to_vec2().unwrap();
        let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect();
        rows.into_iter().map(bits).collect()
    }

    /// A plan of one shard that has a part of each tensor.
    fn plan(header: &Gguf, dim: usize, ranges: &[Range<usize>]) -> ShardPlan {
        let part = |name: &str| Part {
            of: name.to_string(),
            dim,
            ranges: ranges.to_vec(),
        };
        let cuts = header.tensors();
        let cuts = cuts.map(|(name, _)| (name.to_string(), Cut::Part(part(name))));
        ShardPlan {
            shards: 1,
            heads: None,
            blocks: Vec::new(),
            experts: None,
            vocabulary: None,
            cuts: vec![cuts.collect()],
            whole: Vec::new(),
        }
    }

    #[test]
    fn parts_of_every_format_are_parts_of_its_numbers() {
        let whole = Memory::new();
        let by_rows = plan(&whole.header, 1, &[1..2, 3..5]);
        let by_columns = plan(&whole.header, 0, &[256..512]);
        let rows = ShardedWeights::new(&whole, &by_rows, 0);
        let columns = ShardedWeights::new(&whole, &by_columns, 0);
        let mut count = 0;
        for format in Format::ALL {
            let name = format.name();
            if whole.header.tensor(name).unwrap().dtype().is_err() {
                continue;
            }
            let all = numbers(&whole, name);
            let wanted: Vec<_> = [1, 3, 4].map(|row| all[row].clone()).to_vec();
            assert!(numbers(&rows, name) == wanted, "rows of {name}");
            let wanted: Vec<_> = all.iter().map(|row| row[256..].to_vec()).collect();
            assert!(numbers(&columns, name) == wanted, "columns of {name}");
            count += 1;
        }
        assert!(count > 20, "{count} formats");
    }
}
