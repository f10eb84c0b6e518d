//! Batch normalisation over [N, C, P] (Ioffe & Szegedy 2015).
//!
//! Where one process has all statistics, [`batch_norm_train`] and [`batch_norm_train_backward`] do everything for some
//! channels at a time, so that what the statistics were taken of is still in the cache when it is normalised. Where
//! statistics are combined over ranks, the halves are separate: [`batch_norm_moments`] and [`batch_norm_forward`],
//! [`batch_norm_backward_sums`] and [`batch_norm_backward_input`].

mod backward;
mod forward;
mod planes;
mod small_planes;

pub use backward::{
    BatchNormGrads, batch_norm_backward_input, batch_norm_backward_sums, batch_norm_train_backward,
};
pub use forward::{batch_norm_forward, batch_norm_moments, batch_norm_train};

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

/// What becomes of the normalised values in the same pass: act(normalised + residual).
#[derive(Debug, Clone, Copy)]
pub struct Finish<'a, T> {
    /// The activation.
    pub activation: Activation,
    /// Added before the activation; as long as the input.
    pub residual: Option<&'a [T]>,
}

impl<T> Finish<'_, T> {
    /// Nothing more.
    pub const NOTHING: Self = Self { activation: Activation::None, residual: None };

    /// An activation alone.
    pub fn with(activation: Activation) -> Self {
        Self { activation, residual: None }
    }
}

/// What a batch norm's values are normalised with, `[C]` each.
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

/// Where the activation let nothing through, as backward finds out.
#[derive(Debug, Clone, Copy)]
pub struct ActivationMask<'a, T> {
    /// The activation.
    pub activation: Activation,
    /// The output, if something was added before the activation; else it follows from the input.
    pub output: Option<&'a [T]>,
}

/// An activation as a type, so that loops over elements have no branch.
trait Act {
    fn apply<T: Float>(x: T) -> T;
    /// The gradient before the activation, whose argument or value was `v`.
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

/// Runs `$body` with `$A` standing for the activation's type.
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

/// The sizes, and how channels are shared out.
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

    /// Channels of a task: a few tasks for every thread; planes that are smaller than a vector in numbers that fill
    /// several.
    fn per_task(self, context: &Context) -> usize {
        let share = self.channels.div_ceil(context.parts() * 4).max(1);
        if small_planes::suits(self.plane) { share.max(small_planes::CHUNK / self.plane) } else { share }
    }
}

/// Some channels of the input.
#[derive(Clone, Copy)]
struct Part<'a, T> {
    sizes: Sizes,
    /// The first channel, and how many.
    first: usize,
    count: usize,
    x: &'a [T],
}

impl<'a, T> Part<'a, T> {
    /// The part of an image of `map`, which is as large as the input.
    #[inline(always)]
    fn row_of(&self, map: &'a [T], image: usize) -> &'a [T] {
        let start = image * self.sizes.row() + self.first * self.sizes.plane;
        &map[start..start + self.count * self.sizes.plane]
    }
}
