//! Which calls the ranks of this process have made: to notice calls that do not fit together, and who is behind.

use crate::{Error, Reduce};
use candle::{DType, Shape};
use std::collections::{HashMap, VecDeque};

/// What has to be the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    pub op: &'static str,
    pub dtype: DType,
    pub shape: Shape,
    /// How it is reduced.
    pub by: Option<Reduce>,
    /// Who sends to everybody.
    pub root: Option<usize>,
}

impl Signature {
    fn describe(&self) -> String {
        let mut text = format!("{} of {:?} {:?}", self.op, self.dtype, self.shape);
        if let Some(by) = self.by {
            text += &format!(" by {by:?}");
        }
        if let Some(root) = self.root {
            text += &format!(" of rank {root}");
        }
        text
    }
}

/// The calls that some ranks have made and others have not. Ranks of other processes do not show here.
#[derive(Debug)]
pub struct Ledger {
    /// The rank of each of this process's.
    ranks: Vec<usize>,
    /// How many collectives each has made.
    made: Vec<u64>,
    /// The collectives from the first that not all have made: who made it first, and how many have.
    open: VecDeque<(Signature, usize, usize)>,
    /// Number of the first of them.
    base: u64,
    /// By sender and receiver: messages of which only one side has been seen.
    messages: HashMap<(usize, usize), VecDeque<Message>>,
}

/// A side of a message.
#[derive(Debug)]
struct Message {
    is_sender: bool,
    dtype: DType,
    shape: Shape,
}

impl Ledger {
    pub fn new(ranks: Vec<usize>) -> Self {
        Self {
            made: vec![0; ranks.len()],
            ranks,
            open: VecDeque::new(),
            base: 0,
            messages: HashMap::new(),
        }
    }

    /// Notes a collective of a rank, the `at`th of this process.
    pub fn collective(&mut self, at: usize, signature: Signature) -> Result<(), Error> {
        let number = self.made[at];
        self.made[at] += 1;
        let place = (number - self.base) as usize;
        let Some((first, by_rank, count)) = self.open.get_mut(place) else {
            if self.ranks.len() > 1 {
                self.open.push_back((signature, self.ranks[at], 1));
            } else {
                self.base += 1;
            }
            return Ok(());
        };
        if *first != signature {
            return Err(Error::Mismatch {
                op: signature.op,
                rank: *by_rank,
                found: first.describe(),
                expected: signature.describe(),
            });
        }
        *count += 1;
        if *count == self.ranks.len() {
            // Ranks come in any order, but each makes its calls in theirs: the first is complete first.
            self.open.pop_front();
            self.base += 1;
        }
        Ok(())
    }

    /// Notes a message of a rank to another one, seen from the sender or from the receiver.
    pub fn message(
        &mut self,
        (from, to): (usize, usize),
        is_sender: bool,
        dtype: DType,
        shape: &Shape,
    ) -> Result<(), Error> {
        if !self.ranks.contains(&from) || !self.ranks.contains(&to) {
            return Ok(());
        }
        let open = self.messages.entry((from, to)).or_default();
        let own = Message {
            is_sender,
            dtype,
            shape: shape.clone(),
        };
        let fits = open
            .front()
            .is_some_and(|other| other.is_sender != is_sender);
        let Some(other) = fits.then(|| open.pop_front()).flatten() else {
            open.push_back(own);
            return Ok(());
        };
        if (other.dtype, &other.shape) == (dtype, shape) {
            return Ok(());
        }
        Err(Error::Mismatch {
            op: if is_sender { "send" } else { "recv" },
            rank: if is_sender { to } else { from },
            found: format!("{:?} {:?}", other.dtype, other.shape),
            expected: format!("{dtype:?} {shape:?}"),
        })
    }

    /// A rank of this process that has made fewer calls than the `at`th.
    pub fn behind(&self, at: usize) -> Option<usize> {
        let (last, made) = self
            .made
            .iter()
            .enumerate()
            .min_by_key(|(_, made)| **made)?;
        (*made < self.made[at]).then(|| self.ranks[last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(size: usize) -> Signature {
        Signature {
            op: "all_reduce",
            dtype: DType::F32,
            shape: size.into(),
            by: Some(Reduce::Sum),
            root: None,
        }
    }

    #[test]
    fn calls_are_compared_in_the_order_of_each_rank() {
        let mut ledger = Ledger::new(vec![4, 5, 6]);
        for size in [1, 2] {
            assert_eq!(ledger.collective(1, sum(size)), Ok(()));
        }
        assert_eq!(ledger.behind(1), Some(4));
        assert_eq!(ledger.behind(0), None);
        for size in [1, 2] {
            assert_eq!(ledger.collective(0, sum(size)), Ok(()));
        }
        assert_eq!(ledger.collective(2, sum(1)), Ok(()));
        assert_eq!((ledger.base, ledger.open.len()), (1, 1));
        let error = ledger.collective(2, sum(3)).unwrap_err();
        assert!(matches!(error, Error::Mismatch { rank: 5, .. }), "{error}");
        assert!(error.to_string().contains("[2]") && error.to_string().contains("[3]"));
    }

    #[test]
    fn messages_are_compared_whoever_comes_first() {
        let mut ledger = Ledger::new(vec![0, 1]);
        let (pair, f32) = ((0, 1), DType::F32);
        for is_sender in [true, true, false, false, false, true] {
            assert_eq!(ledger.message(pair, is_sender, f32, &2.into()), Ok(()));
        }
        assert!(ledger.messages[&pair].is_empty());
        assert_eq!(ledger.message(pair, false, f32, &2.into()), Ok(()));
        let error = ledger.message(pair, true, f32, &3.into()).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Mismatch {
                    op: "send",
                    rank: 1,
                    ..
                }
            ),
            "{error}"
        );
        // Nothing is known of other processes.
        assert_eq!(ledger.message((0, 7), true, f32, &2.into()), Ok(()));
    }
}
