//! Parameters that are frozen at first and trained later (`optim.freeze` with `optim.unfreeze_step` or `optim.unfreeze_epoch`).
//!
//! The step alone decides, so ranks need no message, and a resumed run continues alike. Until then the parameters are constants:
//! backward computes no gradients of them, ranks send none, and the optimizer and averages leave them out. They have memory for
//! gradients and optimizer state from the start.

use phalanx_tensor::ParamBucket;

use super::Trainable;
use crate::engine::TrainError;

impl Trainable {
    /// Freezes or unfreezes parameters for step `step`, counted from 0. Returns the number of parameters that are trained from this
    /// step on.
    pub(in crate::engine::train_loop) fn follow_freeze(&self, step: u64) -> usize {
        let (store, is_frozen) = (self.network.store(), self.is_frozen_in(step));
        let waiting = store.model_params().filter(|param| param.is_trained_later() && param.is_frozen());
        let begun = if is_frozen { 0 } else { waiting.count() };
        store.set_frozen(is_frozen);
        begun
    }

    /// Freezes or unfreezes parameters before step `step`, while no update is under way; those of a parameter server, too.
    pub(in crate::engine::train_loop) fn restore_freeze(&self, step: u64) -> Result<(), TrainError> {
        self.follow_freeze(step);
        let is_frozen = self.is_frozen_in(step);
        self.network.parallel()?.params().iter().for_each(|param| param.set_frozen(is_frozen));
        Ok(())
    }

    /// True if parameters are frozen in the next step that are trained later.
    pub(in crate::engine::train_loop) fn is_frozen(&self) -> bool {
        self.network.store().model_params().any(|param| param.is_trained_later() && param.is_frozen())
    }

    fn is_frozen_in(&self, step: u64) -> bool {
        self.unfreezes_after.is_none_or(|after| step < after)
    }
}

/// The buckets that are trained now.
pub(super) fn trained_now(params: &[ParamBucket]) -> Vec<ParamBucket> {
    params.iter().filter(|param| !param.is_frozen()).cloned().collect()
}
