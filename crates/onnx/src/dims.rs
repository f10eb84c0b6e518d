//! Sizes of a graph whose batch is open, from its sizes for batches of two and three samples.

use crate::error::{OnnxError, Result};

/// The batches that a model is traced with. No size is a multiple of the batch in both by accident: such a size would differ
/// between the two.
pub(crate) const BATCHES: [usize; 2] = [2, 3];

/// A size of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dim {
    /// A size that does not follow the batch.
    Fixed(usize),
    /// A size that is this multiple of the batch.
    Batch(usize),
}

/// Joins the sizes of an array of `op` in both traces.
///
/// # Errors
/// [`OnnxError::DependsOnBatch`] if a size is neither fixed nor a multiple of the batch.
pub(crate) fn unify(op: &'static str, [two, three]: [&[usize]; 2]) -> Result<Vec<Dim>> {
    let problem = || format!("its sizes are {two:?} for 2 samples and {three:?} for 3");
    let wrong = || OnnxError::DependsOnBatch { op, problem: problem() };
    if two.len() != three.len() {
        return Err(wrong());
    }
    let dim = |(two, three): (&usize, &usize)| {
        let multiple = two / BATCHES[0];
        match (two == three, [multiple * BATCHES[0], multiple * BATCHES[1]] == [*two, *three]) {
            (true, _) => Ok(Dim::Fixed(*two)),
            (false, true) => Ok(Dim::Batch(multiple)),
            (false, false) => Err(wrong()),
        }
    };
    two.iter().zip(three).map(dim).collect()
}

/// Returns sizes as the shape of ONNX's `Reshape`, with -1 for the size that depends on the batch.
///
/// # Errors
/// [`OnnxError::DependsOnBatch`] if several sizes do.
pub(crate) fn reshape_target(op: &'static str, dims: &[Dim]) -> Result<Vec<i64>> {
    if dims.iter().filter(|dim| matches!(dim, Dim::Batch(_))).count() > 1 {
        let problem = "several sizes of its output follow the batch".to_owned();
        return Err(OnnxError::DependsOnBatch { op, problem });
    }
    Ok(dims.iter().map(|dim| if let Dim::Fixed(size) = dim { *size as i64 } else { -1 }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_fixed_or_multiples_of_the_batch() {
        let dims = unify("reshape", [&[2, 8, 6, 1], &[3, 8, 9, 1]]).expect("sound");
        assert_eq!(dims, [Dim::Batch(1), Dim::Fixed(8), Dim::Batch(3), Dim::Fixed(1)]);
        for (two, three) in [(&[3][..], &[4][..]), (&[2], &[3, 1]), (&[2], &[6]), (&[0], &[1])] {
            let error = unify("narrow", [two, three]).expect_err("another function of the batch").to_string();
            assert!(error.contains("`narrow`"), "{error}");
        }
        assert_eq!(reshape_target("reshape", &dims[..2]).expect("one"), [-1, 8]);
        assert!(reshape_target("reshape", &dims).is_err());
    }
}
