//! Readers that are this crate's own, for the fuzzer of this workspace. Each takes any bytes, or files of any; what it must never do
//! is to panic, and what else it must hold is asserted here.

use std::path::Path;

use phalanx_collectives::{Algorithm, Communicator, threads};
use phalanx_sharding::{Bucket, CodecKind, CodecSettings, CodecState, Keeps, MatrixRange, Peers};

pub use crate::engine::Resumable;
use crate::usage::ProcessUsage;

/// What a folder like `/proc/PID` says of its process.
pub fn usage_of(process: &Path) -> ProcessUsage {
    ProcessUsage::of(process)
}

/// The numbers in a file of ranges, such as `0-3,8`.
#[cfg(target_os = "linux")]
pub fn cores(file: &Path) -> Vec<usize> {
    crate::engine::listed(file)
}

/// The checksums of a file's contents, each by the name that indices of checkpoints have for it.
pub fn checksums(bytes: &[u8]) -> [(&'static str, String); 1] {
    [("blake3", blake3::hash(bytes).to_hex().to_string())]
}

thread_local! {
    /// A world of one rank.
    static ALONE: Option<Communicator> = threads(1).ok().and_then(|mut all| all.pop());
}

/// Has a codec of each kind go on from what one has kept, with six gradients, and says what it keeps then; of those that take it.
fn go_on(kinds: &[CodecKind], kept: &CodecState) -> Vec<CodecState> {
    let bucket = Bucket { slot: 0, len: 6, matrices: vec![MatrixRange { range: 0..6, rows: 2 }] };
    let of_kind = |alone: &Communicator, kind: CodecKind| {
        let codec = CodecSettings { kind, ..CodecSettings::default() }.codec().ok().flatten()?;
        codec.load_state(kept.clone()).ok()?;
        let mut gradients = [0.5_f32, -1.0, 2.0, 0.0, 3.5, 1e-3];
        let mut peers = Peers::new(alone, Algorithm::Auto);
        codec.reduce(&bucket, gradients.as_mut_slice().into(), Keeps::All, &mut peers).ok()?;
        let state = codec.state();
        assert!(state.is_ok(), "a codec that has worked does not say what it keeps");
        state.ok()
    };
    ALONE.with(|alone| {
        let alone = alone.iter().flat_map(|alone| kinds.iter().map(move |kind| (alone, *kind)));
        alone.filter_map(|(alone, kind)| of_kind(alone, kind)).collect()
    })
}

/// What a codec of each kind keeps after its first step, of those that keep something.
pub fn kept_by_codecs() -> Vec<CodecState> {
    let mut all = go_on(CodecKind::ALL, &CodecState::new());
    all.retain(|kept| !kept.is_empty());
    all
}

/// Codecs of all kinds go on from what one has kept.
pub fn codecs(kept: &CodecState) {
    let _ = go_on(CodecKind::ALL, kept);
}
