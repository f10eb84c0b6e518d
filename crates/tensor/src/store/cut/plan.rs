//! A plan: which portion of each parameter a rank holds.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Shape;

use super::rules::LayerRule;
use super::{CutUnits, LayerCut, ParamLayout, ParamPlace, PlacedName, Portion};
use crate::group::even_lens;
use crate::store::NamePattern;
use crate::{Result, TensorError};

/// The matrices of an adapter [`crate::AdapterRule`]: [r, I], and [O, r] in layers of either order.
const ADAPTER: [&str; 2] = ["lora_A.weight", "lora_B.weight"];

/// A plan by which the layers of a model are cut over ranks.
///
/// ```
/// use phalanx_tensor::{BuildOptions, StoreBuilder, TensorPlan, TensorRank, nn};
///
/// # fn main() -> Result<(), phalanx_tensor::TensorError> {
/// let plan = TensorPlan::new(["mlp.fc1 = column", "mlp.fc2 = row"])?;
/// let layout = plan.layout(TensorRank { rank: 1, ranks: 2 });
/// let builder = StoreBuilder::new(BuildOptions { layout: Some(layout), ..BuildOptions::default() });
/// let mlp = builder.root().pp("mlp").block();
/// nn::Linear::new(&mlp.pp("fc1"), 4, 10)?;
/// nn::Linear::new(&mlp.pp("fc2"), 10, 4)?;
/// let store = builder.build()?;
/// assert_eq!(store.param("mlp.fc1.weight")?.dims(), [5, 4]);
/// assert_eq!(store.param("mlp.fc2.weight")?.dims(), [4, 5]);
/// assert_eq!(store.param("mlp.fc2.bias")?.dims(), [4]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlan {
    rules: Vec<LayerRule>,
    heads: usize,
    key_heads: usize,
    inputs_first: bool,
}

/// A rank among those that compute parts of the same layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorRank {
    /// This rank, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
}

impl TensorRank {
    /// The only rank.
    pub const ALONE: Self = Self { rank: 0, ranks: 1 };
}

impl Default for TensorPlan {
    /// Whole layers.
    fn default() -> Self {
        Self { rules: Vec::new(), heads: 1, key_heads: 1, inputs_first: false }
    }
}

impl TensorPlan {
    /// Makes a plan from rules such as `blocks.*.mlp.fc1 = column`. A rule names a layer, a parameter, or the beginning of names
    /// ([`NamePattern`]). Of several rules for a parameter the last one holds; without any it is not cut.
    ///
    /// # Errors
    /// [`TensorError::TensorPlan`] naming what is no rule.
    pub fn new<'r>(rules: impl IntoIterator<Item = &'r str>) -> Result<Self> {
        Self::default().with_rules(rules)
    }

    /// Adds rules, which go before those that there are.
    ///
    /// # Errors
    /// [`TensorError::TensorPlan`] naming what is no rule.
    pub fn with_rules<'r>(mut self, rules: impl IntoIterator<Item = &'r str>) -> Result<Self> {
        for rule in rules {
            self.rules.push(rule.parse()?);
        }
        Ok(self)
    }

    /// Adds the rules of another plan, for other parts of a network; the heads stay.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        self
    }

    /// Sets the number of heads of queries, and of keys and values, which divides it.
    #[must_use]
    pub fn with_heads(self, heads: usize, key_heads: usize) -> Self {
        Self { heads, key_heads, ..self }
    }

    /// Says that weights of linear layers are [I, O].
    #[must_use]
    pub fn with_inputs_first(self) -> Self {
        Self { inputs_first: true, ..self }
    }

    /// True if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the layout of a rank's parameters.
    pub fn layout(&self, rank: TensorRank) -> Arc<dyn ParamLayout> {
        Arc::new(PlanLayout { plan: self.clone(), rank })
    }

    /// Returns the patterns of rules that match none of these parameters.
    pub fn unmatched<'p>(&'p self, names: &[&str]) -> Vec<&'p NamePattern> {
        let patterns = self.rules.iter().map(|rule| &rule.layers);
        patterns.filter(|pattern| !names.iter().any(|name| pattern.matches(name))).collect()
    }

    /// The rule of a parameter.
    fn cut(&self, name: &str) -> LayerCut {
        let rule = self.rules.iter().rev().find(|rule| rule.layers.matches(name));
        rule.map_or(LayerCut::Whole, |rule| rule.cut)
    }

    /// Returns the dimension of a parameter that is cut, and what stays together; `None` if the parameter stays whole.
    fn dim(&self, name: &str, whole: &Shape) -> Result<Option<(usize, CutUnits)>> {
        let [is_first, is_second] = ADAPTER.map(|matrix| name.ends_with(matrix));
        let of_outputs = if self.inputs_first && !is_first && !is_second { 1 } else { 0 };
        Ok(match (self.cut(name), whole.rank()) {
            // A number, such as a counter, has nothing to cut.
            (LayerCut::Whole, _) | (_, 0) => None,
            (LayerCut::Vocabulary, 1 | 2) => Some((0, CutUnits::Elements)),
            // The inner dimension of an adapter stays whole.
            (LayerCut::Column(_), 2) if is_first => None,
            (LayerCut::Row(_), 2) if is_second => None,
            (LayerCut::Column(units), 2) => Some((of_outputs, units)),
            // The weight of a convolution, [O, I, height, width].
            (LayerCut::Column(units), 4) => Some((0, units)),
            (LayerCut::Row(units), 4) => Some((1, units)),
            (LayerCut::Column(units), 1) => Some((0, units)),
            (LayerCut::Row(units), 2) => Some((1 - of_outputs, units)),
            // The bias is added to the complete sum.
            (LayerCut::Row(_), 1) => None,
            (cut, _) => {
                let problem = format!(
                    "`{cut}` is for linear layers, convolutions and tables, and `{name}` has shape {whole:?}"
                );
                return Err(TensorError::TensorPlan(problem));
            }
        })
    }

    /// Returns the heads of each part of a dimension, one after the other; `None` if ranks may have any elements. Ranks have whole
    /// groups of heads of queries that share keys.
    fn heads_of(&self, units: CutUnits) -> Option<Vec<usize>> {
        match units {
            CutUnits::Elements | CutUnits::Gated => None,
            CutUnits::Heads => Some(vec![self.heads]),
            CutUnits::KeyHeads => Some(vec![self.key_heads]),
            CutUnits::Projection => Some(vec![self.heads, self.key_heads, self.key_heads]),
        }
    }

    /// True if ranks share heads of keys, of which there are fewer than ranks: each rank has all of them.
    fn shares_keys(&self, ranks: usize) -> bool {
        self.key_heads < ranks && ranks.is_multiple_of(self.key_heads) && self.heads.is_multiple_of(ranks)
    }

    /// Returns the portion of a parameter that a rank holds; `None` if it is whole.
    fn portion(&self, name: &str, whole: &Shape, rank: TensorRank) -> Result<Option<Portion>> {
        let Some((dim, units)) = self.dim(name, whole)? else { return Ok(None) };
        let size = whole.dims()[dim];
        if units == CutUnits::KeyHeads && self.shares_keys(rank.ranks) {
            return Ok(None);
        }
        let (parts, shared, what) = match self.heads_of(units) {
            Some(parts) if units == CutUnits::Heads && self.shares_keys(rank.ranks) => {
                (parts, self.heads, "heads")
            }
            Some(parts) => (parts, self.key_heads, "heads of keys"),
            None if units == CutUnits::Gated => (vec![size / 2; 2], size / 2, "values and gates"),
            None => (vec![size], size, "elements"),
        };
        let all: usize = parts.iter().sum();
        let wrong = |problem: String| Err(TensorError::TensorPlan(format!("`{name}` {problem}")));
        if all == 0 || !size.is_multiple_of(all) {
            return wrong(format!("has {size} along dimension {dim}, which are not {all} heads of one size"));
        }
        if shared < rank.ranks {
            return wrong(format!(
                "has {shared} {what} along dimension {dim}, too few for {} ranks",
                rank.ranks
            ));
        }
        let (own, unit) = (own_range(shared, rank), size / all);
        let mut start = 0;
        let mut kept = Vec::with_capacity(parts.len());
        for heads in parts {
            let group = heads / shared * unit;
            kept.push(start + own.start * group..start + own.end * group);
            start += heads * unit;
        }
        Ok(Some(Portion::new(whole.clone(), dim, kept)?))
    }
}

/// The units of `count` that a rank has.
fn own_range(count: usize, TensorRank { rank, ranks }: TensorRank) -> Range<usize> {
    let lens = even_lens(count, ranks);
    let start = lens[..rank].iter().sum::<usize>();
    start..start + lens[rank]
}

/// The portions of one rank.
#[derive(Debug)]
struct PlanLayout {
    plan: TensorPlan,
    rank: TensorRank,
}

impl ParamLayout for PlanLayout {
    fn place(&self, param: &PlacedName<'_>, whole: &Shape) -> Result<ParamPlace> {
        let portion = self.plan.portion(param.name, whole, self.rank)?;
        // Rank 0 counts what all have.
        let counts = portion.is_some() || self.rank.rank == 0;
        Ok(ParamPlace { portion, counts, ..ParamPlace::default() })
    }

    fn ranks(&self) -> usize {
        self.rank.ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranges that each rank has of a parameter.
    fn ranges(plan: &TensorPlan, name: &str, dims: &[usize], ranks: usize) -> Vec<String> {
        let of = |rank| {
            let portion = plan.portion(name, &Shape::from(dims), TensorRank { rank, ranks }).expect("fits");
            portion.map_or_else(|| "whole".to_owned(), |portion| format!("{:?}", portion.kept()))
        };
        (0..ranks).map(of).collect()
    }

    #[test]
    fn heads_stay_together() {
        let rules = [
            "h.*.qkv = column:projection",
            "h.*.k = column:key-heads",
            "h.*.o = row:heads",
            "h.*.fc = column",
        ];
        let plan = TensorPlan::new(rules).expect("rules").with_heads(6, 3);
        // Heads of 4 elements: 6 of queries, 3 of keys, 3 of values.
        let of_ranks = ranges(&plan, "h.0.qkv.weight", &[48, 10], 2);
        assert_eq!(of_ranks, ["[0..8, 24..28, 36..40]", "[8..24, 28..36, 40..48]"]);
        assert_eq!(ranges(&plan, "h.0.k.bias", &[12], 3), ["[0..4]", "[4..8]", "[8..12]"]);
        assert_eq!(
            ranges(&plan, "h.0.o.weight", &[10, 24], 2)[0],
            "[0..8]",
            "a rank has the queries of its keys"
        );
        assert_eq!(ranges(&plan, "h.0.o.bias", &[10], 4)[1], "whole");
        assert_eq!(ranges(&plan, "h.0.fc.weight", &[7, 10], 2), ["[0..3]", "[3..7]"]);
        let reversed = plan.with_inputs_first();
        assert_eq!(ranges(&reversed, "h.0.fc.weight", &[10, 7], 2)[0], "[0..3]");
        assert_eq!(
            reversed.dim("h.0.o.weight", &(24, 10).into()).expect("a dimension"),
            Some((0, CutUnits::Heads))
        );
    }

    #[test]
    fn adapters_follow_their_layer() {
        let plan = TensorPlan::new(["fc = column", "out = row"]).expect("rules").with_inputs_first();
        let cut = |name: &str, dims: [usize; 2]| ranges(&plan, name, &dims, 2)[0].clone();
        assert_eq!(cut("fc.lora_A.weight", [2, 8]), "whole");
        assert_eq!(cut("fc.lora_B.weight", [6, 2]), "[0..3]");
        assert_eq!(cut("out.lora_A.weight", [2, 6]), "[0..3]");
        assert_eq!(cut("out.lora_B.weight", [8, 2]), "whole");
    }

    #[test]
    fn ranks_share_heads_of_keys_if_there_are_few() {
        let plan = TensorPlan::new(["q = column:heads", "k = column:key-heads", "qkv = column:projection"]);
        let plan = plan.expect("rules").with_heads(8, 2);
        assert_eq!(ranges(&plan, "q.weight", &[16, 3], 4)[3], "[12..16]");
        assert_eq!(ranges(&plan, "k.weight", &[4, 3], 4)[3], "whole");
        assert_eq!(ranges(&plan, "k.weight", &[4, 3], 2)[1], "[2..4]");
        let rank = TensorRank { rank: 0, ranks: 4 };
        let told = plan.portion("qkv.weight", &(24, 3).into(), rank).expect_err("joint").to_string();
        assert!(told.contains("has 2 heads of keys along dimension 0, too few for 4 ranks"), "{told}");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let plan = TensorPlan::new(["a = column:heads", "b = column"]).expect("rules").with_heads(3, 3);
        let told = |name: &str, dims: &[usize], ranks: usize| {
            let rank = TensorRank { rank: 0, ranks };
            plan.portion(name, &Shape::from(dims), rank).expect_err("does not fit").to_string()
        };
        assert!(
            told("a.weight", &[8, 2], 2)
                .contains("`a.weight` has 8 along dimension 0, which are not 3 heads")
        );
        assert!(
            told("a.weight", &[9, 2], 4)
                .contains("has 3 heads of keys along dimension 0, too few for 4 ranks")
        );
        assert!(told("b.weight", &[4, 2, 3], 2).contains("is for linear layers, convolutions and tables"));
        assert_eq!(plan.unmatched(&["a.weight"]).iter().map(ToString::to_string).collect::<Vec<_>>(), ["b"]);
    }
}
