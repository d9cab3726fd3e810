"""Cores, memory, disks and GPUs as this process may use them, from files laid out as Linux lays them out."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ftcli import machine
from ftcli.errors import UsageError
from ftcli.machine import cut_to_cores, detect, disk_kind, usable_cores
from ftcli.records import Choice, Gpu, Machine

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Linux:
    """A root directory of its own with 64 cores and 256 GiB of which 200 are free, and no limits."""

    root: Path
    patch: pytest.MonkeyPatch

    def put(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def affinity(self, cores: int) -> None:
        self.patch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)

    def mounts(self, *mounts: tuple[str, str, str]) -> None:
        partitions = [SimpleNamespace(device=device, mountpoint=point, fstype=kind) for device, point, kind in mounts]
        self.patch.setattr(psutil, "disk_partitions", lambda **_: partitions)

    def cores(self) -> tuple[int, str]:
        found = detect()
        assert usable_cores() == found.cores
        return found.cores, found.how["cores"]

    def memory(self) -> tuple[float, float, str]:
        found = detect()
        return found.memory_bytes / GIB, found.memory_available_bytes / GIB, found.how["memory_bytes"]


@pytest.fixture
def linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Linux:
    made = Linux(tmp_path / "root", monkeypatch)
    made.put({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.controllers": "cpu memory\n"})
    monkeypatch.setattr(machine, "ROOT", made.root)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=256 * GIB, available=200 * GIB))
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made.affinity(64)
    made.mounts()
    return made


# -- cores -------------------------------------------------------------------------------------------------------------


def test_affinity_limits_the_cores(linux: Linux) -> None:
    linux.affinity(2)

    assert linux.cores() == (2, "affinity")


def test_without_affinity_the_count_is_taken(linux: Linux, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")

    assert linux.cores() == (64, "count")


def test_an_unknown_count_is_one_core(linux: Linux, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)

    assert linux.cores() == (1, "count")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/cpu.max": "400000 100000\n"}, (4, "cgroup")),
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, (1, "cgroup")),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, (1, "cgroup")),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, (64, "affinity")),
        ({"sys/fs/cgroup/cpu.max": "9900000 100000\n"}, (64, "affinity")),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, (3, "cgroup")),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, (64, "affinity")),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n0::/\n",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            (2, "cgroup"),
        ),
        (
            {
                "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
                "sys/fs/cgroup/slurm/job_7/cpu.max": "600000 100000\n",
                "sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "max 100000\n",
            },
            (6, "cgroup"),
        ),
        ({"proc/self/cgroup": "0::/on/the/host/only\n", "sys/fs/cgroup/cpu.max": "500000 100000\n"}, (5, "cgroup")),
    ],
    ids=[
        "v2",
        "v2 rounded down",
        "v2 less than one",
        "v2 max",
        "v2 more than there is",
        "v1",
        "v1 none",
        "v1 path",
        "v2 parent",
        "container",
    ],
)
def test_a_cgroup_quota_limits_the_cores(linux: Linux, files: dict[str, str], cores: tuple[int, str]) -> None:
    linux.put(files)

    assert linux.cores() == cores


def test_the_smallest_limit_counts_and_the_closest_is_named_on_a_tie(linux: Linux) -> None:
    linux.put({"sys/fs/cgroup/cpu.max": "800000 100000\n"})
    linux.affinity(3)
    assert linux.cores() == (3, "affinity")

    linux.affinity(8)
    assert linux.cores() == (8, "cgroup")


# -- memory ------------------------------------------------------------------------------------------------------------


def test_without_a_limit_memory_is_the_machines(linux: Linux) -> None:
    linux.put({"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": str(GIB)})

    assert linux.memory() == (256, 200, "physical")


@pytest.mark.parametrize(
    ("folder", "limit", "used", "cache"),
    [
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
    ids=["v2", "v1"],
)
def test_a_cgroup_limits_memory_and_cache_that_can_go_is_free(linux: Linux, folder: str, limit: str, used: str, cache: str) -> None:
    linux.put({f"{folder}/{limit}": str(32 * GIB), f"{folder}/{used}": str(30 * GIB)})
    assert linux.memory() == (32, 2, "cgroup")

    linux.put({f"{folder}/memory.stat": f"anon {6 * GIB}\n{cache} {24 * GIB}\nodd\n"})
    assert linux.memory() == (32, 26, "cgroup")


def test_a_cgroup_cannot_have_more_free_than_the_machine(linux: Linux) -> None:
    linux.put({"sys/fs/cgroup/memory.max": str(250 * GIB), "sys/fs/cgroup/memory.current": "0"})

    assert linux.memory() == (250, 200, "cgroup")


def test_a_fuller_group_above_leaves_less_whatever_its_own_limit(linux: Linux) -> None:
    """The larger limit of a parent was passed over, with what others in it had taken."""
    linux.put(
        {
            "proc/self/cgroup": "0::/pod/mine\n",
            "sys/fs/cgroup/pod/memory.max": str(64 * GIB),
            "sys/fs/cgroup/pod/memory.current": str(60 * GIB),
            "sys/fs/cgroup/pod/mine/memory.max": str(32 * GIB),
            "sys/fs/cgroup/pod/mine/memory.current": str(GIB),
        }
    )

    assert linux.memory() == (32, 4, "cgroup")


def test_the_unlimited_figure_of_v1_is_no_limit(linux: Linux) -> None:
    linux.put({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"})

    assert linux.memory() == (256, 200, "physical")


# -- cutting a profile's count -----------------------------------------------------------------------------------------


@pytest.fixture
def two_cores(linux: Linux) -> Machine:
    linux.affinity(2)
    return detect()


@pytest.mark.parametrize(
    ("asked", "origin", "choice"),
    [
        (48, "profile highend", Choice(2, "48 by profile highend, 2 used: 2 cores by affinity")),
        (2, "profile small", Choice(2, "2 by profile small")),
        (1, "profile small", Choice(1, "1 by profile small")),
        (48, "--num-proc", Choice(48, "48 by --num-proc")),
        (48, "DATASET_NUM_PROC", Choice(48, "48 by DATASET_NUM_PROC")),
        (48, "run.toml", Choice(48, "48 by run.toml")),
        (None, "default", Choice(2, "2 cores by affinity")),
        (None, "profile highend", Choice(2, "2 cores by affinity")),
    ],
)
def test_a_profiles_count_is_a_ceiling_and_a_users_is_kept(two_cores: Machine, asked: int | None, origin: str, choice: Choice) -> None:
    assert cut_to_cores(asked, origin, two_cores) == choice


# -- disks -------------------------------------------------------------------------------------------------------------


def _kind(path: Path) -> tuple[str, str]:
    how: dict[str, str] = {}
    return disk_kind(path, how), how["disk_kind"]


@pytest.mark.parametrize(("file_system", "kind"), [("nfs4", "network"), ("lustre", "network"), ("tmpfs", "memory"), ("ramfs", "memory")])
def test_a_file_system_says_what_it_is(linux: Linux, tmp_path: Path, file_system: str, kind: str) -> None:
    linux.mounts(("server:/export", str(tmp_path), file_system), ("/dev/sda1", "/", "ext4"))

    assert _kind(tmp_path) == (kind, f"file system {file_system}")


def test_the_longest_mount_point_above_the_path_counts_and_of_two_the_later(linux: Linux, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "database").mkdir()
    linux.mounts(("/dev/sda1", "/", "ext4"), ("/dev/sdb1", str(tmp_path / "data"), "ext4"), ("tmpfs", str(tmp_path / "data"), "tmpfs"))

    assert disk_kind(tmp_path / "data") == "memory"
    assert disk_kind(tmp_path / "database") == "unknown"


@pytest.mark.parametrize(
    ("device", "rotational", "kind"),
    [
        ("sda", "0", "ssd"),
        ("sda", "1", "hdd"),
        ("nvme0n1", "0", "ssd"),
        ("vda", "0", "ssd"),
        ("vda", "1", "unknown"),
        ("xvda", "1", "unknown"),
    ],
)
def test_a_disk_says_whether_it_turns_except_a_virtual_one(linux: Linux, tmp_path: Path, device: str, rotational: str, kind: str) -> None:
    linux.mounts((f"/dev/{device}", "/", "ext4"))
    linux.put({f"sys/class/block/{device}/queue/rotational": f"{rotational}\n"})

    found, how = _kind(tmp_path)

    assert found == kind
    assert f"{device}/queue/rotational = {rotational}" in how
    assert ("says nothing" in how) == (kind == "unknown")


def _partition(linux: Linux, link: str) -> None:
    """A disk sdc that turns, with a partition sdc1 that only `link` knows."""
    linux.put({"sys/devices/pci/block/sdc/queue/rotational": "1", "sys/devices/pci/block/sdc/sdc1/size": "1"})
    for name, target in {"sys/class/block/sdc": "block/sdc", link: "block/sdc/sdc1"}.items():
        (linux.root / name).parent.mkdir(parents=True, exist_ok=True)
        (linux.root / name).symlink_to(linux.root / "sys/devices/pci" / target)


def test_a_partition_is_as_its_disk(linux: Linux, tmp_path: Path) -> None:
    linux.mounts(("/dev/sdc1", "/", "btrfs"))
    _partition(linux, "sys/class/block/sdc1")

    assert disk_kind(tmp_path) == "hdd"


def test_a_device_under_another_name_is_found_by_its_number(linux: Linux, tmp_path: Path) -> None:
    linux.mounts(("/dev/root", "/", "ext4"))
    number = tmp_path.stat().st_dev
    _partition(linux, f"sys/dev/block/{os.major(number)}:{os.minor(number)}")

    assert disk_kind(tmp_path) == "hdd"


def test_what_nobody_says_is_unknown_with_the_reason(linux: Linux, tmp_path: Path) -> None:
    linux.mounts(("overlay", "/", "overlay"))
    assert _kind(tmp_path) == ("unknown", "no rotational flag for overlay (overlay)")

    linux.mounts()
    assert _kind(tmp_path) == ("unknown", "no mount table on this system")


def test_the_folder_need_not_exist_yet(linux: Linux, tmp_path: Path) -> None:
    linux.mounts(("/dev/sda1", "/", "ext4"), ("tmpfs", str(tmp_path), "tmpfs"))

    assert detect(tmp_path / "not" / "yet").disk_kind == "memory"


# -- GPUs --------------------------------------------------------------------------------------------------------------

TWO = "0, GPU-aaa1, NVIDIA H200, 143771, 9.0, Disabled\n1, GPU-bbb2, NVIDIA H200, 143771, 9.0, Disabled\n"


@pytest.fixture
def nvidia_smi(tmp_path: Path, linux: Linux) -> Callable[[str], None]:
    """A fake nvidia-smi on PATH with the given body."""

    def make(body: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)

    return make


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    found = detect()
    return found.gpus, found.how["gpus"]


def test_without_nvidia_smi_there_is_no_gpu(linux: Linux) -> None:
    assert _gpus() == ((), "no nvidia-smi")


def test_nvidia_smi_names_the_gpus(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi(f"echo '{TWO}'")

    assert _gpus() == ((Gpu("NVIDIA H200", 143771 * 2**20, "9.0"),) * 2, "nvidia-smi")


def test_nvidia_smi_is_asked_for_the_fields_that_are_read(nvidia_smi: Callable[[str], None], tmp_path: Path) -> None:
    nvidia_smi(f'echo "$@" > {tmp_path}/asked')

    assert _gpus() == ((), "nvidia-smi")
    assert (
        tmp_path / "asked"
    ).read_text() == "--query-gpu=index,uuid,name,memory.total,compute_cap,mig.mode.current --format=csv,noheader,nounits\n"


def test_a_gpu_without_memory_of_its_own_is_no_crash(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi("echo '0, GPU-aaa1, NVIDIA GB10, [N/A], 12.1, [N/A]'")

    assert _gpus()[0] == (Gpu("NVIDIA GB10", 0, "12.1"),)


@pytest.mark.parametrize("body", ["echo 'No devices were found'; exit 6", "exit 9"])
def test_a_failing_nvidia_smi_is_told(nvidia_smi: Callable[[str], None], body: str) -> None:
    nvidia_smi(body)

    gpus, how = _gpus()
    assert gpus == ()
    assert how.startswith("nvidia-smi failed: ")


@pytest.mark.parametrize(
    ("visible", "count"), [("0", 1), ("1,0", 2), ("", 0), ("-1", 0), ("1,7,0", 1), ("GPU-bbb", 1), ("GPU-", 0), ("NoDevFiles", 0)]
)
def test_hidden_gpus_are_not_counted(nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, visible: str, count: int) -> None:
    nvidia_smi(f"echo '{TWO}'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    gpus, how = _gpus()
    assert len(gpus) == count
    assert how == f"nvidia-smi and CUDA_VISIBLE_DEVICES={visible}"


def test_a_slice_of_a_gpu_is_one_of_unknown_memory(nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi lists whole GPUs only, and CUDA gives a process no more than one slice."""
    nvidia_smi(f"echo '{TWO}'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1f5a,MIG-2f5a")

    assert _gpus()[0] == (Gpu("MIG-1f5a", 0, None),)


def test_of_a_card_in_slices_one_is_seen_whose_memory_is_unknown(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi("echo '0, GPU-aaa1, NVIDIA H200, 143771, 9.0, Enabled'")

    assert _gpus()[0] == (Gpu("NVIDIA H200 MIG", 0, "9.0"),)


def test_where_nvidia_smi_fails_the_driver_s_devices_are_counted(nvidia_smi: Callable[[str], None], linux: Linux) -> None:
    nvidia_smi("exit 18")
    linux.put({"dev/nvidia0": ""})

    gpus, how = _gpus()
    assert gpus == (Gpu("NVIDIA GPU", 0, None),)
    assert how.startswith("nvidia-smi failed: ")
    assert how.endswith(", by /dev/nvidia*")


def test_without_nvidia_smi_the_driver_s_devices_are_counted(linux: Linux, monkeypatch: pytest.MonkeyPatch) -> None:
    linux.put({f"dev/nvidia{name}": "" for name in ("0", "1", "ctl", "-uvm")})
    assert _gpus() == ((Gpu("NVIDIA GPU", 0, None),) * 2, "no nvidia-smi, by /dev/nvidia*")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert len(_gpus()[0]) == 1


@pytest.mark.parametrize(("visible", "count"), [({}, 2), ({"HIP_VISIBLE_DEVICES": "0"}, 1), ({"ROCR_VISIBLE_DEVICES": ""}, 0)])
def test_gpus_of_rocm_are_counted(linux: Linux, monkeypatch: pytest.MonkeyPatch, visible: dict[str, str], count: int) -> None:
    linux.put({f"sys/class/kfd/kfd/topology/nodes/{node}/gpu_id": number for node, number in enumerate(("0\n", "51234\n", "6143\n"))})
    for name, value in visible.items():
        monkeypatch.setenv(name, value)

    assert _gpus()[0] == (Gpu("AMD GPU", 0, None),) * count


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_the_processor_is_described_by_what_decides_something(linux: Linux) -> None:
    linux.put({"proc/cpuinfo": "processor : 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 avx512f amx_bf16 sse\n"})

    found = detect()
    assert (found.cpu_model, found.cpu_flags) == ("Some CPU @ 2 GHz", ("avx2", "avx512f", "amx_bf16"))


def test_a_system_without_proc_and_load_is_described_all_the_same(linux: Linux, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROOT", linux.root / "nothing")
    monkeypatch.delattr(os, "getloadavg")

    found = detect()
    assert found.cpu_model
    assert (found.cores, found.load_average, found.cpu_flags) == (64, None, ())


def test_this_machine_can_be_described() -> None:
    found: Any = detect()

    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert 0 < found.memory_available_bytes <= found.memory_bytes
    assert found.disk_free_bytes > 0
    assert set(found.how) == {"cores", "memory_bytes", "disk_kind", "gpus"}


@pytest.mark.parametrize(
    ("asked", "variables", "threads"),
    [
        (3, {"OMP_NUM_THREADS": "5"}, 3),
        (None, {"OMP_NUM_THREADS": "5"}, 5),
        (None, {}, 8),
        (None, {"OMP_NUM_THREADS": "many"}, 8),
        (None, {"OMP_NUM_THREADS": "0"}, 8),
        (None, {"LOCAL_WORLD_SIZE": "4"}, 2),
        (None, {"LOCAL_WORLD_SIZE": "16"}, 1),
        (None, {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}, 1),
        (None, {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}, 4),
        (None, {"OMP_NUM_THREADS": "3", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}, 3),
    ],
)
def test_a_training_computes_with_the_threads_that_the_user_set(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, variables: dict[str, str], threads: int
) -> None:
    for name in ("OMP_NUM_THREADS", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    choice = machine.compute_threads(asked, 8)
    assert choice.value == threads
    assert choice.reason


def test_the_card_names_the_versions_of_the_libraries_and_of_the_driver(linux: Linux) -> None:
    assert "NVIDIA driver" not in detect().versions
    linux.put({"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Fri Jan 24\n"})
    found = detect().versions
    assert found["NVIDIA driver"] == "570.86.15"
    assert found["torch"] == version("torch")
    assert found["ftcli"] == version("ftcli")


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    for path in (None, Path("prepared")):
        with pytest.raises(UsageError, match="the working directory is gone"):
            detect(path)
    assert detect(tmp_path).cores
