"""PyTorch's DDP or FSDP2 over Gloo as a peer: python torch_ranks_peer.py '{"model": ..., "strategy": "ddp" or "fsdp", "ranks": N,
"batch": images of a rank, "size": ..., "cifar_stem": ..., "threads": N, "rounds": N}' prints its version and the median
seconds of a training step, as one JSON line."""

import json
import os
import socket
import sys
import time


def network(torch, work):
    import torchvision
    from torch import nn

    name = {"resnet18": "resnet18", "resnet34": "resnet34", "resnet50": "resnet50",
            "mobilenetv2": "mobilenet_v2"}[work["model"]]
    model = getattr(torchvision.models, name)(num_classes=10)
    if work["cifar_stem"]:
        if name == "mobilenet_v2":
            model.features[0][0].stride = model.features[2].conv[1][0].stride = (1, 1)
        else:
            model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            model.maxpool = nn.Identity()
    return model


def blocks(model):
    """What FSDP gathers at a time: residual blocks."""
    if hasattr(model, "layer1"):
        return [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
    return list(model.features)


def rank(own, work, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(work["threads"])
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=own, world_size=work["ranks"])
    best = None
    # The faster of the two memory layouts; FSDP takes only one.
    layouts = [torch.contiguous_format] if work["strategy"] == "fsdp" else [torch.contiguous_format, torch.channels_last]
    for layout in layouts:
        model = network(torch, work).to(memory_format=layout).train()
        if work["strategy"] == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (work["ranks"],))
            for block in blocks(model):
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        else:
            model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
        x = torch.randn(work["batch"], 3, work["size"], work["size"]).contiguous(memory_format=layout)
        y = torch.arange(work["batch"]) % 10

        def once():
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        for _ in range(3):
            once()
        times = []
        for _ in range(work["rounds"]):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(3):
                once()
            times.append((time.perf_counter() - start) / 3)
        median = sorted(times)[len(times) // 2]
        # All ranks take rank 0's word for which layout is the faster.
        best = median if best is None else min(best, median)
    if own == 0:
        print(json.dumps({"version": f"PyTorch {torch.__version__}", "seconds": best}), flush=True)
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
