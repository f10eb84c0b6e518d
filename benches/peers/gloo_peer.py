"""PyTorch's Gloo as a peer: python gloo_peer.py '{"op": ..., "ranks": N, "sizes": [...], "rounds": N}' prints the median
seconds of the operation for every size, as one JSON line."""

import json
import os
import socket
import sys
import time


def shift(dist, values, own, world):
    """Sends to the next rank and receives from the one before."""
    sent = dist.isend(values, (own + 1) % world)
    dist.recv(values.clone(), (own - 1) % world)
    sent.wait()


def rank(own, work, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    world = work["ranks"]
    dist.init_process_group("gloo", rank=own, world_size=world)
    medians = []
    for size in work["sizes"]:
        values = torch.zeros(size // 4)
        part = torch.zeros(size // 4 // world)
        once = {
            "all-reduce": lambda: dist.all_reduce(values),
            "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, values[:part.numel() * world]),
            "all-gather": lambda: dist.all_gather_into_tensor(values[:part.numel() * world], part),
            "broadcast": lambda: dist.broadcast(values, 0),
            "reduce": lambda: dist.reduce(values, 0),
            "all-to-all": lambda: dist.all_to_all_single(torch.empty_like(values), values),
            "gather": lambda: dist.gather(part, list(values[:part.numel() * world].chunk(world)) if own == 0 else None, 0),
            "scatter": lambda: dist.scatter(part, list(values[:part.numel() * world].chunk(world)) if own == 0 else None, 0),
            "send-recv": lambda: shift(dist, values, own, world),
        }[work["op"]]
        for _ in range(3):
            once()
        start = time.perf_counter()
        once()
        count = torch.tensor([min(max(int(0.02 / max(time.perf_counter() - start, 1e-7)), 1), 20000)])
        dist.broadcast(count, 0)
        times = []
        for _ in range(work["rounds"]):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(int(count)):
                once()
            times.append((time.perf_counter() - start) / int(count))
        medians.append(sorted(times)[len(times) // 2])
    if own == 0:
        print(json.dumps(medians), flush=True)
    dist.destroy_process_group()


def main():
    import torch.multiprocessing as mp

    work = json.loads(sys.argv[1])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(rank, args=(work, port), nprocs=work["ranks"])


if __name__ == "__main__":
    main()
