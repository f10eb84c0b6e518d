"""PyTorch as a peer: obeys one JSON line at a time on standard input, answers with one on standard output.

{"prepare": WORK} makes a piece of work ready, {"run": N} repeats it N times and gives the mean seconds,
{"memory": true} gives the most memory that was held. The argument is the number of threads.

With "device": "cuda" training runs on the first GPU as PyTorch's users are told to run it: compiled (torch.compile), channels-last
or not, whichever is faster, with fused optimizers, and bf16 by autocast.
"""

import gc
import json
import resource
import sys
import time

import torch_language


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
        finish()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            once()
            finish()
            times.append(time.perf_counter() - start)
        return sorted(times)[2]

    return min(candidates, key=seconds)


def finish():
    """Waits for what a GPU was given."""
    torch = sys.modules["torch"]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Training:
    """What trainings have in common on one device: where tensors lie, how models are compiled, mixed precision, optimizers."""

    def __init__(self, torch, work):
        self.torch, self.work = torch, work
        self.device = work.get("device", "cpu")
        self.gpu = self.device == "cuda"
        if self.gpu:
            fast = work["precision"] != "f32"
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
            torch.backends.cudnn.benchmark = True
            torch.cuda.reset_peak_memory_stats()

    def put(self, tensor, layout=None):
        tensor = tensor.to(self.device)
        return tensor.contiguous(memory_format=layout) if layout and tensor.dim() == 4 else tensor

    def model(self, model, layout):
        return model.to(self.device).to(memory_format=layout).train()

    def compiled(self, function):
        return self.torch.compile(function) if self.gpu else function

    def autocast(self):
        return self.torch.autocast(self.device, self.torch.bfloat16, enabled=self.work["precision"] == "bf16")

    def sgd(self, model):
        return self.torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4, fused=self.gpu)

    def fastest(self, with_layout):
        """The faster of the two memory layouts."""
        best = fastest([with_layout(self.torch.contiguous_format), with_layout(self.torch.channels_last)])
        if self.gpu:
            # What the slower one held is not counted.
            gc.collect()
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()
        return best


def train(torch, work):
    if work["model"] in ("stackgan1", "stackgan2"):
        return stackgan(torch, work)
    if work["model"] == "unet":
        return unet(torch, work)
    if work["model"] in torch_language.MODELS:
        return torch_language.language(torch, Training(torch, work), work, fastest)
    name = {"resnet18": "resnet18", "resnet34": "resnet34", "resnet50": "resnet50",
            "mobilenetv2": "mobilenet_v2", "vit-b16": "vit_b_16"}.get(work["model"])
    if name is None:
        return None
    import torchvision
    from torch import nn

    on = Training(torch, work)

    def with_layout(layout):
        sizes = {"image_size": work["size"]} if name == "vit_b_16" else {}
        model = getattr(torchvision.models, name)(num_classes=10, **sizes)
        if work["cifar_stem"] and not sizes:
            if name == "mobilenet_v2":
                model.features[0][0].stride = model.features[2].conv[1][0].stride = (1, 1)
            else:
                model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
                model.maxpool = nn.Identity()
        model = on.model(model, layout)
        x = on.put(torch.randn(work["batch"], 3, work["size"], work["size"]), layout)
        y = on.put(torch.arange(work["batch"]) % 10)
        optimizer, forward = on.sgd(model), on.compiled(model)

        def once():
            optimizer.zero_grad(set_to_none=True)
            with on.autocast():
                loss = nn.functional.cross_entropy(forward(x), y)
            loss.backward()
            optimizer.step()

        return once

    return on.fastest(with_layout)


def unet(torch, work):
    """A step of diffusers' U-Net on latent images with a text, if diffusers is installed."""
    try:
        from diffusers import UNet2DConditionModel
    except ImportError as error:
        print(f"no U-Net to compare with: {error}; pip install diffusers", file=sys.stderr)
        return None
    batch, size, on = work["batch"], work["size"], Training(torch, work)

    def with_layout(layout):
        model = UNet2DConditionModel(
            sample_size=size, in_channels=4, out_channels=4, block_out_channels=(64, 128, 256), layers_per_block=2,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=64, attention_head_dim=8, norm_num_groups=32)
        model = on.model(model, layout)
        x, y = (on.put(torch.randn(batch, 4, size, size), layout) for _ in range(2))
        text, times = on.put(torch.randn(batch, 16, 64)), on.put(torch.arange(batch) * 37 % 1000)
        optimizer, forward = on.sgd(model), on.compiled(model)

        def once():
            optimizer.zero_grad(set_to_none=True)
            with on.autocast():
                loss = torch.nn.functional.mse_loss(forward(x, times, text).sample, y)
            loss.backward()
            optimizer.step()

        return once

    return on.fastest(with_layout)


def stackgan(torch, work):
    """A step of each of StackGAN's networks, of either stage, written after hanzhanggit/StackGAN-Pytorch."""
    from torch import nn

    second = work["model"] == "stackgan2"
    gf, df, size = 128, 64, work["size"]
    small = size // 4 if second else size

    def conv3(inputs, outputs):
        return nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)

    def up(channels, until):
        layers, image = [], until[0]
        while image < until[1]:
            layers += [nn.Upsample(scale_factor=2, mode="nearest"), conv3(channels, channels // 2),
                       nn.BatchNorm2d(channels // 2), nn.ReLU(True)]
            channels, image = channels // 2, image * 2
        return nn.Sequential(*layers, conv3(channels, 3), nn.Tanh())

    class Condition(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(1024, 256)

        def forward(self, text, eps):
            mu, logvar = torch.relu(self.fc(text)).chunk(2, 1)
            return mu + eps * torch.exp(0.5 * logvar), mu, logvar

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.ca = Condition()
            self.fc = nn.Sequential(nn.Linear(228, 128 * gf, bias=False), nn.BatchNorm1d(128 * gf), nn.ReLU(True))
            self.up = up(8 * gf, (4, small))

        def forward(self, text, z, eps):
            c, mu, logvar = self.ca(text, eps)
            return self.up(self.fc(torch.cat([z, c], 1)).view(-1, 8 * gf, 4, 4)), mu, logvar

    class Residual(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.block = nn.Sequential(conv3(channels, channels), nn.BatchNorm2d(channels), nn.ReLU(True),
                                       conv3(channels, channels), nn.BatchNorm2d(channels))

        def forward(self, x):
            return torch.relu(self.block(x) + x)

    class Second(nn.Module):
        def __init__(self, first):
            super().__init__()
            self.first, self.ca = first.requires_grad_(False), Condition()
            self.encoder = nn.Sequential(
                conv3(3, gf), nn.ReLU(True),
                nn.Conv2d(gf, 2 * gf, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * gf), nn.ReLU(True),
                nn.Conv2d(2 * gf, 4 * gf, 4, 2, 1, bias=False), nn.BatchNorm2d(4 * gf), nn.ReLU(True))
            self.joint = nn.Sequential(conv3(128 + 4 * gf, 4 * gf), nn.BatchNorm2d(4 * gf), nn.ReLU(True))
            self.residual = nn.Sequential(*[Residual(4 * gf) for _ in range(4)])
            self.up = up(4 * gf, (small // 4, size))

        def forward(self, text, z, eps):
            encoded = self.encoder(self.first(text, z, eps)[0].detach())
            c, mu, logvar = self.ca(text, eps)
            maps = c[:, :, None, None].expand(-1, -1, *encoded.shape[2:])
            return self.up(self.residual(self.joint(torch.cat([encoded, maps], 1)))), mu, logvar

    class Discriminator(nn.Module):
        def __init__(self):
            super().__init__()
            layers, channels, image = [nn.Conv2d(3, df, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)], df, size // 2
            while image > 4:
                layers += [nn.Conv2d(channels, 2 * channels, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * channels),
                           nn.LeakyReLU(0.2, True)]
                channels, image = 2 * channels, image // 2
            while channels > 8 * df:
                layers += [conv3(channels, channels // 2), nn.BatchNorm2d(channels // 2), nn.LeakyReLU(0.2, True)]
                channels //= 2
            self.features = nn.Sequential(*layers)
            self.judge = nn.Sequential(conv3(channels + 128, channels), nn.BatchNorm2d(channels),
                                       nn.LeakyReLU(0.2, True), nn.Conv2d(channels, 1, 4, 4))
            self.alone = nn.Conv2d(channels, 1, 4, 4) if second else None

        def logits(self, features, condition):
            maps = condition[:, :, None, None].expand(-1, -1, 4, 4)
            return self.judge(torch.cat([features, maps], 1)).view(-1)

    batch, on = work["batch"], Training(torch, work)

    def bce(logits, target):
        return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))

    def judge(d, features_of, real, fake, shown):
        real, fake = features_of(real), features_of(fake)
        right, made = bce(d.logits(real, shown), 1.0), bce(d.logits(fake, shown), 0.0)
        wrong = bce(d.logits(real[:-1], shown[1:]), 0.0)
        if d.alone is None:
            return right + 0.5 * (wrong + made)
        real_alone, fake_alone = bce(d.alone(real).view(-1), 1.0), bce(d.alone(fake).view(-1), 0.0)
        return (right + real_alone) / 2 + (made + wrong + fake_alone) / 3

    def with_layout(layout):
        g, d = on.model(Second(First()) if second else First(), layout), on.model(Discriminator(), layout)
        adam = [torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-4, betas=(0.5, 0.999),
                                 fused=on.gpu) for model in (g, d)]
        real = on.put(torch.randn(batch, 3, size, size), layout)
        text, z, eps = (on.put(torch.randn(batch, width)) for width in (1024, 100, 128))
        make, features_of = on.compiled(g), on.compiled(d.features)

        def once():
            with on.autocast():
                step()

        def step():
            fake, mu, logvar = make(text, z, eps)
            shown = mu.detach()
            d.zero_grad(set_to_none=True)
            judge(d, features_of, real, fake.detach(), shown).backward()
            adam[1].step()
            g.zero_grad(set_to_none=True)
            d.requires_grad_(False)
            features = features_of(fake)
            loss = bce(d.logits(features, shown), 1.0)
            if second:
                loss = loss + bce(d.alone(features).view(-1), 1.0)
            kl = -0.5 * (1 + logvar - mu * mu - logvar.exp()).mean()
            (loss + 2.0 * kl).backward()
            d.requires_grad_(True)
            adam[0].step()

        return once

    return on.fastest(with_layout)


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
            finish()
            answer({"seconds": (time.perf_counter() - start) / question["run"]})
        else:
            used = torch.cuda.is_available() and torch.cuda.max_memory_allocated()
            answer({"bytes": used or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})


def answer(value):
    print(json.dumps(value), flush=True)


main()
