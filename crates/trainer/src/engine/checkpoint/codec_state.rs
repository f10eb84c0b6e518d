//! What ranks have for themselves, in checkpoints: what codecs of gradients keep, and what strategies do whose ranks are apart.

use candle_core::{Device, Tensor};
use phalanx_tensor::TensorError;

use crate::engine::error::TrainError;
use phalanx_checkpoint::{NewFile, NewPiece, Reader, Region};

const PREFIX: &str = "codec-";

/// How the kinds of tensors begin that a rank has for itself under strategies whose ranks are apart.
const OWN_PREFIX: &str = "own-";

/// The kind of tensors that a rank's codec keeps. Errors that a rank has still to make good are that rank's alone.
fn kind(prefix: &str, rank: usize, ranks: usize) -> String {
    format!("{prefix}{rank:05}-of-{ranks:05}")
}

/// What a codec keeps: numbers by name.
pub(in crate::engine) type CodecState = Vec<(String, Vec<f32>)>;

/// What a network's tensors are called: its name goes before those that its codec chooses.
fn named(network: &str, name: &str) -> String {
    if network.is_empty() { name.to_owned() } else { format!("{network}.{name}") }
}

/// Whether tensors of a kind are a rank's own: a codec's, or a strategy's.
pub(in crate::engine) fn is_codec_state(kind: &str) -> bool {
    kind.starts_with(PREFIX) || kind.starts_with(OWN_PREFIX)
}

/// The file with what a rank has for itself of each network, if it has anything.
pub(in crate::engine) fn own_file(
    kept: Vec<(&str, CodecState)>,
    rank: usize,
    ranks: usize,
) -> Result<Option<NewFile>, TrainError> {
    file(kept, &kind(OWN_PREFIX, rank, ranks))
}

/// What this rank had for itself of a network when the checkpoint was saved; nothing if ranks were another number then.
pub(in crate::engine) fn own_state(
    reader: &Reader,
    network: &str,
    rank: usize,
    ranks: usize,
) -> Result<CodecState, TrainError> {
    state(reader, network, &kind(OWN_PREFIX, rank, ranks))
}

/// The file with what a rank's codecs keep for each network, if they keep anything.
pub(in crate::engine) fn codec_file(
    kept: Vec<(&str, CodecState)>,
    rank: usize,
    ranks: usize,
) -> Result<Option<NewFile>, TrainError> {
    file(kept, &kind(PREFIX, rank, ranks))
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

/// What the codec of this rank and network had kept when the checkpoint was saved.
///
/// # Errors
/// If codecs of another number of ranks had kept something, which no rank of these can make good; and if a file is damaged.
pub(in crate::engine) fn codec_state(
    reader: &Reader,
    network: &str,
    rank: usize,
    ranks: usize,
) -> Result<CodecState, TrainError> {
    let of = format!("-of-{ranks:05}");
    if let Some(found) = reader.kinds().find(|found| found.starts_with(PREFIX) && !found.ends_with(&of)) {
        return Err(TrainError::Setup(format!(
            "the checkpoint has what codecs of gradients had kept as `{found}`; it can go on with as many ranks, not with {ranks}, \
             unless codec.reset = true leaves it behind"
        )));
    }
    state(reader, network, &kind(PREFIX, rank, ranks))
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
    use serde_json::Map;

    use super::*;
    use phalanx_checkpoint::Aside;

    /// What rank `rank` keeps: numbers that no decimal writes exactly, and one that is nothing.
    fn kept(rank: usize) -> Vec<(String, Vec<f32>)> {
        let of = |slot: usize| {
            let values = (0..5).map(|at| (at + slot) as f32 / 7.0 - rank as f32 * f32::MIN_POSITIVE);
            (slot.to_string(), values.collect())
        };
        vec![of(0), of(3)]
    }

    #[test]
    fn each_rank_finds_its_own_again_and_other_numbers_of_ranks_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let aside = Aside::create(folder.path(), 1, 1).expect("a folder");
        for rank in 0..2 {
            let all = vec![("g", kept(rank)), ("d", kept(rank + 5))];
            let own = codec_file(all, rank, 2).expect("small").expect("something is kept");
            assert_eq!(own.name, format!("codec-0000{rank}-of-00002.safetensors"));
            aside.write(rank, vec![own]).expect("writes");
        }
        let reader = aside.commit(2, Map::new(), 1).expect("completes").reader();
        assert!(reader.kinds().all(is_codec_state));
        for rank in 0..2 {
            let state = |network: &str| codec_state(&reader, network, rank, 2).expect("reads");
            assert_eq!([state("g"), state("d")], [kept(rank), kept(rank + 5)], "rank {rank}");
        }
        let error = codec_state(&reader, "g", 0, 4).expect_err("other ranks' errors").to_string();
        assert!(error.contains("codec-00000-of-00002") && error.contains("not with 4"), "{error}");
        assert!(codec_file(vec![("", Vec::new())], 0, 2).expect("nothing").is_none());
        assert!(own_state(&reader, "g", 0, 2).expect("reads").is_empty(), "strategies kept nothing");
    }
}
