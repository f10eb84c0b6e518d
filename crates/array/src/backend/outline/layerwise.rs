//! Steps of LAMB without numbers.

use super::{Outlines, expect_equal};
use crate::Result;
use crate::backend::{Array, LambOptions, LayerwiseUpdates, ParamUpdate};

impl LayerwiseUpdates for Outlines {
    fn lamb_direction(&self, _: LambOptions, of: ParamUpdate<'_>, moments: [&Array; 2]) -> Result<Array> {
        expect_equal("lamb", of.weights, &[of.grads, moments[0], moments[1]])?;
        Ok(self.like(of.weights, of.weights.dtype()))
    }

    fn lamb_step(
        &self,
        _: LambOptions,
        of: ParamUpdate<'_>,
        moments: [&Array; 2],
        _: Option<[&Array; 2]>,
    ) -> Result<()> {
        expect_equal("lamb", of.weights, &[of.grads, moments[0], moments[1]])
    }
}
