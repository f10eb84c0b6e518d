//! Plans for layers in sequence, which ranks share in pairs.

/// A layer of a sequence.
#[derive(Debug)]
pub(crate) struct PairedLayer {
    /// The pattern of its parameters.
    pub(crate) layer: String,
    /// The rules of what follows it channel by channel, such as its norm.
    pub(crate) behind: Vec<String>,
}

impl PairedLayer {
    /// Makes a layer and the norm that follows it.
    pub(crate) fn with_norm(layer: String, norm: &str) -> Self {
        Self { layer, behind: vec![format!("{norm} = column")] }
    }
}

/// Returns rules by which layers are cut in pairs: the first by its outputs, with what follows it, and the second by its inputs. The last
/// of an odd number stays whole.
pub(crate) fn rules_of_pairs(layers: &[PairedLayer]) -> Vec<String> {
    let pairs = layers.chunks_exact(2).flat_map(|pair| {
        let first = format!("{} = column", pair[0].layer);
        let second = format!("{} = row", pair[1].layer);
        std::iter::once(first).chain(pair[0].behind.iter().cloned()).chain([second])
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_layer_stays_whole() {
        let layers: Vec<PairedLayer> =
            (0..5).map(|at| PairedLayer::with_norm(at.to_string(), &format!("norm{at}"))).collect();
        assert_eq!(rules_of_pairs(&layers[..1]), Vec::<String>::new());
        let expected = ["0 = column", "norm0 = column", "1 = row", "2 = column", "norm2 = column", "3 = row"];
        assert_eq!(rules_of_pairs(&layers), expected);
    }
}
