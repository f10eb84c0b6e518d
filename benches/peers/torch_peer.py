"""PyTorch as a peer: obeys one JSON line at a time on standard input, answers with one on standard output.

{"prepare": WORK} makes a piece of work ready, {"run": N} repeats it N times and gives the mean seconds,
{"memory": true} gives the most memory that was held. The argument is the number of threads.
"""

import json
import resource
import sys
import time


def conv(torch, work):
    import torch.nn.functional as F

    batch, size, kernel = work["batch"], work["size"], work["kernel"]
    x = torch.randn(batch, work["inputs"], size, size)
    w = torch.randn(work["outputs"], work["inputs"] // work["groups"], kernel, kernel)
    return best_layout(torch, x, w, lambda x, w: F.conv2d(
        x, w, stride=work["stride"], padding=kernel // 2, groups=work["groups"]))


def batch_norm_relu(torch, work):
    import torch.nn.functional as F

    channels = work["channels"]
    x = torch.randn(work["batch"], channels, work["size"], work["size"])
    w, b = torch.ones(channels), torch.zeros(channels)
    mean, var = torch.zeros(channels), torch.ones(channels)
    return best_layout(torch, x, w, lambda x, w: F.relu(F.batch_norm(
        x, mean, var, w, b, training=True), inplace=True))


def best_layout(torch, x, w, forward):
    """Forward and backward in the faster of the two memory layouts."""
    def with_layout(layout):
        xs = x.clone(memory_format=layout).requires_grad_()
        ws = (w.clone(memory_format=layout) if w.dim() == 4 else w.clone()).requires_grad_()
        dy = torch.randn_like(forward(xs, ws))

        def once():
            xs.grad = ws.grad = None
            forward(xs, ws).backward(dy)

        return once

    return fastest([with_layout(torch.contiguous_format), with_layout(torch.channels_last)])


def fastest(candidates):
    def seconds(once):
        once()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            once()
            times.append(time.perf_counter() - start)
        return sorted(times)[2]

    return min(candidates, key=seconds)


def train(torch, work):
    import torchvision
    from torch import nn

    name = {"resnet18": "resnet18", "resnet34": "resnet34", "resnet50": "resnet50",
            "mobilenetv2": "mobilenet_v2"}.get(work["model"])
    if name is None:
        return None

    def with_layout(layout):
        model = getattr(torchvision.models, name)(num_classes=10)
        if work["cifar_stem"]:
            if name == "mobilenet_v2":
                model.features[0][0].stride = model.features[2].conv[1][0].stride = (1, 1)
            else:
                model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
                model.maxpool = nn.Identity()
        model = model.to(memory_format=layout).train()
        x = torch.randn(work["batch"], 3, work["size"], work["size"]).contiguous(memory_format=layout)
        y = torch.arange(work["batch"]) % 10
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)

        def once():
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        return once

    return fastest([with_layout(torch.contiguous_format), with_layout(torch.channels_last)])


def main():
    import torch

    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    kinds = {"conv": conv, "batch_norm_relu": batch_norm_relu, "train": train}
    answer({"version": f"PyTorch {torch.__version__}"})
    once = None
    for line in sys.stdin:
        question = json.loads(line)
        if "prepare" in question:
            kind = kinds.get(question["prepare"]["kind"])
            once = kind(torch, question["prepare"]) if kind else None
            answer({"ready": once is not None})
        elif "run" in question:
            start = time.perf_counter()
            for _ in range(question["run"]):
                once()
            answer({"seconds": (time.perf_counter() - start) / question["run"]})
        else:
            answer({"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})


def answer(value):
    print(json.dumps(value), flush=True)


main()
