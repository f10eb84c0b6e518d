//! Accounting of the memory of recorded values until backward has passed them.

use std::cell::Cell;

use super::value::Value;
use crate::backend::Array;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// Returns the peak size of activations of this thread's tapes since the last call, in bytes, and resets it.
///
/// It counts outputs of recorded ops on the host, and outlines of them, until backward has passed them. Views of inputs and parameters do
/// not count. An output counts even if its memory was freed early. A device has its own accounts.
pub fn take_peak_recorded_bytes() -> usize {
    PEAK.replace(NOW.get())
}

/// The size of a node's outputs, counted as long as the tape has the node.
#[derive(Debug, Default)]
pub(super) struct RecordedBytes(usize);

impl RecordedBytes {
    /// Counts the outputs of an op.
    pub(super) fn of(inputs: &[&Value], outputs: &[Array]) -> Self {
        let own = outputs.iter().filter_map(Array::host_memory).filter(|(address, _)| {
            let is_theirs =
                |input: &&Value| input.host_memory().is_some_and(|(theirs, _)| theirs == *address);
            !inputs.iter().any(is_theirs)
        });
        let bytes = own.map(|(_, bytes)| bytes).sum();
        NOW.set(NOW.get() + bytes);
        PEAK.set(PEAK.get().max(NOW.get()));
        Self(bytes)
    }
}

impl Drop for RecordedBytes {
    fn drop(&mut self) {
        NOW.set(NOW.get().saturating_sub(self.0));
    }
}
