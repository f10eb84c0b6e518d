//! The tokenizer of a folder of published weights.

use std::path::Path;

use phalanx_data::{DataError, Links, Result};
use serde_json::{Value, json};

use super::description::{Description, added_token, byte_pairs};
use super::{TOKENIZER_FILE, Tokenizer};

/// The special token of GPT-2.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Opens the tokenizer of a folder.
pub(super) fn open(folder: &Path) -> Result<Tokenizer> {
    let file = folder.join(TOKENIZER_FILE);
    if file.is_file() {
        return Tokenizer::open(file);
    }
    let (vocab, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
    if vocab.is_file() && merges.is_file() {
        let read = |path: &Path| Links::Follow.read_text(path).map_err(|error| DataError::io(path, error));
        let json = of_two_files(&read(&vocab)?, &read(&merges)?)
            .map_err(|reason| DataError::file(folder, reason))?;
        return Tokenizer::from_json(json, &folder.display().to_string());
    }
    for name in ["tokenizer.model", "spiece.model", "source.spm"] {
        let file = folder.join(name);
        if file.is_file() {
            let bytes = Links::Follow.read(&file).map_err(|error| DataError::io(&file, error))?;
            let json =
                super::sentence_piece::json_of(&bytes).map_err(|reason| DataError::file(&file, reason))?;
            return Tokenizer::from_json(json, &file.display().to_string());
        }
    }
    Err(DataError::Unrecognised {
        path: folder.to_owned(),
        looked_for: format!(
            "{TOKENIZER_FILE}, vocab.json with merges.txt, tokenizer.model, spiece.model or source.spm"
        ),
    })
}

/// Makes a `tokenizer.json` of the two files of GPT-2 (Radford et al. 2019).
fn of_two_files(vocab: &str, merges: &str) -> std::result::Result<String, String> {
    let vocab: Value = serde_json::from_str(vocab).map_err(|error| format!("vocab.json: {error}"))?;
    let Some(ids) = vocab.as_object() else { return Err("vocab.json: not an object of tokens".to_owned()) };
    let lines =
        merges.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with("#version"));
    let mut pairs = Vec::new();
    for (number, line) in lines {
        match line.split_once(' ') {
            Some((left, right)) if !right.contains(' ') => pairs.push(json!([left, right])),
            _ => return Err(format!("merges.txt, line {}: {line:?} is no pair", number + 1)),
        }
    }
    let end = ids.get(END_OF_TEXT).and_then(Value::as_u64);
    let added = end.map(|id| added_token(id as usize, END_OF_TEXT, true)).into_iter().collect();
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let model = byte_pairs(ids, &pairs);
    let (pre_tokenizer, decoder) = (level.clone(), level);
    Ok(Description { added, pre_tokenizer, decoder, model, ..Description::default() }.text())
}
