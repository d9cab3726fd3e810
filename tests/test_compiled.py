"""`--torch-compile auto`: layers compiled where that was measured to pay, nothing left of the trial, and the run as it was everywhere else."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import TrainingArguments

from ftcli.commands.train import run
from ftcli.core.batches.collate import Dynamic
from ftcli.core.batches.tasks import Classify
from ftcli.core.models import compiled, compiled_layers
from ftcli.core.models.compiled import FEWEST, TRIED, Compiled, Trial
from ftcli.core.models.compiled_layers import STANCE, layers_of, why_not
from ftcli.core.models.last_layer import logits_of
from ftcli.core.models.lean import lean
from ftcli.core.training import checkpoints
from ftcli.errors import TrainError
from ftcli.testing import tiny_model
from reliability import FULL
from runs import VOCABULARY, Bench, StopAt
from stores import learnable, packed, rows_of, spec_for
from test_lean import arguments, model_of

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = 3
TEXTS = [[5, 9, 7, 3], [8, 4, 6, 9, 2, 3, 7, 5, 6]]
BATCHES = [Dynamic(spec_for(Classify()))(rows_of([text[:width] for text in TEXTS], [1, 4])) for width in (9, 8, 7, 6, 5)]


class Compiler:
    """In place of `torch.compile`, with a clock: the same code, which takes `fast` seconds a batch where the model's own takes 1, and once `cold` more.

    Args:
        does: called before each layer with what the layer gets.
    """

    def __init__(self, fast: float = 0.5, cold: float = 30.0, does: Callable[..., None] = lambda *_, **__: None) -> None:
        self.fast, self.cold, self.does = fast, cold, does
        self.options: list[dict[str, Any]] = []
        self.calls, self._seen, self._now = 0, 0, 0.0

    def __call__(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        self.options.append(options)

        def code(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            self.does(*args, **kwargs)
            return function(*args, **kwargs)

        return code

    def clock(self) -> float:
        ran, self._seen = self.calls > self._seen, self.calls
        self._now += 1.0 if not ran else self.fast + self.cold
        if ran:
            self.cold = 0.0
        return self._now


@pytest.fixture
def model() -> Any:
    return model_of("qwen3", num_hidden_layers=LAYERS).eval()


@pytest.fixture
def given(tmp_path: Path) -> TrainingArguments:
    return arguments(tmp_path)


class Tried:
    """A trial of a model, and what was said of it."""

    def __init__(self, model: Any, arguments: Any, compiler: Compiler, left: int = 1000) -> None:
        self.model, self.compiler = model, compiler
        self.notes: list[str] = []
        self.asked: list[int] = []
        self.trial = Trial(
            model=model,
            task=Classify(),
            arguments=arguments,
            batches=lambda count: self.asked.append(count) or BATCHES[:count],  # type: ignore[func-returns-value]
            left=lambda: left,
            compiler=compiler,
            clock=compiler.clock,
        )

    def inside(self, before: bool | None = None) -> Any:
        return compiled.compiled(self.trial, before, self.notes.append)

    def result(self, before: bool | None = None) -> Compiled:
        with self.inside(before) as found:
            pass
        assert not any("forward" in vars(module) for module in self.model.modules())
        return found


@pytest.fixture
def tried(model: Any, given: TrainingArguments) -> Callable[..., Tried]:
    return lambda compiler=None, **more: Tried(model, given, compiler or Compiler(), **more)


def test_faster_code_computes_the_layers_while_the_model_trains(tried: Callable[..., Tried], model: Any) -> None:
    one = tried()
    with one.inside() as found:
        assert found.on
        before = one.compiler.calls
        logits = logits_of(model.train(), BATCHES[0])
        assert one.compiler.calls == before + LAYERS
        with torch.no_grad():
            logits_of(model, BATCHES[0])
        logits_of(model.eval(), BATCHES[0])
        assert one.compiler.calls == before + LAYERS
    assert torch.allclose(logits, logits_of(model, BATCHES[0]))
    assert one.compiler.calls == before + LAYERS
    assert not any("forward" in vars(module) for module in model.modules())
    assert one.asked == [TRIED]
    assert one.compiler.options == [{"dynamic": True}]
    assert one.notes == [
        "torch.compile on: a batch takes 0.5 s compiled and 1 s without; compiling took 27.5 s, and the 1,000 remaining batches save 500 s"
    ]
    assert found.record() == {
        "on": True,
        "reason": found.reason,
        "cold_seconds": 27.5,  # 30 less what five batches take less
        "eager_seconds": 1.0,
        "compiled_seconds": 0.5,
        "batches_left": 1000,
        "share_not_fitted": 0.0,
    }


@pytest.mark.parametrize("fast", [1.0, 0.98, 1.5])
def test_code_that_is_not_faster_beyond_the_noise_is_left_out(tried: Callable[..., Tried], fast: float) -> None:
    found = tried(Compiler(fast)).result()
    assert not found.on
    assert found.reason.startswith("not faster: ")
    assert found.compiled_seconds == pytest.approx(fast)


def test_a_short_run_tries_nothing(tried: Callable[..., Tried]) -> None:
    one = tried(left=FEWEST - 1)
    found = one.result()
    assert (found.on, found.batches_left) == (False, FEWEST - 1)
    assert f"{FEWEST - 1} batches are left, too few to pay for compiling" in found.reason
    assert (one.asked, one.compiler.options, one.compiler._now) == ([], [], 0.0)


def test_batches_that_take_too_little_time_to_pay_are_not_compiled(tried: Callable[..., Tried], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "COLD", 500.0)
    one = tried(left=1000)
    found = one.result()
    assert (found.on, one.compiler.options) == (False, [])
    assert found.eager_seconds == 1.0
    assert "cannot pay the cold cost" in found.reason
    assert tried(left=1001).result().on


@pytest.mark.parametrize("pass_", ["first", "later"])
def test_what_compiling_fails_for_is_named_and_the_run_goes_on(tried: Callable[..., Tried], pass_: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        if pass_ == "first" or one.compiler.calls > TRIED * LAYERS:
            raise ValueError(
                "backend='inductor' raised:\nCppCompileError: C++ compile error\n\nfatal error: Python.h: No such file\ncompilation over"
            )

    one = tried(Compiler(does=fail))
    found = one.result()
    assert not found.on
    assert found.reason == "ValueError: fatal error: Python.h: No such file"


def test_a_backend_that_there_is_not_is_named(model: Any, given: TrainingArguments) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Invalid backend: 'no_such'")

    one = Tried(model, given, Compiler())
    trial = Trial(model, Classify(), given, one.trial.batches, one.trial.left, compiler=refuse, clock=one.compiler.clock)
    with compiled.compiled(trial, None, one.notes.append) as found:
        assert not found.on
    assert "Invalid backend" in found.reason


def test_code_that_gives_something_else_is_left_out_with_the_reason(tried: Callable[..., Tried], model: Any) -> None:
    def scale(_: nn.Module, states: torch.Tensor, **__: Any) -> None:
        states.data.mul_(1.01)

    found = tried(Compiler(does=scale)).result()
    assert not found.on
    assert "compiled code gives different results: logits differ by" in found.reason


def test_nothing_is_left_of_a_trial(tried: Callable[..., Tried], model: Any) -> None:
    norm = nn.BatchNorm1d(16)
    model.model.layers[0].add_module("watched", norm)

    def draw(*_: Any, **__: Any) -> None:
        norm(torch.randn(4, 16))
        random.random()
        np.random.rand()  # noqa: NPY002 - the global one

    model.model.layers[0].mlp.register_forward_hook(draw)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    places = {name: value.data_ptr() for name, value in model.state_dict().items()}
    model.score.weight.grad = torch.ones_like(model.score.weight)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    for before in (None, True):
        assert tried().result(before).on
        assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
        assert {name: value.data_ptr() for name, value in model.state_dict().items()} == places
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]
        assert (np.random.get_state()[1] == states[2]).all()  # type: ignore[index]  # noqa: NPY002
        assert [name for name, weight in model.named_parameters() if weight.grad is not None] == ["score.weight"]
        assert torch.equal(model.score.weight.grad, torch.ones_like(model.score.weight))
        assert not model.training


def test_shapes_that_the_code_does_not_fit_run_as_before_and_are_counted(tried: Callable[..., Tried], model: Any) -> None:
    def refuse(_: nn.Module, states: torch.Tensor, **__: Any) -> None:
        if len(states) == 1:
            raise RuntimeError(f"Detected recompile when torch.compile stance is '{STANCE}'.")

    one = tried(Compiler(does=refuse))
    alone = {name: value[1:] for name, value in BATCHES[0].items()}
    truth = logits_of(model.train(), alone)
    with one.inside() as found:
        assert torch.allclose(logits_of(model.train(), alone), truth)
        logits_of(model, BATCHES[0])
        assert found.layers is not None
        assert (found.layers.fitted, found.layers.missed) == (LAYERS, LAYERS)
    assert found.record()["share_not_fitted"] == 0.5
    assert one.notes[1:] == [
        "torch.compile: the compiled code did not fit 50% of the layers' calls because of their shapes; these ran uncompiled"
    ]


def test_an_error_of_the_step_itself_is_nobodys_recompile(tried: Callable[..., Tried], model: Any) -> None:
    def run_out(*_: Any, **__: Any) -> None:
        if ended:
            raise torch.OutOfMemoryError("CUDA out of memory")

    ended: list[bool] = []
    with tried(Compiler(does=run_out)).inside() as found:
        assert found.on
        ended.append(True)
        with pytest.raises(torch.OutOfMemoryError):
            logits_of(model.train(), BATCHES[0])


@pytest.mark.parametrize(
    ("backend", "mode", "asked"),
    [
        (None, None, {"options": {"fallback_random": True}}),
        ("inductor", None, {"backend": "inductor", "options": {"fallback_random": True}}),
        (
            None,
            "max-autotune-no-cudagraphs",
            {"options": {"max_autotune": True, "coordinate_descent_tuning": True, "fallback_random": True}},
        ),
        ("aot_eager", "default", {"backend": "aot_eager", "mode": "default"}),  # draws as the model's own code anyway
    ],
)
def test_where_something_is_dropped_the_compiler_is_asked_to_draw_as_the_models_own_code_does(
    backend: str | None, mode: str | None, asked: dict[str, Any]
) -> None:
    compiler = Compiler()
    compiled_layers.CompiledLayers(model_of("qwen3", attention_dropout=0.1), compiler, dynamic=True, backend=backend, mode=mode)
    assert compiler.options == [{"dynamic": True, **asked}]


@pytest.mark.parametrize(("rate", "draws", "is_on"), [(0.1, False, True), (0.1, True, False), (0.0, True, True)])
def test_code_that_drops_something_else_is_left_out(given: TrainingArguments, rate: float, draws: bool, is_on: bool) -> None:
    one = Tried(model_of("qwen3", attention_dropout=rate), given, Compiler(does=lambda *_, **__: torch.rand(1) if draws else None))
    state = torch.get_rng_state()
    found = one.result()
    assert found.on is is_on
    assert is_on or "compiled code gives different results: logits differ by" in found.reason
    assert torch.equal(torch.get_rng_state(), state)


def test_code_that_does_not_fit_its_own_batches_is_left_out(tried: Callable[..., Tried]) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        if one.compiler.calls > TRIED * LAYERS:
            raise RuntimeError(f"stance is '{STANCE}'")

    one = tried(Compiler(does=refuse))
    assert one.result().reason == "compiled code does not fit the batches it was compiled for"


# -- the form is kept ------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_keeps_the_form_that_it_had(tried: Callable[..., Tried]) -> None:
    one = tried()
    assert not one.result(before=False).on
    assert (one.asked, one.compiler.options) == ([], [])
    slow = tried(Compiler(fast=3.0), left=1)
    with slow.inside(before=True) as found:
        assert found.on
    assert slow.asked == [TRIED]  # the same batches, so the same code
    assert found.cold_seconds is not None


def test_a_form_that_cannot_be_kept_is_said_to_change_the_last_bits(tried: Callable[..., Tried]) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no compiler")

    found = tried(Compiler(does=fail)).result(before=True)
    assert not found.on
    assert found.reason == "ValueError: no compiler; the earlier run was compiled, so the weights may differ in their last bits"


def test_rank_0_decides_and_what_one_rank_cannot_none_does(tried: Callable[..., Tried], monkeypatch: pytest.MonkeyPatch) -> None:
    def first_of(value: Any) -> list[Any]:
        """Rank 0 found 0.5 s where this rank found its own."""
        return [(1.0, [(1.0, 0.5)] * TRIED) if isinstance(value, tuple) else value, value]

    monkeypatch.setattr(compiled, "gathered", first_of)
    found = tried(Compiler(fast=2.0)).result()
    assert (found.on, found.compiled_seconds, found.cold_seconds) == (True, 0.5, 1.0)

    def failed(value: Any) -> list[Any]:
        return [value, "ValueError: no compiler" if value is None and reasons.append(1) is None and len(reasons) == 3 else value]

    for times in (1, 2, 3):  # what cannot be tried at all, the model's own code, the compiled one
        reasons: list[int] = [0] * (3 - times)
        monkeypatch.setattr(compiled, "gathered", failed)
        assert tried().result().reason == "ValueError: no compiler (rank 1)"


# -- where it cannot be tried ----------------------------------------------------------------------------------------------


def on(device: str, **more: Any) -> Any:
    return SimpleNamespace(device=torch.device(device), **more)


def test_what_cannot_be_compiled_is_refused_by_name(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(model, on("cpu"), backend="eager") is None
    assert "fsdp itself replaces the model's code" in str(why_not(model, on("cpu", fsdp="full_shard")))
    assert "deepspeed itself replaces the model's code" in str(why_not(model, on("cpu", deepspeed="z.json")))
    assert "the device is mps" in str(why_not(model, on("mps")))
    assert "reduce-overhead records CUDA graphs" in str(why_not(model, on("cuda"), mode="reduce-overhead"))
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setenv("CXX", "g++-99")
    assert why_not(model, on("cpu")) == "compiling for a CPU needs a C++ compiler, and there is no g++-99 (CXX names another)"
    assert why_not(model, on("cpu"), backend="aot_eager") is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert why_not(model, on("cuda")) == "compiling for a GPU needs the package triton, which is not installed"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    monkeypatch.delenv("CC", raising=False)
    assert why_not(model, on("cuda")) == "compiling for a GPU needs a C compiler, and there is none (gcc or clang; CC names another)"
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (6, 1))
    monkeypatch.setattr("torch.version.hip", None)
    assert why_not(model, on("cuda")) == "compiling needs a GPU of capability 7.0, and this one has 6.1"
    monkeypatch.setattr(compiled_layers, "layers_of", lambda _: [])
    assert why_not(model, on("cpu"), backend="eager") == "Qwen3ForSequenceClassification has no list of layers of one class"


def test_layers_that_somebody_else_computes_are_left_to_them(model: Any, given: TrainingArguments) -> None:
    first, *others = model.model.layers
    first.forward = lambda *args, **more: type(first).forward(first, *args, **more)
    assert layers_of(model) == others
    del first.forward
    batches = [BATCHES[0], {name: value[1:] for name, value in BATCHES[0].items()}]
    with lean(model, Classify(), batches, given, wanted="auto") as said:
        assert "decoder layers on" in said
        assert "last layer for pooled tokens only on" in said
        assert layers_of(model) == list(model.model.layers[:-1])
        forms = [vars(layer)["forward"] for layer in model.model.layers]
        one = Tried(model, given, Compiler())
        with one.inside() as found:
            assert found.on
            assert [vars(layer)["forward"] is form for layer, form in zip(model.model.layers, forms, strict=True)] == [False, False, True]
        assert [vars(layer)["forward"] for layer in model.model.layers] == forms


# -- runs ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("bench"))
    made.store("texts", {"train": learnable(30, 3, VOCABULARY, 0)}, labels=3)
    made.store("packs", {"train": packed(30, 24, VOCABULARY, 0)}, max_length=24)
    tiny_model("qwen3").save_pretrained(made.folder / "base")
    return made


VALUES = {
    "train__num_train_epochs": 2,
    "train__per_device_train_batch_size": 4,
    "train__learning_rate": 3e-3,
    "train__verify": False,
    "train__torch_compile": "auto",
}


def test_a_short_run_says_that_it_is_off_and_its_report_has_the_figures(bench: Bench) -> None:
    context = bench.context(bench.folder / "texts", "short", **VALUES, train__gradient_accumulation_steps=2)
    report = run(context)
    assert report.metrics["steps"] == 8
    assert report.details["torch_compile"]["batches_left"] == 16
    assert report.details["torch_compile"]["on"] is False
    assert "torch.compile off: 16 batches are left, too few to pay for compiling: nothing was tried" in context.notes
    assert "torch_compile" not in run(bench.context(bench.folder / "texts", "unset", **{**VALUES, "train__torch_compile": None})).details


@pytest.fixture
def paying(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Compiling costs nothing and halves the time, by a clock of its own."""
    compiler = Compiler(cold=0.0)
    for name in ("COLD", "FEWEST"):
        monkeypatch.setattr(compiled, name, 0)
    monkeypatch.setattr(torch, "compile", compiler)
    monkeypatch.setattr("ftcli.core.training.train.Trial", lambda **parts: Trial(**parts, clock=compiler.clock))
    return compiler


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of the model, or of the adapter."""
    [file] = folder.glob("*model.safetensors")
    return load_file(file)


@pytest.mark.parametrize("store", ["texts", "packs"])
def test_a_compiled_run_that_was_stopped_goes_on_bitwise_and_compiled(bench: Bench, paying: Compiler, store: str) -> None:
    data = bench.folder / store
    whole = run(bench.context(data, f"{store} whole", **VALUES))
    assert whole.details["torch_compile"]["on"] is True
    stop = bench.context(data, f"{store} parts", **VALUES)
    stop.progress = StopAt(5)
    assert run(stop).status == "interrupted"
    [folder] = (bench.folder / f"{store} parts").glob("checkpoint-5")
    assert checkpoints.read(folder)["kept"]["compiled"] is True
    paying.fast = 9.0  # now it would not pay
    on = bench.context(data, f"{store} parts", **VALUES, train__resume_from_checkpoint="auto")
    assert run(on).details["torch_compile"]["on"] is True
    assert "torch.compile on: as decided by the run that this one resumes" in on.notes
    ends = [weights(bench.folder / f"{store} {name}") for name in ("whole", "parts")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    with pytest.raises(TrainError, match=r"train\.torch_compile was auto, now None"):
        run(bench.context(data, f"{store} parts", **{**VALUES, "train__torch_compile": None}, train__resume_from_checkpoint="auto"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "more"),
    [
        ("texts", {"loader__collator": "dynamic", "train__gradient_accumulation_steps": 2, "model__lora_r": 2, "model__lora_dropout": 0.2}),
        ("packs", {}),
        pytest.param(
            *("texts", {"loader__collator": "packed"}),
            marks=pytest.mark.skipif(not FULL, reason="FTCLI_FAULTS=full: 15 s of CPU; the two others have its collator and its store"),
        ),
    ],
)
def test_torchs_own_compiler_gives_the_same_and_compiles_nothing_after_the_trial(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, store: str, more: dict[str, Any]
) -> None:
    from torch._dynamo.utils import counters

    for name in ("COLD", "FEWEST"):
        monkeypatch.setattr(compiled, name, 0)
    monkeypatch.setattr(compiled, "_faster", lambda _: True)
    graphs: list[int] = []
    sealed = compiled_layers.CompiledLayers.seal
    monkeypatch.setattr(
        compiled_layers.CompiledLayers, "seal", lambda self: (graphs.append(counters["stats"]["unique_graphs"]), sealed(self))[1]
    )
    torch._dynamo.reset()
    counters.clear()
    ends = []
    for wanted in (None, "auto"):
        values = {**VALUES, **more, "train__torch_compile": wanted, "train__optim": "sgd"}
        if "model__lora_r" in more:
            values |= {"model__config": None, "model__name_or_path": str(bench.folder / "base")}
        if wanted:
            values["train__torch_compile_backend"] = "aot_eager" if store == "texts" else "eager"
        report = run(bench.context(bench.folder / store, f"{store} {more} {wanted}".replace("/", " "), **values))
        ends.append(weights(Path(report.paths["output"])))
    found = report.details["torch_compile"]
    assert found["on"] is True, found
    assert found["share_not_fitted"] < 0.5
    assert graphs[-1] == counters["stats"]["unique_graphs"] > 0
    for name, weight in ends[0].items():
        assert torch.allclose(weight, ends[1][name], atol=1e-5), name
