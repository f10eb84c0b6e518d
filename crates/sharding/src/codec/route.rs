//! The sums that a bucket's gradients go through under a strategy, and which of them a codec takes.

use phalanx_collectives::Algorithm;
use phalanx_tensor::FlatParam;

use super::bucket::{Among, Bucket, Keeps};
use super::{CodecBytes, GradCodec};
use crate::strategy::{Layout, ShardAxis, Strategy};
use crate::{Result, ShardingError};

/// Between whom gradients are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CodecScope {
    /// Between all ranks; under strategies with groups inside of the groups and again between them.
    #[default]
    All,
    /// Between groups of ranks only, such as hosts; inside of a group gradients travel as they are.
    InterHost,
}

impl CodecScope {
    /// What there is to choose from.
    pub const ALL: &'static [Self] = &[Self::All, Self::InterHost];

    /// Whether the strategy has what is asked for.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] if only what goes between groups is to be encoded, and there are none.
    pub fn fits(self, strategy: &Strategy) -> Result<()> {
        match (self, strategy.axis) {
            (Self::All, _) | (_, ShardAxis::Group) => Ok(()),
            (Self::InterHost, ShardAxis::World) => Err(ShardingError::Strategy {
                name: strategy.name.to_owned(),
                problem: "has no groups, so that nothing goes between them only; `hsdp` has, or encode between all ranks"
                    .to_owned(),
            }),
        }
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
}

impl Route {
    /// The sums of the bucket `param`, which is one of `params`, in order: among those that share what is sharded, and then of
    /// the shard between groups.
    pub(crate) fn sums(&self, param: &FlatParam, params: usize) -> Vec<Sum> {
        let keeps = match self.strategy.layout.gradients {
            Layout::Replicated => Keeps::All,
            Layout::Sharded => Keeps::Shard,
            Layout::Leader => Keeps::Leader,
        };
        let among = |(rank, ranks), keeps| Among { rank, ranks, keeps, algorithm: self.algorithm };
        let bucket = Bucket::of(param.index(), param);
        let (len, coded) = (bucket.len, self.scope == CodecScope::All);
        let mut sums = vec![Sum { bucket, among: among(self.shard, keeps), coded }];
        if let Some(replica) = self.replica {
            let shard = keeps.part(len, self.shard.1, self.shard.0).len();
            let bucket = Bucket::of_shard(params + param.index(), shard);
            sums.push(Sum { bucket, among: among(replica, Keeps::All), coded: true });
        }
        sums
    }
}
