//! The degree of a mesh axis as a value of a key.

use phalanx_sharding::Degree;
use toml::Value;

use super::section::{KeyType, Mismatch};

/// The number of ranks along an axis of the mesh: 0 if the strategy chooses it, -1 for the rest of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParallelDegree(pub(super) Option<Degree>);

impl KeyType for ParallelDegree {
    fn kind() -> String {
        "integer, -1 for the rest".to_owned()
    }

    fn from_toml(value: &Value) -> Result<Self, Mismatch> {
        match value.as_integer() {
            Some(0) => Ok(Self(None)),
            Some(-1) => Ok(Self(Some(Degree::Rest))),
            Some(ranks @ 1..) => Ok(Self(Some(Degree::Of(ranks as usize)))),
            _ => Err(Mismatch::new(Self::kind(), value)),
        }
    }

    fn to_toml(&self) -> Value {
        Value::Integer(match self.0 {
            None => 0,
            Some(Degree::Rest) => -1,
            Some(Degree::Of(ranks)) => i64::try_from(ranks).unwrap_or(i64::MAX),
        })
    }
}
