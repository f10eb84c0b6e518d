"""PyTorch's DDP, FSDP2, tensor parallelism or pipelining over Gloo as a peer: python torch_ranks_peer.py '{"model": ..., "strategy": "ddp",
"fsdp", "tensor" or "pipeline", "schedule": of a pipeline, "micro_batches": N, "ranks": N, "batch": images or texts of a rank, "size": ..., "tokens": ..., "cifar_stem": ..., "threads": N, "rounds": N, "precision":
"f32" or "bf16"}' prints its version and the median seconds of a training step, as one JSON line."""

import contextlib
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
            "mobilenetv2": "mobilenet_v2", "vit-b16": "vit_b_16"}[work["model"]]
    sizes = {"image_size": work["size"]} if name == "vit_b_16" else {}
    model = getattr(torchvision.models, name)(num_classes=10, **sizes)
    if work["cifar_stem"] and not sizes:
        if name == "mobilenet_v2":
            model.features[0][0].stride = model.features[2].conv[1][0].stride = (1, 1)
        else:
            model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            model.maxpool = nn.Identity()
    return model


def blocks(model):
    """What FSDP gathers at a time: residual blocks, or layers of language models."""
    for path in ("transformer.h", "model.layers", "encoder.layers"):
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
            with autocast(torch, work):
                loss = loss_of(forward)
            loss.backward()
            optimizer.step()

        yield once


def of_cut_layers(torch, nn, work):
    """Steps of layers that are cut over ranks, in eager and in compiled code; texts are the same on all ranks."""
    import torch_cut
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import loss_parallel

    for compiled in (False, True):
        sizes = torch_language.SIZES[work["model"]]
        plain = torch_cut.cut(torch_cut.Gpt(**sizes, tokens=work["tokens"]).train(), work["ranks"])
        # Updates of several tensors at a time do not take cut and whole ones together.
        groups = [[p for p in plain.parameters() if isinstance(p, DTensor) == is_cut] for is_cut in (False, True)]
        groups = [{"params": group} for group in groups]
        optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        torch.manual_seed(1)
        ids = torch.randint(0, 50256, (work["batch"] * work["ranks"], work["tokens"] + 1))
        x, y = ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)
        forward = torch.compile(plain) if compiled else plain

        def once():
            optimizer.zero_grad(set_to_none=True)
            with loss_parallel():
                with autocast(torch, work):
                    logits = forward(x)
                    loss = nn.functional.cross_entropy(logits.flatten(0, 1), y)
                loss.backward()
            optimizer.step()

        yield once


def of_stages(torch, nn, work):
    """Steps of the stages of a model, in eager and in compiled code, with the samples of all ranks."""
    import torch_stages

    samples = work["batch"] * work["ranks"]
    chunks = work["ranks"] * (2 if work["schedule"] == "interleaved" else 1)
    torch.manual_seed(1)
    if work["model"] in torch_language.MODELS:
        part_of = torch_stages.gpt_parts(work, torch_language.SIZES[work["model"]], chunks)
        ids = torch.randint(0, 50256, (samples, work["tokens"] + 1))
        x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        loss_of = lambda logits, y: nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer_of = lambda p: torch.optim.AdamW(p, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    else:
        part_of = torch_stages.resnet_parts(network(torch, work), chunks)
        x, y = torch.randn(samples, 3, work["size"], work["size"]), torch.arange(samples) % 10
        loss_of = nn.functional.cross_entropy
        optimizer_of = lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, weight_decay=5e-4)
    yield from torch_stages.steps(work, part_of, x, y, loss_of, optimizer_of, lambda: autocast(torch, work))


def autocast(torch, work):
    if work.get("precision") != "bf16":
        return contextlib.nullcontext()
    return torch.autocast("cpu", torch.bfloat16)


def measure(once, work, steps, barrier):
    """The median seconds of a step."""
    for _ in range(3):
        once()
    times = []
    for _ in range(work["rounds"]):
        barrier()
        start = time.perf_counter()
        for _ in range(steps):
            once()
        times.append((time.perf_counter() - start) / steps)
    return sorted(times)[len(times) // 2]


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
    ways = {"tensor": of_cut_layers, "pipeline": of_stages}.get(
        work["strategy"], of_language if is_language else of_images)
    for once in ways(torch, nn, work):
        try:
            median = measure(once, work, steps, dist.barrier)
        except Exception as error:
            # Not everything can be compiled; all ranks fail alike.
            if best is None:
                raise
            print(f"the compiled code fails, eager code counts: {error}", file=sys.stderr)
            continue
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
