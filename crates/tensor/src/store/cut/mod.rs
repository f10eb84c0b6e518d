//! Layers that are cut over ranks (Shoeybi et al. 2019): which portion of each parameter a rank holds.
//!
//! A [`TensorPlan`] says how layers are cut, by rules for the names of parameters. Its layout goes into
//! [`BuildOptions::layout`](super::BuildOptions::layout), and the ranks that compute parts of the same layers into
//! [`Session::tensor_group`](crate::Session::tensor_group). The model knows neither: its ops see from their weights what they
//! compute.

mod place;
mod plan;
mod portion;
mod rules;

pub use place::{ParamLayout, ParamPlace, PlacedName, StagePlace};
pub use plan::{TensorPlan, TensorRank};
pub use portion::{Portion, PortionPiece, WholeElements};
pub use rules::{CutUnits, LayerCut};
