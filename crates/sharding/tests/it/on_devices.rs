//! Ranks that send each other messages, on opaque arrays of a device: the bits of ranks on the host.

use std::sync::Arc;

use crate::checking::{Checking, Transfer};
use phalanx_sharding::{
    Options, OwnState, ParallelStrategy, PlainUpdate, SharedUpdate, Strategy, SyncOptions, parallelize,
};
use phalanx_tensor::optim::Adam;
use phalanx_tensor::{ComputeDevice, Context, ParamBucket, ParamStore};

use crate::common::layers::{Layers, backward_at, model_at};
use crate::common::on_ranks;

/// Where a rank computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    Host,
    Device,
}

/// One rank's part of a training.
struct Rank {
    compute: ComputeDevice,
    device: Checking,
    layers: Layers,
    store: ParamStore,
    parallel: Arc<dyn ParallelStrategy>,
    rule: SharedUpdate,
    rank: usize,
}

impl Rank {
    fn new(comm: phalanx_collectives::Communicator, at: Location, row: &str, sync: SyncOptions) -> Self {
        let (device, rank) = (Checking::new(Context::new(1)), comm.rank());
        let compute = match at {
            Location::Host => ComputeDevice::host(),
            Location::Device => ComputeDevice::of(Arc::new(device.clone())),
        };
        // The last ranks may only serve, on the host.
        let workers = comm.world_size() - sync.servers;
        let compute = if rank < workers { compute } else { ComputeDevice::host() };
        let (layers, store) = model_at(&compute).expect("small");
        let row = Strategy::named(row).expect("known");
        let mesh = phalanx_sharding::ProcessMesh::suiting(comm, &row, 0).expect("fits");
        let parallel = parallelize(&store, mesh, row, Options::default(), sync).expect("starts");
        let rule = PlainUpdate::of(Adam::decoupled((0.9, 0.99), 1e-8, 0.1), 1);
        parallel.set_optimizer(&rule).expect("serves");
        Self { compute, device, layers, store, parallel, rule, rank }
    }

    fn step(&self, at: u64, trains: bool) {
        let step = self.parallel.begin_step().expect("none is under way");
        if trains {
            backward_at(&self.compute, &self.layers, &self.parallel, (self.rank, at, 1)).expect("runs");
        }
        step.finish_with(&self.rule, 0.05).expect("steps");
    }

    /// The bits of all parameters, as they are computed with.
    fn bits(&self) -> Vec<u32> {
        let all = self.store.buckets().iter().filter_map(ParamBucket::whole_values);
        let numbers = |flat: phalanx_tensor::FlatStorage| {
            let host = flat.to_host().expect("comes to the host");
            host.to_vec1::<f32>().expect("f32").into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        all.flat_map(numbers).collect()
    }
}

/// Of every rank the bits after each of four steps, those that are shown in the middle among them.
fn train(at: Location, row: &'static str, world: usize, servers: usize) -> Vec<Vec<Vec<u32>>> {
    on_ranks(world, move |comm| {
        let sync = SyncOptions { servers, gradient_scale: 1.0, ..SyncOptions::default() };
        let (workers, rank, all) = (world - servers, comm.rank(), comm.clone());
        let of = Rank::new(comm, at, row, sync);
        let mut seen = Vec::new();
        for step in 0..4 {
            // A rank without samples takes part.
            of.step(step, rank < workers && !(step == 2 && rank == 1));
            seen.push(of.bits());
            if step == 1 {
                of.parallel.unshard().expect("shows what all have in common");
                seen.push(of.bits());
                of.parallel.reshard().expect("has its own back");
                seen.push(of.bits());
            }
        }
        // Servers may still have messages for the rank that is done first.
        all.barrier("the end").expect("all come to it");
        seen
    })
}

#[test]
fn a_device_computes_with_what_messages_of_the_host_bring() {
    for (row, world, servers) in [
        ("ps-bsp", 2, 0),
        ("ps-bsp", 3, 1),
        ("d-psgd", 3, 0),
        ("sgp", 3, 0),
        ("ad-psgd", 1, 0),
        ("ps-asp", 1, 0),
    ] {
        let host = train(Location::Host, row, world, servers);
        assert!(host[0][0] != host[0][5], "{row}: something is learnt");
        assert_eq!(
            host,
            train(Location::Device, row, world, servers),
            "{row} on {world}, {servers} of which serve"
        );
    }
}

#[test]
fn ranks_whose_devices_average_with_random_neighbours_come_together() {
    let distances = on_ranks(3, |comm| {
        let of = Rank::new(comm, Location::Device, "ad-psgd", SyncOptions::default());
        let distance = || {
            of.parallel.unshard().expect("shows the mean");
            of.parallel.reshard().expect("has its own back");
            of.parallel.sync_stats().consensus_distance.expect("a mean was made")
        };
        (0..4).for_each(|at| of.step(at, true));
        let apart = distance();
        for at in 4..60 {
            let step = of.parallel.begin_step().expect("none is under way");
            step.finish_with(&of.rule, 0.0).expect("steps");
            // As long as a step of a real model.
            std::thread::sleep(std::time::Duration::from_millis(u64::from(at > 0)));
        }
        (apart, distance())
    });
    for (apart, together) in distances {
        assert!(together < 0.1 * apart, "{apart}, then {together}");
    }
}

#[test]
fn what_devices_have_for_themselves_goes_on_to_the_bit() {
    for row in ["d-psgd", "sgp", "ps-bsp"] {
        let of = |at: Location, parts: bool| {
            on_ranks(2, move |comm| {
                let whole = Rank::new(comm.clone(), at, row, SyncOptions::default());
                (0..3).for_each(|step| whole.step(step, true));
                let saved: OwnState = whole.parallel.own_state().expect("nothing is under way");
                if parts {
                    // Weights, as a checkpoint has them of each rank or of all, and what is a rank's own.
                    whole.parallel.load_own_state(saved).expect("of this strategy");
                    whole.parallel.broadcast_state(&whole.store).expect("all come");
                }
                (3..5).for_each(|step| whole.step(step, true));
                whole.bits()
            })
        };
        let there = of(Location::Host, false);
        for (at, parts) in [(Location::Host, true), (Location::Device, false), (Location::Device, true)] {
            assert_eq!(of(at, parts), there, "{row} on the {at:?}, taken over: {parts}");
        }
    }
}

#[test]
fn values_and_gradients_cross_once_in_a_step() {
    let crossed = on_ranks(2, |comm| {
        let of = Rank::new(comm, Location::Device, "d-psgd", SyncOptions::default());
        (0..2).for_each(|at| of.step(at, true));
        of.device.take_transfers();
        of.step(2, true);
        of.device.take_transfers()
    });
    for transfers in crossed {
        // Two buckets, of 42 and 24 numbers.
        for len in [42, 24] {
            let there = |transfer: &&Transfer| matches!(transfer, Transfer::In(_, dims) if dims == &[len]);
            let back = |transfer: &&Transfer| matches!(transfer, Transfer::Out(_, dims) if dims == &[len]);
            let count = [transfers.iter().filter(there).count(), transfers.iter().filter(back).count()];
            assert_eq!(count, [1, 1], "{transfers:?}");
        }
    }
}

#[test]
fn weights_that_were_loaded_are_what_neighbours_go_on_with() {
    for row in ["d-psgd", "sgp", "ad-psgd"] {
        for at in [Location::Host, Location::Device] {
            let ranks = on_ranks(2, move |comm| {
                let of = Rank::new(comm, at, row, SyncOptions::default());
                of.step(0, true);
                of.parallel.unshard().expect("shows the mean");
                of.parallel.reshard().expect("has its own back");
                let flat = of.store.buckets()[0].values().expect("in memory");
                let loaded = candle_core::Tensor::full(0.25_f32, flat.len(), &candle_core::Device::Cpu);
                flat.put(&loaded.expect("small")).expect("as many");
                of.parallel.broadcast_state(&of.store).expect("all come");
                // Nothing is learnt in this step.
                let step = of.parallel.begin_step().expect("none is under way");
                step.finish_with(&of.rule, 0.0).expect("steps");
                of.bits()[0]
            });
            assert_eq!(ranks, [0.25_f32.to_bits(); 2], "{row} on the {at:?}");
        }
    }
}
