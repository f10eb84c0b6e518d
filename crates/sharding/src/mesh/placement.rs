//! Placements of a tensor along the axes of a mesh, and changes of placement.
//!
//! A partial sum looks like any other number, and reading it as if it were complete gives gradients that are silently
//! wrong. So the placement is part of the tensor: [`DistributedTensor`] returns replicated values freely, and other
//! values only to callers that name the placement.
//!
//! # Conversions along one axis of n ranks
//!
//! | from | to | forward | backward, where the loss is replicated along the axis | where it is the sum of the ranks' |
//! |---|---|---|---|---|
//! | partial sum | replicated | all-reduce | as it is (Megatron's g) | all-reduce |
//! | partial sum | shard of a dimension | reduce-scatter | all-gather | all-gather |
//! | shard | replicated | all-gather | own part | reduce-scatter |
//! | replicated | shard | own part | all-gather | own part, zero elsewhere |
//! | shard | shard of another dimension | all-gather, own part | both of the above | both of the above |
//!
//! The loss is the sum of the ranks' along axes over which data differs, and replicated along the others
//! ([`crate::AXES`]). Along data axes each rank has its own copy of replicated tensors, and the gradient is the sum
//! over the copies, as in [`crate::DataParallel`].

use std::ops::Range;

use phalanx_collectives::ReduceOp;
use phalanx_tensor::group::even_lens;
use phalanx_tensor::{Tape, Value, ops};

use crate::mesh::{MeshLayout, ProcessMesh};
use crate::{Result, ShardingError};

/// The placement of a tensor along one axis of a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Every rank has all of it.
    Replicate,
    /// A shard of a dimension: the rank at coordinate `r` of n has elements `r·len/n .. (r + 1)·len/n` of `len`.
    Shard {
        /// The dimension, from 0.
        dim: usize,
    },
    /// Every rank has a partial result of the whole shape, which must be reduced over the ranks.
    Partial {
        /// The placement.
        op: ReduceOp,
    },
}

impl Placement {
    /// A sum that every rank has added to.
    pub const PARTIAL_SUM: Self = Self::Partial { op: ReduceOp::Sum };
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Replicate => f.write_str("replicated"),
            Self::Shard { dim } => write!(f, "a shard of dimension {dim}"),
            Self::Partial { op } => write!(f, "a partial {}", format!("{op:?}").to_lowercase()),
        }
    }
}

/// Returns the range of each dimension of `shape` that the rank at `coordinates` has, with a placement for each axis of
/// the mesh. If several axes shard one dimension, outer axes come first, and each divides the range of the previous
/// one.
///
/// # Errors
/// [`ShardingError::Placement`] if there is not one placement for each axis or a dimension is not there.
pub fn local_ranges(
    layout: &MeshLayout,
    coordinates: &[usize],
    shape: &[usize],
    placements: &[Placement],
) -> Result<Vec<Range<usize>>> {
    let wrong = |problem| Err(ShardingError::Placement { shape: shape.to_vec(), problem });
    let axes = layout.axes().count();
    if placements.len() != axes || coordinates.len() != axes {
        return wrong(format!("{} placements for the axes of {layout}; expected one each", placements.len()));
    }
    let mut ranges: Vec<Range<usize>> = shape.iter().map(|len| 0..*len).collect();
    for (((axis, size), at), placement) in layout.axes().zip(coordinates).zip(placements) {
        let Placement::Shard { dim } = placement else { continue };
        let Some(range) = ranges.get_mut(*dim) else {
            return wrong(format!("along `{axis}` it is {placement}, which it does not have"));
        };
        *range = range.start + at * range.len() / size..range.start + (at + 1) * range.len() / size;
    }
    Ok(ranges)
}

/// A tensor distributed over a mesh, like PyTorch's DTensor: this rank's local values and their placement.
#[derive(Debug, Clone)]
pub struct DistributedTensor {
    mesh: ProcessMesh,
    /// The whole tensor's shape.
    shape: Vec<usize>,
    /// The placement along each axis.
    placements: Vec<Placement>,
    local: Value,
}

impl DistributedTensor {
    /// Wraps this rank's local values of a tensor of shape `shape`. Along axes that are not named it is replicated.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if there is no such axis; [`ShardingError::Placement`] if `local` has not the shape that the
    /// placements give this rank, or a dimension is not there.
    pub fn new(
        mesh: &ProcessMesh,
        local: Value,
        shape: &[usize],
        along: &[(&str, Placement)],
    ) -> Result<Self> {
        let mut placements = vec![Placement::Replicate; mesh.layout().axes().count()];
        for (axis, placement) in along {
            placements[mesh.layout().position(axis)?] = *placement;
        }
        let placed = Self { mesh: mesh.clone(), shape: shape.to_vec(), placements, local };
        let expected: Vec<usize> = placed.ranges()?.iter().map(Range::len).collect();
        match placed.local.dims() == expected {
            true => Ok(placed),
            false => {
                let found = placed.local.dims();
                Err(placed.wrong(format!("this rank's part is {expected:?}, not {found:?}")))
            }
        }
    }

    /// The whole tensor's shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the range of each dimension of the whole that this rank has.
    ///
    /// # Errors
    /// None after [`DistributedTensor::new`].
    pub fn ranges(&self) -> Result<Vec<Range<usize>>> {
        let layout = self.mesh.layout();
        local_ranges(layout, &layout.coordinates(self.mesh.rank())?, &self.shape, &self.placements)
    }

    /// Returns the placement along `axis`.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if there is no such axis.
    pub fn placement(&self, axis: &str) -> Result<Placement> {
        Ok(self.placements[self.mesh.layout().position(axis)?])
    }

    /// Returns the whole tensor, which every rank has.
    ///
    /// # Errors
    /// [`ShardingError::Placement`] if along some axis it is a shard or a partial result: [`DistributedTensor::to`]
    /// makes it replicated.
    pub fn replicated(&self) -> Result<&Value> {
        for ((axis, size), placement) in self.mesh.layout().axes().zip(&self.placements) {
            if size > 1 && *placement != Placement::Replicate {
                let problem = format!("it is {placement} along `{axis}` of {size} ranks; make it replicated");
                return Err(self.wrong(problem));
            }
        }
        Ok(&self.local)
    }

    /// Returns this rank's local values. `along` must name the placement of every axis that is not replicated.
    ///
    /// # Errors
    /// [`ShardingError::Placement`] if the placement differs, [`ShardingError::Mesh`] if there is no such axis.
    pub fn local(&self, along: &[(&str, Placement)]) -> Result<&Value> {
        let mut expected = vec![Placement::Replicate; self.placements.len()];
        for (axis, placement) in along {
            expected[self.mesh.layout().position(axis)?] = *placement;
        }
        for (((axis, size), is), taken) in self.mesh.layout().axes().zip(&self.placements).zip(expected) {
            if size > 1 && *is != taken {
                return Err(self.wrong(format!("along `{axis}` of {size} ranks it is {is}, not {taken}")));
            }
        }
        Ok(&self.local)
    }

    /// Returns the values of a tensor that is replicated along `axis`, for computations that differ between its ranks,
    /// such as with columns of a weight. Gradients are partial sums, which backward sums if the loss is replicated
    /// ([`ops::copy_to_group`], Megatron's f).
    ///
    /// # Errors
    /// [`ShardingError::Placement`] if it is not replicated along `axis`, [`ShardingError::Mesh`] if there is no such axis.
    pub fn branch(&self, tape: &Tape, axis: &str) -> Result<Value> {
        let at = self.mesh.layout().position(axis)?;
        match self.placements[at] {
            Placement::Replicate if self.mesh.layout().kind(at).loss_summed => Ok(self.local.clone()),
            Placement::Replicate => Ok(ops::copy_to_group(tape, &self.local, &self.mesh.group(axis)?)?),
            other => {
                Err(self.wrong(format!("along `{axis}` it is {other}; only what is replicated branches")))
            }
        }
    }

    /// Returns the tensor with another placement along `axis`. Every rank along it calls this at the same place. The
    /// table of this module lists the messages of forward and backward.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if there is no such axis; [`ShardingError::Placement`] if the conversion does not exist:
    /// no tensor becomes partial, only partial sums and means can be completed, and a dimension that several axes shard
    /// is gathered from the innermost axis on; errors of communication.
    pub fn to(&self, tape: &Tape, axis: &str, to: Placement) -> Result<Self> {
        let at = self.mesh.layout().position(axis)?;
        let from = self.placements[at];
        if from == to {
            return Ok(self.clone());
        }
        let local = match (from, to) {
            (_, Placement::Partial { .. }) => {
                return Err(self.wrong(format!("along `{axis}` it is {from}, which cannot become {to}")));
            }
            (Placement::Partial { op }, _) => self.complete(tape, (axis, at), op, to)?,
            (Placement::Shard { dim }, Placement::Shard { .. }) => {
                let whole = self.with(at, Placement::Replicate, self.gather(tape, (axis, at), dim)?);
                return whole.to(tape, axis, to);
            }
            (Placement::Shard { dim }, Placement::Replicate) => self.gather(tape, (axis, at), dim)?,
            (Placement::Replicate, Placement::Shard { dim }) => self.split(tape, (axis, at), dim)?,
            (Placement::Replicate, Placement::Replicate) => self.local.clone(),
        };
        Ok(self.with(at, to, local))
    }

    fn with(&self, at: usize, placement: Placement, local: Value) -> Self {
        let mut placed = Self { local, ..self.clone() };
        placed.placements[at] = placement;
        placed
    }

    fn complete(&self, tape: &Tape, (axis, at): (&str, usize), op: ReduceOp, to: Placement) -> Result<Value> {
        let (group, summed) = (self.mesh.group(axis)?, self.mesh.layout().kind(at).loss_summed);
        let factor = match op {
            ReduceOp::Sum => 1.0,
            ReduceOp::Mean => 1.0 / group.size() as f64,
            _ => {
                let is = Placement::Partial { op };
                let problem = format!("along `{axis}` it is {is}; only sums and means have gradients");
                return Err(self.wrong(problem));
            }
        };
        let sum = match to {
            Placement::Shard { dim } => {
                let lens = self.lens(axis, at, dim)?;
                ops::reduce_scatter(tape, &self.local, dim, &lens, &group)?
            }
            _ if summed => ops::all_reduce(tape, &self.local, &group)?,
            _ => ops::reduce_from_group(tape, &self.local, &group)?,
        };
        Ok(if factor == 1.0 { sum } else { ops::scale(tape, &sum, factor)? })
    }

    fn gather(&self, tape: &Tape, (axis, at): (&str, usize), dim: usize) -> Result<Value> {
        let (lens, group) = (self.lens(axis, at, dim)?, self.mesh.group(axis)?);
        Ok(match self.mesh.layout().kind(at).loss_summed {
            true => ops::all_gather(tape, &self.local, dim, &lens, &group)?,
            false => ops::gather_from_group(tape, &self.local, dim, &lens, &group)?,
        })
    }

    fn split(&self, tape: &Tape, (axis, at): (&str, usize), dim: usize) -> Result<Value> {
        let (lens, group) = (self.lens(axis, at, dim)?, self.mesh.group(axis)?);
        let start = lens[..group.rank()].iter().sum();
        Ok(match self.mesh.layout().kind(at).loss_summed {
            true => ops::narrow(tape, &self.local, dim, start, lens[group.rank()])?,
            false => ops::split_to_group(tape, &self.local, dim, &lens, &group)?,
        })
    }

    /// Returns the ranges into which the ranks along an axis divide a dimension.
    fn lens(&self, axis: &str, at: usize, dim: usize) -> Result<Vec<usize>> {
        let sizes: Vec<(&str, usize)> = self.mesh.layout().axes().collect();
        for (inner, placement) in sizes.iter().zip(&self.placements).skip(at + 1) {
            if inner.1 > 1 && *placement == (Placement::Shard { dim }) {
                let problem = format!(
                    "dimension {dim} is sharded along `{}`, which lies inside `{axis}`: bring it together there first",
                    inner.0
                );
                return Err(self.wrong(problem));
            }
        }
        let mut placements = self.placements.clone();
        placements[at] = Placement::Replicate;
        let layout = self.mesh.layout();
        let coordinates = layout.coordinates(self.mesh.rank())?;
        let ranges = local_ranges(layout, &coordinates, &self.shape, &placements)?;
        match ranges.get(dim) {
            Some(range) => Ok(even_lens(range.len(), sizes[at].1)),
            None => Err(self.wrong(format!("it has no dimension {dim} to be sharded along `{axis}`"))),
        }
    }

    fn wrong(&self, problem: String) -> ShardingError {
        ShardingError::Placement { shape: self.shape.clone(), problem }
    }
}
