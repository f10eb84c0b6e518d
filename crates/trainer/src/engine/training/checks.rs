//! Checks of a training: phases, networks, and their names.

use super::phase::{Phase, TrainingOutline};
use crate::engine::distributed::Network;

/// Checks that phases and networks match.
pub(super) fn check(phases: &[&Phase], networks: &[Network]) -> Result<(), String> {
    if networks.is_empty() {
        return Err("the training has no network; Setup::model registers one".to_owned());
    }
    if phases.is_empty() {
        return Err("the training has no phase; Training::loss adds one".to_owned());
    }
    for (at, phase) in phases.iter().enumerate() {
        if phases[..at].iter().any(|other| other.name == phase.name) {
            return Err(format!("two phases have the name `{}`", phase.name));
        }
        if phase.name.is_empty() && phases.len() > 1 {
            return Err("of several phases each needs a name: use Training::phase for all".to_owned());
        }
        for name in &phase.updates {
            match networks.iter().find(|network| network.name() == name) {
                None => {
                    let there = list(networks.iter().map(Network::name));
                    let phase = &phase.name;
                    return Err(format!(
                        "phase `{phase}` updates `{name}`, which is no network; there is: {there}"
                    ));
                }
                Some(network) if !network.is_learnt() => {
                    return Err(format!("phase `{}` updates `{name}`, which is not learnt", phase.name));
                }
                Some(_) => {}
            }
        }
    }
    if !networks.iter().any(Network::is_learnt) {
        return Err("no network of the training is learnt".to_owned());
    }
    check_spans(phases)?;
    let updated = |network: &&Network| phases.iter().any(|phase| phase.updates(network.name()));
    match networks.iter().filter(|network| network.is_learnt()).find(|network| !updated(network)) {
        Some(network) => Err(format!(
            "no phase updates network `{}`; one that is not to be learnt is registered by Setup::frozen_network",
            network.name()
        )),
        None => Ok(()),
    }
}

/// Checks that measures of the evaluation have different names, the headline among them, and that a classifier has classes.
pub(super) fn check_evaluation(outline: &TrainingOutline) -> Result<(), String> {
    let names = outline.names();
    if let Some(at) = (0..names.len()).find(|at| names[..*at].contains(&names[*at])) {
        return Err(format!("the evaluation has two measures of the name `{}`", names[at]));
    }
    if let Some(headline) = outline.headline.as_ref().filter(|headline| !names.contains(headline)) {
        let there = list(names.iter().map(String::as_str));
        return Err(format!("the headline `{headline}` is no measure of the evaluation; there is: {there}"));
    }
    match &outline.classes {
        Some(classes) if classes.number() == 0 => {
            Err("the training is a classifier of no classes".to_owned())
        }
        _ => Ok(()),
    }
}

/// Checks that each step of the run has a phase, and that phases measure what they watch.
fn check_spans(phases: &[&Phase]) -> Result<(), String> {
    for Phase { name, span: [from, to], measures, watched, .. } in phases {
        if !(*from >= 0.0 && from < to && *to <= 1.0) {
            return Err(format!("phase `{name}` is during {from} to {to}, which is no part of 0 to 1"));
        }
        let strange = watched.iter().flatten().find(|watched| !measures.contains(watched));
        if let Some(strange) = strange {
            return Err(format!("phase `{name}` watches `{strange}`, which it does not measure"));
        }
    }
    let mut spans: Vec<[f64; 2]> = phases.iter().map(|phase| phase.span).collect();
    spans.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let mut covered = 0.0;
    for [from, to] in spans {
        if from > covered {
            return Err(format!("no phase is during {covered} to {from} of the run"));
        }
        covered = to.max(covered);
    }
    if covered < 1.0 { Err(format!("no phase is during {covered} to 1 of the run")) } else { Ok(()) }
}

/// Formats names as a list.
pub(super) fn list<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
