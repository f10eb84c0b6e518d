//! How a communicator gives up and how it leaves.

use std::sync::Arc;

use super::backend::Shared;
use crate::control::ControlPlane;
use crate::failure::Cause;

/// What a communicator does when it gives up, and what when it leaves its world in good order.
pub(crate) struct Ending {
    /// Gives up for the reason that is given.
    pub(crate) abort: Box<dyn Fn(&str) + Send + Sync>,
    /// Leaves; nothing for a communicator of some of a world's ranks.
    pub(crate) leave: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Ending {
    /// That of rank `rank` of the world.
    pub(crate) fn of_world(shared: &Shared, rank: usize) -> Self {
        let (control, mail) = (shared.control.clone(), shared.mail.clone());
        let leave = move || {
            // The control thread delivers what was sent.
            mail.close();
            control.leave(rank);
        };
        Self { leave: Some(Box::new(leave)), ..Self::of_part(&shared.control, rank) }
    }

    /// That of the world's rank `rank` in a communicator of some of its ranks.
    pub(crate) fn of_part(control: &Arc<ControlPlane>, rank: usize) -> Self {
        let control = control.clone();
        let abort = move |reason: &str| control.report(rank, Cause::Aborted(rank, reason.to_owned()));
        Self { abort: Box::new(abort), leave: None }
    }
}
