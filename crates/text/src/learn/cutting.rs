//! The normalisation and the cutting of texts into words, by the kind of pieces.

use serde_json::{Value, json};

use super::PieceKind;

/// The normaliser and the pre-tokenizer of a kind.
pub(super) fn cutting(kind: PieceKind) -> (Value, Value) {
    match kind {
        PieceKind::Bpe => (Value::Null, byte_level()),
        PieceKind::WordPiece => (
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}),
            json!({"type": "BertPreTokenizer"}),
        ),
        PieceKind::Unigram => (Value::Null, spaces()),
    }
}

/// The words of GPT-2 as bytes.
pub(super) fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

/// The words between spaces, each with a mark in front.
pub(super) fn spaces() -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})
}
