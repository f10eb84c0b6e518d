//! A group whose other ranks are not there.

use std::sync::{Mutex, PoisonError};

use candle_core::Tensor;

use super::ProcessGroup;
use crate::backend::Array;
use crate::error::HookResult;
use crate::host::{HostSliceMut, with_host_slice_mut};

/// The messages of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupTraffic {
    /// Collective operations.
    pub operations: u64,
    /// The elements of sums over the ranks, in bytes.
    pub summed: u64,
    /// The elements of gathered arrays, in bytes.
    pub gathered: u64,
    /// The elements of arrays of which each rank gets the sum of a part, in bytes.
    pub scattered: u64,
}

impl GroupTraffic {
    /// Returns the bytes that a rank of `size` sends, if sums go by the ring.
    pub fn sent(&self, size: usize) -> u64 {
        let size = size as u64;
        (2 * self.summed + self.gathered + self.scattered) * (size - 1) / size
    }
}

/// A group that one process plays as one of its ranks. It counts messages and moves nothing. Numbers on the host are answered as
/// if all ranks had those of this one.
#[derive(Debug)]
pub struct OutlineGroup {
    rank: usize,
    size: usize,
    traffic: Mutex<GroupTraffic>,
}

impl OutlineGroup {
    /// Makes the group as rank `rank` of `size`.
    pub fn new(rank: usize, size: usize) -> Self {
        Self { rank, size, traffic: Mutex::default() }
    }

    /// The messages so far.
    pub fn traffic(&self) -> GroupTraffic {
        *self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation.
    fn count(&self, values: &Array, to: fn(&mut GroupTraffic) -> &mut u64) {
        let mut traffic = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        traffic.operations += 1;
        *to(&mut traffic) += (values.elem_count() * values.dtype().size_in_bytes()) as u64;
    }

    /// Refuses parts that are not those of the ranks of an array.
    fn check(&self, values: &Array, lens: &[usize]) -> HookResult {
        let (parts, sum) = (lens.len(), lens.iter().sum::<usize>());
        match (parts, sum) == (self.size, values.elem_count()) {
            true => Ok(()),
            false => {
                let (size, len) = (self.size, values.elem_count());
                Err(format!("{parts} parts of {sum} elements, for {size} ranks and {len} elements").into())
            }
        }
    }

    /// Changes numbers of the host.
    fn on_host(values: &Array, change: impl Fn(&mut [f64])) -> HookResult {
        let Ok(tensor) = values.host("collective operation") else { return Ok(()) };
        let tensor: &Tensor = tensor;
        Ok(with_host_slice_mut(tensor, |slice| match slice {
            HostSliceMut::F64(slice) => change(slice),
            HostSliceMut::F32(slice) => {
                let mut wide: Vec<f64> = slice.iter().map(|number| f64::from(*number)).collect();
                change(&mut wide);
                slice.iter_mut().zip(wide).for_each(|(to, from)| *to = from as f32);
            }
        })?)
    }
}

impl ProcessGroup for OutlineGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&self, values: &Array) -> HookResult {
        self.count(values, |traffic| &mut traffic.summed);
        let size = self.size as f64;
        Self::on_host(values, |numbers| numbers.iter_mut().for_each(|number| *number *= size))
    }

    fn all_gather(&self, values: &Array, lens: &[usize]) -> HookResult {
        self.check(values, lens)?;
        self.count(values, |traffic| &mut traffic.gathered);
        let start: usize = lens[..self.rank].iter().sum();
        let own = start..start + lens[self.rank];
        Self::on_host(values, |numbers| {
            let part = numbers[own.clone()].to_vec();
            let mut rest = numbers;
            for len in lens {
                let (to, after) = rest.split_at_mut(*len);
                to.iter_mut().zip(part.iter().cycle()).for_each(|(to, from)| *to = *from);
                rest = after;
            }
        })
    }

    fn reduce_scatter(&self, values: &Array, lens: &[usize]) -> HookResult {
        self.check(values, lens)?;
        self.count(values, |traffic| &mut traffic.scattered);
        let size = self.size as f64;
        Self::on_host(values, |numbers| numbers.iter_mut().for_each(|number| *number *= size))
    }
}
