//! The state dicts of a pickle: dicts with tensors, by the keys that lead to them.

use std::collections::BTreeMap;

use super::objects::{Id, Object, Objects};
use super::rebuild::{Rebuilt, tensor};

/// The largest number of dicts inside of each other.
const DEPTH: usize = 24;

/// The longest name of a tensor, its key included.
const NAME: usize = 512;

/// The state dicts of a pickle by their keys, joined with dots; the outermost has the empty key.
pub(super) type Groups = BTreeMap<String, BTreeMap<String, Rebuilt>>;

/// Collects the dicts that have tensors. A module that was saved whole is one dict with the names of its state dict.
///
/// # Errors
/// A message, if dicts contain each other in far more ways than the pickle has objects, or a name is too long.
pub(super) fn groups(objects: &Objects, root: Id) -> Result<Groups, String> {
    let mut walk = Walk { objects, groups: Groups::new(), left: 2 * objects.len() + 64 };
    walk.dict(root, &Place::default(), 0)?;
    Ok(walk.groups)
}

/// The place of a dict.
#[derive(Debug, Clone, Default)]
struct Place {
    key: String,
    /// The beginning of the names of its tensors.
    prefix: String,
    in_module: bool,
}

struct Walk<'a> {
    objects: &'a Objects,
    groups: Groups,
    /// The number of entries that may still be visited.
    left: usize,
}

/// Attributes of a module with parts that have their own names.
const PARTS: [&str; 3] = ["_parameters", "_buffers", "_modules"];

fn longer(start: &str, name: &str) -> String {
    if start.is_empty() { name.to_owned() } else { format!("{start}.{name}") }
}

impl Walk<'_> {
    /// Collects from the entries of the object `id`.
    fn dict(&mut self, id: Id, place: &Place, depth: usize) -> Result<(), String> {
        let Some(entries) = self.objects.entries(id).filter(|_| depth < DEPTH) else { return Ok(()) };
        let in_module = place.in_module || matches!(self.objects.get(id), Object::Call { .. });
        for (name, value) in entries {
            self.left = self.left.checked_sub(1).ok_or("its dicts contain each other")?;
            let name = match self.objects.get(*name) {
                Object::Text(text) => &**text,
                Object::Int(number) => &number.to_string(),
                _ => continue,
            };
            if place.key.len() + place.prefix.len() + name.len() > NAME {
                return Err(format!("it has a name of more than {NAME} letters"));
            }
            if let Some(tensor) = tensor(self.objects, *value) {
                let group = self.groups.entry(place.key.clone()).or_default();
                group.insert(longer(&place.prefix, name), tensor);
                continue;
            }
            let (key, prefix) = match (in_module, PARTS.contains(&name)) {
                (true, true) => (place.key.clone(), place.prefix.clone()),
                (true, false) => (place.key.clone(), longer(&place.prefix, name)),
                (false, _) => (longer(&place.key, name), String::new()),
            };
            self.dict(*value, &Place { key, prefix, in_module }, depth + 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::execute;
    use super::*;

    fn of(program: &[u8]) -> Result<Groups, String> {
        let pickle = execute(&mut &*program, program.len() as u64).expect("sound");
        groups(&pickle.objects, pickle.root)
    }

    #[test]
    fn dicts_that_contain_each_other_are_refused() {
        // Each dict has the last one twice, so that the paths double with every level.
        let mut program = b"\x80\x02}q\x00".to_vec();
        for _ in 0..20 {
            program.extend(b"}(K\x01h\x00K\x02h\x00uq\x00");
        }
        program.push(b'.');
        assert_eq!(of(&program).expect_err("too many"), "its dicts contain each other");
        // A dict that contains itself has an end.
        assert!(of(b"\x80\x02}q\x00(K\x01h\x00u.").expect("bounded").is_empty());
        let long = [&b"\x80\x02}(X\xe8\x03\x00\x00"[..], &[b'a'; 1000], b"Nu."].concat();
        assert!(of(&long).expect_err("too long").contains("a name of more than 512 letters"));
    }
}
