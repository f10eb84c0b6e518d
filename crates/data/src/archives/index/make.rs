//! Indexing of an archive by the headers of its members.

use super::{ArchiveIndex, CaptionSource, Entry, Span};
use crate::error::{DataError, ParseResult, Result};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// The file extensions of images.
const IMAGES: [&str; 5] = ["jpg", "jpeg", "png", "webp", "bmp"];

/// The block size of tar files.
const BLOCK: u64 = 512;

/// A sample that is being collected.
#[derive(Default)]
struct Sample {
    key: String,
    image: Option<Span>,
    text: Option<Span>,
    json: Option<Span>,
    label: Option<u32>,
}

impl Sample {
    /// Adds a member; unknown members are ignored.
    fn add(&mut self, ending: &str, span: Span, class: impl FnOnce() -> ParseResult<u32>) -> ParseResult<()> {
        let place = match ending {
            "txt" => &mut self.text,
            "json" => &mut self.json,
            "cls" => {
                if self.label.replace(class()?).is_some() {
                    return Err("it has two members .cls".to_owned());
                }
                return Ok(());
            }
            image if IMAGES.contains(&image) => &mut self.image,
            _ => return Ok(()),
        };
        match place.replace(span) {
            None => Ok(()),
            Some(_) if IMAGES.contains(&ending) => Err("it has two images".to_owned()),
            Some(_) => Err(format!("it has two members .{ending}")),
        }
    }

    fn finish(self) -> ParseResult<Entry> {
        let Self { image, text, json, label, .. } = self;
        let image =
            image.ok_or_else(|| format!("it has no image: no member ends in .{}", IMAGES.join(", .")))?;
        let caption =
            text.map(|span| (span, CaptionSource::Text)).or(json.map(|span| (span, CaptionSource::Json)));
        if caption.is_none() && label.is_none() {
            return Err("it has no caption, .txt or .json, and no class, .cls".to_owned());
        }
        Ok(Entry { image, caption, label })
    }
}

/// Reads the header of each member, and seeks over its contents.
pub(super) fn index(archive: &Path) -> Result<ArchiveIndex> {
    let failed = |error| DataError::io(archive, error);
    let mut file = crate::Links::Follow.open(archive).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let mut begins = [0; 6];
    let begin = file.read(&mut begins).map_err(failed)?;
    if begins[..begin].starts_with(&[0x1f, 0x8b]) || begins[..begin].starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let reason = "the archive is compressed, so samples cannot be located; unpack it to a plain .tar";
        return Err(DataError::file(archive, reason));
    }
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let mut classes = crate::Links::Follow.open(archive).map_err(failed)?;

    let not_tar = |error: std::io::Error| DataError::file(archive, format!("not a valid tar file: {error}"));
    // A seek within the buffer needs no system call, so small members are cheap.
    let mut reader = tar::Archive::new(BufReader::with_capacity(8 << 10, file));
    let mut entries = Vec::new();
    let mut sample = Sample::default();
    let of_sample = |key: &str, reason: String| DataError::ArchiveSample {
        archive: archive.to_path_buf(),
        key: key.to_owned(),
        reason,
    };
    for member in reader.entries_with_seek().map_err(not_tar)? {
        let member = member.map_err(not_tar)?;
        if !member.header().entry_type().is_file() {
            continue;
        }
        let name = member.path().map_err(not_tar)?.to_string_lossy().replace('\\', "/");
        let Some((key, ending)) = split_name(&name) else { continue };
        let (offset, len) = (member.raw_file_position(), member.size());
        if offset + len > length {
            let reason = format!("truncated: {name} ends at byte {}, the file at {length}", offset + len);
            return Err(DataError::file(archive, reason));
        }
        if key != sample.key {
            let before = std::mem::replace(&mut sample, Sample { key: key.to_owned(), ..Sample::default() });
            if !before.key.is_empty() {
                let key = before.key.clone();
                entries.push(before.finish().map_err(|reason| of_sample(&key, reason))?);
            }
        }
        let span = u32::try_from(len).map(|len| Span { offset, len });
        let span = span.map_err(|_| of_sample(key, format!(".{ending} is larger than 4 GiB")))?;
        let class = || read_class(&mut classes, span);
        sample.add(&ending, span, class).map_err(|reason| of_sample(key, reason))?;
    }
    if !sample.key.is_empty() {
        let key = sample.key.clone();
        entries.push(sample.finish().map_err(|reason| of_sample(&key, reason))?);
    }
    if entries.is_empty() {
        return Err(DataError::file(archive, "the archive has no samples"));
    }
    Ok(ArchiveIndex { entries })
}

/// Splits a member's name at the first dot after its folders into key and extension, in lower case. `None` for hidden
/// files, such as those of macOS.
fn split_name(name: &str) -> Option<(&str, String)> {
    let begin = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = begin + name[begin..].find('.')?;
    (dot > begin).then(|| (&name[..dot], name[dot + 1..].to_lowercase()))
}

/// Reads the number in a member.
fn read_class(file: &mut File, span: Span) -> ParseResult<u32> {
    let mut text = String::new();
    let read = file
        .seek(SeekFrom::Start(span.offset))
        .and_then(|_| file.take(u64::from(span.len)).read_to_string(&mut text));
    read.map_err(|error| format!(".cls: {error}"))?;
    text.trim().parse().map_err(|_| format!(".cls holds {text:?}, which is not a whole number from 0"))
}

/// Returns the key of a member by the header before its contents at `contents`. Only the first 100 letters of a name
/// are in that header.
pub(super) fn key_before(
    read_at: impl Fn(u64, &mut [u8]) -> std::io::Result<()>,
    contents: u64,
) -> std::io::Result<String> {
    let mut header = tar::Header::new_old();
    read_at(contents.saturating_sub(BLOCK), header.as_mut_bytes())?;
    let name = String::from_utf8_lossy(&header.path_bytes()).into_owned();
    Ok(split_name(&name).map_or(name.clone(), |(key, _)| key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_ends_at_the_first_dot_of_the_last_component() {
        let split = |name| split_name(name).map(|(key, ending)| format!("{key}|{ending}"));
        assert_eq!(split("a/0001.JPG").as_deref(), Some("a/0001|jpg"));
        assert_eq!(split("v1.0/0001.seg.png").as_deref(), Some("v1.0/0001|seg.png"));
        assert_eq!(split("v1.0/README"), None);
        assert_eq!(split("a/._0001.jpg"), None);
    }
}
