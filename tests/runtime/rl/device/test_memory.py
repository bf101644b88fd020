"""Free memory of the host, from files of the kernel."""

from __future__ import annotations

from pathlib import Path

from runtime.rl.device.accelerator import device_free_bytes, host_free_bytes

GIB = 2**30


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_limit_of_a_container_counts_and_its_caches_do_not(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 99 kB\nMemAvailable: {64 * 2**20} kB\n")
    stat = f"anon 5\ninactive_file {GIB}\n"
    two = written(
        tmp_path / "two", memory_DOT_max=f"{8 * GIB}\n", memory_DOT_current=f"{3 * GIB}\n", memory_DOT_stat=stat
    )
    assert host_free_bytes(meminfo, two) == 6 * GIB
    one = written(
        tmp_path / "one",
        memory__memory_DOT_limit_in_bytes=str(4 * GIB),
        memory__memory_DOT_usage_in_bytes=str(3 * GIB),
        memory__memory_DOT_stat=f"total_inactive_file {GIB // 2}\n",
    )
    assert host_free_bytes(meminfo, one) == 1.5 * GIB


def test_without_a_limit_the_host_counts_and_what_is_not_known_is_none(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemAvailable: {2**20} kB\n")
    free = written(tmp_path / "free", memory_DOT_max="max\n", memory_DOT_current="5\n", memory_DOT_stat="")
    assert host_free_bytes(meminfo, free) == GIB
    assert host_free_bytes(meminfo, tmp_path / "none") == GIB
    meminfo.write_text("MemTotal: 99 kB\n")
    assert host_free_bytes(meminfo, free) is None
    assert host_free_bytes(tmp_path / "missing", tmp_path / "none") is None
    assert device_free_bytes("cpu") is None
