//! A training: networks that are learnt, and a step of phases that say how.
//!
//! A [`Training`] is made by a function that registers its networks in a [`Setup`] and then says what a step is: one or more
//! *phases*, each of which makes a loss on the batch and names the networks that it updates. The others take part in it as
//! constants. A classifier has one phase; a generative adversarial network has two; diffusion on a frozen autoencoder has
//! one, beside a network that is not learnt at all ([`Setup::frozen_network`]).
//!
//! Every learnt network has an optimizer, a schedule, averages, clipping and a loss scale of its own, as `[optim]`,
//! `[schedule]` and `[train]` say.

mod drawing;
mod judging;
mod measure;
mod of_run;
mod phase;
mod setup;
mod spec;
mod step;

pub(super) use drawing::planar;
pub use drawing::{Drawing, DrawingKind};
pub use judging::Judgement;
pub use measure::Measure;
pub use phase::Training;
pub use setup::Setup;
pub use spec::{FirstRun, Judge, Task, TaskSpec};
pub use step::{Loss, Step};

pub use phase::number;

pub(super) use phase::{AnyTraining, Phase};
pub(super) use setup::{Built, Weights};
