//! Damage to checkpoints.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::draws::RandomDraws;

/// The kind of a damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// One bit has the other value.
    Bit,
    /// The end of the file is missing.
    Cut,
    /// The file is missing.
    Missing,
}

/// A damage to one file of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Damage {
    form: Form,
    /// The file, as a part of the number of files, from 0 to 1.
    file: f64,
    /// The place in the file, as a part of its length.
    place: f64,
    /// The bit of the byte there.
    bit: usize,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { form, file, place, bit } = self;
        match form {
            Form::Bit => write!(f, "bit {bit} flipped at {place:.4} of file {file:.3}"),
            Form::Cut => write!(f, "file {file:.3} cut at {place:.4}"),
            Form::Missing => write!(f, "file {file:.3} removed"),
        }
    }
}

impl Damage {
    /// Draws a damage of any kind.
    pub(super) fn draw(drawn: &mut RandomDraws) -> Self {
        let form = drawn.one_of(&[Form::Bit, Form::Bit, Form::Cut, Form::Missing]);
        Self { form, ..Self::flip(drawn) }
    }

    /// Draws a flipped bit.
    pub(super) fn flip(drawn: &mut RandomDraws) -> Self {
        Self { form: Form::Bit, file: drawn.part(), place: drawn.part(), bit: drawn.below(8) }
    }

    /// Damages a file of the newest checkpoint in `checkpoints`, and returns its path. Returns none and damages nothing if there are
    /// fewer than two checkpoints.
    pub(super) fn apply(&self, checkpoints: &Path) -> Result<Option<PathBuf>> {
        let folders = steps_in(checkpoints);
        let [.., _, newest] = folders.as_slice() else { return Ok(None) };
        let entries = fs::read_dir(newest).with_context(|| format!("cannot read {}", newest.display()))?;
        let mut files: Vec<PathBuf> =
            entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
        files.sort();
        let path = files[((self.file * files.len() as f64) as usize).min(files.len() - 1)].clone();
        let mut bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let at = ((self.place * bytes.len() as f64) as usize).min(bytes.len().saturating_sub(1));
        match self.form {
            Form::Missing => fs::remove_file(&path),
            Form::Cut => fs::write(&path, &bytes[..at]),
            Form::Bit => {
                let byte = bytes.get_mut(at).with_context(|| format!("{} is empty", path.display()))?;
                *byte ^= 1 << self.bit;
                fs::write(&path, &bytes)
            }
        }
        .with_context(|| format!("cannot damage {}", path.display()))?;
        Ok(Some(path))
    }
}

/// Returns the folders of checkpoints, the oldest first.
fn steps_in(checkpoints: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(checkpoints).into_iter().flatten().filter_map(Result::ok);
    let mut steps: Vec<(u64, PathBuf)> = entries
        .filter_map(|entry| {
            let step = entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok()?;
            Some((step, entry.path()))
        })
        .collect();
    steps.sort();
    steps.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_of_the_newest_of_several_checkpoints_is_damaged() {
        let place = tempfile::tempdir().expect("a folder");
        let make = |step: u64| {
            let folder = place.path().join(format!("step-{step}"));
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("a"), [0; 9]).expect("a file");
            fs::write(folder.join("b"), [0; 9]).expect("a file");
        };
        let damage = Damage { form: Form::Bit, file: 0.7, place: 0.5, bit: 3 };
        make(9);
        assert_eq!(damage.apply(place.path()).expect("does nothing"), None, "the only one");
        make(10);
        let path = place.path().join("step-10/b");
        assert_eq!(damage.apply(place.path()).expect("damages"), Some(path.clone()));
        assert_eq!(fs::read(&path).expect("a file"), [0, 0, 0, 0, 8, 0, 0, 0, 0]);
        let cut = Damage { form: Form::Cut, ..damage };
        cut.apply(place.path()).expect("damages");
        assert_eq!(fs::read(&path).expect("a file"), [0; 4]);
        let removed = Damage { form: Form::Missing, ..damage };
        removed.apply(place.path()).expect("damages");
        assert!(!path.exists());
        assert_eq!(fs::read(place.path().join("step-9/b")).expect("the older one"), [0; 9]);
    }
}
