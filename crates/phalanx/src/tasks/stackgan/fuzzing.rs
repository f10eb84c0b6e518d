//! Files of vectors from anywhere, for the fuzzer of this workspace.

use std::path::Path;

use super::embeddings::Embeddings;

/// Opens a file, and reads the vectors of some captions that it may have.
pub(crate) fn embeddings(path: &Path) {
    let Ok(vectors) = Embeddings::open(path) else { return };
    assert!(vectors.dim() > 0, "vectors have numbers");
    for captions in [vec!["a bird"], vec!["it is red", "A  Small bird ."], vec![]] {
        let captions: Vec<String> = captions.into_iter().map(str::to_owned).collect();
        if let Ok(found) = vectors.vectors(&captions) {
            assert_eq!(found.dims(), [captions.len(), vectors.dim()]);
        }
    }
    let _ = vectors.len();
}
