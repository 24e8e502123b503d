//! Which rows of a pass want which adapters.

use crate::engine::api::AdapterUse;
use crate::engine::forward::Step;
use candle_core::{bail, Device, Result, Tensor};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part that adapters have in the passes of a model.
#[derive(Default)]
pub(in crate::engine::decoder) struct Lora {
    /// Of all rows of a pass, and of those that have logits.
    pub rows: Arc<Active>,
    pub outputs: Arc<Active>,
    /// On the CPU, of the rows of the expert that is computed.
    pub expert: Arc<Active>,
    wishes: Mutex<Wishes>,
}

impl Lora {
    /// Takes what the sequences of the next step want, in their order.
    ///
    /// # Errors
    /// For an adapter beyond `count`.
    pub(in crate::engine::decoder) fn wish(
        &self,
        step: &Step,
        uses: &[Arc<[AdapterUse]>],
        count: usize,
    ) -> Result<()> {
        self.leave();
        *lock(&self.wishes) = Wishes::of(step, uses, count)?;
        Ok(())
    }

    /// What the sequences of the step want.
    pub(in crate::engine::decoder) fn wishes(&self) -> MutexGuard<'_, Wishes> {
        lock(&self.wishes)
    }

    /// Has all matrices add what the step wants, whose logits are of the rows `outputs`.
    pub(in crate::engine::decoder) fn enter(&self, outputs: &[u32], device: &Device) -> Result<()> {
        let wishes = self.wishes();
        self.rows.put(wishes.groups(device)?);
        self.outputs.put(wishes.of_rows(outputs).groups(device)?);
        Ok(())
    }

    /// Has all matrices add of each of these adapters as much as its factors say, f32 `(rows, 1)`.
    pub(in crate::engine::decoder) fn enter_by_factors(&self, factors: Vec<(usize, Tensor)>) {
        let group = |(adapter, factors): (usize, Tensor)| Group {
            adapter,
            total: factors.dims()[0],
            share: Share::Each(factors),
        };
        let groups: Vec<Group> = factors.into_iter().map(group).collect();
        self.rows.put(groups.clone());
        self.outputs.put(groups);
    }

    /// Has no matrix add anything.
    pub(in crate::engine::decoder) fn leave(&self) {
        self.rows.put(Vec::new());
        self.outputs.put(Vec::new());
    }
}

/// Which adapters the sequences of a step want.
#[derive(Default)]
pub(in crate::engine::decoder) struct Wishes {
    /// Rows of the step.
    total: usize,
    /// And which rows want them.
    groups: Vec<(AdapterUse, Vec<u32>)>,
}

impl Wishes {
    fn of(step: &Step, uses: &[Arc<[AdapterUse]>], count: usize) -> Result<Self> {
        let mut wishes = Self {
            total: step.tokens.len(),
            groups: Vec::new(),
        };
        let mut start = 0;
        for (sequence, uses) in step.sequences.iter().zip(uses) {
            let rows = start..start + sequence.rows as u32;
            start = rows.end;
            for wish in uses.iter().filter(|wish| wish.scale != 0.0) {
                if wish.adapter >= count {
                    bail!("adapter {} of {count}", wish.adapter)
                }
                match wishes.groups.iter_mut().find(|(known, _)| known == wish) {
                    Some((_, all)) => all.extend(rows.clone()),
                    None => wishes.groups.push((*wish, rows.clone().collect())),
                }
            }
        }
        Ok(wishes)
    }

    /// The adapters, each once, ascending.
    pub(in crate::engine::decoder) fn adapters(&self) -> Vec<usize> {
        let mut adapters: Vec<usize> = self.groups.iter().map(|(wish, _)| wish.adapter).collect();
        adapters.sort_unstable();
        adapters.dedup();
        adapters
    }

    /// How much each of so many rows wants of an adapter.
    pub(in crate::engine::decoder) fn factors(&self, adapter: usize, rows: usize) -> Vec<f32> {
        let mut factors = vec![0.0; rows];
        let own = self.groups.iter().filter(|(w, _)| w.adapter == adapter);
        for (wish, rows) in own {
            for row in rows {
                factors[*row as usize] += wish.scale;
            }
        }
        factors
    }

    /// The same of some rows only, ascending.
    fn of_rows(&self, wanted: &[u32]) -> Self {
        let places = |rows: &[u32]| -> Vec<u32> {
            let place = |row: &u32| wanted.binary_search(row).ok().map(|place| place as u32);
            rows.iter().filter_map(place).collect()
        };
        let groups = self.groups.iter();
        let groups = groups.map(|(wish, rows)| (*wish, places(rows)));
        Self {
            total: wanted.len(),
            groups: groups.filter(|(_, rows)| !rows.is_empty()).collect(),
        }
    }

    fn groups(&self, device: &Device) -> Result<Vec<Group>> {
        let group = |(wish, rows): &(AdapterUse, Vec<u32>)| {
            let scale = f64::from(wish.scale);
            Ok(Group {
                adapter: wish.adapter,
                total: self.total,
                share: match rows.len() < self.total {
                    true => Share::Some(Tensor::new(rows.as_slice(), device)?, scale),
                    false => Share::All(scale),
                },
            })
        };
        self.groups.iter().map(group).collect()
    }
}

/// Groups of rows that want something of adapters; all matrices that work on these rows share it.
#[derive(Default)]
pub(in crate::engine::decoder) struct Active(Mutex<Arc<Vec<Group>>>);

/// Rows of one adapter.
#[derive(Clone)]
pub(super) struct Group {
    pub adapter: usize,
    /// Rows of the whole pass.
    total: usize,
    pub share: Share,
}

/// How much rows want.
#[derive(Clone)]
pub(super) enum Share {
    /// All the same.
    All(f64),
    /// These, u32 `(rows)`, so much, the others nothing.
    Some(Tensor, f64),
    /// A factor for each, f32 `(total, 1)`.
    Each(Tensor),
}

impl Group {
    /// Refuses rows that are not those of the pass.
    pub(super) fn check(&self, rows: usize) -> Result<()> {
        match rows == self.total {
            true => Ok(()),
            false => bail!("adapters for {} rows meet {rows}", self.total),
        }
    }

    /// The same of rows on the CPU, some of which may be named several times.
    fn of_rows(&self, rows: &[u32]) -> Result<Self> {
        let share = match &self.share {
            Share::All(scale) => Share::All(*scale),
            Share::Some(own, scale) => {
                let own = own.to_vec1::<u32>()?;
                let places = 0..rows.len() as u32;
                let places = places.filter(|place| own.contains(&rows[*place as usize]));
                Share::Some(Tensor::from_iter(places, &Device::Cpu)?, *scale)
            }
            Share::Each(factors) => {
                let factors = factors.to_device(&Device::Cpu)?;
                Share::Each(factors.index_select(&Tensor::new(rows, &Device::Cpu)?, 0)?)
            }
        };
        Ok(Self {
            adapter: self.adapter,
            total: rows.len(),
            share,
        })
    }
}

impl Active {
    /// Whether no row wants an adapter.
    pub(in crate::engine::decoder) fn is_empty(&self) -> bool {
        self.groups().is_empty()
    }

    pub(super) fn groups(&self) -> Arc<Vec<Group>> {
        lock(&self.0).clone()
    }

    fn put(&self, groups: Vec<Group>) {
        *lock(&self.0) = Arc::new(groups);
    }

    /// Takes what some rows of another pass want, for the CPU.
    pub(in crate::engine::decoder) fn take_rows(&self, of: &Self, rows: &[u32]) -> Result<()> {
        let groups = of.groups();
        let groups = groups.iter().map(|group| group.of_rows(rows));
        self.put(groups.collect::<Result<_>>()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::forward::StepSequence;

    #[test]
    fn rows_want_what_their_sequences_do() {
        let wish = |adapter, scale| AdapterUse { adapter, scale };
        let sequence = |rows| StepSequence {
            rows,
            ..StepSequence::default()
        };
        let step = Step {
            tokens: vec![0; 5],
            sequences: vec![sequence(2), sequence(1), sequence(2)],
            outputs: vec![1, 2, 4],
        };
        let uses = [
            Arc::from([wish(1, 2.0)]),
            Arc::from([]),
            Arc::from([wish(1, 2.0), wish(0, -1.0), wish(2, 0.0)]),
        ];
        let wishes = Wishes::of(&step, &uses, 3).unwrap();
        assert_eq!(wishes.adapters(), [0, 1]);
        assert_eq!(wishes.factors(1, 6), [2.0, 2.0, 0.0, 2.0, 2.0, 0.0]);
        assert_eq!(wishes.factors(0, 5), [0.0, 0.0, 0.0, -1.0, -1.0]);
        let outputs = wishes.of_rows(&step.outputs);
        assert_eq!(outputs.factors(1, 3), [2.0, 0.0, 2.0]);
        assert_eq!(outputs.factors(0, 3), [0.0, 0.0, -1.0]);
        assert!(wishes.of_rows(&[2]).adapters().is_empty());
        assert!(Wishes::of(&step, &uses, 1).is_err());
        // An expert's rows, one of them twice.
        let (all, expert) = (Active::default(), Active::default());
        all.put(wishes.groups(&Device::Cpu).unwrap());
        expert.take_rows(&all, &[4, 2, 0, 4]).unwrap();
        let groups = expert.groups();
        let rows: Vec<(usize, Vec<u32>)> = (groups.iter())
            .map(|group| {
                group.check(4).unwrap();
                let Share::Some(rows, _) = &group.share else {
                    panic!("not all rows want it")
                };
                (group.adapter, rows.to_vec1().unwrap())
            })
            .collect();
        assert_eq!(rows, [(1, vec![0, 2, 3]), (0, vec![0, 3])]);
    }
}
