//! The help of the program: its commands in groups, and examples of each command.

use clap::Command;

/// The commands by what a user wants to do, in the order of the help.
const GROUPS: &[(&str, &[&str])] = &[
    ("Train", &["train", "plan", "find-lr", "config", "data", "tokens"]),
    ("Look", &["watch", "report", "serve", "track", "trace", "diagnose"]),
    ("Use", &["eval", "predict", "sample", "explain", "write", "translate", "export", "hash"]),
    ("Compare", &["sweep", "study"]),
    ("Cluster", &["submit", "status", "logs", "cancel", "join", "leave", "doctor"]),
    ("Shell", &["completions", "man"]),
];

/// Examples of commands: lines without the program's name, each with its purpose. A name in braces stands for the default preset.
pub(super) const EXAMPLES: &[(&str, [(&str, &str); 2])] = &[
    (
        "train",
        [
            ("train {preset} --ranks 2 --out runs/first", "two ranks on this machine"),
            ("train --resume --out runs/first", "continue it from its newest checkpoint"),
        ],
    ),
    (
        "plan",
        [
            ("plan {preset} --ranks 4", "memory and traffic of each strategy"),
            ("plan {preset} --ranks 8 --strategy fsdp --json", "the same for scripts"),
        ],
    ),
    (
        "find-lr",
        [
            ("find-lr {preset}", "a learning rate for a preset, with a picture of the losses"),
            ("find-lr {preset} --from 1e-5 --to 1 --steps 400 --json", "a closer look, for scripts"),
        ],
    ),
    (
        "config",
        [
            ("config list", "the presets"),
            ("config show {preset}", "all keys of a preset with their meanings"),
        ],
    ),
    (
        "data",
        [
            ("data check --data folder=photos", "read every image of a folder of class folders"),
            ("data write --data shapes --per-class 50 --out photos", "embedded images as class folders"),
        ],
    ),
    (
        "tokens",
        [
            ("tokens learn book.txt --vocab 4096 --out tokenizer.json", "a tokenizer of one's own text"),
            (
                "tokens encode book.txt --tokenizer tokenizer.json --out tokens",
                "files of tokens for training",
            ),
        ],
    ),
    (
        "watch",
        [
            ("watch runs/first", "the dashboard of a run"),
            ("watch runs/first --ask save", "have it save a checkpoint now"),
        ],
    ),
    (
        "report",
        [
            ("report runs/first", "write runs/first/report.html"),
            ("report runs/first runs/second --out both.html", "two runs compared"),
        ],
    ),
    (
        "serve",
        [
            ("serve", "the runs in the folder runs, at http://127.0.0.1:7007"),
            ("serve runs/sweep --port 8080", "another folder, another port"),
        ],
    ),
    (
        "track",
        [
            ("track runs/first --to mlflow=mlruns", "write the run into MLflow's file store"),
            ("track runs/a runs/b --to mlflow=mlruns --experiment rates", "two runs of one experiment"),
        ],
    ),
    (
        "trace",
        [
            ("trace summary runs/first", "waiting, overlap and the slowest rank of a traced run"),
            ("trace summary runs/first --json", "the same for scripts"),
        ],
    ),
    (
        "diagnose",
        [
            ("diagnose runs/first", "the rank at fault"),
            ("diagnose runs/first --stacks", "with the stacks of all ranks"),
        ],
    ),
    (
        "eval",
        [
            ("eval runs/first", "measures on the test split, of each class too"),
            ("eval runs/first --best --data folder=photos", "the best checkpoint, on other images"),
        ],
    ),
    (
        "predict",
        [
            ("predict runs/first photos", "the class and probability of each image"),
            ("predict runs/first photos --json --top 3", "the three most probable classes, for scripts"),
        ],
    ),
    (
        "sample",
        [
            ("sample runs/first --prompt \"a red circle\" --columns 4 --out grid.png", "four for a prompt"),
            (
                "sample runs/first runs/second --prompt one --prompt two --out both.png",
                "a row for each model",
            ),
        ],
    ),
    (
        "explain",
        [
            ("explain runs/first", "what the model reads in captions, and where it looks"),
            ("explain runs/first --samples 512 --pictures 0 --json", "the numbers, for scripts"),
        ],
    ),
    (
        "write",
        [
            ("write runs/first --prompt \"Once upon\" --tokens 100", "continue a text"),
            (
                "write runs/first --prompt \"Once upon\" --beams 4 --samples 2",
                "the two most probable continuations",
            ),
        ],
    ),
    (
        "translate",
        [
            ("translate runs/first \"a cat sees a bird .\"", "translate a text"),
            (
                "translate runs/first --file lines.txt --beams 1 --json",
                "each line, the most probable word each time",
            ),
        ],
    ),
    (
        "export",
        [
            ("export runs/first --out model.safetensors", "the weights under PyTorch's names"),
            ("export runs/first --out model.onnx", "for ONNX Runtime"),
        ],
    ),
    (
        "hash",
        [
            ("hash runs/first", "one line that is equal for equal weights"),
            ("hash runs/first --history", "of all its checkpoints"),
        ],
    ),
    (
        "sweep",
        [
            ("sweep sweep.toml --dry-run", "list the runs"),
            ("sweep sweep.toml --parallel 2", "train them, two at a time"),
        ],
    ),
    ("study", [("study", "list the studies"), ("study {study} --quick", "its short form")]),
    (
        "submit",
        [
            ("submit {preset} --nodes 2 --ranks-per-node 4 --time 2:00:00 --requeue", "a job of SLURM"),
            ("submit {preset} --nodes 2 --dry-run", "its script"),
        ],
    ),
    (
        "status",
        [("status", "all runs that were submitted"), ("status runs/first --json", "one run, for scripts")],
    ),
    (
        "logs",
        [
            ("logs runs/first --follow", "the job's output as it grows"),
            ("logs runs/first --rank 1", "the log of a rank"),
        ],
    ),
    (
        "cancel",
        [
            ("cancel runs/first", "save and end"),
            ("cancel --joined runs/first", "only the jobs that joined it"),
        ],
    ),
    (
        "join",
        [
            ("join runs/first", "one more rank for an elastic run"),
            ("train {preset} --elastic 1:4 --out runs/first", "the run that it joins"),
        ],
    ),
    (
        "leave",
        [
            ("leave runs/first --rank 2", "one rank leaves"),
            ("leave runs/first --host node7", "all ranks of a host leave"),
        ],
    ),
    (
        "doctor",
        [
            ("doctor", "this machine in short"),
            ("doctor --verbose", "libraries, kernels and CPU features too"),
        ],
    ),
    (
        "completions",
        [
            ("completions bash > ~/.local/share/bash-completion/completions/{program}", "for bash"),
            ("completions zsh", "for zsh"),
        ],
    ),
    ("man", [("man man1", "write the manual pages into the folder man1"), ("man .", "into this folder")]),
];

/// The names that examples of a program contain.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExampleNames<'a> {
    pub(super) program: &'a str,
    /// The default preset, if the program has presets.
    pub(super) preset: Option<&'a str>,
    /// The first study, if there is one.
    pub(super) study: Option<&'a str>,
}

impl ExampleNames<'_> {
    /// Returns an example with these names, without the program's own at its beginning.
    pub(super) fn fill(self, example: &str) -> String {
        let preset = self.preset.map_or_else(String::new, |preset| format!(" {preset}"));
        example
            .replace(" {preset}", &preset)
            .replace("{study}", self.study.unwrap_or("NAME"))
            .replace("{program}", self.program)
    }
}

/// Adds the grouped list of commands to the program's help, and examples to each command's.
pub(super) fn complete(command: Command, names: ExampleNames<'_>) -> Command {
    let list = grouped(&command);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}\nOptions:\n{{options}}{{after-help}}"
    );
    let command = command.help_template(template);
    EXAMPLES.iter().fold(command, |command, (name, examples)| {
        let lines: Vec<String> = examples.iter().map(|(line, _)| names.fill(line)).collect();
        let width = lines.iter().map(String::len).max().unwrap_or_default().min(72);
        let rows = lines.iter().zip(examples).map(|(line, (_, purpose))| {
            let line = format!("{} {line}", names.program);
            format!("  {line:<0$}  # {purpose}", width + names.program.len() + 1)
        });
        let text = format!("Examples:\n{}", rows.collect::<Vec<_>>().join("\n"));
        command.mut_subcommand(*name, |command| command.after_help(text))
    })
}

/// Renders the visible commands by groups. Commands of no group come last.
fn grouped(command: &Command) -> String {
    let visible = |name: &str| command.find_subcommand(name).filter(|command| !command.is_hide_set());
    let names = GROUPS.iter().flat_map(|(_, names)| *names);
    let width = names.map(|name| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text.push_str(&format!("{heading}:\n"));
        for command in names.iter().filter_map(|name| visible(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {:<width$}  {}\n", command.get_name(), brief(&about)));
        }
    }
    text
}

/// Returns the first clause of a description: up to its first period or colon, of a long one up to its first comma.
fn brief(about: &str) -> &str {
    const LONGEST: usize = 80;
    let first = about.split(". ").next().unwrap_or_default().split(": ").next().unwrap_or_default();
    let first = first.trim_end_matches('.');
    if first.len() > LONGEST { first.split(", ").next().unwrap_or_default() } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::command_line;

    #[test]
    fn each_command_is_in_one_group_and_has_examples() {
        let command = command_line();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            assert_eq!(grouped.iter().filter(|grouped| **grouped == name).count(), 1, "group of {name}");
            assert!(EXAMPLES.iter().any(|(of, _)| *of == name), "examples of {name}");
        }
        for name in grouped.into_iter().chain(EXAMPLES.iter().map(|(name, _)| *name)) {
            assert!(command.find_subcommand(name).is_some(), "{name} is no command");
        }
    }

    #[test]
    fn examples_are_accepted() {
        let names = ExampleNames { program: "phalanx", preset: Some("tiny"), study: Some("codecs") };
        for (_, examples) in EXAMPLES {
            for (line, _) in examples {
                let line = names.fill(line);
                let line = line.split(" > ").next().unwrap_or_default();
                let words = shell_words(line);
                let parsed =
                    command_line().try_get_matches_from(["phalanx".to_owned()].into_iter().chain(words));
                assert!(
                    parsed.is_ok(),
                    "{line}: {}",
                    parsed.err().map(|error| error.to_string()).unwrap_or_default()
                );
            }
        }
    }

    /// Splits at spaces outside of double quotes.
    fn shell_words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for character in line.chars() {
            match character {
                '"' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                _ => words.last_mut().expect("never empty").push(character),
            }
        }
        words
    }

    #[test]
    fn programs_without_presets_have_examples_without_them() {
        let names = ExampleNames { program: "own_gan", preset: None, study: None };
        assert_eq!(names.fill("train {preset} --ranks 2"), "train --ranks 2");
        assert_eq!(names.fill("config show {preset}"), "config show");
    }
}
