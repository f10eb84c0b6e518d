//! The two containers of `torch.save`: an archive, and before PyTorch 1.6 pickles followed by storages.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

use zip::ZipArchive;

use super::machine::{Pickle, execute};
use super::objects::Object;
use super::rebuild::{StorageRef, storages};

/// The first number of the older container, little-endian.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// Its version.
const VERSION: i64 = 1001;

/// The place of the storages.
#[derive(Debug)]
pub(super) enum Container {
    /// An archive; the storage `KEY` is its entry `FOLDER/data/KEY`.
    Archive {
        archive: Box<ZipArchive<BufReader<File>>>,
        folder: String,
        /// The last storage of which a part was read: several tensors can be parts of one.
        last: (String, Vec<u8>),
    },
    /// One after the other: the first byte of each storage.
    Sequence { file: File, starts: HashMap<String, u64> },
}

/// The container and its pickle.
pub(super) type Opened = Result<(Container, Pickle), String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Opens an archive. `there` is the file's length.
pub(super) fn open_archive(file: File, there: u64) -> Opened {
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(text)?;
    let mut found = None;
    for at in 0..archive.len() {
        let entry = archive.by_index(at).map_err(text)?;
        let name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        // PyTorch does not compress, so no entry is larger than the file.
        if entry.size() > there {
            return Err(format!("`{name}` claims {} bytes, more than the file has", entry.size()));
        }
        if let Some(folder) = name.strip_suffix("data.pkl")
            && (folder.is_empty() || folder.ends_with('/'))
        {
            found = Some((at, folder.to_owned()));
        }
    }
    let (at, folder) = found.ok_or("this archive has no `data.pkl`, so torch.save did not write it")?;
    let order = format!("{folder}byteorder");
    if let Ok(entry) = archive.by_name(&order) {
        let mut order = String::new();
        entry.take(16).read_to_string(&mut order).map_err(text)?;
        if order == "big" {
            return Err(
                "it was written on a machine with big-endian numbers; convert it to safetensors".to_owned()
            );
        }
    }
    let entry = archive.by_index(at).map_err(text)?;
    let left = entry.size();
    let pickle = execute(&mut BufReader::new(entry), left)?;
    Ok((Container::Archive { archive: Box::new(archive), folder, last: Default::default() }, pickle))
}

/// True if a file begins as the older container does.
pub(super) fn is_sequence(start: &[u8]) -> bool {
    // PROTO 2, LONG1 of ten bytes.
    matches!(start, [0x80, _, 0x8a, 10, rest @ ..] if rest.starts_with(&MAGIC))
}

/// Opens the older container: the magic number, a version, sizes of the machine's types, the pickle, the keys of the
/// storages, and the storages in that order.
pub(super) fn open_sequence(file: File, there: u64) -> Opened {
    let mut reader = BufReader::new(file);
    let next = |reader: &mut BufReader<File>| execute(reader, there);
    next(&mut reader)?;
    let version = next(&mut reader)?;
    match version.objects.get(version.root) {
        Object::Int(VERSION) => {}
        _ => return Err(format!("it has a version of torch.save other than {VERSION}")),
    }
    let machine = next(&mut reader)?;
    if is_big_endian(&machine) {
        return Err(
            "it was written on a machine with big-endian numbers; convert it to safetensors".to_owned()
        );
    }
    let pickle = next(&mut reader)?;
    let keys = next(&mut reader)?;
    let starts = starts(&mut reader, &pickle, &keys, there)?;
    Ok((Container::Sequence { file: reader.into_inner(), starts }, pickle))
}

fn is_big_endian(machine: &Pickle) -> bool {
    let objects = &machine.objects;
    let entries = objects.entries(machine.root).unwrap_or_default();
    let order = entries.iter().find(|(key, _)| objects.text(*key) == Some("little_endian"));
    order.is_some_and(|(_, value)| *objects.get(*value) == Object::Bool(false))
}

/// The first byte of each storage: before it are eight bytes with its number of elements.
fn starts<R: BufRead + Seek>(
    reader: &mut R,
    pickle: &Pickle,
    keys: &Pickle,
    there: u64,
) -> Result<HashMap<String, u64>, String> {
    let known: HashMap<String, StorageRef> =
        storages(&pickle.objects).map(|storage| (storage.key.clone(), storage)).collect();
    let Object::List(order) = keys.objects.get(keys.root) else {
        return Err("it has no list of its storages".to_owned());
    };
    let mut starts = HashMap::new();
    for key in order {
        let key = keys.objects.text(*key).ok_or("it has a damaged list of its storages")?;
        // Storages of unknown types end the list: the next one cannot be found.
        let Some(storage) = known.get(key) else { break };
        let mut count = [0; 8];
        reader.read_exact(&mut count).map_err(|_| format!("it is cut off before the storage `{key}`"))?;
        let count = u64::from_le_bytes(count);
        let start = reader.stream_position().map_err(text)?;
        if count != storage.elements {
            return Err(format!("its storage `{key}` has {count} elements in place of {}", storage.elements));
        }
        let end = count.checked_mul(storage.element.bytes as u64).and_then(|bytes| start.checked_add(bytes));
        let end = end.filter(|end| *end <= there).ok_or_else(|| {
            format!("it is cut off: the storage `{key}` has {count} elements of {}", storage.element.name)
        })?;
        reader.seek(SeekFrom::Start(end)).map_err(text)?;
        starts.insert(key.to_owned(), start);
    }
    Ok(starts)
}

impl Container {
    /// Reads bytes of a storage.
    pub(super) fn read(&mut self, key: &str, start: u64, count: u64) -> Result<Vec<u8>, String> {
        let cut_off = || format!("its storage `{key}` is cut off");
        match self {
            Self::Archive { archive, folder, last } => {
                let name = format!("{folder}data/{key}");
                let of_entry = |error: &dyn std::fmt::Display| format!("`{name}`: {error}");
                if last.0 != name {
                    let mut entry = archive.by_name(&name).map_err(|error| of_entry(&error))?;
                    let mut bytes = Vec::new();
                    // The end of the entry is where its checksum is compared.
                    entry.read_to_end(&mut bytes).map_err(|error| of_entry(&error))?;
                    if start == 0 && bytes.len() as u64 == count {
                        return Ok(bytes);
                    }
                    *last = (name, bytes);
                }
                let range = start as usize..start.saturating_add(count) as usize;
                last.1.get(range).map(<[u8]>::to_vec).ok_or_else(cut_off)
            }
            Self::Sequence { file, starts } => {
                let first = starts.get(key).ok_or_else(|| format!("its storage `{key}` cannot be found"))?;
                file.seek(SeekFrom::Start(first.saturating_add(start))).map_err(text)?;
                let mut bytes = Vec::new();
                file.take(count).read_to_end(&mut bytes).map_err(text)?;
                if bytes.len() as u64 == count { Ok(bytes) } else { Err(cut_off()) }
            }
        }
    }
}
