"""The `train` section: our few own switches and every field of `transformers.TrainingArguments` under its own name.

A test compares the names with the installed transformers, so that an upgrade cannot drift in silence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from ftcli.fields import Section, setting

Json = dict[str, Any]

OWN = frozenset(
    {
        "mode",
        "verify",
        "ignore_checks",
        "on_unhealthy",
        "on_nonfinite",
        "auto_batch",
        "learnability_steps",
        "patience",
        "class_weights",
        "bf16",
        "lean_step",
        "max_tokens_per_batch",
    }
)
"""Fields that are ours, or whose None means "decide by the device"; they are not handed to TrainingArguments as they are."""

NOT_OFFERED = {
    "dataloader_num_workers": "loader.num_workers",
    "dataloader_pin_memory": "loader.pin_memory",
    "dataloader_persistent_workers": "loader.persistent_workers",
    "dataloader_prefetch_factor": "loader.prefetch_factor",
    "report_to": "tracking.report_to",
    "run_name": "tracking.run_name",
    "hub_token": "the environment variable HF_TOKEN, which no checkpoint stores",
    "remove_unused_columns": "nothing: prepared data have no unused columns",
    "label_names": "nothing: the task names its labels",
    "length_column_name": "loader.collator = bucketed",
    "disable_tqdm": "--quiet",
    "local_rank": "the launcher",
    "do_train": "the command",
    "do_eval": "train.eval_strategy",
    "parallelism_config": "accelerator_config",
}
"""TrainingArguments that are set elsewhere, and where."""

REFUSED = {
    "ignore_data_skip": "a resumed run would train on some rows twice and miss others",
    "bf16_full_eval": "the last evaluation would leave the weights in 16 bits, and the run would save them like that",
    "fp16_full_eval": "the last evaluation would leave the weights in 16 bits, and the run would save them like that",
    "auto_find_batch_size": "it changes the batch of a step; --auto-batch keeps it",
    "debug": "transformers' hooks fail on a boolean mask; the first step with a NaN or infinite loss or gradient is reported anyway",
    "enable_jit_checkpoint": "signals save a checkpoint anyway, and on all processes at the same step",
}
"""TrainingArguments that a run cannot keep its promises with, and why: fields of `train` only so that a reason can be given."""

REMOVED = {
    "group_by_length": "train.train_sampling_strategy = group_by_length, or loader.collator = bucketed",
    "evaluation_strategy": "train.eval_strategy",
    "warmup_ratio": "train.warmup_steps (a value under 1 is a share)",
    "no_cuda": "train.use_cpu",
    "adafactor": "train.optim = adafactor",
    "fp16_backend": "train.fp16",
    "half_precision_backend": "train.fp16",
    "logging_dir": "the variable TENSORBOARD_LOGGING_DIR",
    "overwrite_output_dir": "runtime.overwrite",
    "save_safetensors": "nothing: safetensors is always used",
    "include_tokens_per_second": "nothing: tokens per second are always reported",
}
"""Names that older transformers had, and what to use."""


def hf(**constraints: Any) -> Any:
    """A field handed on to TrainingArguments when set."""
    return setting(None, "As in transformers.TrainingArguments.", hidden=True, **constraints)


LogLevel = Literal["detail", "debug", "info", "warning", "error", "critical", "passive"]


def _some(steps: int) -> int:
    if not steps:
        raise ValueError("0 steps train nothing: give 1 or more, or -1 for epochs")
    return steps


class TrainSettings(Section):
    """The training run. Names are those of `transformers.TrainingArguments`."""

    mode: str | None = setting(
        None,
        "classify, regress (predict a number), pretrain or sft (conversations); default: the mode the data were prepared for; while preparing: classify with a label column, else pretrain.",
    )
    output_dir: Path | None = setting(None, "Where checkpoints, the model and the report go.")
    num_train_epochs: float = setting(3.0, "Passes over the data.", gt=0)
    max_steps: Annotated[int, AfterValidator(_some)] = setting(-1, "Stop after this many optimizer steps; -1: by epochs.", ge=-1)
    per_device_train_batch_size: int = setting(8, "Rows per device and forward pass.", ge=1)
    max_tokens_per_batch: int | None = setting(
        None, "Tokens per device and forward pass, padding included: batches hold as many rows as fit, instead of a fixed number.", ge=1
    )
    per_device_eval_batch_size: int = setting(8, "Rows per device and evaluation pass.", ge=1)
    gradient_accumulation_steps: int = setting(1, "Batches accumulated into one optimizer step.", ge=1)
    learning_rate: float = setting(5e-5, "Peak learning rate.", gt=0)
    lr_scheduler_type: str = setting("linear", "Schedule after the warm-up: linear, cosine, constant …")
    warmup_steps: float = setting(0.0, "Warm-up in optimizer steps, or as a share of all steps if under 1.", ge=0)
    weight_decay: float = setting(0.0, "Weight decay.", ge=0)
    max_grad_norm: float = setting(1.0, "Maximum gradient norm; 0: no clipping.", ge=0)
    optim: str = setting("adamw_torch_fused", "Optimizer.")
    seed: int = setting(42, "Seed of weights, order and dropout.", ge=0, lt=2**32)
    bf16: bool | None = setting(None, "bfloat16 autocast; default: where the device supports it.")
    fp16: bool | None = setting(None, "float16 autocast (never on a CPU: 30 to 100 times slower than float32 there).")
    gradient_checkpointing: bool | None = setting(None, "Recompute activations to save memory.")
    torch_compile: bool | Literal["auto"] | None = setting(
        None, "Compile the model; auto (the default on a GPU): compile its layers if the run's first batches show that it pays."
    )
    lean_step: Literal["auto", "off"] = setting(
        "auto", "Use optimized implementations (less memory traffic, memory and padding) that were proved equal on this model."
    )
    logging_steps: float = setting(10, "Steps between log lines.", gt=0)
    eval_strategy: Literal["no", "steps", "epoch"] | None = setting(
        None, "When to evaluate; default: each epoch, or every --eval-steps, when there is held-out data."
    )
    eval_steps: float | None = setting(None, "Steps between evaluations.", gt=0)
    do_predict: bool | None = setting(
        None, "Score the test split once at the end; default: if there is one besides a validation split and evaluation is on."
    )
    save_strategy: Literal["no", "steps", "epoch", "best"] | None = setting(
        None, "When to save; default: each epoch, or every --save-steps."
    )
    save_steps: float | None = setting(None, "Steps between checkpoints.", gt=0)
    save_total_limit: int | None = setting(2, "Maximum number of checkpoints to keep.", ge=1)
    resume_from_checkpoint: str | None = setting(
        None, "A checkpoint folder, or auto for the newest in the output directory.", bare="auto", path=True
    )
    load_best_model_at_end: bool | None = setting(None, "End with the best checkpoint instead of the last.")
    metric_for_best_model: str | None = setting(None, "Metric that decides which checkpoint is best.", hidden=True)
    verify: bool = setting(True, "Run the quick checks before training.")
    ignore_checks: list[str] | None = setting(None, "Skip these checks, by id or id prefix: FT302,FT4.", flag="--ignore")
    on_unhealthy: Literal["warn", "stop"] = setting("stop", "What to do about a NaN or impossible loss.")
    on_nonfinite: Literal["stop", "skip", "rollback"] = setting(
        "stop",
        "What to do about a step with NaN, infinity or a loss spike: stop, skip the step, or rollback to the last good checkpoint.",
    )
    auto_batch: bool = setting(False, "When memory runs out, halve the micro-batch; the batch of an optimizer step stays the same.")
    learnability_steps: int | None = setting(
        None, "Steps of the small learnability run of ftcli verify, which detects shuffled labels; unset: none.", ge=1
    )
    class_weights: Literal["balanced", "none"] | None = setting(
        None, "balanced: weigh the loss of a row by how rare its label is (classify); default: none."
    )
    patience: int | None = setting(None, "Stop after this many evaluations without a better eval loss.", ge=1)

    lr_scheduler_kwargs: Json | None = hf()
    optim_args: str | None = hf(pairs=True)
    adam_beta1: float | None = hf()
    adam_beta2: float | None = hf()
    adam_epsilon: float | None = hf()
    optim_target_modules: list[str] | None = hf()
    average_tokens_across_devices: bool | None = hf()
    label_smoothing_factor: float | None = hf()
    bf16_full_eval: bool | None = hf()
    fp16_full_eval: bool | None = hf()
    tf32: bool | None = hf()
    activation_checkpointing: bool | None = hf()
    activation_checkpointing_kwargs: Json | None = hf()
    gradient_checkpointing_kwargs: Json | None = hf()
    torch_compile_backend: str | None = hf()
    torch_compile_mode: str | None = hf()
    use_liger_kernel: bool | None = hf()
    liger_kernel_config: Json | None = hf()
    use_cache: bool | None = hf()
    neftune_noise_alpha: float | None = hf(ge=0)
    torch_empty_cache_steps: int | None = hf()
    auto_find_batch_size: bool | None = hf()
    logging_strategy: str | None = hf()
    logging_first_step: bool | None = hf()
    log_on_each_node: bool | None = hf()
    logging_nan_inf_filter: bool | None = hf()
    include_num_input_tokens_seen: bool | Literal["all", "non_padding", "no"] | None = hf()
    log_level: LogLevel | None = hf()
    log_level_replica: LogLevel | None = hf()
    project: str | None = hf()
    trackio_space_id: str | None = hf()
    trackio_bucket_id: str | None = hf()
    trackio_static_space_id: str | None = hf()
    eval_delay: float | None = hf()
    prediction_loss_only: bool | None = hf()
    eval_on_start: bool | None = hf()
    eval_do_concat_batches: bool | None = hf()
    eval_use_gather_object: bool | None = hf()
    eval_accumulation_steps: int | None = hf(ge=1)
    include_for_metrics: list[str] | None = hf()
    batch_eval_metrics: bool | None = hf()
    save_only_model: bool | None = hf()
    save_on_each_node: bool | None = hf()
    enable_jit_checkpoint: bool | None = hf()
    push_to_hub: bool | None = hf()
    hub_private_repo: bool | None = hf()
    hub_model_id: str | None = hf()
    hub_strategy: str | None = hf()
    hub_always_push: bool | None = hf()
    hub_revision: str | None = hf()
    greater_is_better: bool | None = hf()
    ignore_data_skip: bool | None = hf()
    restore_callback_states_from_checkpoint: bool | None = hf()
    full_determinism: bool | None = hf()
    data_seed: int | None = hf(ge=0, lt=2**32)
    use_cpu: bool | None = hf()
    accelerator_config: Json | None = hf()
    dataloader_drop_last: bool | None = hf()
    dataloader_multiprocessing_context: Literal["fork", "forkserver", "spawn"] | None = hf()
    dataloader_in_order: bool | None = hf()
    train_sampling_strategy: str | None = hf()
    ddp_find_unused_parameters: bool | None = hf()
    ddp_bucket_cap_mb: int | None = hf()
    ddp_broadcast_buffers: bool | None = hf()
    ddp_static_graph: bool | None = hf()
    ddp_backend: str | None = hf()
    ddp_timeout: int | None = hf()
    fsdp: str | None = hf()
    fsdp_config: Json | str | None = hf(path=True)
    deepspeed: Json | str | None = hf(path=True)
    debug: str | None = hf()
    skip_memory_metrics: bool | None = hf()

    def cadence(self, *, held_out: bool) -> dict[str, Any]:
        """Strategies and steps of evaluations and checkpoints, as transformers names them: a number of steps that is given is a wish for steps, and
        the best model needs both at the same ones.

        Args:
            held_out: whether there is something to evaluate on.
        """
        together = bool(self.load_best_model_at_end)
        evals = self.save_steps if together and self.eval_steps is None else self.eval_steps
        saves = self.eval_steps if together and self.save_steps is None else self.save_steps
        found = {
            "eval_strategy": self.eval_strategy
            or ("steps" if evals is not None and (held_out or self.eval_steps is not None) else "epoch" if held_out else "no"),
            "eval_steps": evals,
            "save_strategy": self.save_strategy or ("steps" if saves is not None else "epoch"),
            "save_steps": saves,
        }
        return {name: value for name, value in found.items() if value is not None}
