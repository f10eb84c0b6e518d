//! The mesh: ranks arranged along named axes.

use crate::{Result, ShardingError};

/// Ranks as the points of a grid. The last axis varies fastest: with axes `replicate = 2` and `shard = 4`, rank
/// 5 lies at replicate 1, shard 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    axes: Vec<(String, usize)>,
}

impl Mesh {
    /// A mesh with these axes, outermost first.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if an axis is empty, a name occurs twice, or the product is not the world size.
    pub fn new(axes: &[(&str, usize)], world_size: usize) -> Result<Self> {
        let equation =
            axes.iter().map(|(name, size)| format!("{name} {size}")).collect::<Vec<_>>().join(" × ");
        let product: usize = axes.iter().map(|(_, size)| size).product();
        if axes.is_empty() || product != world_size {
            let problem = format!("{equation} = {product}, but the world has {world_size} ranks");
            return Err(ShardingError::Mesh(problem));
        }
        for (index, (name, _)) in axes.iter().enumerate() {
            if axes[..index].iter().any(|(known, _)| known == name) {
                return Err(ShardingError::Mesh(format!("axis `{name}` occurs twice in {equation}")));
            }
        }
        Ok(Self { axes: axes.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect() })
    }

    /// All ranks along one axis called `data`.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if there are no ranks.
    pub fn data(world_size: usize) -> Result<Self> {
        if world_size == 0 {
            return Err(ShardingError::Mesh("a world has at least one rank".into()));
        }
        Self::new(&[("data", world_size)], world_size)
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// Names and sizes of the axes, outermost first.
    pub fn axes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.axes.iter().map(|(name, size)| (name.as_str(), *size))
    }

    /// How many ranks lie along `axis`; `None` if there is no such axis.
    pub fn size(&self, axis: &str) -> Option<usize> {
        self.axes.iter().find(|(name, _)| name == axis).map(|(_, size)| *size)
    }

    /// Where `rank` lies along each axis.
    pub fn coordinates(&self, rank: usize) -> Vec<usize> {
        let mut rest = rank;
        let mut coordinates: Vec<usize> = self
            .axes
            .iter()
            .rev()
            .map(|(_, size)| {
                let at = rest % size;
                rest /= size;
                at
            })
            .collect();
        coordinates.reverse();
        coordinates
    }

    /// The ranks that share all coordinates with `rank` but the one along `axis`, in order: those that it
    /// communicates with over that axis.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if there is no such axis.
    pub fn group(&self, rank: usize, axis: &str) -> Result<Vec<usize>> {
        let Some(at) = self.axes.iter().position(|(name, _)| name == axis) else {
            let names = self.axes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(ShardingError::Mesh(format!("there is no axis `{axis}`; the mesh has {names}")));
        };
        let own = self.coordinates(rank);
        let same = |other: &usize| {
            let other = self.coordinates(*other);
            (0..own.len()).all(|i| i == at || own[i] == other[i])
        };
        Ok((0..self.world_size()).filter(same).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_and_groups() {
        let mesh = Mesh::new(&[("replicate", 2), ("shard", 3)], 6).expect("2 × 3 = 6");
        assert_eq!(mesh.coordinates(4), [1, 1]);
        assert_eq!(mesh.group(4, "shard").expect("an axis"), [3, 4, 5]);
        assert_eq!(mesh.group(4, "replicate").expect("an axis"), [1, 4]);
        assert_eq!(mesh.size("shard"), Some(3));
        assert_eq!(mesh.size("pipeline"), None);
    }

    #[test]
    fn a_wrong_mesh_prints_its_equation() {
        let error = Mesh::new(&[("replicate", 2), ("shard", 3)], 8).expect_err("6 is not 8");
        assert_eq!(error.to_string(), "mesh: replicate 2 × shard 3 = 6, but the world has 8 ranks");
        assert!(Mesh::new(&[("a", 2), ("a", 2)], 4).is_err());
        assert!(Mesh::data(0).is_err());
        let error = Mesh::data(2).expect("one axis").group(0, "shard").expect_err("no such axis");
        assert!(error.to_string().contains("the mesh has data"), "{error}");
    }
}
