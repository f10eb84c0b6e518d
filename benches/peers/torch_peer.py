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

    if work["model"] == "stackgan":
        return stackgan(torch, work)
    if work["model"] == "unet":
        return unet(torch, work)
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
            with torch.autocast("cpu", torch.bfloat16, enabled=work["precision"] == "bf16"):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

        return once

    return fastest([with_layout(torch.contiguous_format), with_layout(torch.channels_last)])


def unet(torch, work):
    """A step of diffusers' U-Net on latent images with a text, if diffusers is installed."""
    try:
        from diffusers import UNet2DConditionModel
    except ImportError as error:
        print(f"no U-Net to compare with: {error}; pip install diffusers", file=sys.stderr)
        return None
    batch, size = work["batch"], work["size"]

    def with_layout(layout):
        model = UNet2DConditionModel(
            sample_size=size, in_channels=4, out_channels=4, block_out_channels=(64, 128, 256), layers_per_block=2,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=64, attention_head_dim=8, norm_num_groups=32)
        model = model.to(memory_format=layout).train()
        x, y = (torch.randn(batch, 4, size, size).contiguous(memory_format=layout) for _ in range(2))
        text, times = torch.randn(batch, 16, 64), torch.arange(batch) * 37 % 1000
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)

        def once():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=work["precision"] == "bf16"):
                loss = torch.nn.functional.mse_loss(model(x, times, text).sample, y)
            loss.backward()
            optimizer.step()

        return once

    return fastest([with_layout(torch.contiguous_format), with_layout(torch.channels_last)])


def stackgan(torch, work):
    """A step of each of StackGAN's first-stage networks, written after hanzhanggit/StackGAN-Pytorch."""
    from torch import nn

    def norm(channels, kind=nn.BatchNorm2d):
        return kind(channels)

    class Generator(nn.Module):
        def __init__(self):
            super().__init__()
            self.ca = nn.Linear(1024, 256)
            self.fc = nn.Sequential(nn.Linear(228, 16384, bias=False), norm(16384, nn.BatchNorm1d), nn.ReLU(True))
            layers = []
            for channels in (1024, 512, 256, 128):
                layers += [nn.Upsample(scale_factor=2, mode="nearest"),
                           nn.Conv2d(channels, channels // 2, 3, 1, 1, bias=False),
                           norm(channels // 2), nn.ReLU(True)]
            self.up = nn.Sequential(*layers, nn.Conv2d(64, 3, 3, 1, 1, bias=False), nn.Tanh())

        def forward(self, text, z, eps):
            mu, logvar = torch.relu(self.ca(text)).chunk(2, 1)
            c = mu + eps * torch.exp(0.5 * logvar)
            return self.up(self.fc(torch.cat([z, c], 1)).view(-1, 1024, 4, 4)), mu, logvar

    class Discriminator(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
            for channels in (64, 128, 256):
                layers += [nn.Conv2d(channels, 2 * channels, 4, 2, 1, bias=False), norm(2 * channels),
                           nn.LeakyReLU(0.2, True)]
            self.features = nn.Sequential(*layers)
            self.judge = nn.Sequential(nn.Conv2d(640, 512, 3, 1, 1, bias=False), norm(512),
                                       nn.LeakyReLU(0.2, True), nn.Conv2d(512, 1, 4, 4))

        def logits(self, features, condition):
            maps = condition[:, :, None, None].expand(-1, -1, 4, 4)
            return self.judge(torch.cat([features, maps], 1)).view(-1)

    batch = work["batch"]
    bce = nn.functional.binary_cross_entropy_with_logits

    def with_layout(layout):
        g, d = Generator().to(memory_format=layout), Discriminator().to(memory_format=layout)
        adam = [torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999)) for model in (g, d)]
        real = torch.randn(batch, 3, 64, 64).contiguous(memory_format=layout)
        text, z, eps = torch.randn(batch, 1024), torch.randn(batch, 100), torch.randn(batch, 128)
        ones, zeros = torch.ones(batch), torch.zeros(batch)

        def once():
            with torch.autocast("cpu", torch.bfloat16, enabled=work["precision"] == "bf16"):
                step()

        def step():
            fake, mu, logvar = g(text, z, eps)
            shown = mu.detach()
            d.zero_grad(set_to_none=True)
            real_features, fake_features = d.features(real), d.features(fake.detach())
            (bce(d.logits(real_features, shown), ones)
             + 0.5 * (bce(d.logits(real_features[:-1], shown[1:]), zeros[1:])
                      + bce(d.logits(fake_features, shown), zeros))).backward()
            adam[1].step()
            g.zero_grad(set_to_none=True)
            d.requires_grad_(False)
            kl = -0.5 * (1 + logvar - mu * mu - logvar.exp()).mean()
            (bce(d.logits(d.features(fake), shown), ones) + 2.0 * kl).backward()
            d.requires_grad_(True)
            adam[0].step()

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
