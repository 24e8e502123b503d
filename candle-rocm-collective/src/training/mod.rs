//! Training on several devices: each rank has all of the model and a part of the batch, and gradients are averaged.
//!
//! [`DistributedOptimizer`] takes the place of an optimizer of candle-nn. Its steps leave the same weights, bit for
//! bit, on all ranks, and those that one device with the whole batch would get, but for rounding. What it is made of
//! can be used alone: [`synchronize`] gives all ranks the first one's weights, [`Reducer`] averages gradients in
//! buckets, [`Chain`] is a network in blocks, [`are_equal`] looks whether ranks agree.
//!
//! # What runs at the same time
//!
//! candle hands out gradients when the whole backward pass is enqueued. So that the reduction of some can run beside
//! the computation of others, a [`Chain`] cuts the graph between blocks: each block's backward pass is one of its own,
//! that begins with the gradient of the block's output, and its gradients are on their way while the block before it
//! computes its own. With RCCL the reduction has a stream of its own on the GPU; with other backends it has a thread.
//! The cut costs a copy of what goes from block to block, and gives the gradients of the whole pass bit for bit.
//!
//! ```
//! use candle::{DType, Device, Tensor};
//! use candle_nn::{linear, loss, Module, ParamsAdamW, VarBuilder, VarMap};
//! use candle_rocm_collective::training::{Chain, DistributedOptimizer};
//! use candle_rocm_collective::{host, Communicator};
//!
//! # fn main() -> candle::Result<()> {
//! fn train(rank: Communicator) -> candle::Result<f32> {
//!     let (variables, device) = (VarMap::new(), rank.device().clone());
//!     let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
//!     let layers = [linear(2, 16, vb.pp("0"))?, linear(16, 1, vb.pp("1"))?];
//!     let named = variables.data().lock().unwrap().clone();
//!     let blocks = vec![
//!         vec![named["0.weight"].clone(), named["0.bias"].clone()],
//!         vec![named["1.weight"].clone(), named["1.bias"].clone()],
//!     ];
//!     let parameters = ParamsAdamW { lr: 0.05, ..Default::default() };
//!     let mut optimizer: DistributedOptimizer<candle_nn::AdamW> =
//!         DistributedOptimizer::new(rank.clone(), blocks, parameters)?;
//!     // Each rank has half of the points.
//!     let own = rank.rank() as f32;
//!     let x = Tensor::new(&[[own, 0.0], [own, 1.0]], &device)?;
//!     let y = Tensor::new(&[[own], [own - 1.0]], &device)?;
//!     let mut last = 0.0;
//!     for _ in 0..60 {
//!         let mut chain = Chain::new(&x);
//!         chain.block(|x| layers[0].forward(x)?.tanh())?;
//!         chain.block(|x| layers[1].forward(x))?;
//!         let loss = optimizer.step_chain(chain, |found| loss::mse(found, &y))?;
//!         last = optimizer.average(&loss)?.to_scalar()?;
//!     }
//!     Ok(last)
//! }
//!
//! let ranks = host::group(&[Device::Cpu, Device::Cpu])?;
//! std::thread::scope(|scope| {
//!     let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || train(rank))).collect();
//!     for thread in threads {
//!         assert!(thread.join().unwrap()? < 0.1);
//!     }
//!     Ok(())
//! })
//! # }
//! ```

mod chain;
mod optimizer;
mod reducer;
mod weights;

pub use chain::Chain;
pub use optimizer::DistributedOptimizer;
pub use reducer::{Reducer, BUCKET_BYTES};
pub use weights::{are_equal, synchronize};
