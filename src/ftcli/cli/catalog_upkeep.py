"""The commands of the catalog that prepare and train nothing: what is set, loaded, kept and installed."""

from __future__ import annotations

from pathlib import Path

from ftcli.cli.spec import CommandSpec, Own

SETTINGS = CommandSpec(
    "settings",
    "Show settings, and where each value comes from.",
    "show: prints every value that somebody set with its origin: command line, environment, config file or profile. import FILE: makes a"
    " config file of one of axolotl, LLaMA-Factory or TRL, and lists every key that has no counterpart.",
    (
        "ftcli settings --all",
        "ftcli settings --config run.toml --profile highend",
        "ftcli settings import axolotl.yml --output run.toml",
        'eval "$(ftcli settings --export-env --profile highend)"',
    ),
    shows=("runtime.overwrite",),
    own=(
        Own("action", "show or import FILE.", default="show", choices=("show", "import")),
        Own("file", "The file to import.", "path"),
        Own("kind", "import: whose file it is; default: its keys tell.", "text", ("--from",), choices=("axolotl", "llama-factory", "trl")),
        Own("output", "import: .toml file to write; default: print it.", "path", ("--output",)),
        Own("show_all", "Defaults too.", "switch", ("--all",), False),
        Own("export_env", "Print shell lines for what the environment hook computes.", "switch", ("--export-env",), False),
    ),
    works=False,
    computes=False,
)

PROFILES = CommandSpec(
    "profiles",
    "List, show or detect hardware profiles.",
    "A profile is a file of settings for a class of machines. Its counts are ceilings, cut to the cores that are really there. Your own go"
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
    "List, examine or start plugins.",
    "list: every plugin with version, origin, file hash and hooks. doctor: loads each one alone and all together and says what is wrong."
    " new NAME: writes a plugin project that works, with its test.",
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
    "Check, list, compare or clear away prepared data.",
    "verify: reads every byte of prepared directories and compares it with the manifest; lists all damages, exit code 1 when there are any."
    " list (ls): what is prepared below a folder, and what is unfinished. why A B: which inputs of two fingerprints differ. clean (prune): removes what"
    " dead runs left behind; a run that would go on with it starts anew. Prepared data are never removed.",
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
            "Prepared directories (verify, why; why takes beginnings of fingerprints as well), or folders to look through; default: here.",
            "paths",
            default=(),
        ),
        Own("dry_run", "Say what clean would remove, and remove nothing.", "switch", ("--dry-run",), False),
    ),
    works=False,
    computes=False,
)

DOCTOR = CommandSpec(
    "doctor",
    "Describe this installation, to paste into an issue.",
    "Prints what a bug report needs: versions, machine, libraries, torch, engines, plugins, settings that are set, variables and the checks of"
    " `ftcli verify env`. Without secrets: tokens, passwords and user names are masked. Each part is examined for itself, so that a broken"
    " one is a line. Exit code 1 when something is broken.",
    (
        "ftcli doctor",
        "ftcli doctor --quick --json",
        "ftcli doctor --config run.toml --plugins-dir my-plugins",
    ),
    own=(Own("quick", "Import neither torch nor the engines: their versions only.", "switch", ("--quick",), False),),
    alone=True,
)
