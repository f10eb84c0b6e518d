//! The placements that ops take.

use candle_core::Shape;

use super::placement::Placement;
use super::value::Value;
use crate::{Result, TensorError};

/// The placements that an op takes, and that of its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementRule {
    /// Whole values: all `Same` or all `Copied`, and so is the output.
    Whole,
    /// As `Whole`, or shards of the same dimension, dimensions counted from the last. A copy may be spread along that dimension.
    Elementwise,
    /// As `Elementwise`, or parts of sums only: a function f with f(a + b) = f(a) + f(b).
    Linear,
    /// A placement that the op has found out itself.
    Own(Placement),
}

impl PlacementRule {
    /// Returns the placement of the output of `op`; `None` if all inputs are constants.
    pub(super) fn output(
        self,
        op: &'static str,
        inputs: &[&Value],
        output: &Shape,
    ) -> Result<Option<Placement>> {
        let placed = || inputs.iter().filter_map(|input| input.placement());
        let wrong = |problem: String| Err(TensorError::placement(format!("{op}: {problem}")));
        let found = match self {
            Self::Own(placement) => return Ok(Some(placement)),
            _ => placed().find(|placement| placement.cut_dim().is_some()).or(placed().next()),
        };
        let Some(first) = found else { return Ok(None) };
        match first {
            Placement::Shard { .. } | Placement::Joint { .. } if self == Self::Whole => wrong(format!(
                "an input is {first}, and the op needs whole values; bring it together with `gather_from_group`"
            )),
            Placement::Shard { .. } | Placement::Joint { .. } => shards(op, inputs, output, first),
            Placement::Partial if self != Self::Linear => wrong(format!(
                "an input is {first}; the op needs the sum, which `reduce_from_group` computes"
            )),
            Placement::Partial if inputs.iter().any(|input| input.placement() != Some(first)) => {
                wrong("a part of a sum meets a whole value, which would count once on each rank".to_owned())
            }
            _ => match placed().find(|other| *other != first) {
                Some(other) => wrong(format!(
                    "one input is {first}, another is {other}: one of their gradients would be a part only. `copy_to_group` makes \
                     copies"
                )),
                None => Ok(Some(first)),
            },
        }
    }
}

/// Returns the placement of an elementwise op of shards.
fn shards(
    op: &'static str,
    inputs: &[&Value],
    output: &Shape,
    first: Placement,
) -> Result<Option<Placement>> {
    let from_last = |input: &Value, dim: usize| input.dims().len() - dim;
    let depth = inputs.iter().find_map(|input| Some(from_last(input, input.placement()?.cut_dim()?)));
    let depth = depth.unwrap_or(0);
    for input in inputs {
        let fits = match input.placement() {
            Some(cut @ (Placement::Shard { dim } | Placement::Joint { dim, .. })) => {
                from_last(input, dim) == depth && cut.along(0) == first.along(0)
            }
            // Spread along the dimension that is cut.
            Some(Placement::Copied) | None => {
                let dims = input.dims();
                dims.len() < depth || dims[dims.len() - depth] == 1 || input.shape().elem_count() == 0
            }
            Some(Placement::Same | Placement::Partial) => false,
        };
        if !fits {
            let other = input.placement().map_or_else(|| "a constant".to_owned(), |other| other.to_string());
            let problem = format!("one input is {first}, another, {:?}, is {other}", input.shape());
            return Err(TensorError::placement(format!("{op}: {problem}")));
        }
    }
    Ok(Some(first.along(output.rank().saturating_sub(depth))))
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;

    fn value(dims: &[usize], placement: Option<Placement>) -> Value {
        Value::constant(Tensor::zeros(dims, DType::F32, &Device::Cpu).expect("small")).placed(placement)
    }

    /// The placement of an output [2, 3, 4], or the message.
    fn output(
        rule: PlacementRule,
        inputs: &[(&[usize], Option<Placement>)],
    ) -> Result<Option<Placement>, String> {
        let values: Vec<Value> = inputs.iter().map(|(dims, placement)| value(dims, *placement)).collect();
        let values: Vec<&Value> = values.iter().collect();
        rule.output("op", &values, &(2, 3, 4).into()).map_err(|error| error.to_string())
    }

    const X: &[usize] = &[2, 3, 4];
    const SAME: Option<Placement> = Some(Placement::Same);
    const COPIED: Option<Placement> = Some(Placement::Copied);
    const PARTIAL: Option<Placement> = Some(Placement::Partial);

    fn shard(dim: usize) -> Option<Placement> {
        Some(Placement::Shard { dim })
    }

    #[test]
    fn whole_values_do_not_mix() {
        for rule in [PlacementRule::Whole, PlacementRule::Elementwise, PlacementRule::Linear] {
            assert_eq!(output(rule, &[(X, SAME), (X, None), (X, SAME)]), Ok(SAME));
            assert_eq!(output(rule, &[(X, None), (X, COPIED)]), Ok(COPIED));
            assert_eq!(output(rule, &[(X, None)]), Ok(None));
            let told = output(rule, &[(X, SAME), (X, COPIED)]).expect_err("mixed");
            assert!(told.contains("op: one input is the same on all ranks, another is a copy"), "{told}");
        }
        assert!(
            output(PlacementRule::Whole, &[(X, shard(1))])
                .expect_err("a shard")
                .contains("gather_from_group")
        );
    }

    #[test]
    fn shards_of_a_dimension_keep_it() {
        let rule = PlacementRule::Elementwise;
        assert_eq!(output(rule, &[(X, shard(2)), (&[4], shard(0))]), Ok(shard(2)));
        assert_eq!(output(rule, &[(X, shard(1)), (&[4], COPIED), (X, shard(1))]), Ok(shard(1)));
        assert_eq!(output(rule, &[(&[2, 1, 4], None), (X, shard(1))]), Ok(shard(1)));
        for other in [(X, shard(1)), (X, None), (X, SAME), (X, COPIED), (X, PARTIAL), (&[4][..], COPIED)] {
            let told = output(rule, &[(X, shard(2)), other]).expect_err("another");
            assert!(told.contains("one input is a shard of dimension 2"), "{told}");
        }
    }

    #[test]
    fn parts_of_sums_are_added_and_nothing_else() {
        assert_eq!(output(PlacementRule::Linear, &[(X, PARTIAL), (X, PARTIAL)]), Ok(PARTIAL));
        for other in [SAME, COPIED, None] {
            let told = output(PlacementRule::Linear, &[(X, PARTIAL), (X, other)]).expect_err("whole");
            assert!(told.contains("would count once on each rank"), "{told}");
        }
        let told = output(PlacementRule::Elementwise, &[(X, PARTIAL)]).expect_err("not linear");
        assert!(told.contains("`reduce_from_group`"), "{told}");
        assert_eq!(output(PlacementRule::Own(Placement::Same), &[(X, PARTIAL)]), Ok(SAME));
    }
}
