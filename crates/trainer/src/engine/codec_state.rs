//! What codecs of gradients keep, in checkpoints: each rank's own, in a file of its own.

use candle_core::{Device, Tensor};
use phalanx_tensor::TensorError;

use super::TrainError;
use crate::run::checkpoint::{Part, PartFile, Reader};

const PREFIX: &str = "codec-";

/// The kind of tensors that a rank's codec keeps. Errors that a rank has still to make good are that rank's alone.
fn kind(rank: usize, ranks: usize) -> String {
    format!("{PREFIX}{rank:05}-of-{ranks:05}")
}

/// Whether tensors of a kind are a codec's.
pub(super) fn is_kind(kind: &str) -> bool {
    kind.starts_with(PREFIX)
}

/// The file with what a rank's codec keeps, if it keeps anything.
pub(super) fn file(
    state: Vec<(String, Vec<f32>)>,
    rank: usize,
    ranks: usize,
) -> Result<Option<PartFile>, TrainError> {
    let kind = kind(rank, ranks);
    let part = |(name, values): (String, Vec<f32>)| {
        let (shape, key) = (vec![values.len()], format!("{kind}.{name}"));
        let values = Tensor::from_vec(values, shape.as_slice(), &Device::Cpu).map_err(TensorError::from)?;
        Ok(Part { kind: kind.clone(), name, shape, start: 0, key, values })
    };
    let parts = state.into_iter().map(part).collect::<Result<Vec<_>, TrainError>>()?;
    Ok((!parts.is_empty()).then(|| PartFile { name: format!("{kind}.safetensors"), parts }))
}

/// What the codec of this rank had kept when the checkpoint was saved.
///
/// # Errors
/// If codecs of another number of ranks had kept something, which no rank of these can make good; and if a file is damaged.
pub(super) fn read(
    reader: &Reader,
    rank: usize,
    ranks: usize,
) -> Result<Vec<(String, Vec<f32>)>, TrainError> {
    let kind = kind(rank, ranks);
    if let Some(found) = reader
        .kinds()
        .find(|found| is_kind(found))
        .filter(|found| found.len() != kind.len() || found[PREFIX.len() + 5..] != kind[PREFIX.len() + 5..])
    {
        return Err(TrainError::Setup(format!(
            "the checkpoint has what codecs of gradients had kept as `{found}`; it can go on with as many ranks, not with {ranks}"
        )));
    }
    let names: Vec<String> = reader.tensors(&kind).map(|(name, _)| name.to_owned()).collect();
    let read = |name: String| {
        let values = reader.read(&kind, &name)?.to_vec1().map_err(TensorError::from)?;
        Ok((name, values))
    };
    names.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::run::checkpoint::Aside;

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
            let own = file(kept(rank), rank, 2).expect("small").expect("something is kept");
            assert_eq!(own.name, format!("codec-0000{rank}-of-00002.safetensors"));
            aside.write(rank, vec![own]).expect("writes");
        }
        let reader = aside.commit(2, Map::new(), 1).expect("completes").reader();
        assert!(reader.kinds().all(is_kind));
        for rank in 0..2 {
            assert_eq!(read(&reader, rank, 2).expect("reads"), kept(rank), "rank {rank}");
        }
        let error = read(&reader, 0, 4).expect_err("other ranks' errors").to_string();
        assert!(error.contains("codec-00000-of-00002") && error.contains("not with 4"), "{error}");
        assert!(file(Vec::new(), 0, 2).expect("nothing").is_none());
    }
}
