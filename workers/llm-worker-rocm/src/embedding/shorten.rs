//! Vectors that are shorter than the model's own: models that were trained for it (Matryoshka representations,
//! <https://arxiv.org/abs/2205.13147>) have what matters most in the first numbers.

use super::{Embedding, EmbeddingModel};
use worker::{Error, Result};

impl EmbeddingModel {
    /// How long vectors are to be, where so many numbers are asked for; absent is the model's own length. Whether the
    /// model was trained for it is not known: files do not tell.
    ///
    /// # Errors
    /// [`Error::Usage`] for none or more than the model has.
    pub fn shortened(&self, asked: Option<usize>) -> Result<usize> {
        let own = self.dimensions();
        match asked.unwrap_or(own) {
            n if (1..=own).contains(&n) => Ok(n),
            n => Err(Error::Usage(format!(
                "dimensions {n}: this model's vectors have {own}, and can be cut to 1 to {own}"
            ))),
        }
    }
}

impl Embedding {
    /// The vector's first numbers as a vector of length 1; as it is if there are no more.
    pub fn cut(self, dimensions: usize) -> Vec<f32> {
        let mut values = self.values;
        if dimensions >= values.len() {
            return values;
        }
        values.truncate(dimensions);
        let squares = values.iter().map(|value| f64::from(*value).powi(2));
        let norm = squares.sum::<f64>().sqrt().max(1e-12);
        for value in &mut values {
            *value = (f64::from(*value) / norm) as f32;
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_vector_has_length_1() {
        let embedding = || Embedding {
            values: vec![0.6, 0.0, 0.8, 0.0],
            tokens: 1,
        };
        assert_eq!(embedding().cut(4), embedding().values);
        assert_eq!(embedding().cut(2), [1.0, 0.0]);
        let three = embedding().cut(3);
        assert!((three[0] - 0.6).abs() < 1e-6 && (three[2] - 0.8).abs() < 1e-6);
        let nothing = Embedding {
            values: vec![0.0, 1.0],
            tokens: 1,
        };
        assert_eq!(nothing.cut(1), [0.0]);
    }
}
