//! Hooks: how gradients travel, if not as they are.
//!
//! A hook takes over the reduction of one bucket at a time: the point where codecs plug in. What it must bring about is
//! the sum over the ranks; what goes over the wire for that is its own affair.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use half::bf16;
use phalanx_collectives::{BoxError, Communicator, DType, FlatBuffer, Handle, ReduceOp, SliceMut};
use phalanx_tensor::host::{HostSliceMut, with_host_slice_mut};

use crate::{Result, ShardingError};

/// Gradients that are complete on this rank and are to be summed over the ranks.
#[derive(Debug, Clone)]
pub struct GradBucket {
    /// Which bucket of the model: the same number at every step, so that a hook can keep something for each, such as
    /// the errors that it made and is to make good.
    pub index: usize,
    /// The gradients, flat, f32 or f64. Clones share the memory.
    pub gradients: Tensor,
    /// The elements that must be the sum when the reduction is done: all of them, or this rank's shard. The others are
    /// not looked at again.
    pub wanted: Range<usize>,
}

impl GradBucket {
    /// Whether this rank wants a shard of the sum only; ranks then want `chunk(rank)` each, in the sense of
    /// [`Communicator::reduce_scatter_in_place`].
    pub fn is_scattered(&self) -> bool {
        self.wanted.len() != self.gradients.elem_count()
    }
}

/// A reduction that is on its way.
pub trait Pending: Send {
    /// Whether waiting would return at once.
    fn is_done(&self) -> bool;

    /// Waits; afterwards the wanted elements of the gradients are the sum.
    ///
    /// # Errors
    /// Those of communication.
    fn wait(self: Box<Self>) -> Result<()>;
}

impl<B: Send> Pending for Handle<B> {
    fn is_done(&self) -> bool {
        Self::is_done(self)
    }

    fn wait(self: Box<Self>) -> Result<()> {
        (*self).wait()?;
        Ok(())
    }
}

/// Reduces gradients in its own way.
pub trait CommHook: Debug + Send + Sync {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Starts the reduction of a bucket among the ranks of `comm`. Called on the thread that runs backward, for the same
    /// buckets in the same order on every rank; what it starts must be asynchronous to hide behind backward.
    ///
    /// # Errors
    /// If the gradients are of a type that it does not know, and those of communication.
    fn start(&self, bucket: GradBucket, comm: &Communicator) -> Result<Box<dyn Pending>>;
}

/// Sends gradients as bf16: half of the bytes. Every rank's gradient is rounded to bf16 and the sums are, which costs
/// relative errors of 2⁻⁹ for each; the gradients are f32 again before the optimizer sees them.
/// (As `bf16_compress_hook` of PyTorch's DistributedDataParallel does.)
#[derive(Debug, Clone, Copy, Default)]
pub struct Bf16Compression;

impl CommHook for Bf16Compression {
    fn name(&self) -> &'static str {
        "bf16"
    }

    fn start(&self, bucket: GradBucket, comm: &Communicator) -> Result<Box<dyn Pending>> {
        if bucket.gradients.dtype() != candle_core::DType::F32 {
            let problem = format!("compresses gradients of f32, not {}", bucket.gradients.dtype().as_str());
            return Err(ShardingError::Hook { hook: self.name().to_owned(), problem });
        }
        let scattered = bucket.is_scattered();
        let rounded = Rounded { bucket, values: Vec::new() };
        Ok(if scattered {
            Box::new(comm.reduce_scatter_in_place_async(rounded, ReduceOp::Sum))
        } else {
            Box::new(comm.all_reduce_async(rounded, ReduceOp::Sum))
        })
    }
}

/// f32 gradients that look like bf16 from outside. They are rounded and widened on the communication thread.
#[derive(Debug)]
struct Rounded {
    bucket: GradBucket,
    values: Vec<bf16>,
}

impl FlatBuffer for Rounded {
    fn dtype(&self) -> DType {
        DType::BF16
    }

    fn len(&self) -> usize {
        self.bucket.gradients.elem_count()
    }

    fn with_slice_mut(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        let Self { bucket, values } = self;
        with_host_slice_mut(&bucket.gradients, |slice| {
            let HostSliceMut::F32(gradients) = slice else { return };
            values.clear();
            values.extend(gradients.iter().map(|value| bf16::from_f32(*value)));
            f(SliceMut::BF16(values));
            let wanted = bucket.wanted.clone();
            for (wide, narrow) in gradients[wanted.clone()].iter_mut().zip(&values[wanted]) {
                *wide = narrow.to_f32();
            }
        })?;
        Ok(())
    }
}

/// The hook called `name`; `none` is none.
///
/// # Errors
/// [`ShardingError::Hook`] listing what there is.
pub fn hook_named(name: &str) -> Result<Option<Arc<dyn CommHook>>> {
    match name {
        "none" => Ok(None),
        "bf16" => Ok(Some(Arc::new(Bf16Compression))),
        _ => Err(ShardingError::Hook {
            hook: name.to_owned(),
            problem: "is unknown; there is: none, bf16".to_owned(),
        }),
    }
}
