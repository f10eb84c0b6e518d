"""PyTorch's DDP or FSDP2 over Gloo as a peer: python torch_ranks_peer.py '{"model": ..., "strategy": "ddp" or "fsdp", "ranks": N,
"batch": images or texts of a rank, "size": ..., "tokens": ..., "cifar_stem": ..., "threads": N, "rounds": N}' prints its version and the median
seconds of a training step, as one JSON line."""

import json
import os
import socket
import sys
import time

import torch_language


class Host:
    """Where the texts of language models are, in f32."""

    def put(self, x):
        return x


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
    """What FSDP gathers at a time: residual blocks, or layers of language models."""
    for path in ("transformer.h", "model.layers"):
        try:
            return list(model.get_submodule(path))
        except AttributeError:
            pass
    if hasattr(model, "model") and hasattr(model.model, "decoder"):
        return [*model.model.encoder.layers, *model.model.decoder.layers]
    if hasattr(model, "layer1"):
        return [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
    return list(model.features)


def distributed(torch, nn, work, model):
    """The model under FSDP2 or DDP."""
    if work["strategy"] != "fsdp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (work["ranks"],))
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def of_images(torch, nn, work):
    """Steps in both memory layouts; FSDP takes only one."""
    layouts = [torch.contiguous_format] if work["strategy"] == "fsdp" else [torch.contiguous_format, torch.channels_last]
    for layout in layouts:
        model = distributed(torch, nn, work, network(torch, work).to(memory_format=layout).train())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
        x = torch.randn(work["batch"], 3, work["size"], work["size"]).contiguous(memory_format=layout)
        y = torch.arange(work["batch"]) % 10

        def once():
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        yield once


def of_language(torch, nn, work):
    """Steps in eager and in compiled code."""
    for compiled in (False, True):
        plain = torch_language.network(work).train()
        plain.config.use_cache = False
        loss_of = torch_language.losses(torch, Host(), work, plain)
        model = distributed(torch, nn, work, plain)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        forward = torch.compile(model) if compiled else model

        def once():
            optimizer.zero_grad(set_to_none=True)
            loss_of(forward).backward()
            optimizer.step()

        yield once


def rank(own, work, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(work["threads"])
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=own, world_size=work["ranks"])
    is_language = work["model"] in torch_language.MODELS
    # A step of a language model takes seconds.
    steps = 1 if is_language else 3
    best = None
    for once in of_language(torch, nn, work) if is_language else of_images(torch, nn, work):
        for _ in range(3):
            once()
        times = []
        for _ in range(work["rounds"]):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                once()
            times.append((time.perf_counter() - start) / steps)
        median = sorted(times)[len(times) // 2]
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
