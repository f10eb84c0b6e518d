//! Degrees of parallelism: how many ranks lie along each axis of a mesh.

use super::layout::MeshLayout;
use crate::{Result, ShardingError};

/// The number of ranks along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Degree {
    /// A number of ranks.
    Of(usize),
    /// The rest of the world, written `-1`: the world size divided by the other degrees.
    Rest,
}

impl std::fmt::Display for Degree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Of(ranks) => write!(f, "{ranks}"),
            Self::Rest => f.write_str("-1"),
        }
    }
}

impl std::str::FromStr for Degree {
    type Err = ShardingError;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim().parse::<i64>() {
            Ok(-1) => Ok(Self::Rest),
            Ok(ranks @ 1..) => Ok(Self::Of(ranks as usize)),
            _ => Err(ShardingError::Mesh(format!(
                "`{text}` is no degree; give a number of ranks, or -1 for the rest"
            ))),
        }
    }
}

/// The kinds of parallelism, in the order of the mesh's axes, outermost first, and whether each can be used.
const KINDS: &[(&str, bool)] = &[
    ("pipeline", true),
    ("replicate", true),
    ("shard", true),
    ("context", false),
    ("expert", false),
    ("tensor", true),
];

/// The degrees of a mesh by the names of its axes, as `[parallel]` and `--parallel` give them. An axis without a degree is not part of
/// the mesh.
///
/// ```
/// use phalanx_sharding::Degrees;
///
/// # fn main() -> Result<(), phalanx_sharding::ShardingError> {
/// let degrees: Degrees = "replicate=2,shard=-1".parse()?;
/// assert_eq!(degrees.layout(8)?.to_string(), "replicate 2 × shard 4");
/// let error = degrees.layout(5).unwrap_err().to_string();
/// assert_eq!(error, "mesh: replicate 2 does not divide the world of 5 ranks");
/// let error = "context=2".parse::<Degrees>()?.layout(2).unwrap_err().to_string();
/// assert_eq!(error, "mesh: `context` is not built yet; there is: pipeline, replicate, shard, tensor");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Degrees(Vec<(&'static str, Degree)>);

impl Degrees {
    /// The given degrees, each of a kind that is built.
    pub(crate) fn of<const N: usize>(degrees: [(&'static str, Degree); N]) -> Self {
        Self(degrees.into())
    }

    /// The names of all kinds of parallelism, those that are not built included.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KINDS.iter().map(|(name, _)| *name)
    }

    /// Returns these degrees with that of `name` set.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if there is no such kind of parallelism.
    pub fn with(mut self, name: &str, degree: Degree) -> Result<Self> {
        let Some((name, _)) = KINDS.iter().find(|(known, _)| *known == name) else {
            let known = Self::names().collect::<Vec<_>>().join(", ");
            return Err(ShardingError::Mesh(format!("there is no parallelism `{name}`; there is: {known}")));
        };
        self.0.retain(|(known, _)| known != name);
        self.0.push((name, degree));
        Ok(self)
    }

    /// The degree of `name`, if it has one.
    pub fn get(&self, name: &str) -> Option<Degree> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, degree)| *degree)
    }

    /// True if no axis has a degree.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of ranks of `world` that have the same samples: the product of the given degrees of other axes than those of data.
    pub fn model_ranks(&self, world: usize) -> usize {
        let of_model = || self.0.iter().filter(|(name, _)| !["replicate", "shard", "expert"].contains(name));
        let given = of_model().filter_map(|(_, degree)| match degree {
            Degree::Of(ranks) => Some(*ranks),
            Degree::Rest => None,
        });
        let given = given.product::<usize>().max(1);
        if of_model().any(|(_, degree)| *degree == Degree::Rest) { world.max(given) } else { given }
    }

    /// Returns the mesh of `world` ranks with these degrees.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if a kind of parallelism is not built and its degree is above 1, two degrees are the rest, or the product of the degrees is not the
    /// world size.
    pub fn layout(&self, world: usize) -> Result<MeshLayout> {
        let built = || KINDS.iter().filter(|(_, built)| *built).map(|(name, _)| *name);
        let lacks = |(name, degree): &&(&str, Degree)| {
            *degree != Degree::Of(1) && !built().any(|built| built == *name)
        };
        if let Some((name, _)) = self.0.iter().find(lacks) {
            let there_is = built().collect::<Vec<_>>().join(", ");
            return Err(ShardingError::Mesh(format!("`{name}` is not built yet; there is: {there_is}")));
        }
        let given: Vec<(&str, usize)> = self
            .in_order()
            .filter_map(|(name, degree)| match degree {
                Degree::Of(ranks) => Some((name, ranks)),
                Degree::Rest => None,
            })
            .collect();
        let product = given.iter().map(|(_, ranks)| ranks).product::<usize>().max(1);
        let rests = self.0.len() - given.len();
        if rests > 1 {
            return Err(ShardingError::Mesh("only one degree can be -1, the rest of the world".to_owned()));
        }
        if rests == 1 && !world.is_multiple_of(product) {
            let given =
                given.iter().map(|(name, ranks)| format!("{name} {ranks}")).collect::<Vec<_>>().join(" × ");
            return Err(ShardingError::Mesh(format!("{given} does not divide the world of {world} ranks")));
        }
        // Experts regroup the data axes, and are no axis of their own.
        let axes = self.in_order().filter(|(name, _)| *name != "expert").map(|(name, degree)| match degree {
            Degree::Of(ranks) => (name, ranks),
            Degree::Rest => (name, world / product),
        });
        let axes: Vec<(&str, usize)> = axes.collect();
        MeshLayout::new(&axes, world)
    }

    /// The degrees in the order of the mesh's axes.
    fn in_order(&self) -> impl Iterator<Item = (&'static str, Degree)> {
        KINDS.iter().filter_map(|(name, _)| Some((*name, self.get(name)?)))
    }
}

impl std::str::FromStr for Degrees {
    type Err = ShardingError;

    /// Reads `replicate=2,shard=2`.
    fn from_str(text: &str) -> Result<Self> {
        let mut degrees = Self::default();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (name, degree) = part.split_once('=').ok_or_else(|| {
                ShardingError::Mesh(format!("`{part}` is no degree; write it as `shard=2`"))
            })?;
            if degrees.get(name.trim()).is_some() {
                return Err(ShardingError::Mesh(format!("`{}` has two degrees", name.trim())));
            }
            degrees = degrees.with(name.trim(), degree.parse()?)?;
        }
        Ok(degrees)
    }
}

impl std::fmt::Display for Degrees {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = self.in_order().map(|(name, degree)| format!("{name}={degree}"));
        f.write_str(&parts.collect::<Vec<_>>().join(","))
    }
}

/// The ranks of a natural group: those of a host, if there are several hosts with as many ranks each, one after the other; otherwise
/// the largest proper divisor of the world size.
pub(crate) fn natural_group(hosts: &[usize]) -> usize {
    let world = hosts.len();
    let first = hosts.iter().take_while(|host| **host == hosts[0]).count().max(1);
    let even =
        world.is_multiple_of(first) && hosts.iter().enumerate().all(|(rank, host)| *host == rank / first);
    if even && first < world {
        return first;
    }
    (1..world).rev().find(|size| world.is_multiple_of(*size)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_groups_if_they_are_alike() {
        for (hosts, group) in [
            (&[0, 0, 1, 1][..], 2),
            (&[0, 0, 0, 1, 1, 1], 3),
            (&[0, 0, 0, 0], 2),
            (&[0, 0, 0, 1], 2),
            (&[0, 1, 0, 1], 2),
            (&[0, 0, 0], 1),
            (&[0, 1], 1),
            (&[0], 1),
        ] {
            assert_eq!(natural_group(hosts), group, "{hosts:?}");
        }
    }

    #[test]
    fn degrees_are_read_and_refused_by_name() {
        let read = |text: &str| text.parse::<Degrees>();
        let degrees = read("shard=2, replicate=-1").expect("two degrees");
        assert_eq!(degrees.to_string(), "replicate=-1,shard=2");
        assert_eq!(degrees.layout(6).expect("six ranks").to_string(), "replicate 3 × shard 2");
        assert!(read("").expect("none").is_empty());
        for (text, problem) in [
            ("shards=2", "there is no parallelism `shards`"),
            ("shard=0", "`0` is no degree"),
            ("shard", "write it as `shard=2`"),
            ("shard=2,shard=3", "`shard` has two degrees"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(problem), "{error}");
        }
        let refused = |text: &str, world| read(text).expect(text).layout(world).expect_err(text).to_string();
        for name in ["context", "expert"] {
            let error = refused(&format!("{name}=2"), 2);
            assert_eq!(
                error,
                format!("mesh: `{name}` is not built yet; there is: pipeline, replicate, shard, tensor")
            );
        }
        assert!(refused("shard=-1,replicate=-1", 4).contains("only one degree"));
        assert!(refused("replicate=2,shard=3", 8).contains("replicate 2 × shard 3 = 6"));
    }
}
