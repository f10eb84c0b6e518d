//! Which rank lies where in a mesh: names, sizes, coordinates and groups, without any communication.

use crate::{Result, ShardingError};

/// An axis that a mesh can have, and what the ranks along it do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AxisKind {
    /// The axis's name.
    pub name: &'static str,
    /// True if ranks along it have different samples.
    pub samples_differ: bool,
    /// True if the loss is the sum over the ranks along it.
    pub loss_summed: bool,
    /// True if ranks along it hold different parts of the model and of each gradient's norm.
    pub model_split: bool,
}

/// The axes that a mesh can have.
///
/// | axis | samples differ | loss summed | ranks along it |
/// |---|---|---|---|
/// | `replicate` | yes | yes | train on samples of their own, and hold the same state as each other |
/// | `shard` | yes | yes | train on samples of their own, and each hold a part of the state |
/// | `context` | no | yes | work on parts of the same samples |
/// | `tensor` | no | no | work on the same samples, each on a part of every layer |
/// | `pipeline` | no | no | work on the same samples, each on some of the layers |
/// | `duplicate` | no | no | do the same work; for tests |
pub const AXES: &[AxisKind] = &[
    AxisKind { name: "replicate", samples_differ: true, loss_summed: true, model_split: false },
    AxisKind { name: "shard", samples_differ: true, loss_summed: true, model_split: false },
    AxisKind { name: "context", samples_differ: false, loss_summed: true, model_split: false },
    AxisKind { name: "tensor", samples_differ: false, loss_summed: false, model_split: true },
    AxisKind { name: "pipeline", samples_differ: false, loss_summed: false, model_split: true },
    AxisKind { name: "duplicate", samples_differ: false, loss_summed: false, model_split: false },
];

/// One axis of a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    kind: AxisKind,
    size: usize,
}

/// Ranks as the points of a grid with named axes. The last axis varies fastest: with `replicate 2 × shard 4`, rank 5 lies at
/// replicate 1, shard 1.
///
/// ```
/// use phalanx_sharding::MeshLayout;
///
/// # fn main() -> Result<(), phalanx_sharding::ShardingError> {
/// let mesh = MeshLayout::new(&[("replicate", 2), ("tensor", 3)], 6)?;
/// assert_eq!(mesh.coordinates(4)?, [1, 1]);
/// assert_eq!(mesh.group(4, "tensor")?, [3, 4, 5]);
/// // Ranks 3, 4 and 5 work on the same samples, which are the second half of the batch.
/// assert_eq!((mesh.data_rank(4)?, mesh.data_size()), (1, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshLayout {
    /// Outermost first.
    axes: Vec<Axis>,
}

impl MeshLayout {
    /// A mesh with these axes, outermost first.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if there is no axis, one is not of [`AXES`] or occurs twice, or the product of the sizes is not
    /// the world size.
    pub fn new(axes: &[(&str, usize)], world_size: usize) -> Result<Self> {
        let equation = equation(axes.iter().copied());
        if axes.is_empty() {
            return Err(ShardingError::Mesh(format!(
                "{world_size} ranks need at least one axis to lie along"
            )));
        }
        let mut known = Vec::with_capacity(axes.len());
        for (name, size) in axes {
            let Some(kind) = AXES.iter().find(|known| known.name == *name) else {
                let there_is = AXES.iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
                let problem = format!("axis `{name}` of {equation} is unknown; there is: {there_is}");
                return Err(ShardingError::Mesh(problem));
            };
            if known.iter().any(|axis: &Axis| axis.kind.name == *name) {
                return Err(ShardingError::Mesh(format!("axis `{name}` occurs twice in {equation}")));
            }
            known.push(Axis { kind: *kind, size: *size });
        }
        let product = known.iter().try_fold(1_usize, |product, axis| product.checked_mul(axis.size));
        if product != Some(world_size) || world_size == 0 {
            let product = product.map_or_else(|| "too many".to_owned(), |product| product.to_string());
            let problem = format!("{equation} = {product}, but the world has {world_size} ranks");
            return Err(ShardingError::Mesh(problem));
        }
        Ok(Self { axes: known })
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Names and sizes of the axes, outermost first.
    pub fn axes(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.axes.iter().map(|axis| (axis.kind.name, axis.size))
    }

    /// The number of ranks along `axis`; `None` if there is no such axis.
    pub fn size(&self, axis: &str) -> Option<usize> {
        self.axes.iter().find(|known| known.kind.name == axis).map(|known| known.size)
    }

    /// Where among the axes `axis` is.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] naming those that there are.
    pub fn position(&self, axis: &str) -> Result<usize> {
        self.axes.iter().position(|known| known.kind.name == axis).ok_or_else(|| {
            let names = self.axes.iter().map(|axis| axis.kind.name).collect::<Vec<_>>().join(", ");
            ShardingError::Mesh(format!("there is no axis `{axis}`; the mesh has {names}"))
        })
    }

    /// Where `rank` lies along each axis.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if the world has no such rank.
    pub fn coordinates(&self, rank: usize) -> Result<Vec<usize>> {
        self.check(rank)?;
        let mut rest = rank;
        let mut coordinates = vec![0; self.axes.len()];
        for (at, axis) in coordinates.iter_mut().zip(&self.axes).rev() {
            *at = rest % axis.size;
            rest /= axis.size;
        }
        Ok(coordinates)
    }

    /// The ranks that share all coordinates with `rank` but the one along `axis`, in order: those that it communicates with
    /// over that axis.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if there is no such axis or no such rank.
    pub fn group(&self, rank: usize, axis: &str) -> Result<Vec<usize>> {
        let free = self.position(axis)?;
        self.alike(rank, |at| at != free)
    }

    /// Position of `rank` among the parts that a batch is split into: its coordinates along the axes over which data
    /// differs, the last varying fastest. Ranks that differ along other axes only have the same samples.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if the world has no such rank.
    pub fn data_rank(&self, rank: usize) -> Result<usize> {
        let coordinates = self.coordinates(rank)?;
        let of_data = self.axes.iter().zip(coordinates).filter(|(axis, _)| axis.kind.samples_differ);
        Ok(of_data.fold(0, |sum, (axis, at)| sum * axis.size + at))
    }

    /// The number of parts of a batch: the product of the axes along which samples differ.
    pub fn data_size(&self) -> usize {
        self.axes.iter().filter(|axis| axis.kind.samples_differ).map(|axis| axis.size).product()
    }

    /// The ranks that differ from `rank` only along axes of the kinds that `free` accepts, `rank` among them, in order.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if the world has no such rank.
    pub fn group_along(&self, rank: usize, free: impl Fn(&AxisKind) -> bool) -> Result<Vec<usize>> {
        self.alike(rank, |at| !free(&self.axes[at].kind))
    }

    /// The position of `rank` along the axes whose ranks do the same work as each other.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if the world has no such rank.
    pub(crate) fn duplicate(&self, rank: usize) -> Result<usize> {
        let coordinates = self.coordinates(rank)?;
        let same = |kind: &AxisKind| !(kind.samples_differ || kind.loss_summed || kind.model_split);
        let of_same = self.axes.iter().zip(coordinates).filter(|(axis, _)| same(&axis.kind));
        Ok(of_same.fold(0, |sum, (axis, at)| sum * axis.size + at))
    }

    /// The ranks with the coordinates of `rank` along the axes that `fixed` says.
    fn alike(&self, rank: usize, fixed: impl Fn(usize) -> bool) -> Result<Vec<usize>> {
        let own = self.coordinates(rank)?;
        let mut ranks = Vec::new();
        for other in 0..self.world_size() {
            let theirs = self.coordinates(other)?;
            if (0..own.len()).all(|at| !fixed(at) || own[at] == theirs[at]) {
                ranks.push(other);
            }
        }
        Ok(ranks)
    }

    fn check(&self, rank: usize) -> Result<()> {
        let size = self.world_size();
        match rank < size {
            true => Ok(()),
            false => Err(ShardingError::Mesh(format!("there is no rank {rank} in {self}, which has {size}"))),
        }
    }
}

impl std::fmt::Display for MeshLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&equation(self.axes()))
    }
}

/// `replicate 2 × shard 4`.
fn equation<'a>(axes: impl Iterator<Item = (&'a str, usize)>) -> String {
    axes.map(|(name, size)| format!("{name} {size}")).collect::<Vec<_>>().join(" × ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_and_groups() {
        let mesh = MeshLayout::new(&[("replicate", 2), ("shard", 3)], 6).expect("2 × 3 = 6");
        assert_eq!(mesh.coordinates(4).expect("a rank"), [1, 1]);
        assert_eq!(mesh.group(4, "shard").expect("an axis"), [3, 4, 5]);
        assert_eq!(mesh.group(4, "replicate").expect("an axis"), [1, 4]);
        assert_eq!((mesh.size("shard"), mesh.size("pipeline")), (Some(3), None));
        assert_eq!((mesh.data_rank(4).expect("a rank"), mesh.data_size()), (4, 6));
        assert_eq!(mesh.group_along(4, |kind| kind.samples_differ).expect("a rank"), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn samples_differ_along_some_axes_only() {
        // The axes of data need not be neighbours.
        let axes = [("replicate", 2), ("tensor", 2), ("shard", 3), ("pipeline", 2)];
        let mesh = MeshLayout::new(&axes, 24).expect("24 ranks");
        assert_eq!(mesh.data_size(), 6);
        for rank in 0..24 {
            let at = mesh.coordinates(rank).expect("a rank");
            assert_eq!(mesh.data_rank(rank).expect("a rank"), 3 * at[0] + at[2]);
            let group = mesh.group_along(rank, |kind| kind.samples_differ).expect("a rank");
            let parts: Vec<usize> = group.iter().map(|rank| mesh.data_rank(*rank).expect("a rank")).collect();
            assert_eq!(parts, [0, 1, 2, 3, 4, 5], "each part once, in order");
        }
    }

    #[test]
    fn a_wrong_mesh_prints_its_equation() {
        let wrong =
            |axes: &[(&str, usize)], size| MeshLayout::new(axes, size).expect_err("is wrong").to_string();
        let error = wrong(&[("replicate", 2), ("shard", 3)], 8);
        assert_eq!(error, "mesh: replicate 2 × shard 3 = 6, but the world has 8 ranks");
        let error = wrong(&[("shard", 2), ("shard", 2)], 4);
        assert_eq!(error, "mesh: axis `shard` occurs twice in shard 2 × shard 2");
        let error = wrong(&[("dta", 2)], 2);
        assert_eq!(
            error,
            "mesh: axis `dta` of dta 2 is unknown; there is: replicate, shard, context, tensor, pipeline, duplicate"
        );
        assert!(wrong(&[("replicate", usize::MAX), ("shard", 2)], 4).contains("too many"));
        assert!(wrong(&[], 4).contains("at least one axis"));
        assert!(wrong(&[("shard", 0)], 0).contains("has 0 ranks"));
        let mesh = MeshLayout::new(&[("replicate", 2)], 2).expect("one axis");
        let error = mesh.group(0, "shard").expect_err("no such axis").to_string();
        assert_eq!(error, "mesh: there is no axis `shard`; the mesh has replicate");
        let error = mesh.coordinates(2).expect_err("no such rank").to_string();
        assert_eq!(error, "mesh: there is no rank 2 in replicate 2, which has 2");
    }
}
