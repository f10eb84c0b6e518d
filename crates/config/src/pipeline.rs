//! The section `[pipeline]`: stages, and settings that do not go with them.

use phalanx_sharding::ShardingError;
use phalanx_sharding::pipeline::{PipelineSchedule, PipelineSizes};

use super::keys::{Config, Offload};
use super::validate::Relations;

/// The micro-batches that a stage gets at most where their number is not given.
const MICRO_BATCHES_OF_STAGE: usize = 4;

impl Config {
    /// The number of micro-batches of a step: `pipeline.micro_batches` of a model in stages if that is given, else
    /// `train.accumulate`. Where neither is, a pipeline has the largest number that divides the samples of its part of the batch,
    /// up to four a stage.
    pub fn micro_batches(&self) -> usize {
        let (stages, train) = (self.pipeline_ranks(), &self.train);
        match self.pipeline.micro_batches {
            _ if stages == 1 => train.accumulate,
            0 if train.accumulate > 1 => train.accumulate,
            0 => {
                let samples = (train.global_batch / self.data_ranks()).max(1);
                let fits = |micros: &usize| samples.is_multiple_of(*micros) && self.sizes(*micros).is_ok();
                (1..=MICRO_BATCHES_OF_STAGE * stages).rev().find(fits).unwrap_or(1)
            }
            given => given,
        }
    }

    /// Describes the stages of the model; empty if there are none.
    pub fn stages_in_words(&self) -> String {
        let (ranks, chunks) = (self.pipeline_ranks(), self.pipeline.chunks);
        let stages = match (ranks, chunks) {
            (1, _) => return String::new(),
            (_, 1) => format!("{ranks} stages"),
            _ => format!("{} stages", ranks * chunks),
        };
        format!("{stages} by {} with {} micro-batches", self.pipeline.schedule, self.micro_batches())
    }

    /// Returns the schedule of a number of micro-batches.
    ///
    /// # Errors
    /// [`ShardingError::Schedule`] if they do not fit.
    pub fn pipeline_schedule(&self, micros: usize) -> Result<PipelineSchedule, ShardingError> {
        let (ranks, chunks) = (self.pipeline_ranks(), self.pipeline.chunks);
        PipelineSchedule::named(&self.pipeline.schedule, PipelineSizes { ranks, chunks, micros })
    }

    fn sizes(&self, micros: usize) -> Result<(), ShardingError> {
        self.pipeline_schedule(micros).map(drop)
    }

    /// Checks the settings of a run whose model is in stages.
    pub(super) fn check_pipeline(&self, relations: &mut Relations<'_>) {
        let Self { pipeline, .. } = self;
        let ranks = self.pipeline_ranks();
        let key = "parallel.pipeline";
        if ranks == 1 {
            for (holds, key) in [
                (pipeline.micro_batches == 0, "pipeline.micro_batches"),
                (pipeline.chunks == 1, "pipeline.chunks"),
                (pipeline.stages.is_empty(), "pipeline.stages"),
            ] {
                let problem = format!("{key} is for models in stages: give parallel.pipeline, their number");
                relations.require(holds, key, problem);
            }
            return;
        }
        let schedule = self.sizes(self.micro_batches());
        let problem = schedule.err().map(|error| error.to_string()).unwrap_or_default();
        relations.require(problem.is_empty(), "pipeline.schedule", problem);
        self.refuse_with_stages(|holds, what, why| {
            relations.require(holds, key, format!("{key} = {ranks} does not go with {what}: {why}"));
        });
    }

    /// Tells the settings that do not go with stages: whether it holds that they are not set, their value, and the reason.
    fn refuse_with_stages(&self, mut refuse: impl FnMut(bool, String, &str)) {
        let Self { train, elastic, .. } = self;
        refuse(
            train.strategy.is_bulk_synchronous(),
            format!("train.strategy = {}", train.strategy),
            "stages take every step together; choose ddp, zero1, zero2, fsdp or hsdp",
        );
        refuse(
            self.logical_ranks().is_none(),
            format!("train.logical_ranks = {}", train.logical_ranks),
            "logical ranks are parts of the data on one rank each, with the whole model",
        );
        refuse(
            elastic.min == 0,
            format!("elastic.min = {}", elastic.min),
            "a rank that leaves takes its stage along",
        );
        refuse(
            !train.graphs,
            "train.graphs = true".to_owned(),
            "messages between stages are not recorded in graphs",
        );
        refuse(
            train.offload != Offload::Parameters,
            "train.offload = parameters".to_owned(),
            "several micro-batches use parameters in turn, which would come and go for each",
        );
    }
}
