//! Meshes of real ranks: each axis' communicator reaches the ranks that differ along that axis, and no others.

use crate::common::on_ranks;
use phalanx_collectives::{Communicator, ReduceOp};
use phalanx_sharding::{MeshLayout, ProcessMesh, Result};

#[test]
fn each_axis_reaches_its_group() {
    let axes = [("replicate", 2), ("tensor", 3), ("shard", 2)];
    let layout = MeshLayout::new(&axes, 12).expect("twelve ranks");
    let found = on_ranks(12, move |world| -> Result<_> {
        let mesh = ProcessMesh::new(world, &axes)?;
        let members = |comm: &Communicator| comm.all_gather(&[mesh.rank() as i64]);
        let mut groups = Vec::new();
        for (axis, _) in axes {
            let comm = mesh.axis(axis)?;
            let own = mesh.layout().coordinates(mesh.rank())?[mesh.layout().position(axis)?];
            assert_eq!(comm.rank(), own, "a rank along an axis is the coordinate");
            groups.push(members(comm)?);
        }
        groups.push(members(mesh.batch())?);
        groups.push(members(mesh.world())?);
        assert_eq!(mesh.batch().rank(), mesh.data_rank());
        assert_eq!(mesh.batch().world_size(), mesh.data_size());
        Ok(groups)
    });
    for (rank, groups) in found.into_iter().enumerate() {
        let groups = groups.expect("makes a mesh");
        let mut expected: Vec<Vec<usize>> =
            axes.iter().map(|(axis, _)| layout.group(rank, axis).expect("an axis")).collect();
        expected.push(layout.group_along(rank, |kind| kind.samples_differ).expect("a rank"));
        expected.push((0..12).collect());
        let groups: Vec<Vec<usize>> =
            groups.iter().map(|group| group.iter().map(|rank| *rank as usize).collect()).collect();
        assert_eq!(groups, expected, "rank {rank}");
    }
}

#[test]
fn one_axis_for_all_sends_nothing_and_is_the_world() {
    let found = on_ranks(3, |world| {
        let mesh = ProcessMesh::data_parallel(world).expect("one axis");
        let sent = (mesh.stats().operations, mesh.stats().bytes_sent);
        assert_eq!(sent, (0, 0), "nothing was sent");
        let mut sum = [1.0];
        mesh.axis("replicate").expect("an axis").all_reduce(&mut sum, ReduceOp::Sum).expect("sums");
        assert_eq!(mesh.stats().operations, 1, "the world's communicator, counted once");
        sum[0]
    });
    assert_eq!(found, [3.0; 3]);
    let alone = ProcessMesh::alone().expect("a world of one");
    assert_eq!((alone.rank(), alone.world_size(), alone.data_rank(), alone.data_size()), (0, 1, 0, 1));
    assert_eq!(alone.stats().operations, 0);
    let mut sum = [7.0_f32];
    alone.batch().all_reduce(&mut sum, ReduceOp::Sum).expect("a sum of one");
    assert_eq!((sum, alone.stats().bytes_sent), ([7.0], 0));
}

#[test]
fn operations_along_different_axes_need_no_common_order() {
    let found = on_ranks(2, |world| {
        // All ranks lie along the first axis, as groups of one do that are replicas of each other.
        let mesh = ProcessMesh::new(world, &[("replicate", 2), ("shard", 1)]).expect("a mesh");
        let along = mesh.axis("replicate").expect("an axis").clone();
        let mut sum = [1.0_f32; 3];
        if mesh.rank() == 0 {
            let handle = along.all_reduce_async(vec![1.0_f64; 5], ReduceOp::Sum);
            mesh.world().all_reduce(&mut sum, ReduceOp::Sum).expect("sums");
            (handle.wait().expect("sums")[0], sum[0])
        } else {
            mesh.world().all_reduce(&mut sum, ReduceOp::Sum).expect("sums");
            let mut other = [1.0_f64; 5];
            along.all_reduce(&mut other, ReduceOp::Sum).expect("sums");
            (other[0], sum[0])
        }
    });
    assert_eq!(found, [(2.0, 2.0); 2]);
}

#[test]
fn ranks_that_want_different_meshes_are_told() {
    let found = on_ranks(4, |world| {
        let axes: [(&str, usize); 2] =
            if world.rank() == 2 { [("shard", 2), ("tensor", 2)] } else { [("replicate", 2), ("shard", 2)] };
        ProcessMesh::new(world, &axes).expect_err("they differ").to_string()
    });
    for error in found {
        assert_eq!(
            error,
            "mesh: rank 2 arranges ranks as shard 2 × tensor 2, rank 0 as replicate 2 × shard 2"
        );
    }
}
