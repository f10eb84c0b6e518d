//! The rules by which a layer is cut over ranks.

use std::str::FromStr;

use crate::store::NamePattern;
use crate::{Result, TensorError};

/// The way in which a layer is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerCut {
    /// A linear layer or a convolution by its outputs: each rank computes some of them, from the whole input. Or a norm behind it.
    Column(CutUnits),
    /// A linear layer or a convolution by its inputs, of which each rank has some: each rank computes a part of the sum that is the output.
    Row(CutUnits),
    /// A table by its rows, or its bias: each rank has those of some tokens.
    Vocabulary,
    /// Not at all: each rank computes all of it.
    Whole,
}

/// The elements that stay together where a dimension is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutUnits {
    /// Nothing: ranks have as many elements as each other, or one more.
    Elements,
    /// Values and as many gates, one after the other. A rank has some of each.
    Gated,
    /// Heads of queries, and what is computed from them.
    Heads,
    /// Heads of keys or values.
    KeyHeads,
    /// Heads of a joint projection, whose outputs are those of all queries, then of all keys, then of all values. A rank has some of
    /// each.
    Projection,
}

/// The rules by name. Of each, the units stand behind a colon.
const RULES: &[(&str, LayerCut)] = &[
    ("column", LayerCut::Column(CutUnits::Elements)),
    ("column:gated", LayerCut::Column(CutUnits::Gated)),
    ("column:heads", LayerCut::Column(CutUnits::Heads)),
    ("column:key-heads", LayerCut::Column(CutUnits::KeyHeads)),
    ("column:projection", LayerCut::Column(CutUnits::Projection)),
    ("row", LayerCut::Row(CutUnits::Elements)),
    ("row:heads", LayerCut::Row(CutUnits::Heads)),
    ("vocabulary", LayerCut::Vocabulary),
    ("whole", LayerCut::Whole),
];

impl std::fmt::Display for LayerCut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(RULES.iter().find(|(_, cut)| cut == self).map_or("whole", |(name, _)| name))
    }
}

impl FromStr for LayerCut {
    type Err = TensorError;

    fn from_str(text: &str) -> Result<Self> {
        let found = RULES.iter().find(|(name, _)| *name == text.trim());
        found.map(|(_, cut)| *cut).ok_or_else(|| {
            let there_is = RULES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            TensorError::TensorPlan(format!("`{}` is no rule; there is: {there_is}", text.trim()))
        })
    }
}

/// A rule for the layers that a pattern names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerRule {
    pub(super) layers: NamePattern,
    pub(super) cut: LayerCut,
}

impl FromStr for LayerRule {
    type Err = TensorError;

    /// Reads `blocks.*.attn.qkv = column:heads`.
    fn from_str(text: &str) -> Result<Self> {
        let Some((layers, cut)) = text.split_once('=') else {
            let problem = format!("`{text}` is no rule for layers; write it as `blocks.*.mlp.fc1 = column`");
            return Err(TensorError::TensorPlan(problem));
        };
        Ok(Self { layers: NamePattern::new(layers.trim())?, cut: cut.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_written_by_name() {
        for (name, cut) in RULES {
            assert_eq!(name.parse::<LayerCut>().expect("a rule"), *cut);
            assert_eq!(cut.to_string(), *name);
        }
        let rule: LayerRule = "blocks.*.attn = column:heads".parse().expect("a rule");
        assert!(rule.layers.matches("blocks.3.attn.weight"));
        let told = |text: &str| text.parse::<LayerRule>().expect_err(text).to_string();
        assert!(told("blocks.*.attn").contains("write it as"));
        assert!(told("a = rows").contains("`rows` is no rule; there is: column, column:gated,"));
    }
}
