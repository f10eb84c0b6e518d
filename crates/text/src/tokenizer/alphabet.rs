//! Tokenizers without learned pieces: a token is a byte or a character.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::description::{Description, byte_pairs};

/// The tokens of a tokenizer without learned pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// The 256 bytes, which are their own ids.
    Bytes,
    /// Characters in ascending order.
    Characters(Vec<char>),
}

impl Alphabet {
    /// Returns the characters of texts.
    pub(super) fn of_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let characters: BTreeSet<char> = texts.into_iter().flat_map(str::chars).collect();
        Self::Characters(characters.into_iter().collect())
    }

    /// Returns the alphabet that a `tokenizer.json` of [`Alphabet::json`] describes; `None` for another one.
    pub(super) fn of_json(json: &Value) -> Option<Self> {
        let model = json.get("model")?;
        let merges = model.get("merges")?.as_array()?;
        let added = json.get("added_tokens").and_then(Value::as_array).map_or(0, Vec::len);
        if model.get("type")?.as_str()? != "BPE" || !merges.is_empty() || added > 0 {
            return None;
        }
        let vocab = model.get("vocab")?.as_object()?;
        let mut pieces = vec![None; vocab.len()];
        for (piece, id) in vocab {
            let mut characters = piece.chars();
            let (only, None) = (characters.next()?, characters.next()) else { return None };
            *pieces.get_mut(usize::try_from(id.as_u64()?).ok()?)? = Some(only);
        }
        let pieces = pieces.into_iter().collect::<Option<Vec<char>>>()?;
        match json.get("decoder")?.get("type")?.as_str()? {
            "ByteLevel" => {
                let alphabet = (0..=255).map(byte_letter);
                (pieces.len() == 256 && pieces.iter().copied().eq(alphabet)).then_some(Self::Bytes)
            }
            "Fuse" => pieces.is_sorted().then_some(Self::Characters(pieces)),
            _ => None,
        }
    }

    /// Returns the contents of a `tokenizer.json`.
    pub(super) fn json(&self) -> String {
        let (letters, pre_tokenizer, decoder): (Vec<char>, _, _) = match self {
            Self::Bytes => {
                let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
                ((0..=255).map(byte_letter).collect(), level.clone(), level)
            }
            Self::Characters(characters) => (characters.clone(), Value::Null, json!({"type": "Fuse"})),
        };
        let vocab: Map<String, Value> =
            letters.iter().zip(0_u32..).map(|(letter, id)| (letter.to_string(), id.into())).collect();
        let model = byte_pairs(&vocab, &[]);
        Description { pre_tokenizer, decoder, model, ..Description::default() }.text()
    }

    pub(super) fn vocab(&self) -> usize {
        match self {
            Self::Bytes => 256,
            Self::Characters(characters) => characters.len(),
        }
    }

    pub(super) fn piece(&self, token: u32) -> Option<String> {
        match self {
            Self::Bytes => u8::try_from(token).ok().map(|byte| byte_letter(byte).to_string()),
            Self::Characters(characters) => characters.get(token as usize).map(char::to_string),
        }
    }

    pub(super) fn byte_length(&self, token: u32) -> u32 {
        match self {
            Self::Bytes => 1,
            Self::Characters(characters) => {
                characters.get(token as usize).map_or(0, |character| character.len_utf8() as u32)
            }
        }
    }

    /// Encodes a text, or returns the reason why that cannot be done.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Characters(characters) => {
                let token = |character: char| match characters.binary_search(&character) {
                    Ok(place) => Ok(place as u32),
                    Err(_) => Err(format!(
                        "{character:?} is not in the vocabulary of {} characters",
                        characters.len()
                    )),
                };
                text.chars().map(token).collect()
            }
        }
    }

    /// Decodes tokens of the vocabulary.
    pub(super) fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> = tokens.iter().map(|&token| token as u8).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Characters(characters) => {
                tokens.iter().filter_map(|&token| characters.get(token as usize)).collect()
            }
        }
    }
}

/// Returns the printable character that stands for a byte in byte-level vocabularies (GPT-2's `bytes_to_unicode`).
pub(crate) fn byte_letter(byte: u8) -> char {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_itself(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !is_itself(other)).count() as u32;
    char::from_u32(256 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}
