//! Memory that the ranks of a host share.

use crate::algorithms::Group;
use crate::operation::Tag;
#[cfg(target_os = "linux")]
use crate::shared::{Note, SlotExchange};

/// Memory shared with the other ranks of this one's host.
#[cfg(target_os = "linux")]
pub(crate) struct HostMemory {
    /// The ranks of this host. The slot exchange numbers them by their places here.
    pub(crate) group: Group,
    pub(crate) slots: SlotExchange,
}

#[cfg(target_os = "linux")]
impl HostMemory {
    /// Sets whether operations run in the background of a computation, from which waiting should take no time.
    pub(crate) fn in_background(&mut self, yes: bool) {
        self.slots.in_background(yes);
    }

    /// Publishes the operation that this rank begins.
    pub(crate) fn begin(&self, sequence: u64, tag: Tag) {
        self.slots.begin(Note::new(sequence, tag));
    }
}

/// Memory of a host on systems without it: never exists.
#[cfg(not(target_os = "linux"))]
pub(crate) struct HostMemory {
    pub(crate) group: Group,
    pub(crate) never: std::convert::Infallible,
}

#[cfg(not(target_os = "linux"))]
impl HostMemory {
    pub(crate) fn in_background(&mut self, _: bool) {
        match self.never {}
    }

    pub(crate) fn begin(&self, _: u64, _: Tag) {
        match self.never {}
    }
}
