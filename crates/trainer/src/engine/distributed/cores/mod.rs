//! CPU affinity: the cores that a launcher has bound a rank to, or, with `train.bind`, the cores that it binds itself to.
//!
//! Launchers bind ranks to cores (`srun --cpus-per-task`, `mpirun --map-by slot:PE=4`), or let all ranks of a host use all cores. The
//! number of compute threads follows from that. Mismatches are reported: more threads than cores, or cores far from a rank's GPU.

#[cfg(target_os = "linux")]
mod system;

#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
mod system;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use phalanx_collectives::Communicator;

use super::super::device::Device;
use super::super::error::TrainError;
use phalanx_config::{Bind, Config};

/// The cores of this rank, and a description of those of all ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::engine) struct Cores {
    /// The number of threads that this rank has cores for. A core that n ranks share counts as 1/n.
    share: usize,
    /// The cores of each rank, if ranks do not have all cores of their hosts.
    words: String,
    /// The mismatches.
    problems: Vec<String>,
}

/// The cores of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rank {
    host: usize,
    /// Its cores, ordered by topology.
    cores: Vec<usize>,
    /// The number of cores of its host.
    of_host: usize,
    /// The cores near its GPU; none without a GPU or if they are not known.
    near: Vec<usize>,
}

impl Rank {
    /// The cores that it may run on near its GPU; all if there are none.
    fn nearest(&self) -> Vec<usize> {
        let near: Vec<usize> = self.cores.iter().copied().filter(|core| self.near.contains(core)).collect();
        if near.is_empty() { self.cores.clone() } else { near }
    }
}

impl Cores {
    /// Binds this rank, which computes on `device`, if `train.bind` says so, and gathers the cores of all ranks. All ranks of `world` call
    /// this together.
    ///
    /// # Errors
    /// [`TrainError::Setup`] if ranks are to be bound and a host has fewer cores than ranks, or does not allow it.
    pub(in crate::engine) fn of(
        config: &Config,
        device: &Device,
        world: Option<&Communicator>,
        are_threads: bool,
    ) -> Result<Self, TrainError> {
        if config.train.bind == Bind::Cores {
            let failed = |problem: String| TrainError::Setup(format!("train.bind = cores: {problem}"));
            let (rank, all) = gather_cores(config, device, world)?;
            let cores = part(&all, rank).map_err(failed)?;
            let bind_error = |error| failed(format!("cores {} cannot be kept to: {error}", ranges(&cores)));
            system::bind(&cores, are_threads).map_err(bind_error)?;
        }
        Self::gather(config, device, world)
    }

    /// Gathers the cores of all ranks. All ranks of `world` call this together.
    ///
    /// # Errors
    /// Errors of the transport.
    pub(super) fn gather(
        config: &Config,
        device: &Device,
        world: Option<&Communicator>,
    ) -> Result<Self, TrainError> {
        let (rank, all) = gather_cores(config, device, world)?;
        Ok(Self {
            share: share(&all, rank),
            words: words(&all),
            problems: problems(&all, |rank| match config.train.threads {
                0 => share(&all, rank),
                wanted => wanted,
            }),
        })
    }

    /// The number of compute threads: `wanted`, or one for each core if that is 0.
    pub(in crate::engine) fn threads(&self, wanted: usize) -> usize {
        if wanted > 0 { wanted } else { self.share.max(1) }
    }

    /// The cores of each rank; empty if all ranks have all cores of their hosts.
    pub(in crate::engine) fn words(&self) -> &str {
        &self.words
    }

    /// Mismatches between threads, cores and GPUs.
    pub(in crate::engine) fn problems(&self) -> &[String] {
        &self.problems
    }
}

/// Gathers the cores of all ranks; returns them with this rank.
fn gather_cores(
    config: &Config,
    device: &Device,
    world: Option<&Communicator>,
) -> Result<(usize, Vec<Rank>), TrainError> {
    let (cores, of_host) = (system::allowed(), system::cores());
    let near = device.pci_address().map_or_else(Vec::new, |address| system::near(&address));
    let Some(world) = world else { return Ok((0, vec![Rank { host: 0, cores, of_host, near }])) };
    let numbers = [vec![of_host, cores.len()], cores, near].concat();
    let numbers: Vec<i64> = numbers.into_iter().map(|number| number as i64).collect();
    // Simulated hosts are one machine.
    let is_one = config.comm.simulated()?.is_some();
    let rank = |(numbers, host): (&Vec<i64>, &usize)| {
        let mut numbers = numbers.iter().map(|number| *number as usize);
        let mut next = || numbers.next().unwrap_or(0);
        let (of_host, count) = (next(), next());
        let cores = numbers.by_ref().take(count).collect();
        Rank { host: if is_one { 0 } else { *host }, of_host, cores, near: numbers.collect() }
    };
    let numbers = world.all_gatherv(&numbers)?;
    Ok((world.rank(), numbers.iter().zip(world.hosts()).map(rank).collect()))
}

/// The ranks on the host of a rank.
fn neighbours(all: &[Rank], rank: usize) -> impl Iterator<Item = (usize, &Rank)> {
    all.iter().enumerate().filter(move |(_, other)| other.host == all[rank].host)
}

/// The number of ranks that may run on each core of a rank's host.
fn users(all: &[Rank], rank: usize) -> BTreeMap<usize, usize> {
    let mut users = BTreeMap::new();
    for core in neighbours(all, rank).flat_map(|(_, other)| &other.cores) {
        *users.entry(*core).or_insert(0) += 1;
    }
    users
}

/// The number of threads that a rank has cores for. A core that n ranks may run on counts as 1/n.
fn share(all: &[Rank], rank: usize) -> usize {
    let users = users(all, rank);
    let parts: f64 = all[rank].cores.iter().map(|core| 1.0 / users[core] as f64).sum();
    // Rounding errors of thirds must not lose a core.
    ((parts + 1e-9) as usize).max(1)
}

/// Chooses the cores that a rank binds itself to: those that only it may run on, or an equal part of those that the ranks of its host
/// share. Ranks with GPUs on different NUMA nodes share the cores near these.
fn part(all: &[Rank], rank: usize) -> Result<Vec<usize>, String> {
    let users = users(all, rank);
    if all[rank].cores.iter().all(|core| users[core] == 1) {
        return Ok(all[rank].cores.clone());
    }
    let ranks: Vec<usize> = neighbours(all, rank).map(|(other, _)| other).collect();
    if ranks.iter().any(|other| all[*other].cores != all[rank].cores) {
        return Err(format!(
            "rank {rank} may run on cores {} and shares some of them with ranks of its host that may run on others; have the launcher \
             bind all of them or none",
            ranges(&all[rank].cores)
        ));
    }
    let near: Vec<Vec<usize>> = ranks.iter().map(|other| all[*other].nearest()).collect();
    let own = all[rank].nearest();
    let sharing = |cores: &Vec<usize>| near.iter().filter(|other| *other == cores).count();
    let apart =
        |one: &Vec<usize>, other: &Vec<usize>| one == other || !one.iter().any(|core| other.contains(core));
    let divides =
        near.iter().all(|one| near.iter().all(|other| apart(one, other)) && one.len() >= sharing(one));
    let (cores, ranks): (&[usize], Vec<usize>) = match divides {
        true => (&own, ranks.into_iter().filter(|other| all[*other].nearest() == own).collect()),
        false => (&all[rank].cores, ranks),
    };
    let place = ranks.iter().position(|other| *other == rank).unwrap_or(0);
    if cores.len() < ranks.len() {
        return Err(format!("the host of rank {rank} has {} core(s) for {} ranks", cores.len(), ranks.len()));
    }
    let (begin, end) = (place * cores.len() / ranks.len(), (place + 1) * cores.len() / ranks.len());
    Ok(cores[begin..end].to_vec())
}

/// Describes the cores of all ranks in a line.
fn words(all: &[Rank]) -> String {
    if all.iter().all(|rank| rank.cores.len() == rank.of_host) {
        return String::new();
    }
    let mut words = String::new();
    // The line must fit a terminal; the log of each rank has its own.
    const MOST: usize = 8;
    for (number, rank) in all.iter().enumerate().take(MOST) {
        let _ = write!(words, "{}rank {number}: {}", if number > 0 { ", " } else { "" }, ranges(&rank.cores));
    }
    if all.len() > MOST {
        let _ = write!(words, " and {} more", all.len() - MOST);
    }
    words
}

/// Finds ranks with more threads than cores on hosts where some cores are left out, and ranks whose cores are all far from their GPU.
fn problems(all: &[Rank], threads: impl Fn(usize) -> usize) -> Vec<String> {
    let mut problems = Vec::new();
    for (rank, own) in all.iter().enumerate().filter(|(_, own)| !own.cores.is_empty()) {
        let users = users(all, rank);
        let first = neighbours(all, rank).next().is_some_and(|(first, _)| first == rank);
        let together: usize = neighbours(all, rank).map(|(other, _)| threads(other)).sum();
        if own.cores.len() < threads(rank) {
            problems.push(format!(
                "rank {rank} computes with {} threads and may run on core(s) {} only: have the launcher give it more (srun \
                 --cpus-per-task={0}, mpirun --map-by slot:PE={0}), or set train.threads",
                threads(rank),
                ranges(&own.cores)
            ));
        } else if !own.near.is_empty() && !own.cores.iter().any(|core| own.near.contains(core)) {
            problems.push(format!(
                "rank {rank} may run on core(s) {} only, and its GPU is near core(s) {}, so transfers cross \
                 NUMA nodes: have the launcher bind it there (srun --gpu-bind=closest), or bind no rank and set train.bind = cores",
                ranges(&own.cores),
                ranges(&own.near)
            ));
        } else if first && users.len() < own.of_host && together > users.len() {
            problems.push(format!(
                "the ranks of the host of rank {rank} compute with {together} threads together and may run on {} of its {} cores",
                users.len(),
                own.of_host
            ));
        }
    }
    problems
}

/// Formats core numbers as ranges: `0-3,8` for 0, 1, 2, 3, 8.
fn ranges(cores: &[usize]) -> String {
    let mut sorted = cores.to_vec();
    sorted.sort_unstable();
    let mut text = String::new();
    let mut rest = sorted.as_slice();
    while let [first, ..] = rest {
        let run = rest.iter().zip(*first..).take_while(|(core, expected)| *core == expected).count();
        if !text.is_empty() {
            text.push(',');
        }
        let _ = match run {
            1 => write!(text, "{first}"),
            _ => write!(text, "{first}-{}", first + run - 1),
        };
        rest = &rest[run..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(host: usize, cores: std::ops::Range<usize>) -> Rank {
        Rank { host, cores: cores.collect(), of_host: 16, near: Vec::new() }
    }

    /// A rank whose GPU is near some cores.
    fn with_gpu(cores: std::ops::Range<usize>, near: std::ops::Range<usize>) -> Rank {
        Rank { near: near.collect(), ..rank(0, cores) }
    }

    #[test]
    fn cores_that_ranks_share_count_in_parts() {
        let free = vec![rank(0, 0..16); 4];
        assert_eq!((share(&free, 2), words(&free).as_str()), (4, ""));
        let bound: Vec<Rank> = (0..4).map(|at| rank(0, 4 * at..4 * at + 4)).collect();
        assert_eq!(share(&bound, 3), 4);
        assert_eq!(words(&bound), "rank 0: 0-3, rank 1: 4-7, rank 2: 8-11, rank 3: 12-15");
        // Of three ranks on two cores each has two thirds of one.
        assert_eq!(share(&vec![rank(0, 0..2); 3], 0), 1);
        assert_eq!(share(&vec![rank(0, 0..3); 3], 0), 1);
        let hosts = [rank(0, 0..16), rank(1, 0..16), rank(1, 0..16)];
        assert_eq!([0, 1, 2].map(|at| share(&hosts, at)), [16, 8, 8]);
    }

    #[test]
    fn ranks_keep_to_equal_parts_or_to_what_they_were_given() {
        let free = vec![rank(0, 0..16); 3];
        let parts: Vec<usize> = (0..3).flat_map(|at| part(&free, at).expect("enough")).collect();
        assert_eq!(parts, (0..16).collect::<Vec<_>>());
        let bound = [rank(0, 0..4), rank(0, 4..8)];
        assert_eq!(part(&bound, 1), Ok(vec![4, 5, 6, 7]));
        let error = part(&vec![rank(0, 0..2); 3], 0).expect_err("too few");
        assert_eq!(error, "the host of rank 0 has 2 core(s) for 3 ranks");
        let error = part(&[rank(0, 0..4), rank(0, 2..8)], 1).expect_err("neither");
        assert!(error.contains("rank 1 may run on cores 2-7 and shares"), "{error}");
    }

    #[test]
    fn too_many_threads_are_reported_where_a_launcher_left_cores_out() {
        let bound = [rank(0, 0..1), rank(0, 1..5)];
        let found = problems(&bound, |_| 4);
        assert!(
            found.len() == 1
                && found[0].contains("rank 0 computes with 4 threads and may run on core(s) 0 only"),
            "{found:?}"
        );
        // All ranks on one core, which no rank sees by itself.
        let found = problems(&vec![rank(0, 3..4); 4], |_| 1);
        assert_eq!(
            found,
            [
                "the ranks of the host of rank 0 compute with 4 threads together and may run on 1 of its 16 cores"
            ]
        );
        // A laptop has as many ranks as one likes.
        assert_eq!(problems(&vec![rank(0, 0..16); 40], |_| 1), Vec::<String>::new());
    }

    #[test]
    fn ranks_keep_to_cores_that_are_near_their_gpus() {
        let parts = |all: &[Rank]| -> Vec<String> {
            (0..all.len()).map(|at| ranges(&part(all, at).expect("enough"))).collect()
        };
        let (low, high) = (with_gpu(0..16, 0..8), with_gpu(0..16, 8..16));
        assert_eq!(
            parts(&[high.clone(), low.clone(), low.clone(), high.clone()]),
            ["8-11", "0-3", "4-7", "12-15"]
        );
        assert_eq!(parts(&[low.clone(), low.clone(), low.clone(), high]), ["0-1", "2-4", "5-7", "8-15"]);
        // A node that has not enough cores, or GPUs that only some know the place of: equal parts of all.
        let few = with_gpu(0..16, 0..1);
        assert_eq!(parts(&[few.clone(), few]), ["0-7", "8-15"]);
        assert_eq!(parts(&[low, rank(0, 0..16)]), ["0-7", "8-15"]);
    }

    #[test]
    fn cores_far_from_a_gpu_are_reported() {
        let bound = [with_gpu(0..8, 0..8), with_gpu(4..8, 8..16)];
        let found = problems(&bound, |_| 2);
        assert!(
            found.len() == 1
                && found[0].contains("rank 1 may run on core(s) 4-7 only, and its GPU is near core(s) 8-15"),
            "{found:?}"
        );
        // A rank that may also run near its GPU is left to the system.
        assert_eq!(problems(&[with_gpu(0..16, 8..16)], |_| 2), Vec::<String>::new());
    }

    #[test]
    fn numbers_are_written_as_ranges() {
        assert_eq!(ranges(&[8, 0, 1, 2, 3, 10, 11]), "0-3,8,10-11");
        assert_eq!(ranges(&[]), "");
    }
}
