//! Step times predicted by the cost model from one rank's computation: for measured rows, and for rows that are not
//! trained.

use phalanx_sharding::{ClusterModel, ComputeTimes, MemoryPlan};

use super::compared::is_base;
use super::outcome::Outcome;
use super::table::Outcomes;
use super::trials::{Table, Trial};

/// The facts about a run that a prediction needs.
#[derive(Debug, Clone, PartialEq)]
pub struct RunPlan<'a> {
    /// The memory and messages of its strategy.
    pub plan: MemoryPlan,
    /// The links between its ranks.
    pub cluster: ClusterModel<'a>,
    /// Images of a step on each rank.
    pub share: f64,
    /// A key of its computation: runs with equal keys compute the same for each image.
    pub computes: String,
}

/// Predicts the steps of a table's runs, as `predicted_step_ms` and its parts, from the run of the same seed in the row
/// that its file names: one rank alone. Other runs of one rank with the same computation and other batches, of any
/// table, give the part of a step that does not grow with its images. `plan` describes a run by its index; without a
/// description nothing is predicted.
pub fn predict<'a>(table: &Table, outcomes: &mut Outcomes, plan: impl Fn(usize) -> Option<RunPlan<'a>>) {
    if table.predict.is_empty() {
        return;
    }
    for trial in &table.trials {
        let tells = |other: &&Trial| is_base(&table.predict, &table.axes, &trial.choices, &other.choices);
        let Some(base) = table.trials.iter().find(tells) else { continue };
        for (run, base) in trial.runs.iter().zip(&base.runs) {
            let (Some(of_base), Some(of_run)) = (plan(*base), plan(*run)) else { continue };
            let Some(alone) = step_of(outcomes, *base) else { continue };
            let mut measured = vec![(of_base.share, alone)];
            for other in (0..outcomes.len()).filter(|other| other != base) {
                let Some(of_other) = plan(other).filter(|of| is_alone(of) && of.computes == of_base.computes)
                else {
                    continue;
                };
                measured.extend(step_of(outcomes, other).map(|seconds| (of_other.share, seconds)));
            }
            let Some(computing) = ComputeTimes::of_share(&measured, of_run.share) else { continue };
            let Some(time) = of_run.plan.step_time(computing, &of_run.cluster) else { continue };
            let Ok(outcome) = outcomes[*run].get_or_insert_with(|| Ok(Outcome::default())) else { continue };
            let ranks = of_run.cluster.hosts.iter().sum::<usize>() as f64;
            outcome.numbers.entry("ranks".to_owned()).or_insert(ranks);
            outcome.numbers.insert("predicted_step_ms".to_owned(), 1e3 * time.whole);
            outcome.numbers.insert("predicted_communication_ms".to_owned(), 1e3 * time.communication);
            outcome.numbers.insert("predicted_exposed".to_owned(), time.exposed / time.whole);
        }
    }
}

/// Seconds of a run's step, if it was measured.
fn step_of(outcomes: &Outcomes, run: usize) -> Option<f64> {
    Some(outcomes[run].as_ref()?.as_ref().ok()?.numbers.get("step_ms")? / 1e3)
}

fn is_alone(of: &RunPlan<'_>) -> bool {
    of.cluster.hosts.iter().sum::<usize>() == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_collectives::{Algorithm, CostModel, LinkCost, LinkCosts};
    use phalanx_sharding::{Strategy, Workload};

    #[test]
    fn rows_are_predicted_from_one_rank_alone() {
        let cost = LinkCost { alpha: 0.0, beta: 1e-8 };
        let link = Some(LinkCosts { busy: cost, alone: cost });
        let costs = CostModel { direct: None, local: link, remote: link, gamma: 0.0 };
        let hosts: Vec<Vec<usize>> = vec![vec![1], vec![2], vec![4], vec![1], vec![1]];
        let plan = |run: usize| {
            let ranks = hosts[run][0];
            let workload = Workload { ranks, ..Workload::default() };
            let ddp = Strategy::named("ddp").expect("known");
            let made = MemoryPlan::new(&[], ddp, &workload).expect("fits");
            let plan = MemoryPlan { buckets: vec![vec![10_000_000]], ..made };
            let (hosts, algorithm) = (&hosts[run][..], Algorithm::Ring);
            let cluster = ClusterModel { costs: &costs, hosts, algorithm, overlaps: true, scattered: 0 };
            // The fourth is one rank with less to do, of another table, and the fifth computes something else.
            let (share, computes) = match run {
                3 => (8.0, "a".to_owned()),
                4 => (4.0, "b".to_owned()),
                _ => (32.0 / ranks as f64, "a".to_owned()),
            };
            Some(RunPlan { plan, cluster, share, computes })
        };
        let trial =
            |ranks: &str, run| Trial { choices: vec![ranks.into()], runs: vec![run], ..Trial::default() };
        let table = Table {
            axes: vec!["ranks".into()],
            predict: [("ranks".to_owned(), toml::Value::Integer(1))].into(),
            trials: vec![trial("1", 0), trial("2", 1), trial("4", 2)],
            ..Table::default()
        };
        let measured = |ms: f64| {
            Some(Ok(Outcome { numbers: [("step_ms".to_owned(), ms)].into(), ..Outcome::default() }))
        };
        let mut outcomes = [measured(1000.0), measured(700.0), None];
        predict(&table, &mut outcomes, plan);
        let number = |run: usize, name: &str| {
            let outcome = outcomes[run].as_ref().expect("known").as_ref().expect("sound");
            outcome.numbers[name]
        };
        // 10 MB among two take 100 ms by ring, among four 150.
        for (run, ms) in [1000.0, 600.0, 400.0].into_iter().enumerate() {
            let found = number(run, "predicted_step_ms");
            assert!((found - ms).abs() < 1e-6, "{run}: {found}");
        }
        assert_eq!(number(1, "step_ms"), 700.0, "what was measured stays");
        assert_eq!(number(2, "ranks"), 4.0);
        assert!((number(2, "predicted_communication_ms") - 150.0).abs() < 1e-6);
        assert!((number(2, "predicted_exposed") - 150.0 / 400.0).abs() < 1e-6);
        // One rank with a quarter of the images needs more than a quarter: 120 ms of every step are not the images'.
        let mut more = [measured(1000.0), measured(700.0), None, measured(340.0), measured(900.0)];
        predict(&table, &mut more, plan);
        let told = more[2].as_ref().expect("known").as_ref().expect("sound").numbers["predicted_step_ms"];
        assert!((told - 340.0 - 150.0).abs() < 1e-6, "{told}");
        let mut failed = [Some(Err("no memory".to_owned())), measured(700.0), None];
        predict(&table, &mut failed, plan);
        assert_eq!(failed[2], None, "from nothing nothing is predicted");
    }
}
