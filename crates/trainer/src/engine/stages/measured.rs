//! The seconds of a model's blocks on this machine, and the stages that follow from them.

use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use phalanx_sharding::pipeline::{
    BlockOrder, BlockSeconds, CutCosts, StageForward, StageParams, TimedPasses, time_blocks,
};
use phalanx_tensor::host::with_host_bytes;
use phalanx_tensor::{ComputeDevice, Context, Session, StageRole, TensorError, TracedPass};

use super::trace::{first_micro_batch, other_ranks, tensor_rank, traced};
use crate::engine::first_step::{FirstForward, FirstStep};
use crate::engine::training::{Built, StageTarget, Task};
use crate::engine::{TrainError, precision};
use phalanx_config::Config;

/// A block of a model on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredBlock {
    /// Its name.
    pub block: String,
    /// Its seconds over a micro-batch.
    pub seconds: BlockSeconds,
    /// Its chunk by the measured seconds.
    pub chunk: usize,
    /// Its chunk by operations.
    pub by_operations: usize,
}

/// The blocks of a model on this machine, and the chunks that cost equally much.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredStages {
    /// The blocks, in the order in which values flow.
    pub blocks: Vec<MeasuredBlock>,
    /// The number of chunks.
    pub chunks: usize,
}

impl MeasuredStages {
    /// The first block of each chunk but the first: the value of `pipeline.stages`.
    pub fn first_blocks(&self) -> Vec<&str> {
        let starts = self.blocks.windows(2).filter(|pair| pair[0].chunk < pair[1].chunk);
        starts.map(|pair| pair[1].block.as_str()).collect()
    }

    /// The seconds of each chunk over a micro-batch, with chunks that `of` tells.
    pub fn seconds_of_chunks(&self, of: impl Fn(&MeasuredBlock) -> usize) -> Vec<f64> {
        let mut seconds = vec![0.0; self.chunks];
        self.blocks.iter().for_each(|block| seconds[of(block)] += block.seconds.all());
        seconds
    }
}

/// Measures each block of a training on the CPU of this machine, and cuts the model into the chunks of the configuration so that the
/// slowest one is as fast as can be, with its messages. No more than a block is in memory at a time.
///
/// # Errors
/// Errors of the data and of the networks, and if the model cannot be cut.
pub fn measure_stages(task: &Task, config: &Config) -> Result<MeasuredStages, TrainError> {
    let chunks = config.pipeline_ranks() * config.pipeline.chunks;
    let step = FirstStep::read(task, config, None)?;
    let traced = traced(&step)?.phases;
    let passes: Vec<&TracedPass> = traced.iter().collect();
    let order = BlockOrder::of(&passes)?;
    let device = ComputeDevice::host();
    let context = precision::context(config, config.train.threads.max(1))?;
    let mut timed = TimedStep { step: &step, context, device: &device };
    let seconds = time_blocks(&mut timed, (&order, &passes), (&device, DType::F32))?;
    // A value comes forward, and its gradient goes back.
    let byte = 2.0 * seconds_of_byte()?;
    let costs = CutCosts { blocks: seconds.iter().map(BlockSeconds::all).collect(), byte };
    let first = order.balanced(&passes, &costs, chunks)?;
    let by_operations = order.balanced(&passes, &order.operations(), chunks)?;
    let chunk = |first: &[usize], at: usize| first.partition_point(|first| *first <= at) - 1;
    let measured = |(at, (block, seconds)): (usize, (&str, BlockSeconds))| MeasuredBlock {
        block: block.to_owned(),
        seconds,
        chunk: chunk(&first, at),
        by_operations: chunk(&by_operations, at),
    };
    let blocks = order.blocks().zip(seconds).enumerate().map(measured).collect();
    Ok(MeasuredStages { blocks, chunks })
}

/// The seconds in which a rank takes a byte from a message, or puts it into one.
fn seconds_of_byte() -> Result<f64, TrainError> {
    const BYTES: usize = 4 << 20;
    const ROUNDS: usize = 5;
    let tensor = Tensor::ones(BYTES / 4, DType::F32, &Device::Cpu).map_err(TensorError::from)?;
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let mut message = Vec::with_capacity(BYTES);
        with_host_bytes(&tensor, |bytes| message.extend_from_slice(bytes))?;
        std::hint::black_box(&message);
        least = least.min(begun.elapsed().as_secs_f64() / BYTES as f64);
    }
    Ok(least)
}

/// The first step, with a block at a time.
struct TimedStep<'a> {
    step: &'a FirstStep<'a>,
    context: Arc<Context>,
    device: &'a ComputeDevice,
}

impl TimedPasses for TimedStep<'_> {
    type Error = TrainError;
    type Model = Built;

    fn build(&mut self, params: &Arc<StageParams>, rank: usize) -> Result<Built, TrainError> {
        let stage = Some(StageTarget { params, rank });
        self.step.build(self.device, tensor_rank(self.step.config()), stage)
    }

    fn forward(&mut self, built: &Built, phase: usize, role: StageRole) -> Result<StageForward, TrainError> {
        let (step, stage) = (self.step, Some(role));
        let session = step.session(self.context.clone(), self.device, other_ranks(step.config()));
        let session = Session { stage, ..session };
        let FirstForward { tape, loss } = step.forward(built, phase, (first_micro_batch(step)?, &session))?;
        Ok(StageForward { tape, loss })
    }
}
