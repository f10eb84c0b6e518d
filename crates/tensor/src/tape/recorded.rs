//! How many bytes the values have that tapes of a thread have recorded, and backward has not passed.

use std::cell::Cell;

use super::value::Value;
use crate::backend::Array;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The most bytes that activations of this thread's tapes had at once since the last call: of the outputs of all recorded ops,
/// from when they are recorded until backward has passed them. Outputs that are views of inputs are not counted again, nor are
/// parameters; an output that nobody kept is counted, though its memory was freed. Only what lies on the host counts: a device
/// has accounts of its own.
pub fn take_peak_recorded_bytes() -> usize {
    PEAK.replace(NOW.get())
}

/// What a node's outputs count for, as long as the tape has the node.
#[derive(Debug, Default)]
pub(super) struct Recorded(usize);

impl Recorded {
    /// Counts the outputs of an op.
    pub(super) fn of(inputs: &[&Value], outputs: &[Array]) -> Self {
        let own = outputs.iter().filter_map(Array::host_memory).filter(|(place, _)| {
            let is_theirs = |input: &&Value| input.host_memory().is_some_and(|(theirs, _)| theirs == *place);
            !inputs.iter().any(is_theirs)
        });
        let bytes = own.map(|(_, bytes)| bytes).sum();
        NOW.set(NOW.get() + bytes);
        PEAK.set(PEAK.get().max(NOW.get()));
        Self(bytes)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        NOW.set(NOW.get().saturating_sub(self.0));
    }
}
