//! Where the ids of gather stand in a source that is larger along other dimensions than the indexed one.

/// Row-major index within the dimensions before `dim` of the source, for that within the ids'.
pub(crate) fn outer(index: usize, ids: &[usize], src: &[usize], dim: usize) -> usize {
    translate(index, &ids[..dim], &src[..dim])
}

/// The same for the dimensions after `dim`.
pub(crate) fn inner(index: usize, ids: &[usize], src: &[usize], dim: usize) -> usize {
    translate(index, &ids[dim + 1..], &src[dim + 1..])
}

fn translate(mut index: usize, from: &[usize], to: &[usize]) -> usize {
    if from == to {
        return index;
    }
    let (mut translated, mut stride) = (0, 1);
    for (from, to) in from.iter().zip(to).rev() {
        translated += index % from * stride;
        index /= from;
        stride *= to;
    }
    translated
}
