//! Variables of SLURM: the rank of a step, and the job that it belongs to.

use std::time::{Duration, SystemTime};

use super::rank_info::{RankInfo, RankNumbers, RankZeroHost};
use super::variables::{Variables, is_on, number, port};
use crate::error::{EnvironmentError, Result};

/// Reads the rank that the variables of a step of `srun` describe.
pub(super) fn rank_info(get: Variables<'_>, node_address: &dyn Fn(&str) -> String) -> Result<RankInfo> {
    let numbers = RankNumbers::read(get, ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"], None)?;
    let node = number(get, "SLURM_NODEID")?.unwrap_or(0);
    let per_node = get("SLURM_STEP_TASKS_PER_NODE").or_else(|| get("SLURM_TASKS_PER_NODE"));
    let local_world_size = per_node
        .and_then(|list| tasks_of_node(&list, node))
        .or_else(|| number(get, "SLURM_NTASKS_PER_NODE").ok().flatten());
    let numbers = RankNumbers { local_world_size, ..numbers };
    let rank_0 = RankZeroHost::given_or_local(get, &numbers)
        .or_else(|| first_node(get, &NODES_OF_STEP).map(|node| RankZeroHost::at(node_address(&node))))
        .ok_or_else(|| {
            EnvironmentError::new(
                "MASTER_ADDR",
                "is not set, and SLURM lists no nodes; it is the host of rank 0",
            )
        })?;
    let restart = get("SLURM_RESTART_COUNT").unwrap_or_default();
    let step = get("SLURM_STEP_ID").unwrap_or_default();
    let job = get("SLURM_JOB_ID").map(|job| format!("slurm {job}.{step} {restart}")).unwrap_or_default();
    Ok(numbers.with(job, port(get, "MASTER_PORT")?, rank_0))
}

/// The variables that list the nodes of a step, or else of its allocation.
const NODES_OF_STEP: [&str; 3] = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];

/// Returns the first node of the first of these lists that is set: that of rank 0.
pub(super) fn first_node(get: Variables<'_>, lists: &[&str]) -> Option<String> {
    lists.iter().find_map(|list| get(list)).map(|list| first_host(&list))
}

/// Returns the first host of SLURM's list: `gpu[03-07,9],login1` begins with `gpu03`.
fn first_host(list: &str) -> String {
    match (list.find('['), list.find(',')) {
        (Some(bracket), comma) if comma.is_none_or(|comma| bracket < comma) => {
            let inside = &list[bracket + 1..];
            let end = inside.find([',', '-', ']']).unwrap_or(inside.len());
            format!("{}{}", &list[..bracket], &inside[..end])
        }
        (_, Some(comma)) => list[..comma].to_owned(),
        (_, None) => list.to_owned(),
    }
}

/// Returns the number of tasks of a node in SLURM's list: `2(x3),1` gives three nodes two tasks and the fourth one.
fn tasks_of_node(list: &str, node: u64) -> Option<u64> {
    let mut first = 0_u64;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.trim_end_matches(')').parse().ok()?),
            None => (part, 1),
        };
        let end = first.saturating_add(nodes);
        if (first..end).contains(&node) {
            return tasks.trim().parse().ok();
        }
        first = end;
    }
    None
}

/// The SLURM job of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmJob {
    /// The number that `squeue --jobs` takes: `9`, or `9_3` for task 3 of an array.
    pub id: String,
    /// The time when the job ends. Only newer versions of SLURM tell.
    pub end: Option<SystemTime>,
}

impl SlurmJob {
    /// Returns the job whose variables `get` returns; `None` outside of a job.
    pub fn from_variables(get: Variables<'_>) -> Option<Self> {
        // The last task of an array has the number of the array itself.
        let task = get("SLURM_ARRAY_JOB_ID").zip(get("SLURM_ARRAY_TASK_ID"));
        let id = match task {
            Some((array, task)) => format!("{array}_{task}"),
            None => get("SLURM_JOB_ID")?,
        };
        Some(Self { id, end: end(get) })
    }

    /// True if `srun` was told to end all tasks when one fails (`SLURM_KILL_BAD_EXIT`, srun(1)). Options on its command line
    /// and `KillOnBadExit` of the cluster do not show in variables.
    pub fn kills_on_bad_exit(get: Variables<'_>) -> bool {
        is_on(get, "SLURM_KILL_BAD_EXIT")
    }
}

/// Parses `SLURM_JOB_END_TIME`, in seconds since 1970.
fn end(get: Variables<'_>) -> Option<SystemTime> {
    let seconds = get("SLURM_JOB_END_TIME")?.trim().parse().ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_slurm() {
        for (list, first) in [
            ("a", "a"),
            ("a,b", "a"),
            ("n[1-3]", "n1"),
            ("n[07,9]", "n07"),
            ("a,b[1-2]", "a"),
            ("n[4]", "n4"),
        ] {
            assert_eq!(first_host(list), first, "{list}");
        }
        let of = |list: &str| (0..5).map(|node| tasks_of_node(list, node)).collect::<Vec<_>>();
        assert_eq!(of("3,1"), [Some(3), Some(1), None, None, None]);
        assert_eq!(of("2(x3),1"), [Some(2), Some(2), Some(2), Some(1), None]);
    }

    #[test]
    fn jobs_and_their_ends() {
        let job = |variables: &[(&str, &str)]| {
            SlurmJob::from_variables(&|name| {
                variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(job(&[]), None);
        let number = ("SLURM_JOB_ID", "9");
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_792_500_000);
        let with_end = job(&[number, ("SLURM_JOB_END_TIME", "1792500000")]);
        assert_eq!(with_end, Some(SlurmJob { id: "9".to_owned(), end: Some(end) }));
        for text in ["", "never", "-1", "18446744073709551615"] {
            let without = job(&[number, ("SLURM_JOB_END_TIME", text)]);
            assert_eq!(without, Some(SlurmJob { id: "9".to_owned(), end: None }), "{text}");
        }
        let task = job(&[number, ("SLURM_ARRAY_JOB_ID", "7"), ("SLURM_ARRAY_TASK_ID", "3")]);
        assert_eq!(task.map(|task| task.id).as_deref(), Some("7_3"));
    }
}
