//! The mesh of processes: ranks along named axes, with a communicator for each.

mod degrees;
mod layout;
pub(crate) mod process_group;

pub(crate) use degrees::natural_group;
pub use degrees::{Degree, Degrees};
pub use layout::{AXES, AxisKind, MeshLayout};

use std::ops::Add as _;
use std::sync::Arc;

use phalanx_collectives::{CommStats, Communicator, threads};
use phalanx_tensor::ProcessGroup;

use crate::mesh::process_group::RankGroup;
use crate::{Result, ShardingError};

/// The ranks of a world along named axes ([`AXES`]), as one of them sees them: where it lies, and whom it talks to along each
/// axis. It is passed in place of a rank and a world size. Clones share the communicators.
///
/// All communicators are made when the mesh is, outermost axis first. Making one is an operation of all ranks, so that doing
/// it at first use would hang whenever ranks come to an axis in another order, or only some of them come to it. Where there are
/// several axes each has a communicator of its own, also one that all ranks lie along: operations along different axes need no
/// common order, and may be issued as others happen to end. The only axis of a mesh is the world, for which nothing is made:
/// plain data parallelism has one communicator.
///
/// ```
/// use phalanx_collectives::{ReduceOp, threads};
/// use phalanx_sharding::ProcessMesh;
///
/// # fn main() -> Result<(), phalanx_sharding::ShardingError> {
/// let ranks: Vec<_> = threads(4)?.into_iter().map(|world| std::thread::spawn(move || {
///     let mesh = ProcessMesh::new(world, &[("replicate", 2), ("tensor", 2)])?;
///     let mut sum = [mesh.rank() as f64];
///     mesh.axis("tensor")?.all_reduce(&mut sum, ReduceOp::Sum)?;
///     Ok::<_, phalanx_sharding::ShardingError>((mesh.data_rank(), sum[0]))
/// })).collect();
/// let found: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Result<_, _>>()?;
/// assert_eq!(found, [(0, 1.0), (0, 1.0), (1, 5.0), (1, 5.0)]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ProcessMesh {
    layout: MeshLayout,
    world: Communicator,
    /// By axis; `None` if it is the only one, which is the world.
    along: Vec<Option<Communicator>>,
    /// The group `batch`; `None` where these are all ranks.
    batch: Option<Communicator>,
    /// The group `loss`; `None` where these are all ranks.
    loss: Option<Communicator>,
    /// The group `model`, where it has other ranks than this one.
    model: Option<Communicator>,
    /// Communicators that were made for groups.
    made: Vec<Communicator>,
    data_rank: usize,
    duplicate: usize,
}

impl ProcessMesh {
    /// Arranges the ranks of `world` along axes, outermost first. Every rank calls this at the same place with the same axes.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if the axes are not those of [`MeshLayout::new`] or two ranks give different ones, and those of
    /// communication.
    pub fn new(world: Communicator, axes: &[(&str, usize)]) -> Result<Self> {
        let layout = MeshLayout::new(axes, world.world_size())?;
        Self::of(world, layout)
    }

    /// Arranges the ranks of `world` as a layout says. Every rank calls this at the same place with the same layout.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if the layout is not one of as many ranks or two ranks give different ones, and those of communication.
    pub fn of(world: Communicator, layout: MeshLayout) -> Result<Self> {
        if layout.world_size() != world.world_size() {
            let problem =
                format!("{layout} has {} ranks, the world {}", layout.world_size(), world.world_size());
            return Err(ShardingError::Mesh(problem));
        }
        let own = world.rank();
        let (data_rank, duplicate) = (layout.data_rank(own)?, layout.duplicate(own)?);
        let (along, batch, loss, model) = (Vec::new(), None, None, None);
        let made = Vec::new();
        let mut mesh = Self { data_rank, duplicate, along, batch, loss, model, made, layout, world };
        let several = mesh.layout.axes().count() > 1;
        if several {
            mesh.check_same_axes()?;
        }
        for (axis, _) in mesh.layout.clone().axes() {
            let part = several.then(|| mesh.part(&mesh.layout.group(own, axis)?)).transpose()?;
            mesh.along.push(part);
        }
        let batch = mesh.layout.group_along(own, |kind| kind.samples_differ)?;
        let loss = mesh.layout.group_along(own, |kind| kind.loss_summed)?;
        let model = mesh.layout.group_along(own, |kind| kind.model_split)?;
        if batch.len() != mesh.world_size() {
            mesh.batch = Some(mesh.group_of(&batch)?);
        }
        if loss == batch {
            mesh.loss = mesh.batch.clone();
        } else if loss.len() != mesh.world_size() {
            mesh.loss = Some(mesh.group_of(&loss)?);
        }
        if model.len() > 1 {
            mesh.model = Some(mesh.group_of(&model)?);
        }
        Ok(mesh)
    }

    /// All ranks along the axis `replicate`, without communication.
    ///
    /// # Errors
    /// None that is known: a world has at least one rank.
    pub fn data_parallel(world: Communicator) -> Result<Self> {
        let size = world.world_size();
        Self::new(world, &[("replicate", size)])
    }

    /// A world of one, without communication.
    ///
    /// # Errors
    /// If the system refuses the communicator's thread.
    pub fn alone() -> Result<Self> {
        let world = threads(1)?.pop();
        Self::data_parallel(world.ok_or_else(|| ShardingError::Mesh("a world has at least one rank".into()))?)
    }

    /// Which rank lies where.
    pub fn layout(&self) -> &MeshLayout {
        &self.layout
    }

    /// This rank in the world, from 0.
    pub fn rank(&self) -> usize {
        self.world.rank()
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.world.world_size()
    }

    /// Which part of every batch is this rank's, from 0: its position along the axes over which data differs.
    pub fn data_rank(&self) -> usize {
        self.data_rank
    }

    /// The number of parts of a batch: the product of the axes along which samples differ.
    pub fn data_size(&self) -> usize {
        self.layout.data_size()
    }

    /// The communicator of all ranks.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// The group `batch`: the ranks that together have all samples of a batch, ordered as [`ProcessMesh::data_rank`] says. Gradients
    /// and statistics over the batch are summed over it.
    pub fn batch(&self) -> &Communicator {
        self.batch.as_ref().unwrap_or(&self.world)
    }

    /// The group `loss`: the ranks whose losses sum to the loss of a batch.
    pub fn loss(&self) -> &Communicator {
        self.loss.as_ref().unwrap_or(&self.world)
    }

    /// True if the groups `loss` and `batch` are the same ranks.
    pub(crate) fn sums_loss_over_batch(&self) -> bool {
        self.loss().world_size() == self.batch().world_size()
    }

    /// The group `model`: the ranks that hold the other parts of the model for the same samples. `None` if this rank has all parts.
    pub fn model(&self) -> Option<&Communicator> {
        self.model.as_ref()
    }

    /// True if no other rank comes before this one among those that hold the parts of the model for the same samples.
    pub fn is_first_of_model(&self) -> bool {
        self.model.as_ref().is_none_or(|model| model.rank() == 0)
    }

    /// This rank's position among ranks that do the same work; 0 for the rank whose results count.
    pub fn duplicate(&self) -> usize {
        self.duplicate
    }

    /// The communicator of the ranks that differ from this one along `axis` only; its ranks are their coordinates.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] naming the axes that there are.
    pub fn axis(&self, axis: &str) -> Result<&Communicator> {
        let at = self.layout.position(axis)?;
        Ok(self.along[at].as_ref().unwrap_or(&self.world))
    }

    /// The ranks of [`ProcessMesh::axis`] as ops over ranks know them.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] naming the axes that there are.
    pub fn group(&self, axis: &str) -> Result<Arc<dyn ProcessGroup>> {
        // The flight recorder tells along which axis a rank waits.
        Ok(RankGroup::of(&self.axis(axis)?.about(&Arc::from(format!("axis {axis}")))))
    }

    /// The cost of communication along all axes so far.
    pub fn stats(&self) -> CommStats {
        let parts = self.along.iter().flatten().chain(&self.made).map(Communicator::stats);
        parts.fold(self.world.stats(), CommStats::add)
    }

    /// A communicator for a named group of ranks, this one among them.
    fn group_of(&mut self, group: &[usize]) -> Result<Communicator> {
        let made = self.part(group)?;
        self.made.push(made.clone());
        Ok(made)
    }

    /// A communicator of some of the ranks, this one among them; the other ranks make theirs by the same call.
    fn part(&self, group: &[usize]) -> Result<Communicator> {
        // Groups that differ have different first ranks.
        part(&self.world, group.first().copied().unwrap_or(0))
    }

    fn check_same_axes(&self) -> Result<()> {
        match first_that_differs(&self.world, &self.layout.to_string())? {
            None => Ok(()),
            Some((rank, [first, other])) => {
                Err(ShardingError::Mesh(format!("rank {rank} arranges ranks as {other}, rank 0 as {first}")))
            }
        }
    }
}

/// The first rank that says something else than rank 0, and what both say.
pub(crate) fn first_that_differs(comm: &Communicator, own: &str) -> Result<Option<(usize, [String; 2])>> {
    let all = comm.all_gatherv(own.as_bytes())?;
    let rank = all.iter().position(|other| *other != all[0]);
    Ok(rank.map(|rank| (rank, [0, rank].map(|of| String::from_utf8_lossy(&all[of]).into_owned()))))
}

/// A communicator of its own for the ranks that give the same colour.
pub(crate) fn part(comm: &Communicator, colour: usize) -> Result<Communicator> {
    let colour = u32::try_from(colour)
        .map_err(|_| ShardingError::Mesh(format!("rank {colour} is beyond what communicators count")))?;
    comm.split(Some(colour), 0)?
        .ok_or_else(|| ShardingError::Mesh("a rank with a colour got no communicator".into()))
}
