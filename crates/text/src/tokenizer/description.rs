//! The contents of a `tokenizer.json`.

use serde_json::{Map, Value, json};

/// The parts of a tokenizer; those that are null are left out.
#[derive(Debug, Default)]
pub(crate) struct Description {
    /// Special tokens and those that users defined.
    pub(crate) added: Vec<Value>,
    pub(crate) normalizer: Value,
    pub(crate) pre_tokenizer: Value,
    /// The tokens around a text, for programs that add them.
    pub(crate) template: Value,
    pub(crate) decoder: Value,
    pub(crate) model: Value,
}

impl Description {
    /// Returns the text of the file.
    pub(crate) fn text(self) -> String {
        let Self { added, normalizer, pre_tokenizer, template, decoder, model } = self;
        let whole = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": template, "decoder": decoder, "model": model,
        });
        format!("{whole:#}\n")
    }
}

/// Describes an added token.
pub(crate) fn added_token(id: usize, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": special,
    })
}

/// Describes a byte-pair model that knows every byte, so that no text is unknown.
pub(crate) fn byte_pairs(vocab: &Map<String, Value>, merges: &[Value]) -> Value {
    json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
        "vocab": vocab, "merges": merges,
    })
}
