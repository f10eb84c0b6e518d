//! The commands that follow a run, written so that a shell takes them as they stand.

use std::path::Path;

/// The text that a model writes for a given one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextUse {
    /// Its continuation.
    #[default]
    Continue,
    /// A copy with its masked tokens filled in.
    Fill,
    /// Its translation.
    Translate,
}

/// The facts about a run that has ended, from which the useful commands follow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NextCommands {
    /// The program's name.
    pub program: String,
    /// True if the run has a checkpoint.
    pub is_saved: bool,
    /// A prompt, if the model generates images from prompts.
    pub prompt: Option<String>,
    /// The text that the model writes for a given one, if it writes texts.
    pub texts: Option<TextUse>,
    /// True if the test split can be evaluated.
    pub is_evaluated: bool,
    /// True if the run has marked its best checkpoint.
    pub has_best: bool,
    /// The options that make the run longer.
    pub longer: String,
}

impl NextCommands {
    /// Returns a line for each command that fits the run in `folder`.
    pub fn lines(&self, folder: &Path) -> Vec<String> {
        let (program, run) = (&self.program, argument(folder));
        let best = if self.has_best { " --best" } else { "" };
        let mut commands = Vec::new();
        if let Some(prompt) = self.prompt.as_ref().filter(|_| self.is_saved) {
            let prompt = quoted(prompt);
            let picture = argument(&folder.join("samples.png"));
            commands.push(("sample", format!("sample {run}{best} --prompt {prompt} --out {picture}")));
        }
        match self.texts.filter(|_| self.is_saved) {
            Some(TextUse::Continue) => commands.push(("write", format!("write {run}{best}"))),
            Some(TextUse::Fill) => commands.push(("fill in", format!("write {run}{best} --prompt '[MASK]'"))),
            Some(TextUse::Translate) => commands.push(("translate", format!("translate {run}{best}"))),
            None => {}
        }
        if self.is_saved && self.is_evaluated {
            commands.push(("evaluate", format!("eval {run}{best}")));
        }
        commands.push(("report", format!("report {run}")));
        if self.is_saved {
            commands.push(("train longer", format!("train --resume --out {run} {}", self.longer)));
        }
        let width = commands.iter().map(|(what, _)| what.len()).max().unwrap_or_default();
        let line = |(what, command): (&str, String)| format!("  {what:<width$}  {program} {command}");
        std::iter::once("next".to_owned()).chain(commands.into_iter().map(line)).collect()
    }
}

/// A path as an argument: one that begins with a dash would be read as an option.
fn argument(path: &Path) -> String {
    let text = path.display().to_string();
    quoted(&if text.starts_with('-') { format!("./{text}") } else { text })
}

/// A word for a shell, in quotes if it has other characters than letters, digits and a few marks.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=@%+,".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_that_fit_the_run_are_named() {
        let longer = "--set train.epochs=20 --epochs 0".to_owned();
        let classifier = NextCommands {
            program: "phalanx".into(),
            is_saved: true,
            is_evaluated: true,
            longer,
            ..NextCommands::default()
        };
        assert_eq!(
            classifier.lines(Path::new("runs/x")),
            [
                "next",
                "  evaluate      phalanx eval runs/x",
                "  report        phalanx report runs/x",
                "  train longer  phalanx train --resume --out runs/x --set train.epochs=20 --epochs 0",
            ]
        );
        let prompt = Some("a cat's star".to_owned());
        let generator = NextCommands { prompt, has_best: true, is_evaluated: false, ..classifier.clone() };
        let lines = generator.lines(Path::new("-my run"));
        assert_eq!(
            lines[1],
            "  sample        phalanx sample './-my run' --best --prompt 'a cat'\\''s star' --out './-my run/samples.png'"
        );
        for (texts, expected) in [
            (TextUse::Continue, "  write         phalanx write runs/x"),
            (TextUse::Fill, "  fill in       phalanx write runs/x --prompt '[MASK]'"),
            (TextUse::Translate, "  translate     phalanx translate runs/x"),
        ] {
            let writer = NextCommands { texts: Some(texts), ..classifier.clone() };
            assert_eq!(writer.lines(Path::new("runs/x"))[1], expected);
        }
        let unsaved = NextCommands { is_saved: false, ..generator };
        assert_eq!(unsaved.lines(Path::new("x")), ["next", "  report  phalanx report x"]);
    }
}
