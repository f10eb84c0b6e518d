"""A model whose depth PyTorch's pipelining cuts over ranks (torch.distributed.pipelining), split by hand into parts of equal work."""

import itertools

import torch
import torch_cut
from torch import nn

VOCABULARY = 50257


class GptStage(nn.Module):
    """Some layers of a GPT; the first ones have the tables, the last ones the head, which is not the table of another process."""

    def __init__(self, gpt, layers, is_first, is_last):
        super().__init__()
        self.wte, self.wpe = (gpt.wte, gpt.wpe) if is_first else (None, None)
        self.h = nn.ModuleList(gpt.h[i] for i in layers)
        self.ln_f = gpt.ln_f if is_last else None
        self.head = None
        if is_last:
            self.head = nn.Linear(gpt.head.in_features, gpt.head.out_features, bias=False)
            self.head.weight = nn.Parameter(gpt.head.weight.detach().clone())

    def forward(self, x):
        if self.wte is not None:
            x = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.h:
            x = block(x)
        return x if self.head is None else self.head(self.ln_f(x))


def cut_by_work(weights, chunks):
    """The first part of each chunk: the most work of a chunk is as little as can be."""
    ways = ([0, *cuts] for cuts in itertools.combinations(range(1, len(weights)), chunks - 1))
    return min(ways, key=lambda first: max(
        sum(weights[a:b]) for a, b in zip(first, [*first[1:], len(weights)])))


def gpt_parts(work, sizes, chunks):
    gpt = torch_cut.Gpt(**sizes, tokens=work["tokens"])
    layers = sizes["n_layer"]
    # The head multiplies by its tokens, a layer by twelve squares of the width.
    first = cut_by_work([1.0] * layers + [VOCABULARY / (12 * sizes["n_embd"])], chunks)
    ends = [*first[1:], layers]
    return lambda chunk: GptStage(
        gpt, range(min(first[chunk], layers), min(ends[chunk], layers)), chunk == 0, chunk == chunks - 1)


def resnet_parts(model, chunks):
    """Layers of ResNet-18 compute equally much."""
    start = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
    end = nn.Sequential(model.avgpool, nn.Flatten(1), model.fc)
    blocks = [start, *model.layer1, *model.layer2, *model.layer3, *model.layer4, end]
    inner = len(blocks) - 2
    at = [0] + [1 + inner * chunk // chunks for chunk in range(1, chunks)] + [len(blocks)]
    return lambda chunk: nn.Sequential(*blocks[at[chunk]: at[chunk + 1]])


def schedules(name):
    from torch.distributed import pipelining

    return {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B,
            "interleaved": pipelining.ScheduleInterleaved1F1B,
            "zero-bubble": pipelining.ScheduleInterleavedZeroBubble}[name]


def steps(work, part_of, x, y, loss_of, optimizer_of, autocast):
    """Steps of this rank's stages, in eager and in compiled code; samples are those of all ranks."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage

    ranks, own, name = work["ranks"], dist.get_rank(), work["schedule"]
    chunks = ranks * (2 if name == "interleaved" else 1)
    mine = [chunk for chunk in range(chunks) if chunk % ranks == own]
    # PyTorch refuses compiled stages with a backward in two parts.
    for compiled in (False,) if name == "zero-bubble" else (False, True):
        parts = [part_of(chunk).train() for chunk in mine]
        optimizer = optimizer_of([p for part in parts for p in part.parameters()])
        forwards = [torch.compile(part) if compiled else part for part in parts]
        stages = [PipelineStage(part, chunk, chunks, torch.device("cpu")) for part, chunk in zip(forwards, mine)]
        # Schedules of several stages a rank take a list, also of one.
        of_rank = stages if name in ("interleaved", "zero-bubble") else stages[0]
        schedule = schedules(name)(of_rank, n_microbatches=work["micro_batches"], loss_fn=loss_of)

        def once():
            optimizer.zero_grad(set_to_none=True)
            with autocast():
                if 0 in mine and chunks - 1 in mine:
                    schedule.step(x, target=y, losses=[])
                elif 0 in mine:
                    schedule.step(x)
                elif chunks - 1 in mine:
                    schedule.step(target=y, losses=[])
                else:
                    schedule.step()
            optimizer.step()

        yield once
