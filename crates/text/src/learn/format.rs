//! The `tokenizer.json` of learned pieces.

use serde_json::{Map, Value, json};

use super::cutting::{byte_level, cutting, spaces};
use super::merges::Merged;
use super::{END_OF_TEXT, PieceKind};
use crate::tokenizer::{Description, NEVER, added_token, byte_pairs};

/// Describes a byte-level BPE.
pub(super) fn bpe(fixed: &[String], learned: &Merged) -> String {
    let pieces = fixed.iter().chain(&learned.pieces);
    let merges: Vec<Value> = learned.merges.iter().map(|[left, right]| json!([left, right])).collect();
    let model = byte_pairs(&numbered(pieces), &merges);
    whole(PieceKind::Bpe, fixed, Value::Null, byte_level(), model)
}

/// Describes a WordPiece tokenizer, whose texts stand between `[CLS]` and `[SEP]` for programs that add them.
pub(super) fn word_piece(fixed: &[String], learned: &Merged) -> String {
    let pieces = fixed.iter().chain(&learned.pieces);
    let model = json!({
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": numbered(pieces),
    });
    let special = |name: &str, id: usize| json!({"id": name, "ids": [id], "tokens": [name]});
    let (class, separator) = ("[CLS]", "[SEP]");
    let token = |id: &str, kind: u8| json!({"SpecialToken": {"id": id, "type_id": kind}});
    let sequence = |id: &str, kind: u8| json!({"Sequence": {"id": id, "type_id": kind}});
    let template = json!({
        "type": "TemplateProcessing",
        "single": [token(class, 0), sequence("A", 0), token(separator, 0)],
        "pair": [token(class, 0), sequence("A", 0), token(separator, 0), sequence("B", 1), token(separator, 1)],
        "special_tokens": {class: special(class, 2), separator: special(separator, 3)},
    });
    let decoder = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    whole(PieceKind::WordPiece, fixed, template, decoder, model)
}

/// Describes a Unigram tokenizer.
pub(super) fn unigram(fixed: &[String], pieces: &[(String, f64)]) -> String {
    // Bytes stand for characters without a piece; their names are no text.
    let of_fixed = fixed.iter().map(|name| json!([name, NEVER]));
    let vocab: Vec<Value> =
        of_fixed.chain(pieces.iter().map(|(piece, score)| json!([piece, score]))).collect();
    let model = json!({"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": true});
    let decoder = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, spaces()]});
    whole(PieceKind::Unigram, fixed, Value::Null, decoder, model)
}

fn numbered<'a>(pieces: impl Iterator<Item = &'a String>) -> Map<String, Value> {
    pieces.zip(0_u32..).map(|(piece, id)| (piece.clone(), id.into())).collect()
}

fn whole(kind: PieceKind, fixed: &[String], template: Value, decoder: Value, model: Value) -> String {
    let is_special = |name: &str| name == END_OF_TEXT || name == "<unk>" || name.starts_with('[');
    let special = fixed.iter().enumerate().filter(|(_, name)| is_special(name));
    let added = special.map(|(id, name)| added_token(id, name, true)).collect();
    let (normalizer, pre_tokenizer) = cutting(kind);
    Description { added, normalizer, pre_tokenizer, template, decoder, model }.text()
}
