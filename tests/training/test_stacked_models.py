"""Models of every kind train in a stack as in the loop: tokens, dictionaries, attention, recurrence, dropout."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fedtilt import models
from fedtilt.data.inputs import Inputs, take
from fedtilt.losses import Focal
from fedtilt.training import BACKENDS, Batches, LocalJob, make_batches, stacked
from fedtilt.training.stacked import stack

TOKENS, LENGTH, CLASSES = 12, 6, 4


class Transformer(nn.Module):
    """Tokens, one attention of several kinds, the mean over the tokens that count, and an output of several kinds."""

    def __init__(
        self, attention: str = "function", p: float = 0.0, norm: str = "layer", output: str = "tensor"
    ) -> None:
        super().__init__()
        self.attention, self.p, self.output = attention, p, output
        self.embedding, self.places = nn.Embedding(TOKENS, 8, padding_idx=0), nn.Parameter(torch.randn(LENGTH, 8) * 0.1)
        self.norm = nn.LayerNorm(8) if norm == "layer" else nn.RMSNorm(8)
        if attention == "encoder":
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=p, batch_first=True, norm_first=True)
        elif attention == "multi-head":
            self.layer = nn.MultiheadAttention(8, 2, dropout=p, batch_first=True)
        else:
            self.layer = nn.Linear(8, 24)
        self.head = nn.Linear(8, TOKENS, bias=False)
        self.head.weight = self.embedding.weight  # tied

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> object:
        x = self.norm(self.embedding(input_ids) + self.places)
        if self.attention == "encoder":
            x = self.layer(x, src_mask=torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).triu(1))
        elif self.attention == "multi-head":
            x = x + self.layer(x, x, x, need_weights=False)[0]
        else:
            q, k, v = self.layer(x).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
            p = self.p if self.training else 0.0
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)
            x = x + heads.transpose(1, 2).reshape(x.shape)
        counts = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        scores = self.head((x * counts[..., None]).sum(1) / counts.sum(1, keepdim=True).clamp(min=1))[:, :CLASSES]
        return {"tensor": scores, "tuple": (scores, x), "dictionary": {"logits": scores}}[self.output]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **settings: object) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        self.layer = kind(8, 10, batch_first=True, **settings)
        self.head = nn.Linear(20 if self.layer.bidirectional else 10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(x))[0][:, -1])


class SequenceFirst(nn.Module):
    """Dropout with the samples in the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.embedding(x.T), 0.2, self.training).mean(0))


class BatchMean(nn.Module):
    """Its features are those of a sample without the mean over the batch."""

    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, 8, **settings), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = self.embedding(x).mean(1)
        return self.head(features - features.mean(0))


class AtLeast(nn.Module):
    """Rejects fewer samples than these, as torch does where it computes their variance."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples

    def forward(self, x: Tensor) -> Tensor:
        if len(x) < self.samples:
            raise ValueError("too few samples")
        return x


def images(norm: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), norm, nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(512, CLASSES)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "attention": (partial(Transformer, p=0.2, output="tuple"), "tokens"),
    "multi-head attention": (partial(Transformer, "multi-head", 0.2), "tokens"),
    "encoder": (partial(Transformer, "encoder", 0.1), "tokens"),
    "RMSNorm": (partial(Transformer, norm="rms", output="dictionary"), "dictionary"),
    "GroupNorm": (lambda: images(nn.GroupNorm(2, 8)), "images"),
    "InstanceNorm": (lambda: images(nn.InstanceNorm2d(8, affine=True)), "images"),
    "at least two samples": (lambda: images(AtLeast(2)), "images"),
    "LSTM": (partial(Recurrent, nn.LSTM, num_layers=2, bidirectional=True), "tokens"),
    "GRU": (partial(Recurrent, nn.GRU), "tokens"),
    "RNN": (partial(Recurrent, nn.RNN, nonlinearity="relu", bias=False), "tokens"),
}


def samples(kind: str, count: int, rng: torch.Generator) -> Inputs:
    if kind == "images":
        return torch.randn(count, 1, 8, 8, generator=rng)
    ids = torch.randint(0, TOKENS, (count, LENGTH), generator=rng)
    return ids if kind == "tokens" else {"input_ids": ids, "attention_mask": (ids > 2).long()}


def make_model(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def make_jobs(model: nn.Module, kind: str) -> tuple[list[LocalJob], list[Batches]]:
    rng = torch.Generator().manual_seed(0)
    received = models.parameters_to_vector(model)
    jobs, batches = [], []
    for client, size in enumerate((23, 40, 7)):  # batches of 8, of 10 and of 7
        y = torch.randint(0, CLASSES, (size,), generator=rng)
        data = make_batches(samples(kind, size, rng), y, seed=1, round=2, client=client, epochs=2, batch_size=10)
        data = replace(data, largest=10)
        for start, prox, tau, lam in ((received, 0.0, 0.0, 0.0), (received + 0.02, 0.1, 1.0, 2.0)):
            jobs.append(LocalJob(start=start, anchor=received, prox=prox, tau=tau, lam=lam, lr=0.1))
            batches.append(data)
    return jobs, batches


def reason(model: nn.Module, jobs: list[LocalJob], batches: list[Batches]) -> str | None:
    return stacked.unsupported_reason(model, jobs[0], "cpu", take(batches[0].x, slice(0, 1)))


@pytest.mark.parametrize("name", MODELS)
def test_a_stack_trains_like_the_loop_whatever_its_width(name: str) -> None:
    build, kind = MODELS[name]
    model = make_model(build)
    jobs, batches = make_jobs(model, kind)
    assert reason(model, jobs, batches) is None
    expected = BACKENDS["autograd"](model, jobs, batches)
    together = BACKENDS["stacked"](model, jobs, batches)
    for width in (1, 2):  # with batches of 8, of 10 and of 7: padded to 10 as in the wide stack
        for i in range(0, len(jobs), width):
            narrow = BACKENDS["stacked"](model, jobs[i : i + width], batches[i : i + width])
            assert all(a.parameters.equal(b.parameters) for a, b in zip(narrow, together[i:], strict=False))
    for job, a, b in zip(jobs, together, expected, strict=True):
        moved = (b.parameters - job.start).norm()
        assert moved > 1e-3
        assert (a.parameters - b.parameters).norm() < 3e-5 * moved


@pytest.mark.parametrize(
    ("build", "kind", "expected"),
    [
        (partial(Recurrent, nn.LSTM, num_layers=2, dropout=0.2), "tokens", "layer 'layer' (LSTM) draws the dropout"),
        (partial(Recurrent, nn.LSTM, proj_size=5), "tokens", "layer 'layer' (LSTM) cannot be batched over jobs"),
        (SequenceFirst, "tokens", "dropout in it needs the samples in the first dimension"),
        (BatchMean, "tokens", "what the model or the loss computes of a sample depends on the others"),
        (partial(BatchMean, scale_grad_by_freq=True), "tokens", "the model or the loss cannot be batched over jobs"),
        (lambda: images(nn.BatchNorm2d(8, track_running_stats=False)), "images", "what the model or the loss computes"),
        (lambda: images(AtLeast(3)), "images", "the model or the loss cannot be batched over jobs"),
    ],
)
def test_masks_and_layers_that_would_differ_are_not_stacked(
    build: Callable[[], nn.Module], kind: str, expected: str
) -> None:
    model = make_model(build)
    found = reason(model, *make_jobs(model, kind))
    assert found is not None
    assert found.startswith(expected)


def test_a_step_copies_no_class_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a recurrent model it is captured in a CUDA graph as it is: a constant in it would be a copy to the device."""
    model = make_model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)))
    jobs, batches = make_jobs(model, "images")
    jobs = [replace(jobs[0], loss=Focal(class_weights=(1.0, 2.0, 0.5, 3.0)), steps=1, epochs=None)]
    constants: list[str] = []

    class Traced(stack.VmapStep):
        def _run(self, number: Tensor, *tensors: Tensor) -> None:
            graph = make_fx(super()._run)(number, *tensors)  # which runs it, too
            constants.extend(node.name for node in graph.graph.find_nodes(op="get_attr"))

    monkeypatch.setattr(stack, "VmapStep", Traced)
    found, expected = (BACKENDS[name](model, jobs, batches[:1])[0] for name in ("stacked", "autograd"))
    stacked.clear_cache()
    assert not constants
    torch.testing.assert_close(found.parameters, expected.parameters, rtol=1e-4, atol=1e-6)
