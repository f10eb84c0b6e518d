//! Options of the asynchronous strategies.

use phalanx_tensor::Key;

use super::Topology;
use crate::strategy::{Meeting, ServerPace, Strategy, Synchrony};
use crate::{Result, ShardingError};

/// Options of asynchronous strategies. All ranks must choose the same.
#[derive(Debug, Clone, PartialEq)]
pub struct SyncOptions {
    /// `ps-ssp`: the number of steps that a worker may be ahead of the slowest.
    pub staleness: u64,
    /// Local SGD and DiLoCo: the number of steps from one synchronisation to the next.
    pub every: u64,
    /// Post-local SGD: the number of steps of the first phase, which all-reduces gradients in every step.
    pub start: u64,
    /// DiLoCo: the learning rate of the outer optimizer.
    pub outer_lr: f64,
    /// DiLoCo: the Nesterov momentum of the outer optimizer.
    pub outer_momentum: f64,
    /// DiLoCo: the number of parts of the model that are synchronised one after the other (streaming).
    pub fragments: usize,
    /// DiLoCo: the number of steps of training that overlap a synchronisation; 0 to wait for it.
    pub overlap: u64,
    /// DiLoCo with overlap: the weight of a rank's own parameters when a synchronisation ends, from 0 to 1.
    pub mixing: f64,
    /// DiLoCo: sends outer gradients as bf16.
    pub outer_bf16: bool,
    /// Parameter server: the learning rate of a change is divided by its staleness, if that is above 1 (Zhang et al. 2016).
    pub damp: bool,
    /// Parameter server: the factor of the correction g²·(w − w_old) of old gradients (Zheng et al. 2017); 0 for none.
    pub compensation: f64,
    /// Parameter server: the number of ranks, the last ones, that only serve; 0 for a server on every worker's rank.
    pub servers: usize,
    /// Parameter server: pushes gradients after backward, so that they can be clipped, rather than while it runs.
    pub push_late: bool,
    /// Parameter server: requests the next step's values at the end of a step, so that they arrive while a batch is read. If
    /// false, they are requested when the step begins and are newer.
    pub pull_ahead: bool,
    /// Gossip: the topology of neighbours.
    pub topology: Topology,
    /// The factor of gradients where each rank trains separately: 1 if losses are divided by the rank's batch, the number of
    /// ranks if they are divided by the global batch.
    pub gradient_scale: f64,
    /// The key of random neighbours.
    pub key: Key,
    /// The changes in the first steps after ranks were lost.
    pub catch_up: Option<CatchUp>,
}

/// The first steps of the surviving ranks after others were lost. The ranks are at different steps, and each still has its old
/// part of the global batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CatchUp {
    /// The first step, counted from 0, that all ranks take together. Before it neighbours do not wait for each other.
    pub until: u64,
    /// The value of [`SyncOptions::gradient_scale`] before that step.
    pub gradient_scale: f64,
}

impl Default for SyncOptions {
    fn default() -> Self {
        Self {
            staleness: 3,
            every: 20,
            start: 0,
            outer_lr: 0.7,
            outer_momentum: 0.9,
            fragments: 1,
            overlap: 0,
            mixing: 0.5,
            outer_bf16: false,
            damp: false,
            compensation: 0.0,
            servers: 0,
            push_late: false,
            pull_ahead: true,
            topology: Topology::Ring,
            gradient_scale: 1.0,
            key: Key::new(0),
            catch_up: None,
        }
    }
}

impl SyncOptions {
    /// Returns the number of steps that workers may be apart under a strategy's pace.
    pub fn bound(&self, pace: ServerPace) -> Option<u64> {
        match pace {
            ServerPace::Together => Some(0),
            ServerPace::Bounded => Some(self.staleness),
            ServerPace::Free => None,
        }
    }

    /// Checks that a strategy can run with these options.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] naming the option and the allowed values.
    pub fn check(&self, strategy: &Strategy) -> Result<()> {
        let wrong = |problem: String| Err(ShardingError::strategy(strategy.name, problem));
        match strategy.synchrony {
            Synchrony::EveryStep | Synchrony::Rounds(_) | Synchrony::Neighbours(_) if self.servers > 0 => {
                return wrong(format!("has no servers; {} cannot be ranks of their own", self.servers));
            }
            Synchrony::Rounds(meeting) => {
                if self.every == 0 {
                    return wrong("meets every 0 steps; it needs 1 or more".into());
                }
                if meeting != Meeting::OuterStep
                    && (self.fragments != 1 || self.overlap != 0 || self.outer_bf16)
                {
                    return wrong(
                        "meets as a whole; fragments, overlap and encoded outer gradients are of diloco"
                            .into(),
                    );
                }
                if self.fragments == 0 || self.fragments as u64 > self.every {
                    let (fragments, every) = (self.fragments, self.every);
                    return wrong(format!(
                        "has {fragments} fragments in {every} steps; it needs from 1 to {every}"
                    ));
                }
                if self.overlap >= self.every {
                    let (overlap, every) = (self.overlap, self.every);
                    return wrong(format!(
                        "overlaps {overlap} steps of {every}; a meeting must end before the next"
                    ));
                }
                if !(0.0..=1.0).contains(&self.mixing) {
                    return wrong(format!(
                        "keeps {} of a rank's own parameters; it is a part from 0 to 1",
                        self.mixing
                    ));
                }
            }
            Synchrony::Servers(_) if !(self.compensation.is_finite() && self.compensation >= 0.0) => {
                return wrong(format!(
                    "corrects old gradients by {}; it must be 0 or above",
                    self.compensation
                ));
            }
            _ => {}
        }
        if !(self.gradient_scale.is_finite() && self.gradient_scale > 0.0) {
            return wrong(format!("multiplies gradients by {}; it must be above 0", self.gradient_scale));
        }
        Ok(())
    }
}
