//! Which input each column of a matrix is of, and which group.

use super::packing::Packing;
use super::BLOCK;

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::hf::quantized) struct Columns {
    inputs: usize,
    /// Inputs of a group, where groups are neighbours of one size.
    size: usize,
    /// The group of each input, where that is said.
    groups: Option<Vec<u32>>,
    /// The input of each column, where that is not their order.
    order: Option<Vec<u32>>,
    /// Whether all blocks of columns are of one group each.
    has_blocks: bool,
}

impl Columns {
    /// Those of a matrix whose `g_idx`, i32 `(inputs)`, is this; sorted by group if that makes blocks of them.
    ///
    /// # Errors
    /// What is wrong with `g_idx`, in words.
    pub(super) fn new(packing: &Packing, g_idx: Option<&[u8]>) -> Result<Self, String> {
        let (inputs, size) = (packing.inputs, packing.group);
        let whole = inputs.is_multiple_of(BLOCK);
        let neighbours = Self {
            inputs,
            size,
            groups: None,
            order: None,
            has_blocks: whole && (size.is_multiple_of(BLOCK) || size >= inputs),
        };
        let Some(g_idx) = g_idx else {
            return Ok(neighbours);
        };
        let words = g_idx.chunks_exact(4);
        let groups: Vec<i32> = words
            .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        // What compressed-tensors has where nothing is sorted.
        if groups.iter().all(|group| *group == -1) && groups.len() == inputs {
            return Ok(neighbours);
        }
        if groups.len() != inputs {
            return Err(format!(
                "g_idx of {} numbers for {inputs} inputs",
                groups.len()
            ));
        }
        let count = packing.groups() as i32;
        if let Some(wrong) = groups.iter().find(|group| !(0..count).contains(*group)) {
            return Err(format!("g_idx has group {wrong} of {count}"));
        }
        let groups: Vec<u32> = groups.into_iter().map(|group| group as u32).collect();
        let usual = groups.iter().enumerate();
        if usual.fold(true, |all, (i, group)| all && i / size == *group as usize) {
            return Ok(neighbours);
        }
        let mut order: Vec<u32> = (0..inputs as u32).collect();
        order.sort_by_key(|input| groups[*input as usize]);
        let of_one_group = |columns: &[u32]| {
            let group = |input: &u32| groups[*input as usize];
            columns
                .iter()
                .all(|input| group(input) == group(&columns[0]))
        };
        let has_blocks = whole && order.chunks(BLOCK).all(of_one_group);
        let is_sorted = order
            .iter()
            .enumerate()
            .all(|(i, input)| i == *input as usize);
        Ok(Self {
            groups: Some(groups),
            order: (!is_sorted && has_blocks).then_some(order),
            has_blocks,
            ..neighbours
        })
    }

    pub(super) fn has_blocks(&self) -> bool {
        self.has_blocks
    }

    /// The input of each column, where that is not their order.
    pub(super) fn order(&self) -> Option<&[u32]> {
        self.order.as_deref()
    }

    /// The input of a column.
    pub(super) fn input(&self, column: usize) -> usize {
        match &self.order {
            Some(order) => order[column] as usize,
            None => column,
        }
    }

    /// The group of an input.
    pub(super) fn group(&self, input: usize) -> usize {
        match &self.groups {
            Some(groups) => groups[input] as usize,
            None => input / self.size,
        }
    }
}
