//! Passes of a pipeline: each rank runs the whole computation of the loss, and computes the calls of blocks that are its own.
//!
//! Calls of [`Tape::run`] and values that depend on parameters are numbered. On outlines a pass traces them ([`StageRole::Trace`]); from
//! the trace follows who computes what, and which values go from one chunk of the model to another. A pass of a chunk
//! ([`StageRole::Run`]) has the same calls and numbers: calls of other chunks run on outlines, and a value of theirs that this chunk
//! needs is received where it would have been computed. Code between blocks belongs to the latest chunk among its inputs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Shape};

use super::Tape;
use super::stage_share::StageShare;
use super::value::{Slot, Value};
use crate::backend::{Array, ComputeDevice, Outlines, Transfers as _};
use crate::store::Param;
use crate::{Result, TensorError};

/// The part that a pass plays in a pipeline.
#[derive(Debug, Clone)]
pub enum StageRole {
    /// It finds out which calls and values there are. Its arrays are outlines.
    Trace(Arc<ValueTrace>),
    /// It computes a chunk of the model.
    Run(Arc<StageRun>),
    /// It computes the blocks of this rank, and gets the results of all others: a pass without backward that reads numbers, such as one
    /// that generates text.
    Share(Arc<StageShare>),
}

impl StageRole {
    /// The role in a pass apart from this one that reads numbers, as the first batch of a training is measured: all ranks of a pipeline
    /// run it at the same place.
    ///
    /// # Errors
    /// [`TensorError::Backward`] if the ranks cannot share values.
    pub fn apart(&self) -> Result<Option<Self>> {
        match self {
            Self::Trace(_) => Ok(None),
            Self::Share(_) => Ok(Some(self.clone())),
            Self::Run(run) => match &run.shared {
                Some(shared) => Ok(Some(Self::Share(shared.clone()))),
                None => Err(TensorError::Backward(
                    "a pass of a stage reads numbers, and the ranks share none".into(),
                )),
            },
        }
    }
}

/// The calls and values of a pass.
#[derive(Debug, Default)]
pub struct ValueTrace(Mutex<TracedPass>);

impl ValueTrace {
    /// Makes an empty trace.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns the calls and values so far, and forgets them.
    pub fn take(&self) -> TracedPass {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<R>(&self, change: impl FnOnce(&mut TracedPass) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The calls and values of a pass, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TracedPass {
    /// The calls of blocks.
    pub calls: Vec<TracedCall>,
    /// The values that depend on parameters, by number.
    pub values: Vec<TracedValue>,
}

/// A call of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedCall {
    /// The block.
    pub block: Arc<str>,
    /// The floating-point operations of its products, forward.
    pub operations: u64,
}

/// A value that depends on parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedValue {
    /// The op that computes it.
    pub op: &'static str,
    /// The parameter that it is the value of.
    pub param: Option<String>,
    /// The call that it is computed in; `None` between blocks.
    pub call: Option<usize>,
    /// The values that it is computed from.
    pub inputs: Vec<usize>,
    /// Its shape.
    pub shape: Shape,
    /// Its element type.
    pub dtype: DType,
    /// True if it has a gradient.
    pub needs_grad: bool,
}

/// The chunks of a pass: who computes what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePlan {
    /// The chunk that passes with this plan compute.
    pub chunk: usize,
    /// The calls of blocks.
    pub calls: Vec<PlannedCall>,
    /// The values, by number.
    pub values: Vec<PlannedValue>,
    /// The values of other chunks that this one needs.
    pub received: BTreeSet<usize>,
    /// The values of this chunk that others need.
    pub sent: BTreeSet<usize>,
}

/// A call of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedCall {
    /// The block.
    pub block: Arc<str>,
    /// The chunk that computes it.
    pub chunk: usize,
}

/// A value of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedValue {
    /// The op that computes it.
    pub op: &'static str,
    /// The chunk that computes it.
    pub chunk: usize,
}

/// Messages from other chunks.
pub trait StageMessages: std::fmt::Debug + Send + Sync {
    /// Waits for a value of another chunk and returns it.
    ///
    /// # Errors
    /// Errors of the transport.
    fn receive(
        &self,
        number: usize,
        shape: &Shape,
        dtype: DType,
    ) -> std::result::Result<Array, Box<dyn std::error::Error + Send + Sync>>;
}

/// A pass that computes a chunk.
#[derive(Debug)]
pub struct StageRun {
    /// The chunk of each call and value.
    pub plan: Arc<StagePlan>,
    /// The values of other chunks.
    pub messages: Arc<dyn StageMessages>,
    /// The type of parameters.
    pub dtype: DType,
    /// The part of this rank in passes that read numbers while this one is under way; none if there cannot be any.
    pub shared: Option<Arc<StageShare>>,
}

/// A value of this chunk that others need.
#[derive(Debug)]
pub struct SentOut {
    /// Its number.
    pub number: usize,
    /// The value.
    pub value: Value,
}

/// The gradient of a value of another chunk.
#[derive(Debug)]
pub struct ReceivedGrad {
    /// The value's number.
    pub number: usize,
    /// The gradient.
    pub grad: Array,
}

/// A value of another chunk that was received.
#[derive(Debug)]
struct Received {
    number: usize,
    slot: Option<Slot>,
    array: Array,
}

/// The state of a pass of a pipeline.
#[derive(Debug)]
pub(super) struct StageState {
    role: StageRole,
    outlines: Outlines,
    /// True if the arrays of this chunk have no numbers either.
    is_without_numbers: bool,
    is_elsewhere: Cell<bool>,
    /// The calls within calls.
    depth: Cell<usize>,
    calls: Cell<usize>,
    next: Cell<usize>,
    kept: RefCell<Vec<SentOut>>,
    received: RefCell<Vec<Received>>,
}

/// A number, and whether another chunk computes the value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbered {
    number: usize,
    pub(super) is_elsewhere: bool,
}

impl StageState {
    pub(super) fn new(role: StageRole, device: &ComputeDevice) -> Self {
        Self {
            role,
            outlines: Outlines::new(),
            is_without_numbers: !device.has_numbers(),
            is_elsewhere: Cell::new(false),
            depth: Cell::new(0),
            calls: Cell::new(0),
            next: Cell::new(0),
            kept: RefCell::default(),
            received: RefCell::default(),
        }
    }

    /// The device of calls of other chunks.
    pub(super) fn outlines(&self) -> &Outlines {
        &self.outlines
    }

    fn differs(&self, found: &str, expected: Option<&str>) -> TensorError {
        let expected = expected.unwrap_or("the end of the pass");
        TensorError::Backward(format!(
            "{found} where the pass that was traced has {expected}: passes of a pipeline must have the same blocks and ops each time"
        ))
    }

    /// Begins a call of a block.
    pub(super) fn enter(&self, block: &Arc<str>) -> Result<()> {
        self.depth.set(self.depth.get() + 1);
        if self.depth.get() > 1 {
            return Ok(());
        }
        let call = self.calls.replace(self.calls.get() + 1);
        match &self.role {
            StageRole::Trace(trace) => {
                trace.change(|pass| pass.calls.push(TracedCall { block: block.clone(), operations: 0 }));
            }
            StageRole::Run(run) => match run.plan.calls.get(call) {
                Some(planned) if planned.block == *block => {
                    self.is_elsewhere.set(planned.chunk != run.plan.chunk);
                }
                planned => {
                    let expected = planned.map(|planned| format!("block `{}`", planned.block));
                    return Err(self.differs(&format!("block `{block}`"), expected.as_deref()));
                }
            },
            StageRole::Share(share) => self.is_elsewhere.set(!share.ranks.computes(block)),
        }
        Ok(())
    }

    /// Ends a call of a block.
    pub(super) fn leave(&self) {
        self.depth.set(self.depth.get() - 1);
        if self.depth.get() == 0 {
            self.is_elsewhere.set(false);
        }
    }

    /// Gives a value its number.
    fn number(&self, value: TracedValue) -> Result<Numbered> {
        let number = self.next.replace(self.next.get() + 1);
        let is_elsewhere = match &self.role {
            StageRole::Trace(trace) => {
                trace.change(|pass| pass.values.push(value));
                false
            }
            StageRole::Run(run) => match run.plan.values.get(number) {
                Some(planned) if planned.op == value.op => planned.chunk != run.plan.chunk,
                planned => return Err(self.differs(value.op, planned.map(|planned| planned.op))),
            },
            StageRole::Share(_) => self.is_elsewhere.get(),
        };
        Ok(Numbered { number, is_elsewhere })
    }

    /// The present call.
    fn call(&self) -> Option<usize> {
        (self.depth.get() > 0).then(|| self.calls.get() - 1)
    }

    fn run(&self) -> Option<&StageRun> {
        match &self.role {
            StageRole::Trace(_) | StageRole::Share(_) => None,
            StageRole::Run(run) => Some(run),
        }
    }

    /// The pass whose values all ranks get, if it is one.
    pub(super) fn share(&self) -> Option<&StageShare> {
        match &self.role {
            StageRole::Share(share) => Some(share),
            StageRole::Trace(_) | StageRole::Run(_) => None,
        }
    }

    fn is_trace(&self) -> bool {
        matches!(self.role, StageRole::Trace(_))
    }

    /// The type of parameters of other chunks.
    fn param_dtype(&self) -> Option<DType> {
        match &self.role {
            StageRole::Trace(_) => None,
            StageRole::Run(run) => Some(run.dtype),
            StageRole::Share(share) => Some(share.dtype),
        }
    }

    /// True at the outermost call, if its block is computed elsewhere or nowhere.
    pub(super) fn is_outlined(&self) -> bool {
        self.depth.get() == 1 && (self.is_elsewhere.get() || self.is_trace())
    }

    /// True between calls.
    pub(super) fn is_between_calls(&self) -> bool {
        self.depth.get() == 0
    }

    /// Returns the outline of a value. Data, which all chunks have, keeps its numbers; indices stay on the host.
    fn outlined(&self, value: &Value) -> Result<Value> {
        // Where no array has numbers, those of other chunks have an account of their own.
        let is_outline = !value.has_numbers() && (!self.is_without_numbers || self.is_trace());
        if is_outline || value.number().is_none() && !value.dtype()?.is_float() {
            return Ok(value.clone());
        }
        let data = (value.number().is_none()).then(|| value.part()).transpose()?.filter(Array::is_host);
        let outline = match data {
            Some(data) => self.outlines.from_host(&data.to_host()?)?,
            None => self.outlines.of(value.shape(), value.dtype()?),
        };
        Ok(value.clone().with_array(outline))
    }

    /// Returns the outputs of a call with their numbers. They come in the order in which they were computed, which need not be that of the
    /// outputs.
    fn received_all(&self, mut outputs: Vec<Value>) -> Result<Vec<Value>> {
        let mut order: Vec<usize> = (0..outputs.len()).collect();
        order.sort_by_key(|at| outputs[*at].number());
        for at in order {
            outputs[at] = self.received(outputs[at].clone())?;
        }
        Ok(outputs)
    }

    /// Returns a value of another chunk with its numbers, if this chunk needs it.
    fn received(&self, value: Value) -> Result<Value> {
        let (Some(run), Some(number)) = (self.run(), value.number()) else { return Ok(value) };
        if !run.plan.received.contains(&number) || run.plan.values[number].chunk == run.plan.chunk {
            return Ok(value);
        }
        let mut received = self.received.borrow_mut();
        if let Some(known) = received.iter().find(|known| known.number == number) {
            return Ok(value.with_array(known.array.clone()));
        }
        let array = run.messages.receive(number, value.shape(), value.dtype()?);
        let array = array.map_err(TensorError::hook("receive"))?;
        received.push(Received { number, slot: value.slot(), array: array.clone() });
        Ok(value.with_array(array))
    }
}

/// Returns an output of a call with its array here, if the block passes on an input.
fn passed_on(output: Value, inputs: &[Value]) -> Result<Value> {
    let is_same = |input: &&Value| output.number().is_some_and(|number| input.number() == Some(number));
    match inputs.iter().find(is_same) {
        Some(input) => Ok(output.with_array(input.part()?)),
        None => Ok(output),
    }
}

impl Tape {
    /// True if the present call is computed by another chunk of a pipeline.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.stage.as_ref().is_some_and(|stage| stage.is_elsewhere.get())
    }

    /// Runs a call of a block in its chunk's way: one of another chunk gets outlines of its inputs, and this chunk receives the
    /// outputs that it needs.
    pub(super) fn in_call(
        &self,
        block: &Arc<str>,
        inputs: &[Value],
        run: impl FnOnce(&[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let Some(stage) = &self.stage else { return run(inputs) };
        let before = self.session.arithmetic.so_far();
        stage.enter(block)?;
        let result = match stage.is_outlined() {
            false => run(inputs),
            true => {
                let outlined = inputs.iter().map(|input| stage.outlined(input));
                let outputs = outlined.collect::<Result<Vec<_>>>().and_then(|inputs| run(&inputs));
                outputs
                    .and_then(|outputs| outputs.into_iter().map(|output| passed_on(output, inputs)).collect())
            }
        };
        stage.leave();
        if let Some(share) = stage.share() {
            return self.shared(share, (block, stage.is_between_calls()), result?);
        }
        if let (StageRole::Trace(trace), 0) = (&stage.role, stage.depth.get()) {
            let operations = self.session.arithmetic.so_far() - before;
            trace.change(|pass| {
                pass.calls.iter_mut().rev().take(1).for_each(|call| call.operations = operations);
            });
        }
        match stage.is_elsewhere.get() {
            true => result,
            false => stage.received_all(result?),
        }
    }

    /// Gives the result of an op its number, if it depends on parameters.
    pub(super) fn number(
        &self,
        op: &'static str,
        inputs: &[&Value],
        output: &Array,
    ) -> Result<Option<Numbered>> {
        let Some(stage) = self.stage.as_ref().filter(|stage| stage.share().is_none()) else {
            return Ok(None);
        };
        let numbers: Vec<usize> = inputs.iter().filter_map(|input| input.number()).collect();
        if numbers.is_empty() {
            return Ok(None);
        }
        let value = TracedValue {
            op,
            param: None,
            call: stage.call(),
            inputs: numbers,
            shape: output.shape().clone(),
            dtype: output.dtype(),
            needs_grad: self.records() && inputs.iter().any(|input| input.needs_grad()),
        };
        let numbered = stage.number(value)?;
        let is_lost = !stage.is_without_numbers && !output.has_numbers();
        if stage.run().is_some() && !numbered.is_elsewhere && is_lost {
            let problem = "an input is of another chunk of the pipeline, and came in past the tape";
            return Err(TensorError::Backward(format!("{op}: {problem}")));
        }
        Ok(Some(numbered))
    }

    /// Gives a parameter's value its number.
    pub(super) fn number_param(&self, param: &Param, value: Value) -> Result<Value> {
        let Some(stage) = self.stage.as_ref().filter(|stage| stage.share().is_none()) else {
            return Ok(value);
        };
        let numbered = stage.number(TracedValue {
            op: "parameter",
            param: Some(param.name().to_owned()),
            call: stage.call(),
            inputs: Vec::new(),
            shape: param.shape().clone(),
            dtype: value.dtype()?,
            needs_grad: value.needs_grad(),
        })?;
        Ok(value.numbered(numbered.number))
    }

    /// Returns the outline of a parameter of another chunk, and its element type.
    pub(super) fn param_elsewhere(&self, param: &Param) -> Option<Array> {
        let stage = self.stage.as_ref().filter(|stage| stage.is_elsewhere.get())?;
        let dtype = stage.param_dtype()?;
        Some(stage.outlines.of(param.shape(), dtype))
    }

    /// Ends the making of a value: keeps it for others, or receives it from its chunk.
    pub(super) fn placed_in_chunk(&self, value: Value, numbered: Option<Numbered>) -> Result<Value> {
        let (Some(stage), Some(Numbered { number, is_elsewhere })) = (&self.stage, numbered) else {
            return Ok(value);
        };
        let value = value.numbered(number);
        if is_elsewhere {
            let value = stage.outlined(&value)?;
            return if stage.depth.get() == 0 { stage.received(value) } else { Ok(value) };
        }
        if stage.run().is_some_and(|run| run.plan.sent.contains(&number)) {
            stage.kept.borrow_mut().push(SentOut { number, value: value.clone() });
        }
        Ok(value)
    }

    /// True if this chunk of a pipeline computes a value; for passes that are no pipeline's, true of all.
    pub fn computes(&self, value: &Value) -> bool {
        let run = self.stage.as_ref().and_then(StageState::run);
        let planned = run.zip(value.number()).map(|(run, number)| (run, &run.plan.values[number]));
        planned.is_none_or(|(run, planned)| planned.chunk == run.plan.chunk)
    }

    /// Takes the values of this chunk that others need, by number.
    pub fn take_sent_values(&self) -> Vec<SentOut> {
        self.stage.as_ref().map(|stage| std::mem::take(&mut *stage.kept.borrow_mut())).unwrap_or_default()
    }

    /// Takes the gradients of the values that this chunk has received, by number, after backward: zeros of values that the loss does not
    /// depend on here.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn take_received_grads(&self) -> Result<Vec<ReceivedGrad>> {
        let Some(stage) = &self.stage else { return Ok(Vec::new()) };
        let received = std::mem::take(&mut *stage.received.borrow_mut());
        let mut inner = self.inner.borrow_mut();
        let mut grads = Vec::with_capacity(received.len());
        for Received { number, slot, array } in received {
            let Some(slot) = slot else { continue };
            let grad = match inner.leaf_grads.iter().position(|(known, _)| *known == slot) {
                Some(at) => inner.leaf_grads.swap_remove(at).1,
                None => array.backend(self.context()).full(0.0, array.shape(), array.dtype())?,
            };
            grads.push(ReceivedGrad { number, grad });
        }
        grads.sort_by_key(|grad| grad.number);
        Ok(grads)
    }

    /// Refuses a pass that ended before the one that was traced.
    ///
    /// # Errors
    /// [`TensorError::Backward`] naming what is missing.
    pub fn check_stage_end(&self) -> Result<()> {
        let Some(stage) = &self.stage else { return Ok(()) };
        match stage.run().and_then(|run| run.plan.values.get(stage.next.get())) {
            Some(planned) => Err(stage.differs("the end of the pass", Some(planned.op))),
            None => Ok(()),
        }
    }
}
