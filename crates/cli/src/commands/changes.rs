//! The proposal of a resumption: the keys that it changes, and what each change does.

use std::collections::BTreeMap;

use phalanx_config::{Config, Resolved, diff};
use phalanx_run::RunFolder;
use toml::Value;

use super::error::CliError;
use super::resolve::configuration_of;
use super::train_args::Reset;
use crate::Program;
use crate::console::err;

/// Reports the keys that a resumption changes and writes its proposal. A resumption that is refused must not change what the run has:
/// rank 0 accepts the proposal after everything was checked.
pub(super) fn propose(
    program: &Program,
    folder: &RunFolder,
    resolved: &Resolved,
    reset: Option<Reset>,
) -> Result<(), CliError> {
    report_changes(program, folder, resolved)?;
    // A killed attempt may have left one.
    folder.withdraw_proposal();
    resolved.write(&folder.proposed_config()).map_err(CliError::failed)?;
    if reset == Some(Reset::Optimizer) {
        std::fs::write(folder.proposed_reset(), "optimizer\n").map_err(CliError::failed)?;
    }
    Ok(())
}

/// Reports the keys by which a resumption differs from the run so far, with the first sentence of their meaning and the effect.
fn report_changes(program: &Program, folder: &RunFolder, resolved: &Resolved) -> Result<(), CliError> {
    let before = configuration_of(program, folder)?;
    refuse_weights(&before.config, &resolved.config, folder.saved().exists())?;
    for line in changes(&before.config, &resolved.config) {
        err(&format!("changed: {line}"));
    }
    Ok(())
}

/// Refuses other weights to begin with in a run that has saved a checkpoint: it would not read them.
fn refuse_weights(before: &Config, after: &Config, has_saved: bool) -> Result<(), CliError> {
    let read = |config: &Config| {
        [("model.weights", config.model.weights.clone()), ("lora.from", config.lora.from.clone())]
    };
    let changed = read(before).into_iter().zip(read(after)).find(|(before, after)| before != after);
    match changed.filter(|_| has_saved) {
        Some(((key, before), (_, after))) => Err(CliError::Usage(format!(
            "{key} = {after:?} (was {before:?}): a run reads weights before step 1 only, and this one goes on from its checkpoint; \
             begin a new run with --out, or this one again with --restart"
        ))),
        None => Ok(()),
    }
}

fn changes(before: &Config, after: &Config) -> Vec<String> {
    let meanings: BTreeMap<String, String> =
        after.keys().into_iter().map(|key| (key.path, key.meaning)).collect();
    let shown = |value: Option<Value>| value.map_or_else(|| "absent".to_owned(), |value| value.to_string());
    let line = |(path, before, after): (String, Option<Value>, Option<Value>)| {
        let meaning = meanings.get(&path).map_or("", String::as_str);
        let meaning = meaning.split_once(['.', ';', ':']).map_or(meaning, |(first, _)| first);
        let effect = effect(&path).map(|effect| format!("; {effect}")).unwrap_or_default();
        format!("{path} = {} (was {}): {meaning}{effect}", shown(after), shown(before))
    };
    diff(before, after).into_iter().map(line).collect()
}

/// The effects of changes on the steps that follow: keys, or sections with a dot at the end. The first that fits counts.
const EFFECTS: &[(&str, &str)] = &[
    ("optim.kind", "optimizer state continues only if both keep the same kinds, as adam, adamw and lamb do"),
    ("optim.momentum", "the momentum so far continues, unless one of the two is 0"),
    (
        "optim.freeze",
        "counts from the next step on; parameters that are trained anew begin with fresh optimizer state",
    ),
    ("optim.unfreeze_step", "counts for the steps that follow; before the next one it unfreezes at once"),
    ("optim.unfreeze_epoch", "counts for the steps that follow; before the next one it unfreezes at once"),
    ("optim.", "counts from the next step on"),
    ("lora.alpha", "adapters so far count by the new factor from the next step on"),
    (
        "schedule.",
        "learning rates from the next step on follow the new schedule, as if it had always been this one",
    ),
    (
        "train.seed",
        "order of samples, augmentation, dropout and noise are drawn by it from the next step on; weights stay",
    ),
    (
        "train.global_batch",
        "an epoch has another number of steps: the next step takes its samples by the new count",
    ),
    ("train.steps", "the learning-rate schedule ends at another step, so rates change from the next step on"),
    (
        "train.epochs",
        "the learning-rate schedule ends at another step, so rates change from the next step on",
    ),
    (
        "train.tokens",
        "the learning-rate schedule ends at another step, so rates change from the next step on",
    ),
    ("train.ema", "averages so far continue; with 0 they end, and after 0 they begin with the weights"),
    ("train.ranks", "parameters and state are distributed anew"),
    ("train.strategy", "parameters and state are distributed anew; state of the strategy itself begins anew"),
    ("train.precision", "weights and state continue, computed with other rounding"),
    ("train.logical_ranks", "sums have another order, so bits differ from the run so far"),
    ("data.kind", "training continues on other data, at the same position by number of samples"),
    ("data.path", "training continues on the data of that path, at the same position by number of samples"),
    ("data.", "samples from the next step on are read by it"),
    ("model.new_head", "has no effect: weights were read before step 1"),
    ("model.", "must fit the parameters of the checkpoint"),
    ("codec.", "gradients are compressed by it from the next step on"),
    ("sync.", "counts from the next step on"),
    ("eval.", "measures before and after need not be comparable"),
];

fn effect(path: &str) -> Option<&'static str> {
    let fits = |known: &str| path == known || (known.ends_with('.') && path.starts_with(known));
    EFFECTS.iter().find(|(known, _)| fits(known)).map(|(_, effect)| *effect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_are_listed_with_both_values_and_their_meaning() {
        let before = Config::default();
        assert_eq!(changes(&before, &before), [""; 0]);
        let mut after = before.clone();
        (after.optim.lr, after.train.seed) = (0.5, 3);
        let lines = changes(&before, &after);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("train.seed = 3 (was 0): "), "{lines:?}");
        assert_eq!(
            lines[1],
            "optim.lr = 0.5 (was 0.001): The peak learning rate; counts from the next step on"
        );
    }

    #[test]
    fn other_weights_are_refused_once_a_checkpoint_was_saved() {
        let (before, mut after) = (Config::default(), Config::default());
        assert!(refuse_weights(&before, &after, true).is_ok());
        after.model.weights = "/other.safetensors".to_owned();
        assert!(refuse_weights(&before, &after, false).is_ok());
        let error = refuse_weights(&before, &after, true).expect_err("refused").to_string();
        let words = ["model.weights = \"/other.safetensors\" (was \"\")", "before step 1", "--restart"];
        assert!(words.iter().all(|words| error.contains(words)), "{error}");
    }
}
