//! A network in blocks, whose backward passes are separate.

use candle::backprop::GradStore;
use candle::{Result, Tensor, Var};

/// A forward pass through blocks that follow one another, each of which gets the output of the one before and nothing
/// else of it. Variables that several blocks use are fine.
#[derive(Debug)]
pub struct Chain {
    /// What goes into the next block, which knows nothing of where it comes from.
    input: Tensor,
    blocks: Vec<Block>,
}

#[derive(Debug)]
struct Block {
    /// The own copy of what came in, for its gradient; none for the first block.
    input: Option<Var>,
    output: Tensor,
}

impl Chain {
    /// Begins with the input of the first block, which gets no gradient.
    pub fn new(input: &Tensor) -> Self {
        Self {
            input: input.clone(),
            blocks: Vec::new(),
        }
    }

    /// Runs the next block.
    ///
    /// # Errors
    /// Those of the block.
    pub fn block(&mut self, run: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<()> {
        let input = match self.blocks.last() {
            None => None,
            Some(before) => Some(Var::from_tensor(&before.output.detach())?),
        };
        let output = run(input.as_ref().map_or(&self.input, Var::as_tensor))?;
        self.blocks.push(Block { input, output });
        Ok(())
    }

    /// What the last block gave, or the input if there is none.
    pub fn output(&self) -> &Tensor {
        self.blocks
            .last()
            .map_or(&self.input, |block| &block.output)
    }

    /// Computes the loss from the last block's output, then the gradients block by block, from the last one to the
    /// first: `each` gets a block's number and its gradients as soon as they are enqueued. The loss comes back without
    /// its graph.
    ///
    /// # Errors
    /// Those of `loss`, of `each` and of the backward passes.
    pub fn backward(
        self,
        loss: impl FnOnce(&Tensor) -> Result<Tensor>,
        mut each: impl FnMut(usize, GradStore) -> Result<()>,
    ) -> Result<Tensor> {
        let loss = loss(self.output())?;
        // What the pass of the current block begins with.
        let mut top = loss.clone();
        let mut blocks = self.blocks;
        while let Some(block) = blocks.pop() {
            let mut gradients = top.backward()?;
            if let (Some(input), Some(before)) = (&block.input, blocks.last()) {
                let of_output = match gradients.remove(input) {
                    Some(gradient) => gradient,
                    None => input.zeros_like()?,
                };
                // A number whose gradient with respect to the output is exactly this one: candle begins with numbers.
                top = (&before.output * of_output.detach())?.sum_all()?;
            }
            each(blocks.len(), gradients)?;
        }
        Ok(loss.detach())
    }
}
