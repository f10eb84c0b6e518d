//! The key `log.trace`.

use toml::Value;

use super::section::{KeyType, Mismatch};
use phalanx_trace::TraceSteps;

impl KeyType for TraceSteps {
    fn kind() -> String {
        "string: `all`, a range such as `20..25`, or empty".to_owned()
    }

    fn from_toml(value: &Value) -> Result<Self, Mismatch> {
        let mismatch = || Mismatch::new(Self::kind(), value);
        let text = value.as_str().ok_or_else(mismatch)?;
        text.parse().map_err(|reason| Mismatch { reason: Some(reason), ..mismatch() })
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}
