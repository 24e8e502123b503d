//! Which GPUs the environment lets a process see.

/// Variables that name GPUs by index, those of a later one among what an earlier one left.
const VARIABLES: [&str; 2] = ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"];

/// Indices of the GPUs that a process sees, of `count`, in the order of their ordinals. As with HIP, a list ends at the
/// first entry that names no GPU, or one that it has named.
pub(crate) fn visible(count: usize, variable: impl Fn(&str) -> Option<String>) -> Vec<usize> {
    let mut seen: Vec<usize> = (0..count).collect();
    for list in VARIABLES.into_iter().filter_map(variable) {
        let mut chosen = Vec::new();
        for entry in list.split(',') {
            let index = entry.trim().parse().ok();
            let gpu = index.and_then(|index: usize| seen.get(index).copied());
            match gpu {
                Some(gpu) if !chosen.contains(&gpu) => chosen.push(gpu),
                _ => break,
            }
        }
        seen = chosen;
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn lists_choose_among_what_is_left() {
        let of = |rocr: Option<&str>, hip: Option<&str>| {
            visible(4, |name| {
                let list = if name.starts_with("ROCR") { rocr } else { hip };
                list.map(str::to_string)
            })
        };
        assert_eq!(of(None, None), [0, 1, 2, 3]);
        assert_eq!(of(None, Some("2, 0")), [2, 0]);
        assert_eq!(of(Some("3,1"), Some("1")), [1]);
        assert_eq!(of(Some("1"), Some("1")), [0usize; 0]);
        assert_eq!(of(None, Some("1,9,2")), [1]);
        assert_eq!(of(None, Some("1,1,2")), [1]);
        assert_eq!(of(None, Some("")), [0usize; 0]);
        assert_eq!(of(None, Some("-1")), [0usize; 0]);
    }
}
