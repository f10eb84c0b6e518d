//! The `.model` files of SentencePiece (Kudo and Richardson 2018), converted to `tokenizer.json`.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::description::{Description, added_token};
use super::protobuf::{Field, fields};

/// The mark of a space.
pub(super) const SPACE: &str = "▁";

/// The kinds of a piece.
const NORMAL: u64 = 1;
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// The score of a piece that no text is cut into.
pub(crate) const NEVER: f64 = -1e6;

/// The contents of a model file.
struct Model<'a> {
    pieces: Vec<Piece>,
    algorithm: u64,
    byte_fallback: bool,
    /// A table of character replacements, as compiled by SentencePiece.
    replacements: &'a [u8],
    add_prefix: bool,
    remove_extra_spaces: bool,
}

struct Piece {
    text: String,
    score: f32,
    kind: u64,
}

/// Converts the bytes of a model, or returns the reason why that cannot be done.
pub(super) fn json_of(bytes: &[u8]) -> Result<String, String> {
    let model = Model::read(bytes)?;
    let description = match model.algorithm {
        1 => model.unigram()?,
        2 => model.bpe(),
        other => {
            return Err(format!("SentencePiece's model of kind {other}; expected Unigram (1) or BPE (2)"));
        }
    };
    Ok(description.text())
}

/// Returns the piece of a model that stands for text that it does not know.
pub(super) fn unknown_of(bytes: &[u8]) -> Result<Option<u32>, String> {
    Ok(Model::read(bytes)?.unknown().map(|id| id as u32))
}

impl<'a> Model<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut model = Self {
            pieces: Vec::new(),
            algorithm: 1,
            byte_fallback: false,
            replacements: &[],
            add_prefix: true,
            remove_extra_spaces: true,
        };
        fields(bytes, |number, field| {
            match (number, field) {
                (1, Field::Bytes(piece)) => model.pieces.push(Piece::read(piece)?),
                (2, Field::Bytes(trainer)) => fields(trainer, |number, field| {
                    match (number, field) {
                        (3, Field::Number(kind)) => model.algorithm = kind,
                        (24, Field::Number(1)) => {
                            return Err("spaces behind words (treat_whitespace_as_suffix) are not supported"
                                .to_owned());
                        }
                        (35, Field::Number(on)) => model.byte_fallback = on != 0,
                        _ => {}
                    }
                    Ok(())
                })?,
                (3, Field::Bytes(normalizer)) => fields(normalizer, |number, field| {
                    match (number, field) {
                        (2, Field::Bytes(table)) => model.replacements = table,
                        (3, Field::Number(on)) => model.add_prefix = on != 0,
                        (4, Field::Number(on)) => model.remove_extra_spaces = on != 0,
                        _ => {}
                    }
                    Ok(())
                })?,
                _ => {}
            }
            Ok(())
        })?;
        match model.pieces.is_empty() {
            true => Err("it has no pieces".to_owned()),
            false => Ok(model),
        }
    }

    fn unknown(&self) -> Option<usize> {
        self.pieces.iter().position(|piece| piece.kind == UNKNOWN)
    }

    fn unigram(&self) -> Result<Description, String> {
        let unknown = self.unknown().ok_or("it has no piece for unknown text")?;
        // The text of a piece that is no text, such as `</s>` or `<0x41>`, must not be cut as that piece.
        let score = |piece: &Piece| if piece.is_text() { f64::from(piece.score) } else { NEVER };
        let vocab: Vec<Value> = self.pieces.iter().map(|piece| json!([piece.text, score(piece)])).collect();
        let model = json!({
            "type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": self.byte_fallback,
        });
        let scheme = if self.add_prefix { "always" } else { "never" };
        let spaces =
            json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": true});
        let decoder = match self.byte_fallback {
            true => json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, spaces]}),
            false => spaces.clone(),
        };
        let normalizer = sequence(&self.normalizers());
        let added = self.added();
        Ok(Description { added, normalizer, pre_tokenizer: spaces, decoder, model, ..Description::default() })
    }

    fn bpe(&self) -> Description {
        let vocab: Map<String, Value> =
            self.pieces.iter().enumerate().map(|(id, piece)| (piece.text.clone(), id.into())).collect();
        let unknown = self.unknown().map(|id| self.pieces[id].text.clone());
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": self.byte_fallback, "ignore_merges": false,
            "vocab": vocab, "merges": self.merges(),
        });
        let mut normalizers = self.normalizers();
        if self.add_prefix {
            normalizers.push(json!({"type": "Prepend", "prepend": SPACE}));
        }
        normalizers.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE}));
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if self.add_prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let decoder = json!({"type": "Sequence", "decoders": decoders});
        let (added, normalizer) = (self.added(), sequence(&normalizers));
        Description { added, normalizer, decoder, model, ..Description::default() }
    }

    /// The merges in the order of the scores of their results. SentencePiece keeps pieces with scores only.
    fn merges(&self) -> Vec<Value> {
        let ids: HashMap<&str, usize> =
            self.pieces.iter().enumerate().map(|(id, piece)| (piece.text.as_str(), id)).collect();
        let mut merges = Vec::new();
        for piece in self.pieces.iter().filter(|piece| piece.is_text()) {
            let cuts = piece.text.char_indices().skip(1).map(|(at, _)| piece.text.split_at(at));
            let mut pairs: Vec<_> = cuts
                .filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?, left, right)))
                .collect();
            pairs.sort_unstable();
            merges.extend(pairs.into_iter().map(|(_, _, left, right)| (piece.score, left, right)));
        }
        merges.sort_by(|one, other| other.0.total_cmp(&one.0));
        merges.into_iter().map(|(_, left, right)| json!([left, right])).collect()
    }

    fn normalizers(&self) -> Vec<Value> {
        let mut normalizers = Vec::new();
        if !self.replacements.is_empty() {
            let table = STANDARD.encode(self.replacements);
            normalizers.push(json!({"type": "Precompiled", "precompiled_charsmap": table}));
        }
        if self.remove_extra_spaces {
            normalizers.push(json!({"type": "Strip", "strip_left": true, "strip_right": true}));
            normalizers.push(json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}));
        }
        normalizers
    }

    /// The pieces that are no common text, as added tokens.
    fn added(&self) -> Vec<Value> {
        let is_added = |piece: &Piece| matches!(piece.kind, UNKNOWN | CONTROL | USER_DEFINED);
        let pieces = self.pieces.iter().enumerate().filter(|(_, piece)| is_added(piece));
        pieces.map(|(id, piece)| added_token(id, &piece.text, piece.kind != USER_DEFINED)).collect()
    }
}

/// Describes normalisers one after the other.
fn sequence(normalizers: &[Value]) -> Value {
    match normalizers.is_empty() {
        true => Value::Null,
        false => json!({"type": "Sequence", "normalizers": normalizers}),
    }
}

impl Piece {
    fn is_text(&self) -> bool {
        matches!(self.kind, NORMAL | USER_DEFINED)
    }

    fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut piece = Self { text: String::new(), score: 0.0, kind: 1 };
        fields(bytes, |number, field| {
            match (number, field) {
                (1, Field::Bytes(text)) => {
                    piece.text = String::from_utf8(text.to_vec()).map_err(|error| error.to_string())?;
                }
                (2, Field::Float(score)) => piece.score = score,
                (3, Field::Number(kind)) => piece.kind = kind,
                _ => {}
            }
            Ok(())
        })?;
        Ok(piece)
    }
}
