//! Pictures that evaluations of a run made, such as `evaluation/*.png`, and the use of captions that `explain/` holds.

use std::path::Path;

use phalanx_run::{CaptionUse, Links};

use super::samples::png_size;

/// The maximum size of a picture in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// A picture of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture {
    /// The name of its file with spaces, without the ending.
    pub(crate) title: String,
    /// The media type.
    pub(crate) kind: &'static str,
    /// The bytes of the file.
    pub(crate) bytes: Vec<u8>,
    /// The width and height in pixels; `None` for SVG, which states its own.
    pub(crate) size: Option<(u32, u32)>,
}

/// The use of captions, and pictures of it.
#[derive(Debug, Clone)]
pub(crate) struct Captions {
    pub(crate) tables: CaptionUse,
    pub(crate) pictures: Vec<Picture>,
}

/// The pictures of a run's evaluations.
#[derive(Debug, Clone, Default)]
pub(crate) struct Evaluation {
    /// The pictures, by name.
    pub(crate) pictures: Vec<Picture>,
    /// The use of captions, with its pictures.
    pub(crate) captions: Option<Captions>,
    /// Errors of damaged files.
    pub(crate) damaged: Vec<String>,
}

impl Evaluation {
    /// Reads at most `most` pictures of a run's folder `evaluation`, sorted by name, and of its folder `explain`.
    pub(crate) fn of_run(run: &Path, most: usize) -> Self {
        let mut found = Self::read(&run.join("evaluation"), most);
        let folder = run.join("explain");
        let path = folder.join("explain.json");
        if path.exists() {
            let Self { pictures, damaged, .. } = Self::read(&folder, most);
            found.damaged.extend(damaged);
            match CaptionUse::read(&path) {
                Ok(tables) => found.captions = Some(Captions { tables, pictures }),
                Err(problem) => found.damaged.push(problem.to_string()),
            }
        }
        found
    }

    /// Reads at most `most` pictures of a folder, sorted by name.
    fn read(folder: &Path, most: usize) -> Self {
        let whose = folder.file_name().unwrap_or_default().to_string_lossy();
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| name.ends_with(".png") || name.ends_with(".svg"));
        names.sort();
        let mut found = Self::default();
        for name in names.iter().take(most) {
            match read(folder, name) {
                Ok(picture) => found.pictures.push(picture),
                Err(problem) => found.damaged.push(format!("{whose}/{name} {problem}")),
            }
        }
        if names.len() > most && most > 0 {
            found.damaged.push(format!("{whose}/ has {} pictures; the first {most} are shown", names.len()));
        }
        found
    }
}

/// Reads a picture. A browser shows it as an image, so scripts and links in it have no effect.
fn read(folder: &Path, name: &str) -> Result<Picture, String> {
    let path = folder.join(name);
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let length = std::fs::symlink_metadata(&path).map_err(unreadable)?.len();
    if length > MAX_BYTES {
        return Err(format!("has {} MiB; at most {} are shown", length >> 20, MAX_BYTES >> 20));
    }
    let bytes = Links::Refuse.read(&path).map_err(unreadable)?;
    let title = name[..name.len() - 4].replace(['_', '-'], " ");
    if name.ends_with(".png") {
        let size = png_size(&bytes)?;
        return Ok(Picture { title, kind: "image/png", bytes, size: Some(size) });
    }
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim_start();
    match text.starts_with("<svg") || text.starts_with("<?xml") {
        true => Ok(Picture { title, kind: "image/svg+xml", bytes, size: None }),
        false => Err("is no SVG".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_found_by_name_and_damaged_ones_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        image::RgbImage::new(5, 4).save(path("b_c-d.png")).expect("saves");
        for (name, text) in [("a.svg", "<svg/>"), ("c.svg", "no"), ("d.png", "no"), ("e.html", "<p>")] {
            std::fs::write(path(name), text).expect("writes");
        }
        let found = Evaluation::read(folder.path(), 9);
        let titles: Vec<_> =
            found.pictures.iter().map(|one| (one.title.as_str(), one.kind, one.size)).collect();
        assert_eq!(titles, [("a", "image/svg+xml", None), ("b c d", "image/png", Some((5, 4)))]);
        assert_eq!(found.damaged.len(), 2);
        assert!(found.damaged[0].contains("/c.svg is no SVG"), "{:?}", found.damaged);
        let one = Evaluation::read(folder.path(), 1);
        assert_eq!((one.pictures.len(), one.damaged.len()), (1, 1));
        assert!(Evaluation::read(&path("none"), 9).pictures.is_empty());
    }
}
