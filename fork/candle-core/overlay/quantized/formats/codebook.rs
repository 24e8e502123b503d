//! Codebooks, unpacked, and the search for the entry nearest to some values.

/// Entries that are compared when rounding each element on its own gives none.
const NEIGHBOURS: usize = 16;

/// The entries of a codebook of `dims` elements, each one of a few levels.
pub(super) struct Codebook {
    dims: usize,
    levels: Vec<f32>,
    /// Entry by entry.
    values: Vec<f32>,
    /// For each vector of levels, numbered with the first element as the most significant digit, the nearest entries.
    nearest: Vec<Nearest>,
}

enum Nearest {
    /// The vector is an entry.
    Entry(u16),
    Some([u16; NEIGHBOURS]),
}

impl Codebook {
    /// `dims` codes per entry, packed in 16 bits, that index `levels` (ascending).
    pub fn new(entries: &[u16], dims: usize, levels: &[f32]) -> Self {
        let bits = 16 / dims;
        let mask = (1u16 << bits) - 1;
        let value = |entry: u16, i: usize| levels[usize::from(entry >> (i * bits) & mask)];
        let values: Vec<f32> = entries
            .iter()
            .flat_map(|&entry| (0..dims).map(move |i| value(entry, i)))
            .collect();
        // Not shared among threads: they may wait for this very codebook, which then never would come to be.
        let nearest = (0..levels.len().pow(dims as u32))
            .map(|mut number| {
                let mut point = vec![0f32; dims];
                for coordinate in point.iter_mut().rev() {
                    *coordinate = levels[number % levels.len()];
                    number /= levels.len();
                }
                nearest_entries(&values, &point)
            })
            .collect();
        Self {
            dims,
            levels: levels.to_vec(),
            values,
            nearest,
        }
    }

    /// Elements of an entry.
    pub fn dims(&self) -> usize {
        self.dims
    }

    pub fn entry(&self, index: usize) -> &[f32] {
        &self.values[index * self.dims..(index + 1) * self.dims]
    }

    /// Index of an entry with a small weighted distance to `point`: the smallest, if each element's nearest level makes
    /// an entry.
    pub fn nearest(&self, point: &[f32], weights: &[f32]) -> usize {
        let number = point.iter().fold(0, |number, &value| {
            number * self.levels.len() + self.nearest_level(value)
        });
        let candidates = match &self.nearest[number] {
            Nearest::Entry(index) => return usize::from(*index),
            Nearest::Some(candidates) => candidates,
        };
        let mut best = (0, f32::INFINITY);
        for &index in candidates {
            let mut distance = 0.;
            for ((value, point), weight) in self
                .entry(usize::from(index))
                .iter()
                .zip(point)
                .zip(weights)
            {
                distance += weight * (value - point) * (value - point);
            }
            if distance < best.1 {
                best = (usize::from(index), distance);
            }
        }
        best.0
    }

    fn nearest_level(&self, value: f32) -> usize {
        let middles = self.levels.windows(2);
        middles
            .filter(|pair| value > (pair[0] + pair[1]) * 0.5)
            .count()
    }
}

fn nearest_entries(values: &[f32], point: &[f32]) -> Nearest {
    let mut distances: Vec<(f32, u16)> = values
        .chunks_exact(point.len())
        .enumerate()
        .map(|(index, entry)| {
            let squares = entry.iter().zip(point).map(|(e, p)| (e - p) * (e - p));
            (squares.sum(), index as u16)
        })
        .collect();
    distances.select_nth_unstable_by(NEIGHBOURS - 1, |a, b| a.0.total_cmp(&b.0));
    distances.truncate(NEIGHBOURS);
    match distances.iter().find(|(distance, _)| *distance == 0.) {
        Some((_, index)) => Nearest::Entry(*index),
        None => Nearest::Some(std::array::from_fn(|i| distances[i].1)),
    }
}
