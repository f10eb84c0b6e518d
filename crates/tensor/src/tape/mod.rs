//! The tape: an explicit record of ops over arrays.
//!
//! Forward runs an op and pushes a node that can run backward. [`Tape::backward`] runs the nodes from the last to the
//! first and drops each, which frees its saved arrays at once. Gradients of values accumulate in place. Gradients of
//! parameters are added to their buckets, and a listener is called as soon as those of a bucket are complete.

mod arithmetic;
mod backward;
mod block;
mod grads;
mod graph;
mod kept_weights;
mod listener;
mod node;
mod op;
mod placement;
mod placement_rule;
mod recorded;
mod remade;
mod segment;
mod session;
mod stage;
mod stage_share;
mod value;

pub use arithmetic::ArithmeticCount;
pub use backward::{LossFactor, WeightWork};
pub use block::Block;
pub use grads::Grads;
pub use graph::{Graph, GraphNode, GraphPort};
pub use kept_weights::KeptWeights;
pub use listener::Listener;
pub use op::{GraphInput, Op};
pub use placement::Placement;
pub use placement_rule::PlacementRule;
pub use recorded::take_peak_recorded_bytes;
pub(crate) use remade::{FinishFn, Remade};
pub use session::{Recompute, Session, TensorGroup};
use stage::StageState;
pub use stage::{
    PlannedCall, PlannedValue, ReceivedGrad, SentOut, StageMessages, StagePlan, StageRole, StageRun,
    TracedCall, TracedPass, TracedValue, ValueTrace,
};
pub use stage_share::{StageShare, StageSharing};
pub use value::{SavedValue, Value};

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::DType;

use crate::Key;
use crate::backend::{Array, ArrayBackend};
use crate::store::{Param, ParamBucket};
use crate::{Context, Result, TensorError};
use listener::NoListener;
use node::{Action, BackwardFn, Node};
use recorded::RecordedBytes;
use value::Slot;

/// The mode of a tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Pushes nodes.
    Recording,
    /// Records nothing.
    Idle,
    /// Collects only the buckets that are read, for a block that will be recomputed.
    Collecting,
    /// Records every op with its attributes for a [`Graph`], and nothing for backward.
    Tracing,
}

/// Records ops for one backward pass.
///
/// ```
/// use phalanx_tensor::{Tape, Value, Session, Key, Context, ops};
/// use candle_core::{Device, Tensor};
/// use std::sync::Arc;
///
/// # fn main() -> Result<(), phalanx_tensor::TensorError> {
/// let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));
/// let x = tape.leaf(Tensor::new(&[1.0_f32, 2.0, 3.0], &Device::Cpu)?);
/// let y = ops::mean(&tape, &ops::mul(&tape, &x, &x)?)?;
/// tape.backward(&y)?;
/// let grad = tape.leaf_grad(&x).expect("x takes part").tensor()?.to_vec1::<f32>()?;
/// assert_eq!(grad, [2.0 / 3.0, 4.0 / 3.0, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tape {
    session: Session,
    mode: Cell<Mode>,
    /// True while this tape recomputes a block in backward.
    recomputing: bool,
    /// True while parameters are constants.
    frozen: Cell<bool>,
    /// The length of the sequences of which each rank has some positions.
    split_length: Cell<Option<usize>>,
    has_split_sequences: Cell<bool>,
    /// True while backward leaves gradients of weights for later.
    leaves_weights: Cell<bool>,
    /// Changes with every backward, to detect values of an earlier recording.
    id: Cell<u64>,
    /// The id of the last recording that ran backward.
    past_id: Cell<u64>,
    /// The state of a pass of a pipeline.
    stage: Option<StageState>,
    /// The session of calls that another chunk of a pipeline computes.
    elsewhere: Option<Session>,
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: Vec<Node>,
    /// The element type of every recorded value.
    slot_types: Vec<DType>,
    num_blocks: usize,
    keys_drawn: u64,
    /// The buckets used so far.
    used: Vec<ParamBucket>,
    collected: Vec<ParamBucket>,
    /// True if a block that was not recorded reads parameters of another chunk of a pipeline.
    collected_elsewhere: bool,
    leaf_grads: Vec<(Slot, Array)>,
    /// The ops of a tracing tape.
    traced: Vec<GraphNode>,
    /// The last value that was copied for the ranks that compute parts of the same layers, by its slot.
    copied: Option<(Slot, Value)>,
}

/// An output of a node.
struct NodeOutput {
    array: Array,
    placement: Option<Placement>,
}

impl NodeOutput {
    fn of(value: &Value) -> Result<Self> {
        Ok(Self { array: value.part()?, placement: value.placement() })
    }
}

impl Tape {
    /// Makes a tape that records for a backward pass.
    pub fn recording(session: Session) -> Self {
        Self::with_mode(session, Mode::Recording)
    }

    /// Makes a tape that records nothing: for evaluation and sampling.
    pub fn forward_only(session: Session) -> Self {
        Self::with_mode(session, Mode::Idle)
    }

    fn with_mode(session: Session, mode: Mode) -> Self {
        let stage = session.stage.clone().map(|role| StageState::new(role, &session.device));
        Self {
            mode: Cell::new(mode),
            recomputing: false,
            frozen: Cell::new(false),
            split_length: Cell::new(None),
            has_split_sequences: Cell::new(false),
            leaves_weights: Cell::new(false),
            id: Cell::new(fresh_id()),
            past_id: Cell::new(0),
            elsewhere: stage.as_ref().map(|stage| Session {
                listener: None,
                stage: None,
                device: stage.outlines().device(),
                arithmetic: ArithmeticCount::default(),
                ..session.clone()
            }),
            stage,
            inner: RefCell::default(),
            session,
        }
    }

    /// Makes a tape that recomputes a block inside the backward pass of `outer`.
    fn nested(outer: &Self, keys_drawn: u64) -> Self {
        let session =
            Session { listener: None, stage: None, recompute: Recompute::Never, ..outer.session.clone() };
        let mut tape = Self::recording(session);
        tape.recomputing = true;
        tape.inner.get_mut().keys_drawn = keys_drawn;
        tape
    }

    /// The settings of this pass.
    pub fn session(&self) -> &Session {
        self.elsewhere.as_ref().filter(|_| self.is_elsewhere()).unwrap_or(&self.session)
    }

    /// Threads and scratch memory of the kernels.
    pub fn context(&self) -> &Context {
        &self.session().context
    }

    /// The back end of arrays that do not follow another array.
    pub fn backend(&self) -> &dyn ArrayBackend {
        self.session().device.backend(self.context())
    }

    /// True if layers behave as in training.
    pub fn training(&self) -> bool {
        self.session.training
    }

    /// True while a block is recomputed, or computed by another chunk of a pipeline: side effects such as running statistics must not
    /// happen.
    pub fn recomputing(&self) -> bool {
        self.recomputing || self.is_elsewhere()
    }

    /// The length of sequences while each rank has some of their positions; `None` while ranks have all.
    pub(crate) fn split_length(&self) -> Option<usize> {
        self.split_length.get()
    }

    /// Begins to give each rank some positions of sequences of a length, or ends it.
    pub(crate) fn set_split_length(&self, length: Option<usize>) {
        self.split_length.set(length);
        self.has_split_sequences.set(self.has_split_sequences.get() || length.is_some());
    }

    /// True if each rank had some positions of sequences so far ([`crate::ops::split_sequence`]).
    pub fn has_split_sequences(&self) -> bool {
        self.has_split_sequences.get()
    }

    /// True while ops are recorded.
    pub fn records(&self) -> bool {
        self.mode.get() == Mode::Recording
    }

    /// Returns the key of the next random op. It differs between calls of a step and is equal on all ranks.
    pub fn next_key(&self) -> Key {
        let mut inner = self.inner.borrow_mut();
        inner.keys_drawn += 1;
        self.session.key.index(inner.keys_drawn)
    }

    /// Records a value whose gradient the caller reads with [`Tape::leaf_grad`] after backward. On a tracing tape it is an
    /// input of the graph.
    pub fn leaf(&self, array: impl Into<Array>) -> Value {
        let array = array.into();
        if !self.records() && self.mode.get() != Mode::Tracing {
            return Value::constant(array);
        }
        let mut inner = self.inner.borrow_mut();
        let slot = inner.new_slots([array.dtype()]);
        if self.records() {
            inner.nodes.push(Node { outputs: slot..slot + 1, ..Node::bare(Action::Leaf) });
        }
        Value::recorded(array, self.id.get(), slot).placed(self.placement_of_leaves())
    }

    /// The placement of values that do not come from ops: the ranks that compute parts of the same layers have equal ones.
    fn placement_of_leaves(&self) -> Option<Placement> {
        self.session.tensor_group.as_ref().map(|_| Placement::Same)
    }

    /// Takes the gradient of a leaf after backward; `None` if the loss does not depend on it, or at the second call.
    pub fn leaf_grad(&self, leaf: &Value) -> Option<Array> {
        let slot = leaf.slot_on(self.past_id.get(), "leaf_grad").ok()??;
        let mut inner = self.inner.borrow_mut();
        let at = inner.leaf_grads.iter().position(|(known, _)| *known == slot)?;
        Some(inner.leaf_grads.swap_remove(at).1)
    }

    /// Returns the value of a parameter, whose gradient backward adds to its bucket.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] if the parameter's store is not built.
    pub fn param(&self, param: &Param) -> Result<Value> {
        let placement = match param.portion() {
            Some(portion) => Some(match (portion.dim(), portion.parts()) {
                (dim, 1) => Placement::Shard { dim },
                (dim, parts) => Placement::Joint { dim, parts },
            }),
            None => self.placement_of_leaves(),
        };
        let frozen = self.frozen.get() || self.session.freezes(param.name());
        if let Some(outline) = self.param_elsewhere(param) {
            let value = self.recorded_elsewhere(param, outline, placement, frozen);
            return self.number_param(param, value);
        }
        let constant = || self.number_param(param, Value::of_param(param.clone(), None, placement));
        if !param.trainable() || frozen || matches!(self.mode.get(), Mode::Idle | Mode::Tracing) {
            return constant();
        }
        let bucket = param.bucket()?.clone();
        if bucket.is_frozen() {
            return constant();
        }
        let mut inner = self.inner.borrow_mut();
        if self.mode.get() == Mode::Collecting {
            inner.collected.push(bucket);
            return constant();
        }
        let slot = inner.new_slots([bucket.dtype()]);
        inner.note_use(&bucket);
        inner.nodes.push(Node {
            op: "parameter",
            outputs: slot..slot + 1,
            ..Node::bare(Action::Param(param.clone()))
        });
        drop(inner);
        self.number_param(param, Value::of_param(param.clone(), Some((self.id.get(), slot)), placement))
    }

    /// Records a parameter of another chunk.
    fn recorded_elsewhere(
        &self,
        param: &Param,
        outline: Array,
        placement: Option<Placement>,
        frozen: bool,
    ) -> Value {
        let mut inner = self.inner.borrow_mut();
        let is_trained = !param.is_frozen() && !frozen;
        inner.collected_elsewhere |= is_trained && self.mode.get() == Mode::Collecting;
        let slot = (is_trained && self.records()).then(|| {
            let slot = inner.new_slots([outline.dtype()]);
            inner.nodes.push(Node { outputs: slot..slot + 1, ..Node::bare(Action::Elsewhere) });
            (self.id.get(), slot)
        });
        Value::of_param_elsewhere((param.clone(), outline), slot, placement)
    }

    /// Runs `f` with all parameters as constants. Gradients flow through its result, but not to its parameters: the
    /// discriminator's part in a generator's loss.
    ///
    /// # Errors
    /// Errors of `f`.
    pub fn frozen<R>(&self, f: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
        let before = self.frozen.replace(true);
        let result = f(self);
        self.frozen.set(before);
        result
    }

    /// Records an op with one output.
    ///
    /// `backward` gets the output's gradient and adds those of the inputs, by position, to [`Grads`]. It runs at most
    /// once, only if the output has a gradient; its captured arrays are freed right after. If no input needs a
    /// gradient, nothing is recorded. An op of a name alone cannot be exported; see [`Op`].
    ///
    /// # Errors
    /// [`TensorError::ForeignValue`] if an input was recorded on another tape, and [`TensorError::Placement`] if one is not whole.
    pub fn push(
        &self,
        op: impl Into<Op>,
        inputs: &[&Value],
        output: impl Into<Array>,
        backward: impl FnOnce(&Self, &Array, &mut Grads<'_>) -> Result<()> + 'static,
    ) -> Result<Value> {
        self.push_by(PlacementRule::Whole, op, inputs, output, backward)
    }

    /// As [`Tape::push`], of an op that takes the placements of `rule`. It reads shards and parts of sums by [`Value::part`].
    ///
    /// # Errors
    /// [`TensorError::ForeignValue`] if an input was recorded on another tape, and [`TensorError::Placement`] if an input has a
    /// placement that the rule does not allow.
    pub fn push_by(
        &self,
        rule: PlacementRule,
        op: impl Into<Op>,
        inputs: &[&Value],
        output: impl Into<Array>,
        backward: impl FnOnce(&Self, &Array, &mut Grads<'_>) -> Result<()> + 'static,
    ) -> Result<Value> {
        self.push_output((op.into(), rule), inputs, output.into(), true, backward)
    }

    /// As [`Tape::push`], of an op that is cheap and keeps all that it is computed from. An op that needs the output in its backward
    /// does not keep it, and gets it from `compute`.
    pub(crate) fn push_remade(
        &self,
        (op, rule): (impl Into<Op>, PlacementRule),
        inputs: &[&Value],
        output: impl Into<Array>,
        compute: impl Fn(&Context) -> Result<Array> + Send + Sync + 'static,
        backward: impl FnOnce(&Self, &Array, &mut Grads<'_>) -> Result<()> + 'static,
    ) -> Result<Value> {
        let context = self.session.context.clone();
        let remade = || Remade::new(move || compute(&context));
        self.push_remade_by((op.into(), rule), inputs, output.into(), remade, backward)
    }

    /// As [`Tape::push_remade`], of an op whose result is made of other ranks' parts: `begin` sends for them and returns what waits.
    pub(crate) fn push_gathered(
        &self,
        (op, rule): (impl Into<Op>, PlacementRule),
        inputs: &[&Value],
        output: impl Into<Array>,
        begin: impl Fn(&Arc<Context>) -> Result<FinishFn> + Send + Sync + 'static,
        backward: impl FnOnce(&Self, &Array, &mut Grads<'_>) -> Result<()> + 'static,
    ) -> Result<Value> {
        let context = self.session.context.clone();
        let remade = || Remade::gathered(move || begin(&context));
        self.push_remade_by((op.into(), rule), inputs, output.into(), remade, backward)
    }

    fn push_remade_by(
        &self,
        (op, rule): (Op, PlacementRule),
        inputs: &[&Value],
        output: Array,
        remade: impl FnOnce() -> Arc<Remade>,
        backward: impl FnOnce(&Self, &Array, &mut Grads<'_>) -> Result<()> + 'static,
    ) -> Result<Value> {
        let value = self.push_output((op, rule), inputs, output, false, backward)?;
        // Without a gradient the op keeps nothing, so that its input would be kept in place of its output.
        Ok(if value.needs_grad() { value.remade_by(remade()) } else { value })
    }

    /// Records an op with one output, which counts as memory if it is kept.
    fn push_output(
        &self,
        (op, rule): (Op, PlacementRule),
        inputs: &[&Value],
        output: Array,
        kept: bool,
        backward: impl FnOnce(&Self, &Array, &mut Grads<'_>) -> Result<()> + 'static,
    ) -> Result<Value> {
        let placement = match &self.session.tensor_group {
            Some(_) => rule.output(op.name(), inputs, output.shape())?,
            None => None,
        };
        if self.mode.get() == Mode::Tracing {
            return Ok(self.trace(op, inputs, output)?.placed(placement));
        }
        let op = op.name();
        let numbered = self.number(op, inputs, &output)?;
        if !self.records() || !inputs.iter().any(|value| value.needs_grad()) {
            return self.placed_in_chunk(Value::constant(output).placed(placement), numbered);
        }
        let made = NodeOutput { array: output, placement };
        if numbered.is_some_and(|numbered| numbered.is_elsewhere) {
            let mut values = self.push_elsewhere(op, inputs, vec![made])?;
            let value = values.swap_remove(0);
            return self.placed_in_chunk(value, numbered);
        }
        let run: BackwardFn = Box::new(move |tape, mut grads_out, grads| match grads_out.pop().flatten() {
            Some(grad) => backward(tape, &grad, grads),
            None => Ok(()),
        });
        let recorded = if kept {
            RecordedBytes::of(inputs, std::slice::from_ref(&made.array))
        } else {
            RecordedBytes::default()
        };
        let mut outputs = self.push_node(op, inputs, vec![made], &[], recorded, run)?;
        let value = outputs.pop().ok_or_else(|| TensorError::Backward(format!("{op} recorded no output")))?;
        self.placed_in_chunk(value, numbered)
    }

    /// Records an op of another chunk.
    fn push_elsewhere(
        &self,
        op: &'static str,
        inputs: &[&Value],
        outputs: Vec<NodeOutput>,
    ) -> Result<Vec<Value>> {
        let id = self.id.get();
        inputs.iter().try_for_each(|value| value.slot_on(id, op).map(drop))?;
        let mut inner = self.inner.borrow_mut();
        let first = inner.new_slots(outputs.iter().map(|made| made.array.dtype()));
        let slots = first..first + outputs.len();
        inner.nodes.push(Node { op, outputs: slots, ..Node::bare(Action::Elsewhere) });
        let value = |(i, made): (usize, NodeOutput)| {
            Value::recorded(made.array, id, first + i).placed(made.placement)
        };
        Ok(outputs.into_iter().enumerate().map(value).collect())
    }

    /// Records an op with several outputs that uses parameters directly; see [`Tape::push`].
    fn push_node(
        &self,
        op: &'static str,
        inputs: &[&Value],
        outputs: Vec<NodeOutput>,
        uses: &[ParamBucket],
        recorded: RecordedBytes,
        backward: BackwardFn,
    ) -> Result<Vec<Value>> {
        let id = self.id.get();
        let inputs = inputs.iter().map(|value| value.slot_on(id, op)).collect::<Result<Vec<_>>>()?;
        let mut inner = self.inner.borrow_mut();
        let first = inner.new_slots(outputs.iter().map(|made| made.array.dtype()));
        uses.iter().for_each(|used| inner.note_use(used));
        let slots = first..first + outputs.len();
        inner.nodes.push(Node {
            op,
            inputs,
            outputs: slots,
            action: Action::Op(backward),
            _recorded: recorded,
        });
        let value = |(i, made): (usize, NodeOutput)| {
            Value::recorded(made.array, id, first + i).placed(made.placement)
        };
        Ok(outputs.into_iter().enumerate().map(value).collect())
    }

    /// Returns the copy that `make` made last of this value, or makes one. Layers that read the same value share a copy, whose
    /// gradients are summed over the ranks together.
    pub(crate) fn copied_once(&self, x: &Value, make: impl FnOnce() -> Result<Value>) -> Result<Value> {
        let slot = x.slot_on(self.id.get(), "copy_to_group")?;
        let Some(slot) = slot.filter(|_| self.records()) else { return make() };
        if let Some((known, copy)) = &self.inner.borrow().copied
            && *known == slot
        {
            return Ok(copy.clone());
        }
        let copy = make()?;
        self.inner.borrow_mut().copied = Some((slot, copy.clone()));
        Ok(copy)
    }

    fn keys_drawn(&self) -> u64 {
        self.inner.borrow().keys_drawn
    }

    fn count_block(&self) -> usize {
        let mut inner = self.inner.borrow_mut();
        inner.num_blocks += 1;
        inner.num_blocks - 1
    }

    /// The listener of blocks and gradients.
    fn listener(&self) -> &dyn Listener {
        self.session().listener.as_deref().unwrap_or(&NoListener)
    }
}

impl Inner {
    fn new_slots(&mut self, types: impl IntoIterator<Item = DType>) -> Slot {
        let first = self.slot_types.len();
        self.slot_types.extend(types);
        first
    }

    /// Records the first use of a bucket.
    fn note_use(&mut self, bucket: &ParamBucket) {
        // Uses cluster, so it is nearly always the last one.
        if !self.used.iter().rev().any(|known| known.is(bucket)) {
            self.used.push(bucket.clone());
            self.nodes.push(Node::bare(Action::FirstUse(bucket.clone())));
        }
    }
}

/// Returns a number that no other recording of this process has.
fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
