//! State of single ranks in checkpoints: of gradient codecs, and of asynchronous strategies.

use candle_core::{Device, Tensor};
use phalanx_tensor::TensorError;

use crate::engine::distributed::StateOwner;
use crate::engine::error::TrainError;
use phalanx_checkpoint::{NewFile, NewPiece, Reader, Region};

/// The prefix of the kinds of codec state.
const PREFIX: &str = "codec-";

/// The prefix of the kinds of a rank's own state under asynchronous strategies.
const OWN_PREFIX: &str = "own-";

/// The state of a codec: numbers by name.
pub(in crate::engine) type CodecState = Vec<(String, Vec<f32>)>;

/// The name of a network's tensor, prefixed with the network's name.
fn named(network: &str, name: &str) -> String {
    if network.is_empty() { name.to_owned() } else { format!("{network}.{name}") }
}

/// True if a kind is of a single rank: a codec's, or a strategy's.
pub(in crate::engine) fn is_codec_state(kind: &str) -> bool {
    kind.starts_with(PREFIX) || kind.starts_with(OWN_PREFIX)
}

/// Creates the file of a rank's own state of each network, if there is any.
pub(in crate::engine) fn own_file(
    kept: Vec<(&str, CodecState)>,
    owner: StateOwner,
) -> Result<Option<NewFile>, TrainError> {
    file(kept, &owner.kind(OWN_PREFIX))
}

/// Reads a rank's own state of a network; nothing if another number of ranks saved it.
pub(in crate::engine) fn own_state(
    reader: &Reader,
    network: &str,
    owner: StateOwner,
) -> Result<CodecState, TrainError> {
    state(reader, network, &owner.kind(OWN_PREFIX))
}

/// Creates the file of a rank's codec state of each network, if there is any.
pub(in crate::engine) fn codec_file(
    kept: Vec<(&str, CodecState)>,
    owner: StateOwner,
) -> Result<Option<NewFile>, TrainError> {
    file(kept, &owner.kind(PREFIX))
}

fn file(kept: Vec<(&str, CodecState)>, kind: &str) -> Result<Option<NewFile>, TrainError> {
    let mut pieces = Vec::new();
    for (network, state) in kept {
        for (name, values) in state {
            let (name, shape) = (named(network, &name), vec![values.len()]);
            let (key, region) = (format!("{kind}.{name}"), Region::whole(&shape));
            let values =
                Tensor::from_vec(values, shape.as_slice(), &Device::Cpu).map_err(TensorError::from)?;
            pieces.push(NewPiece { kind: kind.to_owned(), name, shape, region, key, values });
        }
    }
    Ok((!pieces.is_empty()).then(|| NewFile { name: format!("{kind}.safetensors"), pieces }))
}

/// Reads a rank's codec state of a network.
///
/// # Errors
/// If the ranks of another mesh saved codec state, which cannot be redistributed; and if a file is damaged.
pub(in crate::engine) fn codec_state(
    reader: &Reader,
    network: &str,
    owner: StateOwner,
) -> Result<CodecState, TrainError> {
    let mut kept = reader.kinds().filter(|found| found.starts_with(PREFIX));
    if let Some(found) = kept.find(|found| !owner.is_of_mesh(found)) {
        return Err(TrainError::Setup(format!(
            "the checkpoint has the state of gradient codecs as `{found}`; resume with as many ranks, not with {owner}, or drop that \
             state by codec.reset = true"
        )));
    }
    state(reader, network, &owner.kind(PREFIX))
}

fn state(reader: &Reader, network: &str, kind: &str) -> Result<CodecState, TrainError> {
    let start = named(network, "");
    let own = reader.tensors(kind).filter_map(|(name, _)| name.strip_prefix(&start));
    let read = |name: &str| {
        let values = reader.read(kind, &named(network, name))?.to_vec1().map_err(TensorError::from)?;
        Ok((name.to_owned(), values))
    };
    own.map(read).collect()
}

#[cfg(test)]
mod tests {
    use phalanx_tensor::TensorRank;
    use serde_json::Map;

    use super::*;
    use crate::engine::distributed::StageRank;
    use phalanx_checkpoint::StagingFolder;

    /// The state of a rank: numbers without an exact decimal form.
    fn kept(rank: usize) -> Vec<(String, Vec<f32>)> {
        let of = |slot: usize| {
            let values = (0..5).map(|at| (at + slot) as f32 / 7.0 - rank as f32 * f32::MIN_POSITIVE);
            (slot.to_string(), values.collect())
        };
        vec![of(0), of(3)]
    }

    /// One of two ranks that share layers, or the only one.
    fn owner(rank: usize, ranks: usize, tensor: TensorRank) -> StateOwner {
        StateOwner { rank, ranks, tensor, stage: StageRank::ALONE }
    }

    #[test]
    fn ranks_that_share_layers_have_states_of_their_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let staging = StagingFolder::create(folder.path(), 1, 1).expect("a folder");
        let ranks: Vec<_> =
            (0..4).map(|rank| owner(rank / 2, 2, TensorRank { rank: rank % 2, ranks: 2 })).collect();
        for (at, owner) in ranks.iter().enumerate() {
            let own = codec_file(vec![("", kept(at))], *owner).expect("small").expect("something is kept");
            staging.write(at, vec![own]).expect("writes");
        }
        let reader = staging.commit(4, Map::new(), 1).expect("completes").reader();
        for (at, owner) in ranks.iter().enumerate() {
            assert_eq!(codec_state(&reader, "", *owner).expect("reads"), kept(at), "rank {at}");
        }
        for other in [
            owner(0, 4, TensorRank::ALONE),
            owner(0, 2, TensorRank::ALONE),
            owner(0, 1, TensorRank { rank: 0, ranks: 4 }),
            StateOwner { stage: StageRank { rank: 0, ranks: 2 }, ..owner(0, 2, TensorRank::ALONE) },
            StateOwner {
                stage: StageRank { rank: 1, ranks: 2 },
                ..owner(0, 2, TensorRank { rank: 0, ranks: 2 })
            },
        ] {
            let error = codec_state(&reader, "", other).expect_err("another mesh").to_string();
            assert!(error.contains("codec-00000-of-00004-tensor-00002"), "{error}");
            assert!(error.contains(&format!("not with {other}")), "{error}");
        }
    }

    #[test]
    fn each_rank_reads_its_own_state_and_other_numbers_of_ranks_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let staging = StagingFolder::create(folder.path(), 1, 1).expect("a folder");
        for rank in 0..2 {
            let all = vec![("g", kept(rank)), ("d", kept(rank + 5))];
            let own = codec_file(all, owner(rank, 2, TensorRank::ALONE))
                .expect("small")
                .expect("something is kept");
            assert_eq!(own.name, format!("codec-0000{rank}-of-00002.safetensors"));
            staging.write(rank, vec![own]).expect("writes");
        }
        let reader = staging.commit(2, Map::new(), 1).expect("completes").reader();
        assert!(reader.kinds().all(is_codec_state));
        for rank in 0..2 {
            let state = |network: &str| {
                codec_state(&reader, network, owner(rank, 2, TensorRank::ALONE)).expect("reads")
            };
            assert_eq!([state("g"), state("d")], [kept(rank), kept(rank + 5)], "rank {rank}");
        }
        let four = owner(0, 4, TensorRank::ALONE);
        let error = codec_state(&reader, "g", four).expect_err("other ranks' errors").to_string();
        assert!(error.contains("codec-00000-of-00002") && error.contains("not with 4"), "{error}");
        assert!(codec_file(vec![("", Vec::new())], four).expect("nothing").is_none());
        let two = owner(0, 2, TensorRank::ALONE);
        assert!(own_state(&reader, "g", two).expect("reads").is_empty(), "strategies kept nothing");
    }
}
