"""The commands of the catalog that prepare and train nothing: what is set, loaded, kept and installed."""

from __future__ import annotations

from pathlib import Path

from ftcli.cli.spec import CommandSpec, Own

SETTINGS = CommandSpec(
    "settings",
    "Show settings, and where each value comes from.",
    "show: prints every value that was set, with its origin: command line, environment, config file or profile. import FILE: converts a"
    " config file of axolotl, LLaMA-Factory or TRL, and lists every key that has no counterpart.",
    (
        "ftcli settings --all",
        "ftcli settings --config run.toml --profile highend",
        "ftcli settings import axolotl.yml --output run.toml",
        'eval "$(ftcli settings --export-env --profile highend)"',
    ),
    shows=("runtime.overwrite",),
    actions=("import",),
    own=(
        Own("action", "show or import FILE.", default="show", choices=("show", "import")),
        Own("file", "The file to import.", "path"),
        Own(
            "kind",
            "import: which trainer the file is from; default: detected from its keys.",
            "text",
            ("--from",),
            choices=("axolotl", "llama-factory", "trl", "trainer"),
        ),
        Own("output", "import: .toml file to write; default: print it.", "path", ("--output",)),
        Own("show_all", "Defaults too.", "switch", ("--all",), False),
        Own("export_env", "Print the variables that the environment hook computes as shell lines.", "switch", ("--export-env",), False),
    ),
    works=False,
    computes=False,
)

PROFILES = CommandSpec(
    "profiles",
    "List, show or detect hardware profiles.",
    "A profile is a file of settings for a class of machines. Its worker counts are upper limits, reduced to the cores that are available. Your own go"
    " into ~/.config/ftcli/profiles/NAME.toml.",
    ("ftcli profiles", "ftcli profiles show highend", "ftcli profiles detect"),
    own=(
        Own("action", "list, show NAME or detect.", default="list", choices=("list", "show", "detect")),
        Own("name", "The profile to show.", default=""),
    ),
    works=False,
    computes=False,
)

PLUGINS = CommandSpec(
    "plugins",
    "List, check or create plugins.",
    "list: every plugin with version, origin, file hash and hooks. doctor: loads each one alone and all together and says what is wrong."
    " new NAME: creates a working plugin project with tests.",
    ("ftcli plugins", "ftcli plugins doctor --plugins-dir my-plugins", "ftcli plugins new shortrows --output ."),
    own=(
        Own("action", "list, doctor or new NAME.", default="list", choices=("list", "doctor", "new")),
        Own("name", "Name of the new plugin.", default=""),
        Own("output", "Where `new` puts the project folder.", "path", ("--output", "--output-dir"), Path()),
    ),
    works=False,
    computes=False,
    loads_plugins=False,
)

CACHE = CommandSpec(
    "cache",
    "Check, list, compare or clean up prepared data.",
    "verify: reads every byte of prepared directories and compares it with the manifest; lists all damage, exit code 1 if there is any."
    " list (ls): shows what is prepared or unfinished below a folder. why A B: shows which inputs of two fingerprints differ. clean (prune): removes what"
    " dead runs left behind; a run that could have resumed from it starts over. Prepared data are never removed.",
    (
        "ftcli cache ls",
        "ftcli cache verify prepared",
        "ftcli cache why prepared other",
        "ftcli cache prune . --dry-run",
    ),
    own=(
        Own(
            "action",
            "list, why, verify or clean; ls is list, prune is clean.",
            default="list",
            choices=("list", "ls", "why", "verify", "clean", "prune"),
        ),
        Own(
            "folders",
            "Prepared directories (verify, why; why also accepts fingerprint prefixes), or folders to search; default: the current one.",
            "paths",
            default=(),
        ),
        Own("dry_run", "Show what clean would remove, without removing it.", "switch", ("--dry-run",), False),
    ),
    works=False,
    computes=False,
)

DOCTOR = CommandSpec(
    "doctor",
    "Describe this installation, to paste into an issue.",
    "Prints what a bug report needs: versions, machine, libraries, torch, engines, plugins, settings that are set, variables and the checks of"
    " `ftcli verify env`. Tokens, passwords and user names are masked. Each part is checked separately, so a broken"
    " one takes one line. Exit code 1 when something is broken.",
    (
        "ftcli doctor",
        "ftcli doctor --quick --json",
        "ftcli doctor --config run.toml --plugins-dir my-plugins",
    ),
    own=(Own("quick", "Show only the versions of torch and the engines, without importing them.", "switch", ("--quick",), False),),
    alone=True,
)
