//! What a model takes of the memory of devices.

use std::ops::Range;

/// What a model takes, by its blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// Bytes of each block's weights.
    pub blocks: Vec<u64>,
    /// Bytes of each block's weights that a token needs: of experts, those that are chosen.
    pub active: Vec<f64>,
    /// Bytes of keys and values that a token leaves in each block.
    pub kv: Vec<f64>,
    /// Bytes of what only the first stage has besides: embeddings, encoders of pictures.
    pub first: u64,
    /// Bytes of what only the last stage has besides: the output matrix.
    pub last: u64,
    /// Bytes of what every stage has.
    pub each: u64,
    /// Blocks that a stage behind the first may begin with, ascending.
    pub cuts: Vec<usize>,
    /// Of all these bytes, those of experts, which may stay in the host's memory.
    pub experts: u64,
}

impl Demand {
    /// Bytes of a stage with some of the blocks, with keys and values of so many tokens.
    pub fn bytes(&self, blocks: Range<usize>, tokens: u64) -> u64 {
        let first = if blocks.start == 0 { self.first } else { 0 };
        let last = if blocks.end == self.blocks.len() {
            self.last
        } else {
            0
        };
        let weights: u64 = self.blocks[blocks.clone()].iter().sum();
        let kv: f64 = self.kv[blocks].iter().sum();
        weights + first + last + self.each + (kv * tokens as f64) as u64
    }

    /// Bytes of weights that a token needs of a stage.
    pub fn active(&self, blocks: Range<usize>) -> f64 {
        let last = if blocks.end == self.blocks.len() {
            self.last
        } else {
            0
        };
        self.active[blocks].iter().sum::<f64>() + last as f64
    }

    /// Bytes of all weights.
    pub fn weights(&self) -> u64 {
        self.bytes(0..self.blocks.len(), 0)
    }

    /// Bytes of keys and values of so many tokens.
    pub fn cache(&self, tokens: u64) -> u64 {
        (self.kv.iter().sum::<f64>() * tokens as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_count_where_they_are() {
        let demand = Demand {
            blocks: vec![10, 20, 30],
            active: vec![10.0, 5.0, 30.0],
            kv: vec![1.0, 0.0, 0.5],
            first: 100,
            last: 200,
            each: 3,
            cuts: vec![1, 2],
            experts: 20,
        };
        assert_eq!(demand.bytes(0..1, 0), 113);
        assert_eq!(demand.bytes(1..2, 50), 23);
        assert_eq!(demand.bytes(2..3, 50), 30 + 200 + 3 + 25);
        assert_eq!(demand.weights(), 363);
        assert_eq!(demand.cache(10), 15);
        assert_eq!(demand.active(1..3), 235.0);
    }
}
