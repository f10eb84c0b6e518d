//! Indexing of an archive by the headers of its members.

use super::{ArchiveIndex, CaptionSource, Entry, Span};
use crate::encoding::without_mark;
use crate::error::{DataError, ParseResult, Result};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// The file extensions of images.
const IMAGES: [&str; 5] = ["jpg", "jpeg", "png", "webp", "bmp"];

/// The block size of tar files.
const BLOCK: u64 = 512;

/// The number of bytes of a `.cls` that are read: more than any number has.
const MAX_CLASS: u64 = 100;

/// A member of an archive that may belong to a sample.
struct Member<'a> {
    /// The name with its folders.
    name: &'a str,
    /// The name up to its first dot.
    key: &'a str,
    /// The rest of the name, in lower case.
    ending: &'a str,
    offset: u64,
    len: u64,
}

/// A sample that is being collected.
#[derive(Default)]
struct Sample {
    key: String,
    image: Option<Span>,
    text: Option<Span>,
    json: Option<Span>,
    label: Option<u32>,
    /// An unknown member that would be known if the key ended at the last dot.
    dotted: Option<String>,
}

impl Sample {
    /// Adds a member; unknown members are ignored.
    fn add(&mut self, member: &Member<'_>, class: impl FnOnce(Span) -> ParseResult<u32>) -> ParseResult<()> {
        let ending = member.ending;
        let span = u32::try_from(member.len).map(|len| Span { offset: member.offset, len });
        let span = span.map_err(|_| format!(".{ending} is larger than 4 GiB"))?;
        let place = match ending {
            "txt" => &mut self.text,
            "json" => &mut self.json,
            "cls" => {
                if self.label.replace(class(span)?).is_some() {
                    return Err("it has two members .cls".to_owned());
                }
                return Ok(());
            }
            image if IMAGES.contains(&image) => &mut self.image,
            _ => {
                let last = ending.rsplit('.').next().unwrap_or_default();
                if ["txt", "json", "cls"].iter().chain(&IMAGES).any(|known| *known == last) {
                    self.dotted.get_or_insert_with(|| member.name.to_owned());
                }
                return Ok(());
            }
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

/// The samples of an archive that are being collected.
struct Collector<'a> {
    archive: &'a Path,
    entries: Vec<Entry>,
    /// The current sample.
    sample: Sample,
    /// The key of the first sample.
    first_key: String,
}

impl Collector<'_> {
    fn error(&self, key: &str, reason: String) -> DataError {
        DataError::ArchiveSample { archive: self.archive.to_path_buf(), key: key.to_owned(), reason }
    }

    fn add(&mut self, member: &Member<'_>, class: impl FnOnce(Span) -> ParseResult<u32>) -> Result<()> {
        if member.key != self.sample.key {
            self.end_sample()?;
            self.sample.key = member.key.to_owned();
        }
        self.sample.add(member, class).map_err(|reason| self.error(member.key, reason))
    }

    /// Adds the current sample to the entries.
    fn end_sample(&mut self) -> Result<()> {
        let sample = std::mem::take(&mut self.sample);
        if sample.key.is_empty() {
            return Ok(());
        }
        let (key, dotted) = (sample.key.clone(), sample.dotted.clone());
        let entry = sample.finish().map_err(|reason| {
            let hint = dotted.map(|name| dot_hint(&name)).or_else(|| distance_hint(self.archive, &key));
            self.error(&key, format!("{reason}{}", hint.unwrap_or_default()))
        })?;
        if let Some(first) = self.entries.first() {
            let differs = first.label.is_some() != entry.label.is_some();
            let (with, without) =
                if first.label.is_some() { (&self.first_key, &key) } else { (&key, &self.first_key) };
            if differs {
                let reason = format!("it has no class, .cls, but sample {with} has one");
                return Err(self.error(without, reason));
            }
        } else {
            self.first_key = key;
        }
        self.entries.push(entry);
        Ok(())
    }
}

/// Explains that a key ends at the first dot.
fn dot_hint(name: &str) -> String {
    let (key, ending) = split_name(name).unwrap_or((name, String::new()));
    format!(
        "; {name} has the key {key} and the extension .{ending}, since a key ends at the first dot: rename it"
    )
}

/// Explains that the members of a sample are not adjacent, if that is so.
fn distance_hint(archive: &Path, key: &str) -> Option<String> {
    let mut before: Option<String> = None;
    let (mut between, mut after): (Option<String>, Option<String>) = (None, None);
    let look = |member: &Member<'_>| {
        if member.key != key {
            if before.is_some() {
                between.get_or_insert_with(|| member.name.to_owned());
            }
        } else if between.is_some() {
            after.get_or_insert_with(|| member.name.to_owned());
        } else {
            before = Some(member.name.to_owned());
        }
        Ok(())
    };
    for_each_member(archive, look).ok()?;
    let (before, between, after) = (before?, between?, after?);
    Some(format!(
        "; its members are not adjacent: {between} is between {before} and {after}; sort the members by name"
    ))
}

/// Reads the header of each member, and seeks over its contents.
pub(super) fn index(archive: &Path) -> Result<ArchiveIndex> {
    let mut classes = crate::Links::Follow.open(archive).map_err(|error| DataError::io(archive, error))?;
    let mut collector =
        Collector { archive, entries: Vec::new(), sample: Sample::default(), first_key: String::new() };
    for_each_member(archive, |member| collector.add(member, |span| read_class(&mut classes, span)))?;
    collector.end_sample()?;
    if collector.entries.is_empty() {
        return Err(DataError::file(archive, "the archive has no samples"));
    }
    Ok(ArchiveIndex { entries: collector.entries })
}

/// Calls `member` for each file of an archive that may belong to a sample, in order.
fn for_each_member(archive: &Path, mut member: impl FnMut(&Member<'_>) -> Result<()>) -> Result<()> {
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
    let not_tar = |error: std::io::Error| DataError::file(archive, format!("not a valid tar file: {error}"));
    // A seek within the buffer needs no system call, so small members are cheap.
    let mut reader = tar::Archive::new(BufReader::with_capacity(8 << 10, file));
    for entry in reader.entries_with_seek().map_err(not_tar)? {
        let entry = entry.map_err(not_tar)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = entry.path().map_err(not_tar)?.to_string_lossy().replace('\\', "/");
        let name = name.trim_start_matches("./");
        let Some((key, ending)) = split_name(name) else { continue };
        let (offset, len) = (entry.raw_file_position(), entry.size());
        if offset + len > length {
            let reason = format!("truncated: {name} ends at byte {}, the file at {length}", offset + len);
            return Err(DataError::file(archive, reason));
        }
        member(&Member { name, key, ending: &ending, offset, len })?;
    }
    Ok(())
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
    let mut bytes = Vec::new();
    let read = file
        .seek(SeekFrom::Start(span.offset))
        .and_then(|_| file.take(u64::from(span.len).min(MAX_CLASS)).read_to_end(&mut bytes));
    read.map_err(|error| format!(".cls: {error}"))?;
    let text = without_mark(&bytes).map_err(|error| format!(".cls: {error}"))?;
    let text = String::from_utf8_lossy(text);
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
    let name = name.trim_start_matches("./");
    Ok(split_name(name).map_or(name, |(key, _)| key).to_owned())
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
