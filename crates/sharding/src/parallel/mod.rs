//! What every way of training together has in common: gradients that become ready go in, updated parameters come out.

mod own_state;
mod rule;
mod stats;
mod step;

use std::sync::Arc;

use phalanx_collectives::CommStats;
use phalanx_tensor::{Array, Listener, ParamBucket, ParamStore, ProcessGroup};

pub(crate) use own_state::{Saved, whole};
pub(crate) use rule::apply;
pub use rule::{OptimizerRule, Rule, UpdateRule};
pub use stats::SyncStats;
pub use step::{Reduced, Step, StepToken};

use crate::codec::nothing_kept;
use crate::{Layout, Result};

/// Makes ranks that each train on a share of the data into one training.
///
/// Give it to every [`phalanx_tensor::Session`] as listener; it hears of gradients when they are complete. It owns when ranks
/// wait for each other and what they send, so nothing here says that all step together: a [`Step`] is this rank's. The
/// optimizer runs inside [`ParallelStrategy::update`], on the elements that this rank owns.
pub trait ParallelStrategy: Listener {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// The parameters, of which [`ParamBucket::owned`] elements are this rank's to update.
    fn params(&self) -> &[ParamBucket];

    /// Begins a step with gradients of zero.
    ///
    /// # Errors
    /// [`crate::ShardingError::Step`] if there is one under way.
    fn begin(&self, step: &StepToken) -> Result<()>;

    /// Says whether more micro-batches of the step follow the one that comes next.
    fn micro_batch(&self, step: &StepToken, more: bool);

    /// All of this rank's gradients of the step are there: waits as long as the strategy wants, until those of the owned elements
    /// are what the parameters are to be changed by.
    ///
    /// # Errors
    /// Those of communication.
    fn reduce(&self, step: &StepToken) -> Result<()>;

    /// The step has ended: completed, or given up, with its gradients discarded.
    fn end(&self, step: &StepToken, completed: bool);

    /// Has `change` change the owned elements of parameters, and brings to this rank what others have changed, as far and as
    /// soon as the strategy says. It is called through a [`Step`] for gradients, and by itself for whatever else changes
    /// parameters, such as exchanging them with their averages.
    ///
    /// # Errors
    /// Those of `change` and of communication.
    fn update(&self, change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>) -> Result<()>;

    /// Replaces sums over the elements that this rank owns by those over all elements, where they lie: of a device nobody waits
    /// for them.
    ///
    /// # Errors
    /// Those of communication.
    fn sum_owned(&self, sums: &Array) -> Result<()>;

    /// Replaces a flag, 0 or 1 in f64, by 1 if any rank's is, where it lies: on a device nobody waits for it.
    ///
    /// # Errors
    /// Those of communication.
    fn any(&self, flag: &Array) -> Result<()>;

    /// Replaces numbers by their sums over the ranks: losses, counts, votes.
    ///
    /// # Errors
    /// Those of communication.
    fn sum(&self, values: &mut [f64]) -> Result<()>;

    /// The turn is that of the `at`-th logical rank of this rank: what backward adds to from now on are its gradients. `more` says, if
    /// it is known, whether more micro-batches of it follow the one that it is about to run. [`crate::ShardTurns`] calls it.
    ///
    /// # Errors
    /// [`crate::ShardingError::Step`] outside of a step.
    fn shard_turn(&self, at: usize, more: Option<bool>) -> Result<()> {
        let _ = (at, more);
        Ok(())
    }

    /// The first `ranks` ranks, those that have samples of a batch that may be too small for all, for
    /// [`phalanx_tensor::Session::batch_group`]. The others take no part in what depends on all of the batch, but call this at
    /// the same place.
    ///
    /// # Errors
    /// Those of communication.
    fn batch_group(&self, ranks: usize) -> Result<Arc<dyn ProcessGroup>>;

    /// Brings all parameters into this rank's memory and keeps them there until [`ParallelStrategy::reshard`]: for sampling and
    /// saving, and for steps that not all ranks have samples for. Every rank calls this at the same place.
    ///
    /// # Errors
    /// Those of communication.
    fn unshard(&self) -> Result<()>;

    /// Lets the parameters leave memory again that [`ParallelStrategy::unshard`] has brought.
    ///
    /// # Errors
    /// [`phalanx_tensor::TensorError::BucketState`] if they were not brought.
    fn reshard(&self) -> Result<()>;

    /// Makes all ranks' parameters and buffers equal to rank 0's, and keeps what the strategy says: after values were loaded.
    ///
    /// # Errors
    /// Those of communication.
    fn broadcast_state(&self, store: &ParamStore) -> Result<()>;

    /// Makes all ranks' buffers equal to rank 0's. Without synchronised batch norm every rank has running statistics of its own
    /// samples; rank 0's are the ones that are saved, as in PyTorch's DDP, so call this before an evaluation that is spread
    /// over ranks.
    ///
    /// # Errors
    /// Those of communication.
    fn broadcast_buffers(&self, store: &ParamStore) -> Result<()>;

    /// What of the state this rank holds between steps, and which other ranks hold the rest or the same.
    fn role(&self) -> ShardRole;

    /// Bytes that this rank holds now.
    fn bytes(&self) -> StateBytes;

    /// The most bytes of whole parameters that were in memory at once beside this rank's shards, those that were on their way
    /// included. 0 where parameters are not sharded.
    fn peak_gathered_bytes(&self) -> u64 {
        0
    }

    /// What communication has cost so far.
    fn stats(&self) -> CommStats;

    /// What was decided about where a codec pays ([`crate::CodecWhen::Auto`]), once: what was told is not told again. Nothing
    /// where nothing is measured.
    fn codec_verdicts(&self) -> Vec<crate::CodecVerdict> {
        Vec::new()
    }

    /// What the codec of this rank keeps from step to step; see [`crate::GradCodec::state`].
    /// Nothing where there is none.
    ///
    /// # Errors
    /// If it lies on a device that fails.
    fn codec_state(&self) -> Result<Vec<(String, Vec<f32>)>> {
        Ok(Vec::new())
    }

    /// Takes over what the codec of this rank had kept.
    ///
    /// # Errors
    /// [`crate::ShardingError::Codec`] if it is not this codec's.
    fn load_codec_state(&self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        nothing_kept("none", &state)
    }

    /// The gradients that clipping and scaling of losses act on, once they are reduced: those of the owned elements, or, where
    /// servers update, those that this rank pushes.
    fn gradients(&self) -> &[ParamBucket] {
        self.params()
    }

    /// Takes over the rule by which parameters are changed, where others than this rank's own steps call for it. It comes before
    /// the first step, with the state that there is.
    ///
    /// # Errors
    /// Those of communication.
    fn serve(&self, rule: &Rule) -> Result<()> {
        let _ = rule;
        Ok(())
    }

    /// Whether this rank's optimizer takes the steps that there are, and not another rank's.
    fn counts_updates(&self) -> bool {
        true
    }

    /// Has `rule` change the owned elements of parameters by their gradients, here and now, or by servers, when they come to it.
    /// It is called through a [`Step`].
    ///
    /// # Errors
    /// Those of `rule` and of communication.
    fn update_by(&self, rule: &Rule, learning_rate: f64) -> Result<()> {
        self.update(&mut |params| apply(rule, params, learning_rate))
    }

    /// Whether what ranks tell of a step comes at about the same time, so that one may wait for the others' words. Otherwise it would
    /// be held up by those for whom the strategy does not have it wait.
    fn is_lockstep(&self) -> bool {
        true
    }

    /// Training goes on after so many steps of this network, perhaps without state of its own ([`ParallelStrategy::load_own_state`]):
    /// what a strategy does at certain steps it counts from there.
    fn resume_at(&self, _steps: u64) {}

    /// Whether every rank has parameters and an optimizer of its own, so that each has to save its own.
    fn diverges(&self) -> bool {
        false
    }

    /// Whether a rank computes with copies of parameters that others hold, which may be newer.
    fn keeps_copies(&self) -> bool {
        false
    }

    /// How stale changes were, and how long this rank has waited for others.
    fn sync_stats(&self) -> SyncStats {
        SyncStats::default()
    }

    /// What of the strategy's state is this rank's alone, between steps: its clock, what is on its way, its parameters where they
    /// are its own. Every rank calls this at the same place.
    ///
    /// # Errors
    /// Those of communication.
    fn own_state(&self) -> Result<Vec<(String, Vec<f32>)>> {
        Ok(Vec::new())
    }

    /// What this rank has for itself after `steps` steps of this network, in a world that is broken: it waits for nobody, and
    /// ends whatever is under way; `change` is applied to what it owns before that is read. A new instance among those who are
    /// left goes on from it ([`ParallelStrategy::load_own_state`]). `None`: the strategy cannot do without any rank.
    ///
    /// # Errors
    /// Those of `change`, and [`crate::ShardingError::Tensor`] if parameters cannot be read.
    fn salvage(
        &self,
        _steps: u64,
        _change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>,
    ) -> Result<Option<OwnState>> {
        Ok(None)
    }

    /// Takes over what [`ParallelStrategy::own_state`] gave on this rank of as many; [`ParallelStrategy::broadcast_state`] puts it
    /// into effect. Nothing begins anew from the parameters that there are.
    ///
    /// # Errors
    /// [`crate::ShardingError::State`] if it is not of this strategy and model.
    fn load_own_state(&self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        match state.first() {
            None => Ok(()),
            Some((name, _)) => Err(crate::ShardingError::state(self.name(), format!("keeps no `{name}`"))),
        }
    }
}

impl dyn ParallelStrategy + '_ {
    /// Begins a step with gradients of zero.
    ///
    /// # Errors
    /// [`crate::ShardingError::Step`] if there is one under way.
    pub fn begin_step(&self) -> Result<Step<'_>> {
        Step::begin(self)
    }
}

/// What is a rank's alone: numbers by name.
pub type OwnState = Vec<(String, Vec<f32>)>;

/// Bytes of state that a rank holds, every element counted as often as it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateBytes {
    /// Parameters, with what is gathered at the moment.
    pub parameters: u64,
    /// Gradients, with those that are not reduced yet.
    pub gradients: u64,
    /// What the codec keeps from step to step.
    pub codec: u64,
    /// Encoded gradients on their way.
    pub wire: u64,
    /// What the strategy keeps besides: parameters of the last round, outer momentum, a server's copies.
    pub synchrony: u64,
}

/// A rank's role in what is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRole {
    /// The position among the ranks that share what is sharded.
    pub shard: usize,
    /// How many they are.
    pub shards: usize,
    /// Which of the groups that hold the same; 0 if there are none.
    pub replica: usize,
    /// Parameters between steps.
    pub parameters: Layout,
    /// Optimizer state and averages, which go with the elements that are owned.
    pub optimizer: Layout,
}

impl ShardRole {
    /// Whether it falls to this rank to save something that lies so, once in the whole world.
    pub fn saves(&self, layout: Layout) -> bool {
        self.replica == 0 && (layout == Layout::Sharded || self.shard == 0)
    }
}
