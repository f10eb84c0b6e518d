//! The exit of a communicator: abort or leave.

use std::any::Any;
use std::sync::Arc;

use super::backend::Shared;
use crate::control::ControlPlane;
use crate::failure::Cause;

/// The actions of a communicator that aborts, or leaves its world in good order.
pub(crate) struct ExitActions {
    /// Aborts for a reason.
    pub(crate) abort: Box<dyn Fn(&str) + Send + Sync>,
    /// Leaves; `None` for a communicator of some of a world's ranks.
    pub(crate) leave: Option<Box<dyn Fn() + Send + Sync>>,
    /// The communicator that this one is a part of, which must not leave before it.
    pub(crate) _whole: Option<Arc<dyn Any + Send + Sync>>,
}

impl ExitActions {
    /// The actions of rank `rank` in the communicator of the world.
    pub(crate) fn of_world(shared: &Shared, rank: usize) -> Self {
        let (control, mail) = (shared.control.clone(), shared.mail.clone());
        let leave = move || {
            // The control thread delivers pending messages.
            mail.close();
            control.leave(rank);
        };
        Self { leave: Some(Box::new(leave)), ..Self::of_part(&shared.control, rank) }
    }

    /// The actions of the world's rank `rank` in a communicator of some of its ranks.
    pub(crate) fn of_part(control: &Arc<ControlPlane>, rank: usize) -> Self {
        let control = control.clone();
        let abort = move |reason: &str| control.report(rank, Cause::Aborted(rank, reason.to_owned()));
        Self { abort: Box::new(abort), leave: None, _whole: None }
    }
}
