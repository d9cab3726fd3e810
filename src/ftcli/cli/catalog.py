"""What `ftcli` offers: every command with its help, its examples, its own options and the settings it shows as options.

Nothing here imports the settings, so that `ftcli --help` stays cheap.
"""

from __future__ import annotations

from ftcli.cli.catalog_upkeep import CACHE, DOCTOR, PLUGINS, PROFILES, SETTINGS
from ftcli.cli.spec import CommandSpec, Own
from ftcli.records import STAGES

DATA = ("dataset", "tokenizer", "packing")
RUN = (*DATA, "loader", "model", "train", "launch", "tracking", "runtime")
NOT_OF_A_RUN = ("dataset.output_dir", "dataset.batch_size", "dataset.writer_batch_size")
"""A run has an output directory of its own, and --batch-size would be taken for the training batch."""

TOKENIZE = CommandSpec(
    "tokenize",
    "Read, encode and pack text into prepared data.",
    "Reads the sources once, encodes them with the fastest engine proved to give identical ids for this tokenizer, and publishes a directory"
    " that datasets.load_from_disk() opens. The same content is never prepared twice; an interrupted run continues where it stopped.",
    (
        "ftcli tokenize reviews.csv --tokenizer-path tokenizer --label-column label --output-dir prepared",
        "ftcli tokenize 'corpus/*.jsonl.gz' --tokenizer-path tokenizer --packing --max-length 1024 --output-dir packed",
        "ftcli tokenize train=a.parquet test=b.parquet --tokenizer-path tokenizer --num-proc 8 --output-dir prepared",
        "ftcli tokenize 'corpus/*.jsonl' --tokenizer-path tokenizer --output-dir prepared --shard 3/16",
        "ftcli tokenize 'corpus/*.jsonl' --tokenizer-path tokenizer --output-dir prepared --finish",
        "ftcli tokenize 's3://bucket/raw/*.parquet' --tokenizer-path tokenizer --output-dir s3://bucket/sets/reviews",
    ),
    shows=(*DATA, "train.mode", "runtime"),
    own=(
        Own(
            "shard",
            "Prepare one part only, such as 3/16, and publish nothing; the parts can run on different machines.",
            "text",
            ("--shard",),
        ),
        Own("finish", "Combine the parts of all --shard runs and publish them.", "switch", ("--finish",), False),
    ),
    sources=True,
    every_rank=True,
    ahead="ftcli.core.prepare.preloading",
)

VERIFY = CommandSpec(
    "verify",
    "Check that a run can learn before it starts.",
    "Runs checks on the machine, the tokenizer, the prepared data, the first batches, the model and two optimizer steps. Each verdict comes"
    " with its figures; each failure says what to do. It accepts every option of `ftcli train`, so the same command line checks a run before"
    " it starts. STAGE limits the checks to these stages.",
    (
        "ftcli verify --tokenizer-path tokenizer",
        "ftcli verify --tokenizer-path tokenizer --dataset prepared --model-config config.json",
        "ftcli verify model steps --dataset prepared --tokenizer-path tokenizer --model-name-or-path model --fail-on warn",
        "ftcli verify --level quick --tokenizer-path tokenizer --dataset prepared --format junit --output verify.xml",
        "ftcli verify --tokenizer-path tokenizer --mode classify --fix",
        "ftcli verify --explain FT403",
    ),
    shows=RUN,
    hides=NOT_OF_A_RUN,
    own=(
        Own("stage", "Stages to check; default: all.", "words", default=(), choices=STAGES),
        Own("stages", "The same as STAGE.", "list", ("--stages",), (), STAGES),
        Own("level", "quick runs only the stages that do not need torch.", "text", ("--level",), "full", ("quick", "full")),
        Own(
            "fail_on",
            "Lowest verdict that gives exit code 1; fail is the same as error.",
            "text",
            ("--fail-on",),
            "error",
            ("warn", "error", "fail"),
        ),
        Own("select", "Only these checks, by id or id prefix.", "list", ("--select",), ()),
        Own("format", "Output format; json is the same as --json.", "text", ("--format",), "table", ("table", "json", "junit", "html")),
        Own("output", "Write that output to this file instead of stdout.", "path", ("--output",)),
        Own(
            "fix",
            "Fix what can be fixed safely in a copy of the tokenizer's or configuration's folder, show the diff and verify the copy.",
            "switch",
            ("--fix",),
            False,
        ),
        Own("explain", "Print a check's page and exit.", "text", ("--explain",)),
    ),
)

TRAIN = CommandSpec(
    "train",
    "Train a model on prepared data.",
    "Trains with the Hugging Face Trainer on what `ftcli tokenize` published, from a configuration or from weights; sources that are not"
    " prepared yet are tokenized first, by one process for all ranks. Every field of"
    " TrainingArguments is an option under its own name. The loss is correct for any gradient accumulation; a run that cannot learn"
    " is stopped.",
    (
        "ftcli train --mode classify --dataset prepared --tokenizer-path tokenizer --model-config config.json --output-dir runs/first",
        "ftcli train --mode pretrain --dataset packed --tokenizer-path tokenizer --model-name-or-path model --bf16 --output-dir runs/cpt",
        "ftcli train --dataset corpus.jsonl --packing --num-proc 8 --tokenizer-path tokenizer --model-config config.json --output-dir runs/new",
        "ftcli train --config run.toml --resume-from-checkpoint --output-dir runs/first",
    ),
    shows=RUN,
    hides=NOT_OF_A_RUN,
    again="Resume with the same command plus --resume-from-checkpoint auto, without --overwrite.",
    launches=True,
)

MERGE = CommandSpec(
    "merge",
    "Merge a LoRA adapter into its base model.",
    "Adds the LoRA weights to those of the base and saves a model that does not need peft. Before it is saved, its logits are compared with those of"
    " the adapter on its base. Its weights keep the base's dtype.",
    ("ftcli merge runs/lora --output-dir merged", "ftcli merge runs/lora/checkpoint-500 --output-dir merged-500 --json"),
    shows=("tokenizer.trust_remote_code", "runtime.overwrite"),
    own=(
        Own("adapter", "Output directory of a run with --lora-r.", "path", required=True),
        Own("output", "Folder to write.", "path", ("--output", "--output-dir"), required=True),
    ),
)

PREDICT = CommandSpec(
    "predict",
    "Run a trained model on texts.",
    "Prints labels with probabilities (classifier) or a continuation (language model) for texts given on the command line or in a file. Accepts model"
    " folders, adapters and hub ids; the chat template is applied where the tokenizer has one.",
    (
        "ftcli predict runs/first 'The parcel came damaged.' 'Where is my invoice?'",
        "ftcli predict runs/nli 'A man is dancing.' --pair 'Somebody moves.'",
        "ftcli predict runs/chat --input questions.jsonl --max-new-tokens 100 --json",
    ),
    shows=(
        "dataset.text_column",
        "dataset.text_pair_column",
        "dataset.rename_columns",
        "dataset.sample_by",
        "dataset.source_format",
        "dataset.trust_pickle",
        "tokenizer.trust_remote_code",
        "runtime.threads",
        "runtime.overwrite",
    ),
    own=(
        Own("model", "Output directory of a run, adapter or hub id.", required=True),
        Own("texts", "Texts.", "words", default=()),
        Own("pair", "Second text to pair with each of the texts, for a text-pair classifier.", "text", ("--pair",), once=True),
        Own(
            "file",
            "File in any format that ftcli tokenize reads, or a folder of them: JSON lines, CSV, parquet … with a text column, messages or prompt.",
            "path",
            ("--input",),
        ),
        Own("batch_size", "Texts per batch.", "int", ("--batch-size",), 16),
        Own("max_new_tokens", "Maximum number of tokens a language model generates.", "int", ("--max-new-tokens",), 64),
        Own("threshold", "Probability from which a label is predicted, for multi-label models.", "float", ("--threshold",), 0.5),
        Own("top_k", "Maximum number of labels per text in --json and --output, most probable first; 0: all.", "int", ("--top-k",), 5),
        Own("plain", "Do not apply the chat template.", "switch", ("--plain",), False),
        Own("output", "Also write the predictions to this file, as JSON lines.", "path", ("--output",)),
    ),
    works=False,
)

INSPECT = CommandSpec(
    "inspect",
    "Show rows token by token.",
    "Shows rows of prepared data, or of sources as `ftcli tokenize` would write them with these options: every token with its text, the tokens that are learned,"
    " special tokens, documents of a pack, labels, and what was truncated. Of prepared data only the rows asked for are read.",
    (
        "ftcli inspect prepared",
        "ftcli inspect prepared --split validation --rows 0-4,17 --ids",
        "ftcli inspect prepared --random 20 --seed 7 --format html --output rows.html",
        "ftcli inspect chats.jsonl --mode sft --tokenizer-path tokenizer --max-length 1024",
    ),
    shows=(*DATA, "train.mode", "runtime.threads"),
    hides=("dataset.output_dir", "dataset.num_proc", "dataset.batch_size", "dataset.writer_batch_size"),
    own=(
        Own("split", "The split; default: train.", "text", ("--split",)),
        Own("rows", "Row numbers, counted from 0: 0-4,17. Default: the first 5.", "text", ("--rows",)),
        Own("random", "Show this many random rows.", "int", ("--random",)),
        Own("seed", "Seed of --random.", "int", ("--seed",), 0),
        Own("ids", "Show the id before each token.", "switch", ("--ids",), False),
        Own("format", "Output format; json is the same as --json.", "text", ("--format",), "text", ("text", "html", "json")),
        Own("output", "Write that output to this file instead of stdout.", "path", ("--output",)),
        Own("width", "Line width in columns; default: the terminal's, 100 in a pipe.", "int", ("--width",)),
    ),
    sources=True,
    works=False,
    computes=False,
)

MEASURED = ("tokenize", "batch", "train", "sweep", "attribute", "compare")

BENCHMARK = CommandSpec(
    "benchmark",
    "Measure tokenizing, batching or training.",
    "Times the stages of the pipeline on your data and machine: warm-up, repeats, median with its spread, and the machine card."
    " A difference within the noise is reported as no difference. sweep tokenize|batch|train: finds the fastest settings for the same work. attribute BASE NEW: how much each difference between two configurations (or two runs, by"
    " their ftcli-run.json) costs. compare A.json B.json: exit code 1 when the second report is worse than the first beyond the noise.",
    (
        "ftcli benchmark tokenize --dataset reviews.csv --tokenizer-path tokenizer --variants hf,gigatoken",
        "ftcli benchmark batch --dataset prepared --tokenizer-path tokenizer --variants dynamic,fixed",
        "ftcli benchmark train --dataset prepared --tokenizer-path tokenizer --model-config config.json --steps 20 --repeats 5",
        "ftcli benchmark sweep tokenize --dataset reviews.csv --tokenizer-path tokenizer --budget 300 --save-profile fast",
        "ftcli benchmark attribute base.toml new.toml --rows 2000 --steps 10 --budget 600",
        "ftcli benchmark compare before/benchmark-batch.json ftcli-reports/benchmark-batch.json",
    ),
    shows=(*RUN, "benchmark"),
    hides=("dataset.output_dir", "train.output_dir"),
    actions=(*MEASURED, "sweep tokenize", "sweep batch", "sweep train"),
    again="A benchmark cannot be resumed: run it again, for example with a --budget in seconds.",
    own=(
        Own("action", "What to measure.", choices=MEASURED, required=True),
        Own("what", "sweep: tokenize, batch or train. attribute: the two configurations. compare: the two reports.", "words", default=()),
    ),
)

TRAIN_TOKENIZER = CommandSpec(
    "train-tokenizer",
    "Train a fast tokenizer on your text.",
    "Trains a tokenizer with the tokenizers library and saves a complete Hugging Face folder that passes `ftcli verify`.",
    (
        "ftcli train-tokenizer corpus.jsonl --vocab-size 16000 --output tokenizer",
        "ftcli train-tokenizer 'texts/*.txt' --kind wordpiece --vocab-size 8000 --output tokenizer",
    ),
    shows=(
        "dataset.sources",
        "dataset.source_format",
        "dataset.text_column",
        "dataset.rename_columns",
        "dataset.sample_by",
        "dataset.trust_pickle",
        "dataset.on_bad",
        "dataset.max_bad",
        "dataset.max_line_bytes",
        "packing.max_length",
        "train.mode",
    ),
    says=(
        ("dataset.on_bad", "A bad row stops the command (strict), or is skipped and counted (quarantine)."),
        (
            "packing.max_length",
            "model_max_length to save with the tokenizer; default: no limit. Training the tokenizer always uses whole texts.",
        ),
    ),
    own=(
        Own("kind", "Byte-level BPE, WordPiece or Unigram.", "text", ("--kind",), "bpe", ("bpe", "wordpiece", "unigram")),
        Own("vocab_size", "Vocabulary size.", "int", ("--vocab-size",), 16_000),
        Own("output", "Folder to write.", "path", ("--output", "--output-dir"), required=True),
    ),
    sources=True,
)

SAMPLE_DATA = CommandSpec(
    "sample-data",
    "Write a sample corpus to try things on.",
    "Writes train, validation and test files of short labelled Korean and English business texts, generated by a grammar: the same seed gives the"
    " same rows, about 535 characters each. Rows are streamed, so millions fit.",
    (
        "ftcli sample-data --output sample",
        "ftcli sample-data --output sample --rows 1000000 --labels 280 --seed 7",
    ),
    shows=("runtime.overwrite",),
    computes=False,
    own=(
        Own("output", "Directory to write.", "path", ("--output", "--output-dir"), required=True),
        Own("rows", "Rows to write.", "int", ("--rows",), 20_000),
        Own("seed", "Seed of the corpus.", "int", ("--seed",), 42),
        Own("labels", "Number of labels, 2 to 280.", "int", ("--labels",), 280),
    ),
)

EXPORT = CommandSpec(
    "export",
    "Write prepared data in the format of another trainer.",
    "jsonl: lines of JSON. megatron: .bin and .idx of Megatron-LM. mds: shards of MosaicML streaming. nanotron: .ds files of datatrove."
    " arrow: a copy of the directory. Plugins offer more. The output directory appears complete or not at all; the same data give the same bytes.",
    (
        "ftcli export prepared --format jsonl --output rows --split validation",
        "ftcli export packed --format megatron --output megatron --json",
        "ftcli export prepared --format jsonl --tokenizer-path tokenizer --output with-text",
    ),
    shows=("tokenizer.path", "runtime.overwrite"),
    own=(
        Own("store", "Prepared directory.", "path", required=True),
        Own("kind", "arrow, jsonl, mds, megatron, nanotron or a plugin's.", "text", ("--format",), required=True),
        Own("output", "Directory to write.", "path", ("--output", "--output-dir"), required=True),
        Own("splits", "Splits to write; default: all.", "list", ("--split", "--splits"), ()),
        Own("tokens_only", "Leave out the labels.", "switch", ("--tokens-only",), False),
    ),
    computes=False,
)

COMMANDS = {
    spec.name: spec
    for spec in (
        TOKENIZE,
        INSPECT,
        VERIFY,
        TRAIN,
        MERGE,
        PREDICT,
        BENCHMARK,
        EXPORT,
        CACHE,
        SETTINGS,
        PROFILES,
        PLUGINS,
        DOCTOR,
        TRAIN_TOKENIZER,
        SAMPLE_DATA,
    )
}

COMMON = (
    Own("config", "Settings file (.toml, .yaml, .json). [FTCLI_CONFIG]", "path", ("--config",)),
    Own("profile", "Hardware profile; auto detects one. [FTCLI_PROFILE]", "text", ("--profile",)),
    Own("set", "section.field=value for any setting; repeatable.", "text", ("--set",)),
    Own("json", "Print nothing to stdout but the report, as one JSON line.", "switch", ("--json",), False),
    Own("quiet", "Show no progress on stderr.", "switch", ("--quiet", "-q"), False),
    Own("verbose", "Log more, and show tracebacks.", "switch", ("--verbose", "-v"), False),
    Own("plugins_dir", "Folder whose *.py files are loaded as plugins. [FTCLI_PLUGINS_DIR]", "path", ("--plugins-dir",)),
    Own("no_plugins", "Load the built-in plugins only.", "switch", ("--no-plugins",), False),
    Own("help", "Show this help.", "switch", ("--help", "-h"), False),
)
