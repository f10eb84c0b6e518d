//! The seconds of blocks, each measured by itself: no rank needs the whole model.
//!
//! A block runs as the only one of its chunk: what is before and after it runs on outlines, values that it reads are made up, and so are
//! the gradients of those that others read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Shape};
use phalanx_tensor::{
    Array, ComputeDevice, Context, SentOut, StageMessages, StageRole, StageRun, TracedPass,
};

use super::division::DividedPass;
use super::order::BlockOrder;
use super::run::StageForward;
use super::stage_params::StageParams;
use crate::{Result, ShardingError};

/// The times of each block: the least counts, of those after the first.
const ROUNDS: usize = 4;

/// The elements of values and gradients that are made up.
const MADE_UP: f64 = 0.01;

/// The chunk of the block that is measured, between those before and after it.
const OWN: usize = 1;

/// The seconds of a block's passes over a micro-batch, of all phases.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BlockSeconds {
    /// Forward.
    pub forward: f64,
    /// Backward.
    pub backward: f64,
}

impl BlockSeconds {
    /// Both passes.
    pub fn all(&self) -> f64 {
        self.forward + self.backward
    }
}

/// The passes of a training, as measuring calls them.
pub trait TimedPasses {
    /// The error of the computation.
    type Error: From<ShardingError> + From<phalanx_tensor::TensorError>;
    /// The networks.
    type Model;

    /// Builds the networks with the parameters of a rank, on the device that is measured.
    ///
    /// # Errors
    /// Errors of the networks.
    fn build(&mut self, params: &Arc<StageParams>, rank: usize) -> Result<Self::Model, Self::Error>;

    /// Computes the loss of a pass on a new tape whose session has this role.
    ///
    /// # Errors
    /// Errors of the computation.
    fn forward(
        &mut self,
        model: &Self::Model,
        pass: usize,
        role: StageRole,
    ) -> Result<StageForward, Self::Error>;
}

/// Measures the blocks of an order on a device, in their order. Those of the same ops and shapes are measured once.
///
/// # Errors
/// Errors of the passes.
pub fn time_blocks<P: TimedPasses>(
    timed: &mut P,
    (order, passes): (&BlockOrder, &[&TracedPass]),
    (device, dtype): (&ComputeDevice, DType),
) -> Result<Vec<BlockSeconds>, P::Error> {
    let mut known: BTreeMap<String, BlockSeconds> = BTreeMap::new();
    let mut all = Vec::with_capacity(order.len());
    for place in 0..order.len() {
        let divided = passes.iter().enumerate();
        let divided = divided.map(|(at, pass)| order.divide(at, pass, &[0, place, place + 1]));
        let divided = divided.collect::<Result<Vec<_>>>()?;
        let likeness = likeness(passes, &divided);
        let seconds = match known.get(&likeness) {
            Some(seconds) => *seconds,
            None => time_block(timed, &divided, (device, dtype))?,
        };
        known.insert(likeness, seconds);
        all.push(seconds);
    }
    Ok(all)
}

/// Describes the ops and shapes of a block and of the code behind it, without the names of its parameters.
fn likeness(passes: &[&TracedPass], divided: &[DividedPass]) -> String {
    let mut told = String::new();
    for (at, (pass, divided)) in passes.iter().zip(divided).enumerate() {
        let planned = divided.plans[OWN].values.iter();
        for (value, _) in pass.values.iter().zip(planned).filter(|(_, planned)| planned.chunk == OWN) {
            told += &format!("{at} {} {:?} {:?} {};", value.op, value.shape, value.dtype, value.needs_grad);
        }
    }
    told
}

/// Measures a block.
fn time_block<P: TimedPasses>(
    timed: &mut P,
    divided: &[DividedPass],
    (device, dtype): (&ComputeDevice, DType),
) -> Result<BlockSeconds, P::Error> {
    let mut params = StageParams::default();
    divided.iter().for_each(|pass| params.add(pass, &[0, OWN, 2]));
    let model = timed.build(&Arc::new(params), OWN)?;
    let messages = Arc::new(MadeUp(device.clone()));
    let mut least: Option<BlockSeconds> = None;
    for round in 0..ROUNDS {
        let mut sum = BlockSeconds::default();
        for (at, pass) in divided.iter().enumerate().filter(|(_, pass)| computes(pass)) {
            let run =
                StageRun { plan: pass.plans[OWN].clone(), messages: messages.clone(), dtype, shared: None };
            let begun = Instant::now();
            let forward = timed.forward(&model, at, StageRole::Run(Arc::new(run)))?;
            let sent = forward.tape.take_sent_values();
            finish(&sent)?;
            sum.forward += begun.elapsed().as_secs_f64();
            let begun = Instant::now();
            backward(&forward, &sent, device)?;
            sum.backward += begun.elapsed().as_secs_f64();
        }
        if round > 0 && least.is_none_or(|least| sum.all() < least.all()) {
            least = Some(sum);
        }
    }
    Ok(least.unwrap_or_default())
}

/// True if the block computes a value of a pass.
fn computes(pass: &DividedPass) -> bool {
    pass.plans[OWN].values.iter().any(|value| value.chunk == OWN)
}

/// Runs backward from gradients that are made up.
fn backward(forward: &StageForward, sent: &[SentOut], device: &ComputeDevice) -> phalanx_tensor::Result<()> {
    let StageForward { tape, loss } = forward;
    if tape.computes(loss) && loss.needs_grad() {
        tape.backward(loss)?;
    } else {
        let seeds = sent.iter().filter(|out| out.value.needs_grad()).map(|out| {
            let dtype = out.value.dtype()?;
            Ok((&out.value, made_up(device, out.value.shape(), dtype)?))
        });
        let seeds = seeds.collect::<phalanx_tensor::Result<Vec<_>>>()?;
        if !seeds.is_empty() {
            tape.backward_from(seeds)?;
        }
    }
    let grads = tape.take_received_grads()?;
    grads.first().map_or(Ok(()), |grad| Ok(grad.grad.to_host().map(drop)?))
}

/// Waits for a device.
fn finish(sent: &[SentOut]) -> phalanx_tensor::Result<()> {
    match sent.last().map(|out| out.value.part()).transpose()? {
        Some(array) if !array.is_host() => Ok(array.to_host().map(drop)?),
        _ => Ok(()),
    }
}

fn made_up(device: &ComputeDevice, shape: &Shape, dtype: DType) -> phalanx_tensor::Result<Array> {
    Ok(device.backend(&Context::new(1)).full(MADE_UP, shape, dtype)?)
}

/// Values of blocks that are not measured.
#[derive(Debug)]
struct MadeUp(ComputeDevice);

impl StageMessages for MadeUp {
    fn receive(
        &self,
        _: usize,
        shape: &Shape,
        dtype: DType,
    ) -> std::result::Result<Array, Box<dyn std::error::Error + Send + Sync>> {
        Ok(made_up(&self.0, shape, dtype)?)
    }
}
