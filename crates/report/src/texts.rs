//! The texts that a run wrote while it trained.

use std::path::Path;

use phalanx_run::Links;

use super::step_files::StepFiles;

/// The texts of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextSample {
    /// The step after which they were written.
    pub(crate) step: u64,
    pub(crate) text: String,
}

/// The texts of a run, reduced to a maximum number of steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Texts {
    /// The shown texts, in the order of steps.
    pub(crate) shown: Vec<TextSample>,
    /// The number of steps with texts.
    pub(crate) all: usize,
    /// Errors of damaged files.
    pub(crate) damaged: Vec<String>,
}

/// The maximum number of shown bytes of a step's texts.
const MAX_BYTES: usize = 16 << 10;

impl Texts {
    /// Reads at most `most` evenly spaced files of a folder `samples`, including the first and the last.
    pub(crate) fn read(folder: &Path, most: usize) -> Self {
        let StepFiles { all, shown: files } = StepFiles::of(folder, ".txt", most);
        let mut texts = Self { all, ..Self::default() };
        for (step, path) in files {
            match Links::Refuse.read(&path) {
                Ok(bytes) => texts.shown.push(TextSample { step, text: shown(&bytes) }),
                Err(error) => {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    texts.damaged.push(format!("samples/{name} cannot be read: {error}"));
                }
            }
        }
        texts
    }
}

/// Returns the beginning of a text, with its length if it is longer than what is shown.
fn shown(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_BYTES)]).into_owned();
    if bytes.len() > MAX_BYTES {
        text += &format!("\n… ({} of {} KiB)", MAX_BYTES >> 10, bytes.len() >> 10);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_few_steps_are_read_and_long_ones_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        for step in 1..=9 {
            let path = folder.path().join(format!("step-{step:08}.txt"));
            std::fs::write(path, format!("[1]\nstep {step}\n")).expect("writes");
        }
        std::fs::write(folder.path().join("step-00000009.txt"), "a".repeat(40 << 10)).expect("writes");
        std::fs::write(folder.path().join("prompts.txt"), "no text\n").expect("writes");
        std::fs::create_dir(folder.path().join("step-00000010.txt")).expect("a folder");
        let texts = Texts::read(folder.path(), 3);
        assert_eq!(texts.shown.iter().map(|sample| sample.step).collect::<Vec<_>>(), [1, 5]);
        assert_eq!((texts.all, texts.shown[1].text.as_str()), (10, "[1]\nstep 5\n"));
        assert!(texts.damaged[0].contains("samples/step-00000010.txt cannot be read"), "{:?}", texts.damaged);
        let all = Texts::read(folder.path(), 20);
        let last = &all.shown[8].text;
        assert!(last.len() < (16 << 10) + 40 && last.ends_with("… (16 of 40 KiB)"), "{}", last.len());
    }
}
