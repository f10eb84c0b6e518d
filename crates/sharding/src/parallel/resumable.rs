//! State of a strategy beyond its parameters: checkpoints, resumed runs, lost ranks.

use phalanx_codecs::nothing_kept;
use phalanx_tensor::ParamBucket;

use super::{Observed, SharedUpdate};
use crate::Result;

/// Values of one rank alone, by name.
pub type OwnState = Vec<(String, Vec<f32>)>;

/// Saves and restores what a strategy keeps from step to step.
pub trait Resumable: Observed {
    /// Registers the optimizer, for strategies that apply it outside of this rank's steps. Call it before the first step.
    ///
    /// # Errors
    /// Errors of communication.
    fn set_optimizer(&self, rule: &SharedUpdate) -> Result<()> {
        let _ = rule;
        Ok(())
    }

    /// Sets the number of steps that this network has taken. Strategies count from it what they do at certain steps.
    fn resume_at(&self, _steps: u64) {}

    /// Returns the state that is this rank's alone, between steps: its clock, messages under way, its parameters where they are its
    /// own. Every rank calls this at the same place.
    ///
    /// # Errors
    /// Errors of communication.
    fn own_state(&self) -> Result<OwnState> {
        Ok(Vec::new())
    }

    /// Takes over the result of [`Resumable::own_state`] of this rank in a world of the same size. The next
    /// [`super::Residency::broadcast_state`] puts it into effect.
    ///
    /// # Errors
    /// [`crate::ShardingError::State`] if it belongs to another strategy or model.
    fn load_own_state(&self, state: OwnState) -> Result<()> {
        match state.first() {
            None => Ok(()),
            Some((name, _)) => Err(crate::ShardingError::state(self.name(), format!("keeps no `{name}`"))),
        }
    }

    /// Returns this rank's state after `steps` steps of this network in a broken world, without waiting for other ranks. It ends all
    /// operations under way, and applies `change` to the owned parameters first. A new instance among the remaining ranks goes on from
    /// the result ([`Resumable::load_own_state`]). `None`: the strategy needs every rank.
    ///
    /// # Errors
    /// Errors of `change`, and [`crate::ShardingError::Tensor`] if parameters cannot be read.
    fn salvage(
        &self,
        _steps: u64,
        _change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>,
    ) -> Result<Option<OwnState>> {
        Ok(None)
    }

    /// Returns what the codec of this rank keeps from step to step; see [`crate::GradCodec::state`].
    ///
    /// # Errors
    /// If it lies on a device that fails.
    fn codec_state(&self) -> Result<OwnState> {
        Ok(Vec::new())
    }

    /// Takes over the codec's state of this rank.
    ///
    /// # Errors
    /// [`crate::ShardingError::Codec`] if it belongs to another codec.
    fn load_codec_state(&self, state: OwnState) -> Result<()> {
        Ok(nothing_kept("none", &state)?)
    }
}
