//! The sums that a bucket's gradients go through under a strategy, and which of them a codec takes.

use phalanx_collectives::Algorithm;
use phalanx_tensor::ParamBucket;

use super::bucket::{Among, Bucket, Keeps};
use super::{CodecBytes, GradCodec};
use crate::strategy::{Layout, ShardAxis, Strategy, natural_group};
use crate::traffic::scattered;
use crate::{Result, ShardingError};

/// Between whom gradients are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CodecScope {
    /// Between all ranks; under strategies with groups inside of the groups and again between them.
    #[default]
    All,
    /// Between groups of ranks only: those of the strategy, or else hosts, or else halves or the like of the ranks. Inside of a
    /// group gradients travel as they are.
    InterHost,
}

impl CodecScope {
    /// What there is to choose from.
    pub const ALL: &'static [Self] = &[Self::All, Self::InterHost];

    /// How many ranks a group has where a strategy has none of its own and only what goes between groups is encoded: those of a
    /// host, if hosts have as many ranks each, and otherwise the largest proper divisor of the number of ranks. `None` where
    /// there is no need of such groups.
    pub(crate) fn group(self, strategy: &Strategy, hosts: &[usize]) -> Option<usize> {
        (self == Self::InterHost && strategy.axis == ShardAxis::World).then(|| natural_group(hosts))
    }
}

impl std::fmt::Display for CodecScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::All => "all",
            Self::InterHost => "inter-host",
        })
    }
}

impl std::str::FromStr for CodecScope {
    type Err = ShardingError;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|scope| scope.to_string() == text);
        found.copied().ok_or_else(|| {
            ShardingError::codec("scope", format!("`{text}` is unknown; there is: all, inter-host"))
        })
    }
}

/// One sum of a bucket, or of a shard of it, over some ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) bucket: Bucket,
    pub(crate) among: Among,
    /// Whether the codec does it; otherwise the numbers themselves travel.
    pub(crate) coded: bool,
}

impl Sum {
    /// What it takes with a codec.
    pub(crate) fn bytes(&self, codec: &dyn GradCodec) -> CodecBytes {
        match self.coded {
            true => codec.bytes(&self.bucket, &self.among),
            false => self.plain(),
        }
    }

    /// What it takes without.
    pub(crate) fn plain(&self) -> CodecBytes {
        CodecBytes { sent: self.among.summed(4 * self.bucket.len as u64), ..CodecBytes::default() }
    }
}

/// How gradients go under a strategy: where a rank stands among those that share what is sharded, and, where there are groups,
/// among those that hold the same shards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) strategy: Strategy,
    pub(crate) scope: CodecScope,
    pub(crate) algorithm: Algorithm,
    /// The position among the ranks that share what is sharded, and how many they are.
    pub(crate) shard: (usize, usize),
    /// The position among the groups, and how many they are; `None` if there are none.
    pub(crate) replica: Option<(usize, usize)>,
    /// Groups that the codec alone knows.
    pub(crate) groups: Option<Groups>,
}

/// A rank's place in groups between which alone gradients are encoded, under a strategy that has no groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Groups {
    /// The position inside of the group, and how many ranks it has.
    pub(crate) inside: (usize, usize),
    /// The position of the group, and how many there are.
    pub(crate) between: (usize, usize),
}

impl Groups {
    /// The place of rank `rank` of `ranks`, in groups of `group` that follow each other.
    pub(crate) fn of(rank: usize, ranks: usize, group: usize) -> Self {
        Self { inside: (rank % group, group), between: (rank / group, ranks / group) }
    }
}

impl Route {
    /// Who keeps what of a bucket in the end.
    pub(crate) fn keeps(&self) -> Keeps {
        match self.strategy.layout.gradients {
            Layout::Replicated => Keeps::All,
            Layout::Sharded => Keeps::Shard,
            Layout::Leader => Keeps::Leader,
        }
    }

    /// Ranks that gradients are summed over, in all.
    pub(crate) fn ranks(&self) -> usize {
        self.shard.1 * self.replica.map_or(1, |(_, groups)| groups)
    }

    /// The sums of the bucket `param`, which is one of `params`, in order: among those that share what is sharded, or are of a
    /// group, and then of the shard between groups.
    pub(crate) fn sums(&self, param: &ParamBucket, params: usize) -> Vec<Sum> {
        let (inside, between, keeps) = match self.groups {
            None => (self.shard, self.replica, self.keeps()),
            // All parts come together again: see `Route::regathered`.
            Some(groups) => (groups.inside, Some(groups.between), Keeps::Shard),
        };
        let among = |(rank, ranks), keeps| Among { rank, ranks, keeps, algorithm: self.algorithm };
        let bucket = Bucket::of(param.index(), param);
        let (len, coded) = (bucket.len, self.scope == CodecScope::All);
        let mut sums = vec![Sum { bucket, among: among(inside, keeps), coded }];
        if let Some(between) = between {
            let shard = keeps.part(len, inside.1, inside.0).len();
            let bucket = Bucket::of_shard(params + param.index(), shard);
            sums.push(Sum { bucket, among: among(between, Keeps::All), coded: true });
        }
        sums
    }

    /// Bytes that a rank sends to bring the parts of `len` summed gradients together in its group.
    pub(crate) fn regathered(&self, len: usize) -> u64 {
        self.groups.map_or(0, |groups| scattered(4 * len as u64, groups.inside.1))
    }
}
