//! Weights that are the same on all ranks.

use crate::{Communicator, Reduce};
use candle::{Device, Result, Tensor, Var};

/// Gives all ranks the weights of the first one.
///
/// # Errors
/// [`Error`](crate::Error) of the ranks.
pub fn synchronize(rank: &Communicator, variables: &[Var]) -> Result<()> {
    for variable in variables {
        let first = rank.broadcast(&variable.detach(), 0)?;
        if rank.rank() != 0 {
            variable.set(&first)?;
        }
    }
    Ok(())
}

/// Whether all ranks have the same weights, bit for bit; every rank gets the same answer.
///
/// # Errors
/// [`Error`](crate::Error) of the ranks.
pub fn are_equal(rank: &Communicator, variables: &[Var]) -> Result<bool> {
    let mut digest = Vec::new();
    for variable in variables {
        let bytes = crate::bytes::to_bytes(&variable.to_device(&Device::Cpu)?.contiguous()?)?;
        // FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        digest.extend([(hash >> 32) as u32, hash as u32]);
    }
    let digest = Tensor::new(digest, rank.device())?;
    let (least, most) = (
        rank.all_reduce(&digest, Reduce::Min)?,
        rank.all_reduce(&digest, Reduce::Max)?,
    );
    Ok(least.to_vec1::<u32>()? == most.to_vec1::<u32>()?)
}
