//! Batch normalisation over [N, C, P] (Ioffe & Szegedy 2015).
//!
//! If one process has all statistics, [`batch_norm_train`] and [`batch_norm_train_backward`] process some channels at a
//! time, so that the input of the statistics is still in the cache when it is normalised. If ranks combine their
//! statistics, the halves are separate: [`batch_norm_moments`] and [`batch_norm_forward`],
//! [`batch_norm_backward_sums`] and [`batch_norm_backward_input`].

mod backward;
mod forward;
mod planes;
mod small_planes;

pub use backward::{
    BatchNormBackward, BatchNormGrads, batch_norm_backward_input, batch_norm_backward_sums,
    batch_norm_train_backward,
};
pub use forward::{BatchNormOutput, batch_norm_forward, batch_norm_moments, batch_norm_train};

use crate::context::Context;
use crate::float::Float;

/// An activation applied in the same pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// None.
    None,
    /// max(x, 0).
    Relu,
    /// min(max(x, 0), 6).
    Relu6,
}

/// The operations on the normalised values in the same pass: activation(normalised + residual).
#[derive(Debug, Clone, Copy)]
pub struct Epilogue<'a, T> {
    /// The activation.
    pub activation: Activation,
    /// The map added before the activation; as long as the input.
    pub residual: Option<&'a [T]>,
}

impl<T> Epilogue<'_, T> {
    /// No operation.
    pub const NOTHING: Self = Self { activation: Activation::None, residual: None };

    /// An activation alone.
    pub fn with(activation: Activation) -> Self {
        Self { activation, residual: None }
    }
}

/// The statistics and parameters of a batch norm, `[C]` each.
#[derive(Debug, Clone, Copy)]
pub struct Affine<'a, T> {
    /// The mean.
    pub mean: &'a [T],
    /// 1/√(variance + eps).
    pub inv_std: &'a [T],
    /// The weight.
    pub gamma: &'a [T],
    /// The bias.
    pub beta: &'a [T],
}

/// The source of the activation's mask in backward.
#[derive(Debug, Clone, Copy)]
pub struct ActivationMask<'a, T> {
    /// The activation.
    pub activation: Activation,
    /// The output, if a residual was added before the activation; otherwise the mask follows from the input.
    pub output: Option<&'a [T]>,
}

/// An activation as a type, so that inner loops have no branch.
trait Act {
    fn apply<T: Float>(x: T) -> T;
    /// The gradient of the argument, given the argument or the value `v`.
    fn backward<T: Float>(v: T, dy: T) -> T;
}

struct Linear;
struct Relu;
struct Relu6;

impl Act for Linear {
    #[inline(always)]
    fn apply<T: Float>(x: T) -> T {
        x
    }
    #[inline(always)]
    fn backward<T: Float>(_: T, dy: T) -> T {
        dy
    }
}

impl Act for Relu {
    #[inline(always)]
    fn apply<T: Float>(x: T) -> T {
        x.max(T::ZERO)
    }
    #[inline(always)]
    fn backward<T: Float>(v: T, dy: T) -> T {
        if v > T::ZERO { dy } else { T::ZERO }
    }
}

impl Act for Relu6 {
    #[inline(always)]
    fn apply<T: Float>(x: T) -> T {
        x.max(T::ZERO).min(T::from_f64(6.0))
    }
    #[inline(always)]
    fn backward<T: Float>(v: T, dy: T) -> T {
        if (v > T::ZERO) & (v < T::from_f64(6.0)) { dy } else { T::ZERO }
    }
}

/// Runs `$body` with `$A` as the activation's type.
macro_rules! with_activation {
    ($activation:expr, $A:ident => $body:expr) => {
        match $activation {
            $crate::norm::batch::Activation::None => {
                type $A = $crate::norm::batch::Linear;
                $body
            }
            $crate::norm::batch::Activation::Relu => {
                type $A = $crate::norm::batch::Relu;
                $body
            }
            $crate::norm::batch::Activation::Relu6 => {
                type $A = $crate::norm::batch::Relu6;
                $body
            }
        }
    };
}
use with_activation;

/// The sizes of the map.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    batch: usize,
    channels: usize,
    plane: usize,
}

impl Sizes {
    /// Elements of an image.
    fn row(self) -> usize {
        self.channels * self.plane
    }

    fn len(self) -> usize {
        self.batch * self.row()
    }

    /// Elements of a channel.
    fn count(self) -> f64 {
        (self.batch * self.plane) as f64
    }

    /// Channels of a task: a few tasks for every thread, with enough small planes to fill several vectors.
    fn per_task(self, context: &Context) -> usize {
        let share = self.channels.div_ceil(context.parts() * 4).max(1);
        if small_planes::suits(self.plane) { share.max(small_planes::CHUNK / self.plane) } else { share }
    }
}

/// A part of the channels of the input.
#[derive(Clone, Copy)]
struct Part<'a, T> {
    sizes: Sizes,
    /// The first channel, and the number of channels.
    first: usize,
    count: usize,
    x: &'a [T],
}

impl<'a, T> Part<'a, T> {
    /// Returns the part's elements in one image of `map`, which has the input's shape.
    #[inline(always)]
    fn row_of(&self, map: &'a [T], image: usize) -> &'a [T] {
        let start = image * self.sizes.row() + self.first * self.sizes.plane;
        &map[start..start + self.count * self.sizes.plane]
    }
}
