//! Damage to checkpoints, behind their checksums.
use phalanx_fuzz_harness::{Random, damage, files, json};

use super::tensors;

/// The name of the index.
pub(super) const INDEX: &str = "checkpoint.json";

/// Changes the index or a file of tensors, and updates lengths and checksums in the index, except one time in five.
pub(super) fn change(input: &mut Vec<u8>, random: &mut Random) -> bool {
    if random.once_in(5) {
        return files::change(input, random);
    }
    let mut all: Vec<(String, Vec<u8>)> =
        files::split(input).into_iter().map(|(name, contents)| (name, contents.to_vec())).collect();
    if all.is_empty() {
        return false;
    }
    let at = random.below(all.len());
    let contents = &mut all[at].1;
    let by_form = json::change(contents, random) || tensors::header(contents, random);
    if !by_form || random.once_in(3) {
        damage::bytes(contents, &[0xff; 8], random);
    }
    *input = seal(all);
    true
}

/// Returns the text of an index with its own checksum at the end.
fn seal_index(mut index: serde_json::Value) -> Vec<u8> {
    if let Some(fields) = index.as_object_mut() {
        fields.remove("blake3");
    }
    let text = index.to_string();
    let text = text.strip_suffix('}').unwrap_or(&text);
    format!("{text},\n  \"blake3\": \"{}\"\n}}\n", blake3::hash(text.as_bytes()).to_hex()).into_bytes()
}

/// Seals the index of a kept input, so that changes of the index are behind its checksum.
pub(super) fn with_sealed_index(input: &[u8]) -> Vec<u8> {
    let split = files::split(input).into_iter();
    let mut all: Vec<(String, Vec<u8>)> = split.map(|(name, contents)| (name, contents.to_vec())).collect();
    for (_, contents) in all.iter_mut().filter(|(name, _)| name == INDEX) {
        if let Ok(parsed) = serde_json::from_slice(contents) {
            *contents = seal_index(parsed);
        }
    }
    files::join(all.iter().map(|(name, contents)| (name.as_str(), contents.as_slice())))
}

/// Returns the input that holds these files, with their lengths and checksums in the index.
fn seal(mut all: Vec<(String, Vec<u8>)>) -> Vec<u8> {
    let index = all.iter().position(|(name, _)| name == INDEX);
    let parsed = index.and_then(|at| serde_json::from_slice::<serde_json::Value>(&all[at].1).ok());
    if let (Some(at), Some(mut parsed)) = (index, parsed) {
        let entries = parsed.get_mut("files").and_then(serde_json::Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            let Some((_, contents)) =
                all.iter().find(|(name, _)| entry.get("name").is_some_and(|known| known == name.as_str()))
            else {
                continue;
            };
            let Some(entry) = entry.as_object_mut() else { continue };
            entry.insert("bytes".to_owned(), contents.len().into());
            if entry.contains_key("blake3") {
                entry.insert("blake3".to_owned(), blake3::hash(contents).to_hex().to_string().into());
            }
        }
        all[at].1 = seal_index(parsed);
    }
    files::join(all.iter().map(|(name, contents)| (name.as_str(), contents.as_slice())))
}

#[cfg(test)]
mod tests {
    use phalanx_checkpoint::Checkpoint;

    use super::*;

    #[test]
    fn damage_that_is_sealed_is_behind_the_checksums() {
        let input = (crate::targets::runs::CHECKPOINT.seeds)().remove(0);
        let split = files::split(&input).into_iter();
        let mut all: Vec<(String, Vec<u8>)> =
            split.map(|(name, contents)| (name, contents.to_vec())).collect();
        let last = all.last_mut().and_then(|(_, contents)| contents.last_mut()).expect("a file");
        *last ^= 1;
        let place = files::folder();
        let step = place.path().join("step-00000003");
        let opens = |input: &[u8]| {
            files::write(input, &step);
            Checkpoint::open(&step).and_then(|checkpoint| {
                let reader = checkpoint.reader();
                let names: Vec<String> = reader.tensors("model").map(|(name, _)| name.to_owned()).collect();
                names.iter().try_for_each(|name| reader.read("model", name).map(drop))
            })
        };
        opens(&seal(all.clone())).expect("sealed damage is read");
        let open = files::join(all.iter().map(|(name, contents)| (name.as_str(), contents.as_slice())));
        assert!(opens(&open).is_err());
    }
}
