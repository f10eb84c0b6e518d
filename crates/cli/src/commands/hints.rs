//! Hints for options and words that other programs have: the option or key by which this one does the same.

use std::sync::Arc;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use phalanx_config::Catalogue;

/// Options of other programs, and what is written here. `{}` is the value.
const OPTIONS: &[(&str, &str)] = &[
    ("amp", "--set train.precision=bf16"),
    ("bf16", "--set train.precision=bf16"),
    ("fp16", "--set train.precision=f16"),
    ("batch", "--set train.global_batch={}"),
    ("batch-size", "--set train.global_batch={}"),
    ("checkpoint-dir", "--out DIR"),
    ("clip-grad", "--set train.clip_norm={}"),
    ("clip-grad-norm", "--set train.clip_norm={}"),
    ("grad-clip", "--set train.clip_norm={}"),
    ("data-dir", "--data folder={}"),
    ("data-path", "--data folder={}"),
    ("dataset", "--data KIND=PATH"),
    ("gpus", "--ranks {} --set train.device=cuda"),
    ("grad-accum", "--set train.accumulate={}"),
    ("gradient-accumulation-steps", "--set train.accumulate={}"),
    ("learning-rate", "--set optim.lr={}"),
    ("max-epochs", "--set train.epochs={}"),
    ("max-steps", "--set train.steps={}"),
    ("model", "--set model.kind={}"),
    ("arch", "--set model.kind={}"),
    ("name", "--out runs/{}"),
    ("nproc", "--ranks {}"),
    ("num-epochs", "--set train.epochs={}"),
    ("num-gpus", "--ranks {} --set train.device=cuda"),
    ("num-processes", "--ranks {}"),
    ("num-workers", "--set data.workers={}"),
    ("optimizer", "--set optim.kind={}"),
    ("optim", "--set optim.kind={}"),
    ("output", "--out {}"),
    ("output-dir", "--out {}"),
    ("save-dir", "--out {}"),
    ("resume-from", "--resume --out {}"),
    ("resume-from-checkpoint", "--resume --out {}"),
    ("scheduler", "--set schedule.kind={}"),
    ("wd", "--set optim.weight_decay={}"),
    ("world-size", "--ranks {}"),
];

/// Options of `train` in place of which a job has others.
const OF_JOBS: &[(&str, &str)] = &[
    ("ranks", "--nodes times --ranks-per-node is the number of ranks"),
    ("hosts", "a job gets its hosts from the cluster; take --nodes N"),
    ("nnodes", "take --nodes and --ranks-per-node"),
    ("restart", "a job takes a new run, or --resume; `train --restart` starts a run again"),
    ("tui", "a job has no terminal; look at the run with `watch RUN`"),
    ("interrupted-code", "take --requeue, which queues the job again"),
    ("trace", "take --set log.trace=A..B"),
    ("gres", "take --gpus-per-node N"),
    ("gpus", "take --gpus-per-node N"),
    ("cpus-per-task", "take --cpus-per-rank N"),
    ("ntasks-per-node", "take --ranks-per-node N"),
];

/// Words that other programs have for commands.
const COMMANDS: &[(&str, &str)] = &[
    ("continue", "train --resume --out RUN"),
    ("dashboard", "watch RUN"),
    ("env", "doctor"),
    ("evaluate", "eval RUN"),
    ("fit", "train"),
    ("finetune", "train"),
    ("generate", "sample RUN --prompt TEXT --out FILE.png"),
    ("infer", "predict RUN IMAGES"),
    ("info", "doctor"),
    ("kill", "cancel RUN"),
    ("launch", "train"),
    ("list", "config list"),
    ("ls", "serve"),
    ("presets", "config list"),
    ("resume", "train --resume --out RUN"),
    ("run", "train"),
    ("start", "train"),
    ("stop", "watch RUN --ask stop"),
    ("tensorboard", "serve"),
    ("test", "eval RUN"),
    ("torchrun", "train --ranks N"),
    ("validate", "eval RUN"),
    ("version", "--version"),
];

/// Adds a hint to the error of a command line, if one is known.
pub(super) fn add(error: &mut clap::Error, command: &Command, catalogue: &Arc<Catalogue>, words: &[String]) {
    let text = |error: &clap::Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let name = command.get_name().to_owned();
    let hint = match error.kind() {
        ErrorKind::UnknownArgument => {
            let Some(argument) = text(error, ContextKind::InvalidArg) else { return };
            let Some(of) = words.iter().find_map(|word| command.find_subcommand(word)) else { return };
            of_option(of, catalogue, &argument, value_of(words, &argument))
        }
        ErrorKind::InvalidSubcommand => {
            let Some(word) = text(error, ContextKind::InvalidSubcommand) else { return };
            let found = COMMANDS.iter().find(|(known, _)| *known == word);
            found.map(|(_, instead)| format!("use `{name} {instead}`"))
        }
        _ => None,
    };
    if let Some(hint) = hint {
        // Suggestions by spelling alone would contradict it.
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedValue);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
}

/// Returns the value that the user gave an unknown option.
fn value_of<'a>(words: &'a [String], argument: &str) -> Option<&'a str> {
    let name = argument.split_once('=').map_or(argument, |(name, _)| name);
    let at =
        words.iter().position(|word| word.split_once('=').map_or(word.as_str(), |(name, _)| name) == name)?;
    match words[at].split_once('=') {
        Some((_, value)) => Some(value),
        None => words.get(at + 1).map(String::as_str).filter(|next| !next.starts_with('-')),
    }
}

/// Returns the hint for an option that `command` lacks.
fn of_option(
    command: &Command,
    catalogue: &Arc<Catalogue>,
    argument: &str,
    value: Option<&str>,
) -> Option<String> {
    let name = argument.split_once('=').map_or(argument, |(name, _)| name).trim_start_matches('-');
    if command.get_name() == "submit"
        && let Some((_, hint)) = OF_JOBS.iter().find(|(known, _)| *known == name)
    {
        return Some((*hint).to_owned());
    }
    let has = |option: &str| command.get_arguments().any(|argument| argument.get_long() == Some(option));
    let known = OPTIONS.iter().find(|(known, _)| *known == name).map(|(_, instead)| *instead);
    if let Some(instead) = known.filter(|instead| has(first_option(instead))) {
        return Some(format!("use {}", instead.replace("{}", value.unwrap_or("VALUE"))));
    }
    if !has("set") {
        return None;
    }
    let keys = keys_called(catalogue, &name.replace('-', "_"));
    let value = value.unwrap_or("VALUE");
    let options: Vec<String> = keys.iter().map(|key| format!("--set {key}={value}")).collect();
    (!options.is_empty()).then(|| format!("use {}", options.join(" or ")))
}

/// Returns the name of the first option in a text.
fn first_option(text: &str) -> &str {
    let word = text.split_whitespace().next().unwrap_or_default();
    word.trim_start_matches('-')
}

/// Returns up to three keys of a configuration whose last part is `name`.
fn keys_called(catalogue: &Arc<Catalogue>, name: &str) -> Vec<String> {
    let resolved = catalogue.resolve(catalogue.default_preset(), &[]);
    let keys = resolved.map(|resolved| resolved.config.keys()).unwrap_or_default();
    let paths = keys.into_iter().map(|key| key.path);
    let is_meant = |path: &String| path.rsplit('.').next() == Some(name) || *path == name;
    paths.filter(is_meant).take(3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::command_line;

    fn said(line: &str) -> String {
        let catalogue = Arc::new(Catalogue { program: "phalanx".to_owned(), ..Catalogue::default() });
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let all = ["phalanx".to_owned()].into_iter().chain(words.clone());
        let mut error = command_line().try_get_matches_from(all).expect_err("not accepted");
        add(&mut error, &command_line(), &catalogue, &words);
        error.to_string()
    }

    #[test]
    fn options_of_other_programs_lead_to_keys() {
        for (line, hint) in [
            ("train --lr 3", "use --set optim.lr=3"),
            ("train --lr=3e-4 --ranks 2", "use --set optim.lr=3e-4"),
            ("train --batch-size 128", "use --set train.global_batch=128"),
            ("train --gpus 4", "use --ranks 4 --set train.device=cuda"),
            ("train --seed", "use --set train.seed=VALUE"),
            ("train --output-dir x", "use --out x"),
            ("train --weight-decay 0.1", "use --set optim.weight_decay=0.1"),
            ("submit --ranks 2", "--nodes times --ranks-per-node"),
            ("submit --restart", "train --restart"),
            ("submit --cpus-per-task 2", "--cpus-per-rank"),
            ("fit", "use `phalanx train`"),
            ("generate x", "use `phalanx sample RUN"),
        ] {
            let said = said(line);
            assert!(said.contains(hint), "{line}: {said}");
        }
    }

    #[test]
    fn hints_name_options_that_the_command_has() {
        let command = command_line();
        let train = command.find_subcommand("train").expect("exists");
        let has = |option: &str| train.get_arguments().any(|argument| argument.get_long() == Some(option));
        for (option, instead) in OPTIONS {
            assert!(has(first_option(instead)), "--{option}: {instead}");
            assert!(!has(option), "--{option} exists");
        }
        for (word, instead) in COMMANDS {
            let name = instead.split(' ').next().unwrap_or_default();
            assert!(name == "--version" || command.find_subcommand(name).is_some(), "{word}: {instead}");
            assert!(command.find_subcommand(word).is_none(), "{word} exists");
        }
    }

    #[test]
    fn unknown_words_stay_plain_errors() {
        let said = said("hash --lr 3");
        assert!(!said.contains("optim.lr"), "{said}");
    }
}
