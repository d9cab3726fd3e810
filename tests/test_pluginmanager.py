"""Where plugins come from, and what is said when one cannot be used."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ftcli import __version__
from ftcli.errors import DataError, PluginError
from ftcli.pluginmanager import BUILT_INS, KINDS, Plugins
from thirdparty import WAYS, install, loader, put

ENGINE = """
    from ftcli import hookimpl

    @hookimpl
    def register_engines(register):
        register("theirs", object)
"""


def test_every_built_in_loads_and_uses_at_least_one_hook() -> None:
    described = Plugins(allow=()).describe()

    assert [f"ftcli.plugins.{info.name}" for info in described] == list(BUILT_INS)
    assert {info.origin for info in described} == {"built-in"}
    assert {info.version for info in described} == {__version__}
    assert [info.name for info in described if not info.hooks] == []


def test_every_kind_has_a_first_party_offer() -> None:
    plugins = Plugins(allow=())

    assert {kind for kind in KINDS if not plugins.registry(kind).names()} == set()


def test_the_two_built_in_lists_agree() -> None:
    """A kind without a hook, or a register_ hook without a kind, could never be reached."""
    from ftcli import hookspecs

    hooks = {name for name in dir(hookspecs) if name.startswith("register_")}
    assert hooks == {f"register_{kind}s" for kind in KINDS}


@pytest.mark.parametrize("way", WAYS)
def test_a_third_party_plugin_is_loaded_beside_the_built_ins(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = loader(way, monkeypatch, tmp_path)(ENGINE)

    assert "theirs" in plugins.registry("engine")
    assert plugins.registry("engine").owner("theirs") == "other"
    assert "hf" in plugins.registry("engine")
    assert set(plugins.objects()) >= {"other", "engines"}
    info = plugins.describe()[-1]
    expected = {"folder": ("0", str(tmp_path / "other" / "other.py")), "entry point": ("1.2", "entry point other of ftcli-other")}
    assert (info.name, info.hooks, (info.version, info.origin)) == ("other", ("register_engines",), expected[way])


@pytest.mark.parametrize("way", WAYS)
def test_the_file_hash_tells_an_edited_plugin(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = loader(way, monkeypatch, tmp_path)(ENGINE)
    file = next(tmp_path.rglob("*other*.py"))

    assert plugins.describe()[-1].file_hash == hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _hash(plugins: Plugins) -> str:
    return plugins.describe()[-1].file_hash


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ("import helper_b", "helper_b"),
        ("from helper_a import helper_b", "helper_b"),
        ("import os, helper_pack.deep", "helper_pack/deep"),
        ("def late():\n    import json, helper_b", "helper_b"),
    ],
)
def test_the_hash_tells_an_edited_helper_of_a_plugin(line: str, edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helpers = {"helper_a": "import helper_b", "helper_b": "WIDTH = 1", "helper_pack/__init__": "", "helper_pack/deep": "WIDTH = 1"}
    for name, source in helpers.items():
        monkeypatch.delitem(sys.modules, name.partition("/")[0], raising=False)
        put((tmp_path / "lib" / name).parent, source, Path(name).name)
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    folder = put(tmp_path / "plugins", f"{line}\n{dedent(ENGINE)}").parent

    before = [_hash(Plugins(folder, allow=())) for _ in range(2)]  # what a process has imported is no matter
    put(tmp_path / "lib", "WIDTH = 1", "stranger")
    before.append(_hash(Plugins(folder, allow=())))
    put((tmp_path / "lib" / edited).parent, "WIDTH = 2", Path(edited).name)

    assert len(set(before)) == 1
    assert _hash(Plugins(folder, allow=())) != before[0]


def test_the_hash_is_that_of_the_same_files_elsewhere_and_libraries_are_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for place in ("here", "there"):
        with monkeypatch.context() as patch:
            for folder, name, source in (("lib", "helper_c", "WIDTH = 1"), ("site-packages", "library_c", f"PLACE = {place!r}")):
                patch.delitem(sys.modules, name, raising=False)
                put(tmp_path / place / folder, source, name)
                patch.syspath_prepend(str(tmp_path / place / folder))
            plugin = put(tmp_path / place / "plugins", f"import library_c, helper_c\n{dedent(ENGINE)}")
            found.append(_hash(Plugins(plugin, allow=())))
            assert found[-1] != hashlib.sha256(plugin.read_bytes()).hexdigest()[:16]
    assert found[0] == found[1]


def test_the_files_of_a_library_that_a_plugin_imports_are_not_even_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has 2,000 of them, which took every command with such a plugin 0.3 s."""
    listed: list[Path] = []
    rglob = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda folder, pattern: (listed.append(folder), rglob(folder, pattern))[1])
    for folder, name in (("site-packages", "library_d"), ("lib", "helper_d")):
        monkeypatch.delitem(sys.modules, name, raising=False)
        put(tmp_path / folder / name, "", "__init__")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    plugin = put(tmp_path / "plugins", f"import library_d, helper_d\n{dedent(ENGINE)}")

    assert _hash(Plugins(plugin, allow=()))
    assert listed == [tmp_path / "lib" / "helper_d"]


@pytest.mark.parametrize("edited", ["package/deep.py", "beside.py"])
def test_the_hash_tells_any_edited_file_of_a_distribution(edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site-packages"
    install(monkeypatch, site, ENGINE)
    module = site / "ftcli_other_module.py"
    (site / "ftcli_other_module").mkdir()
    module.rename(site / "ftcli_other_module" / "__init__.py")
    put(site / "ftcli_other_module", "WIDTH = 1", "deep")
    put(site, "WIDTH = 1", "ftcli_other_beside")
    put(site, f"PLACE = {str(site)!r}", "__editable___ftcli_other_finder")
    names = ("ftcli_other_module/__init__.py", "ftcli_other_module/deep.py", "ftcli_other_beside.py", "__editable___ftcli_other_finder.py")
    (site / "ftcli_other-1.2.dist-info" / "RECORD").write_text("".join(f"{name},,\n" for name in names))

    before = _hash(Plugins(allow=["other"]))
    (site / names[3]).write_text("PLACE = 0", encoding="utf-8")
    assert _hash(Plugins(allow=["other"])) == before
    (site / (names[1] if "deep" in edited else names[2])).write_text("WIDTH = 2", encoding="utf-8")
    assert _hash(Plugins(allow=["other"])) != before


def test_packages_of_others_in_one_namespace_are_no_part_of_a_plugins_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site-packages"
    install(monkeypatch, site, "")
    (site / "ftcli_other-1.2.dist-info" / "entry_points.txt").write_text("[ftcli]\nother = our_house.plugin\n")
    for name in ("our_house", "our_house.plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    put(site / "our_house" / "plugin", ENGINE, "__init__")
    theirs = put(site / "our_house", "WIDTH = 1", "others")
    before = _hash(Plugins(allow=["other"]))
    theirs.write_text("WIDTH = 2", encoding="utf-8")
    assert _hash(Plugins(allow=["other"])) == before
    put(site / "our_house" / "plugin", "WIDTH = 1", "more")
    assert _hash(Plugins(allow=["other"])) != before


def test_an_entry_point_may_name_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        from ftcli import hookimpl

        class Theirs:
            @hookimpl
            def register_engines(self, register):
                register("theirs", object)

        theirs = Theirs()
    """
    install(monkeypatch, tmp_path, source)
    points = next(tmp_path.rglob("entry_points.txt"))
    points.write_text(points.read_text().strip() + ":theirs\n")

    plugins = Plugins(allow=["other"])

    assert "theirs" in plugins.registry("engine")
    assert plugins.describe()[-1].file_hash == hashlib.sha256(next(tmp_path.glob("*.py")).read_bytes()).hexdigest()[:16]


def test_without_an_allow_list_every_entry_point_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        install(monkeypatch, tmp_path / name, "", name)

    assert {"one", "two"} <= {info.name for info in Plugins().describe()}


def test_the_allow_list_chooses_entry_points_and_an_empty_one_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        install(monkeypatch, tmp_path / name, "raise SystemExit('imported')" if name == "two" else "", name)

    assert [info.name for info in Plugins(allow=["one"]).describe()][len(BUILT_INS) :] == ["one"]
    assert len(Plugins(allow=()).describe()) == len(BUILT_INS)


def test_an_allowed_name_that_nobody_offers_is_an_error() -> None:
    with pytest.raises(PluginError, match="FTCLI_PLUGINS names 'nobody'") as caught:
        Plugins(allow=["nobody"])

    assert "ftcli plugins list" in caught.value.hint


def test_one_file_can_be_given_instead_of_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "raise AssertionError('not asked for')", "neighbour")
    path = put(tmp_path, ENGINE)

    assert "theirs" in Plugins(plugins_dir=path, allow=()).registry("engine")


def test_a_file_that_an_entry_point_has_brought_is_not_loaded_again_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "ftcli_twice.py"
    module.write_text("from ftcli import hookimpl\n\n@hookimpl\ndef register_checks(register):\n    pass\n")
    info = tmp_path / "ftcli_twice-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ftcli-twice\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ftcli]\ntwice = ftcli_twice\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [info.name for info in Plugins(module, allow=["twice"]).describe()]
    assert "twice" in names
    assert "ftcli_twice" not in names


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="nowhere does not exist") as refused:
        Plugins(plugins_dir=tmp_path / "nowhere", allow=())
    assert refused.value.hint == "Check --plugins-dir and FTCLI_PLUGINS_DIR."


@pytest.mark.parametrize(("below", "hint"), [("src", "--plugins-dir .*src"), ("lib", "packages are installed with pip")])
def test_a_folder_without_a_plugin_is_an_error_that_says_where_they_are(tmp_path: Path, below: str, hint: str) -> None:
    """The folder of a project in place of the one that holds its module."""
    put(tmp_path / below, ENGINE)

    with pytest.raises(PluginError, match="holds no plugin") as caught:
        Plugins(plugins_dir=tmp_path, allow=())
    assert re.search(hint, caught.value.hint)


def test_a_file_that_is_no_python_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x = 1")

    with pytest.raises(PluginError, match=r"notes\.txt holds no plugin"):
        Plugins(plugins_dir=tmp_path / "notes.txt", allow=())


@pytest.mark.parametrize("way", WAYS)
def test_a_hook_without_its_mark_is_an_error_and_an_imported_function_of_that_name_is_not(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = loader(way, monkeypatch, tmp_path)

    with pytest.raises(PluginError, match=r"'forgetful'.*register_engines is not marked") as caught:
        load(ENGINE.replace("@hookimpl", ""), "forgetful")
    assert "@ftcli.hookimpl" in caught.value.hint
    load("from os import fspath as on_step", "borrower")


@pytest.mark.parametrize("finder", ["as it is", "importlib_metadata"])
def test_an_entry_point_to_a_class_and_one_to_nothing_say_what_to_do(finder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if finder != "as it is":
        pytest.importorskip(finder)  # it finds the distributions from here on
    source = "from ftcli import hookimpl\nclass Theirs:\n    @hookimpl\n    def on_step(self, step): ...\n"
    install(monkeypatch, tmp_path, source)
    points = next(tmp_path.rglob("entry_points.txt"))
    whole = points.read_text().strip()
    points.write_text(f"{whole}:Theirs\n")
    with pytest.raises(PluginError, match="it is the class Theirs") as caught:
        Plugins(allow=["other"])
    assert "theirs = Theirs()" in caught.value.hint

    points.write_text("[ftcli]\nother = not_there_at_all.deeper\n")
    with pytest.raises(PluginError, match=r"cannot be imported: ModuleNotFoundError: No module named 'not_there_at_all'$") as caught:
        Plugins(allow=["other"])
    assert "compare the entry point with what its pyproject.toml packs" in caught.value.hint


def test_a_wrapper_that_yields_nothing_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "from ftcli import hookimpl\n@hookimpl(wrapper=True)\ndef on_step(step): ...\n")

    with pytest.raises(PluginError, match=r"(?s)'other'.*generator"):
        Plugins(plugins_dir=tmp_path, allow=())


def test_the_current_directory_is_never_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path, tmp_path / "plugins", tmp_path / "ftcli"):
        put(folder, "raise AssertionError('found')")
    monkeypatch.chdir(tmp_path)

    assert len(Plugins(allow=()).describe()) == len(BUILT_INS)


@pytest.mark.parametrize("way", WAYS)
def test_a_misspelt_hook_is_an_error_that_lists_the_hooks(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError, match=r"(?s)'other'.*register_engine") as caught:
        loader(way, monkeypatch, tmp_path)(ENGINE.replace("register_engines", "register_engine"))

    assert "register_engines" in caught.value.hint
    assert "environment" in caught.value.hint


@pytest.mark.parametrize("way", WAYS)
def test_a_misspelt_argument_is_an_error(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError, match=r"(?s)'other'.*registry"):
        loader(way, monkeypatch, tmp_path)(ENGINE.replace("(register)", "(registry)"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("line", ["import not_there_at_all", "1 / 0", "raise SystemExit(0)", "def ("])
def test_a_plugin_that_cannot_be_imported_is_named_with_its_origin(
    way: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PluginError, match=r"plugin 'other' .*cannot be imported") as caught:
        loader(way, monkeypatch, tmp_path)(line)

    assert ("other.py" if way == "folder" else "entry point other of ftcli-other") in caught.value.message
    assert caught.value.hint
    assert "ftcli_local_other" not in sys.modules


@pytest.mark.parametrize("way", WAYS)
def test_a_plugin_named_like_a_built_in_is_an_error_naming_both(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError, match="two plugins are called 'engines': built-in and"):
        loader(way, monkeypatch, tmp_path)("", "engines")


def test_two_distributions_with_one_entry_point_name_clash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for distribution in ("first-package", "second-package"):
        install(monkeypatch, tmp_path / distribution, "", "other", distribution)

    with pytest.raises(PluginError, match=r"'other': entry point other of .*-package and entry point other of .*-package"):
        Plugins(allow=["other"])


def test_two_copies_of_one_distribution_are_one_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source tree and its installed copy, both on sys.path: the first is what gets imported."""
    for version in ("1.0", "2.0"):
        install(monkeypatch, tmp_path / version, "", version=version)

    assert Plugins(allow=["other"]).describe()[-1].version == "2.0"


@pytest.mark.parametrize("way", WAYS)
def test_a_name_that_a_built_in_has_clashes_unless_it_replaces(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = loader(way, monkeypatch, tmp_path)

    with pytest.raises(PluginError, match="plugins 'engines' and 'other' both register the engine 'hf'"):
        load(ENGINE.replace('"theirs"', '"hf"')).registry("engine")
    plugins = load(ENGINE.replace('"theirs", object', '"hf", dict, replace=True'), "replacing")

    assert plugins.registry("engine").get("hf").factory is dict
    assert plugins.registry("engine").owner("hf") == "replacing"


@pytest.mark.parametrize("way", WAYS)
def test_what_a_hook_raises_is_named_and_an_error_for_people_passes(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = loader(way, monkeypatch, tmp_path)
    broken = load(ENGINE.replace('register("theirs", object)', "1 / 0"))
    with pytest.raises(PluginError, match=r"plugin 'other' \(.*\) failed in register_engines: ZeroDivisionError"):
        broken.registry("engine")

    careful = load(ENGINE.replace('register("theirs", object)', 'from ftcli.errors import DataError; raise DataError("mine")'), "careful")
    with pytest.raises(DataError, match=r"^mine$"):
        careful.registry("engine")


def test_plugins_are_asked_once_a_kind() -> None:
    plugins = Plugins(allow=())

    assert plugins.registry("engine") is plugins.registry("engine")


def test_an_unknown_kind_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="gizmo"):
        Plugins(allow=()).registry("gizmo")


@pytest.mark.parametrize("hooks", ["__init__", "hooks.here"])
@pytest.mark.parametrize("installed", [False, True])
def test_what_breaks_in_another_folder_of_a_plugins_package_is_the_plugins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hooks: str, installed: bool
) -> None:
    """It was a bug of ftcli."""
    package = tmp_path / "src" / f"demo_{hooks[:5]}_{installed}".lower()
    for name in ("hooks", "losses"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / f"{hooks.replace('.', '/')}.py").write_text("")
    (package / "losses" / "own.py").write_text("def broken():\n    return {}['key']\n")
    monkeypatch.syspath_prepend(package.parent)
    if installed:
        monkeypatch.setattr("ftcli.pluginfaults._LIBRARIES", (str(package.parent),))
    module = importlib.import_module(package.name + ("" if hooks == "__init__" else f".{hooks}"))
    loaded = Plugins(allow=())
    loaded._add(module, "demo", "entry point demo", "1.0")
    with pytest.raises(KeyError) as broken:
        importlib.import_module(f"{package.name}.losses.own").broken()
    assert loaded.blamed(broken.value) == "plugin 'demo'"


def test_a_plugin_of_one_file_does_not_own_what_is_installed_beside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "onefile.py").write_text("")
    (tmp_path / "beside_onefile.py").write_text("def broken():\n    return {}['key']\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("ftcli.pluginfaults._LIBRARIES", (str(tmp_path),))
    loaded = Plugins(allow=())
    loaded._add(importlib.import_module("onefile"), "onefile", "entry point onefile", "1.0")
    with pytest.raises(KeyError) as broken:
        importlib.import_module("beside_onefile").broken()
    assert loaded.blamed(broken.value) is None


def test_a_panic_at_a_plugins_import_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("class Panic(BaseException): ...\nraise Panic('at import')\n")
    with pytest.raises(PluginError, match=r"plugin 'loud' .* cannot be imported: Panic: at import \(loud.py, line 2\)"):
        Plugins(plugins_dir=tmp_path, allow=())
    (tmp_path / "loud.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        Plugins(plugins_dir=tmp_path, allow=())
