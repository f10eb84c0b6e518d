//! The tape: an explicit record of ops over arrays.
//!
//! Forward runs an op and pushes a node that can run backward; [`Tape::backward`] walks the nodes from the
//! last to the first, and drops each as it passes, so that what it saved is freed at once. Gradients of values
//! accumulate in place; gradients of parameters are added to their flat memory, and a listener is told as soon
//! as those of a flat parameter are complete.

mod backward;
mod block;
mod grads;
mod listener;
mod node;
mod recorded;
mod segment;
mod session;
mod value;

pub use backward::LossFactor;
pub use block::Block;
pub use grads::Grads;
pub use listener::Listener;
pub use recorded::take_peak_recorded_bytes;
pub use session::{Recompute, Session};
pub use value::{Saved, Value};

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::DType;

use crate::backend::{Array, ArrayBackend};
use crate::rng::Key;
use crate::store::{FlatParam, Param};
use crate::{Context, Result, TensorError};
use listener::Nobody;
use node::{Action, BackwardFn, Node};
use recorded::Recorded;
use value::Slot;

/// What a tape does with the ops that it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Nodes are pushed.
    Recording,
    /// Nothing is kept.
    Idle,
    /// Nothing is kept but which flat parameters were read, for a block that will run again.
    Collecting,
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
    /// Whether this tape runs a block a second time, in backward.
    recomputing: bool,
    /// Whether parameters are constants at the moment.
    frozen: Cell<bool>,
    /// Changes with every backward, so that values of an earlier recording are recognised.
    id: Cell<u64>,
    /// The id of the recording that backward ran last.
    past_id: Cell<u64>,
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: Vec<Node>,
    /// The element type of every recorded value.
    slot_types: Vec<DType>,
    num_blocks: usize,
    keys_drawn: u64,
    /// What the parameters lie in that have been used so far.
    used: Vec<FlatParam>,
    collected: Vec<FlatParam>,
    leaf_grads: Vec<(Slot, Array)>,
}

impl Tape {
    /// A tape that records for a backward pass.
    pub fn recording(session: Session) -> Self {
        Self::with_mode(session, Mode::Recording)
    }

    /// A tape that records nothing: for evaluation and sampling.
    pub fn forward_only(session: Session) -> Self {
        Self::with_mode(session, Mode::Idle)
    }

    fn with_mode(session: Session, mode: Mode) -> Self {
        Self {
            session,
            mode: Cell::new(mode),
            recomputing: false,
            frozen: Cell::new(false),
            id: Cell::new(fresh_id()),
            past_id: Cell::new(0),
            inner: RefCell::default(),
        }
    }

    /// A tape for running a block again inside the backward pass of `outer`.
    fn nested(outer: &Self, keys_drawn: u64) -> Self {
        let session = Session { listener: None, recompute: Recompute::Never, ..outer.session.clone() };
        let mut tape = Self::recording(session);
        tape.recomputing = true;
        tape.inner.get_mut().keys_drawn = keys_drawn;
        tape
    }

    /// The circumstances of this pass.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Threads and scratch memory for kernels.
    pub fn context(&self) -> &Context {
        &self.session.context
    }

    /// The back end that arrays are made on which no other array says it for.
    pub fn backend(&self) -> &dyn ArrayBackend {
        self.session.place.backend(self.context())
    }

    /// Whether layers behave as in training.
    pub fn training(&self) -> bool {
        self.session.training
    }

    /// Whether a block is being run a second time: side effects such as running statistics must not repeat.
    pub fn recomputing(&self) -> bool {
        self.recomputing
    }

    /// Whether ops are being recorded.
    pub fn records(&self) -> bool {
        self.mode.get() == Mode::Recording
    }

    /// The key for the next random op, different for every call within a step and the same on every rank.
    pub fn next_key(&self) -> Key {
        let mut inner = self.inner.borrow_mut();
        inner.keys_drawn += 1;
        self.session.key.index(inner.keys_drawn)
    }

    /// A value whose gradient the caller wants: read it with [`Tape::leaf_grad`] after backward.
    pub fn leaf(&self, array: impl Into<Array>) -> Value {
        let array = array.into();
        if !self.records() {
            return Value::constant(array);
        }
        let mut inner = self.inner.borrow_mut();
        let slot = inner.new_slots([array.dtype()]);
        inner.nodes.push(Node { outputs: slot..slot + 1, ..Node::bare(Action::Leaf) });
        Value::recorded(array, self.id.get(), slot)
    }

    /// The gradient of a leaf after backward; `None` if it took no part. Can be taken once.
    pub fn leaf_grad(&self, leaf: &Value) -> Option<Array> {
        let slot = leaf.slot_on(self.past_id.get(), "leaf_grad").ok()??;
        let mut inner = self.inner.borrow_mut();
        let at = inner.leaf_grads.iter().position(|(known, _)| *known == slot)?;
        Some(inner.leaf_grads.swap_remove(at).1)
    }

    /// The value of a parameter, whose gradient backward adds to its flat memory.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] if the parameter's store is not built.
    pub fn param(&self, param: &Param) -> Result<Value> {
        let frozen = self.frozen.get() || self.session.freezes(param.name());
        if !param.trainable() || frozen || self.mode.get() == Mode::Idle {
            return Ok(Value::of_param(param.clone(), None));
        }
        let flat_param = param.flat_param()?.clone();
        let mut inner = self.inner.borrow_mut();
        if self.mode.get() == Mode::Collecting {
            inner.collected.push(flat_param);
            return Ok(Value::of_param(param.clone(), None));
        }
        let slot = inner.new_slots([flat_param.dtype()]);
        inner.note_use(&flat_param);
        inner.nodes.push(Node {
            op: "parameter",
            outputs: slot..slot + 1,
            ..Node::bare(Action::Param(param.clone()))
        });
        Ok(Value::of_param(param.clone(), Some((self.id.get(), slot))))
    }

    /// Runs `f` with all parameters as constants: gradients flow through what it computes, but not to the parameters
    /// it uses. This is how the discriminator takes part in a generator's loss.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn frozen<R>(&self, f: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
        let before = self.frozen.replace(true);
        let result = f(self);
        self.frozen.set(before);
        result
    }

    /// Records an op with one output.
    ///
    /// `backward` gets the output's gradient and adds those of the inputs, by position, to [`Grads`]. It runs at
    /// most once, only if the output has a gradient; what it captured is freed right after. If no input needs a
    /// gradient nothing is recorded.
    ///
    /// # Errors
    /// [`TensorError::ForeignValue`] if an input was recorded on another tape.
    pub fn push(
        &self,
        op: &'static str,
        inputs: &[&Value],
        output: impl Into<Array>,
        backward: impl FnOnce(&Self, &Array, &mut Grads<'_>) -> Result<()> + 'static,
    ) -> Result<Value> {
        let output = output.into();
        if !self.records() || !inputs.iter().any(|value| value.needs_grad()) {
            return Ok(Value::constant(output));
        }
        let run: BackwardFn = Box::new(move |tape, mut grads_out, grads| match grads_out.pop().flatten() {
            Some(grad) => backward(tape, &grad, grads),
            None => Ok(()),
        });
        let mut outputs = self.push_node(op, inputs, vec![output], &[], run)?;
        outputs.pop().ok_or_else(|| TensorError::Backward(format!("{op} recorded no output")))
    }

    /// Records an op with several outputs that uses parameters itself; see [`Tape::push`].
    fn push_node(
        &self,
        op: &'static str,
        inputs: &[&Value],
        outputs: Vec<Array>,
        uses: &[FlatParam],
        backward: BackwardFn,
    ) -> Result<Vec<Value>> {
        let id = self.id.get();
        let recorded = Recorded::of(inputs, &outputs);
        let inputs = inputs.iter().map(|value| value.slot_on(id, op)).collect::<Result<Vec<_>>>()?;
        let mut inner = self.inner.borrow_mut();
        let first = inner.new_slots(outputs.iter().map(Array::dtype));
        uses.iter().for_each(|used| inner.note_use(used));
        let slots = first..first + outputs.len();
        inner.nodes.push(Node {
            op,
            inputs,
            outputs: slots,
            action: Action::Op(backward),
            _recorded: recorded,
        });
        Ok(outputs.into_iter().enumerate().map(|(i, array)| Value::recorded(array, id, first + i)).collect())
    }

    fn keys_drawn(&self) -> u64 {
        self.inner.borrow().keys_drawn
    }

    fn count_block(&self) -> usize {
        let mut inner = self.inner.borrow_mut();
        inner.num_blocks += 1;
        inner.num_blocks - 1
    }

    /// Who is told about blocks and gradients.
    fn listener(&self) -> &dyn Listener {
        self.session.listener.as_deref().unwrap_or(&Nobody)
    }
}

impl Inner {
    fn new_slots(&mut self, types: impl IntoIterator<Item = DType>) -> Slot {
        let first = self.slot_types.len();
        self.slot_types.extend(types);
        first
    }

    /// Marks the place of a first use.
    fn note_use(&mut self, flat_param: &FlatParam) {
        // Uses cluster, so it is nearly always the last one.
        if !self.used.iter().rev().any(|known| known.is(flat_param)) {
            self.used.push(flat_param.clone());
            self.nodes.push(Node::bare(Action::FirstUse(flat_param.clone())));
        }
    }
}

/// A number that no other recording of this process has.
fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
