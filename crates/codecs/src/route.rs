//! The sums that a bucket's gradients go through under a strategy, and which of them a codec takes.

use phalanx_collectives::Algorithm;
use phalanx_tensor::ParamBucket;

use crate::bucket::{Bucket, SumGroup, SumPlacement};
use crate::traffic::scattered;
use crate::{CodecBytes, GradCodec};
use crate::{CodecError, Result};

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
    /// All scopes.
    pub const ALL: &'static [Self] = &[Self::All, Self::InterHost];
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
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|scope| scope.to_string() == text);
        found.copied().ok_or_else(|| {
            CodecError::codec("scope", format!("`{text}` is unknown; there is: all, inter-host"))
        })
    }
}

/// One sum of a bucket, or of a shard of it, over some ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSum {
    /// The gradients that are summed.
    pub bucket: Bucket,
    /// The ranks that they are summed over.
    pub among: SumGroup,
    /// True if the codec encodes the sum; otherwise the gradients travel as they are.
    pub coded: bool,
}

impl BucketSum {
    /// Returns the bytes of the sum with a codec.
    pub fn bytes(&self, codec: &dyn GradCodec) -> CodecBytes {
        match self.coded {
            true => codec.bytes(&self.bucket, &self.among),
            false => self.plain(),
        }
    }

    /// Returns the bytes of the sum without a codec.
    pub fn plain(&self) -> CodecBytes {
        CodecBytes { sent: self.among.summed(4 * self.bucket.len as u64), ..CodecBytes::default() }
    }
}

/// The sums that gradients go through: the position of a rank among the ranks that share what is sharded, and among the groups
/// that hold the same shards.
#[derive(Debug, Clone, Copy)]
pub struct ReductionRoute {
    /// The part of each summed bucket that this rank keeps.
    pub keeps: SumPlacement,
    /// The ranks between which the codec is used.
    pub scope: CodecScope,
    /// The algorithm of reductions.
    pub algorithm: Algorithm,
    /// The position among the ranks that share what is sharded, and how many they are.
    pub shard: (usize, usize),
    /// The position among the groups, and how many they are; `None` if there are none.
    pub replica: Option<(usize, usize)>,
    /// Groups that the codec alone knows.
    pub groups: Option<CodecGroups>,
}

/// A rank's place in groups between which alone gradients are encoded, under a strategy that has no groups.
#[derive(Debug, Clone, Copy)]
pub struct CodecGroups {
    /// The position inside of the group, and how many ranks it has.
    pub inside: (usize, usize),
    /// The position of the group, and how many there are.
    pub between: (usize, usize),
}

impl CodecGroups {
    /// The place of rank `rank` of `ranks`, in groups of `group` that follow each other.
    pub fn of(rank: usize, ranks: usize, group: usize) -> Self {
        Self { inside: (rank % group, group), between: (rank / group, ranks / group) }
    }
}

impl ReductionRoute {
    /// Ranks that gradients are summed over, in all.
    pub fn ranks(&self) -> usize {
        self.shard.1 * self.replica.map_or(1, |(_, groups)| groups)
    }

    /// The sums of the bucket `param`, which is one of `params`, in order: among those that share what is sharded, or are of a
    /// group, and then of the shard between groups.
    pub fn sums(&self, param: &ParamBucket, params: usize) -> Vec<BucketSum> {
        let (inside, between, keeps) = match self.groups {
            None => (self.shard, self.replica, self.keeps),
            // All parts come together again: see `Route::regathered`.
            Some(groups) => (groups.inside, Some(groups.between), SumPlacement::Shard),
        };
        let among = |(rank, ranks), keeps| SumGroup { rank, ranks, keeps, algorithm: self.algorithm };
        let bucket = Bucket::of(param.index(), param);
        let (len, coded) = (bucket.len, self.scope == CodecScope::All);
        let mut sums = vec![BucketSum { bucket, among: among(inside, keeps), coded }];
        if let Some(between) = between {
            let shard = keeps.part(len, inside.1, inside.0).len();
            let bucket = Bucket::of_shard(params + param.index(), shard);
            sums.push(BucketSum { bucket, among: among(between, SumPlacement::All), coded: true });
        }
        sums
    }

    /// Bytes that a rank sends to bring the parts of `len` summed gradients together in its group.
    pub fn regathered(&self, len: usize) -> u64 {
        self.groups.map_or(0, |groups| scattered(4 * len as u64, groups.inside.1))
    }
}
