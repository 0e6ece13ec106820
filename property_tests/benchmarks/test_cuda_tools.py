"""What is made of NVIDIA's tools' output, with programs of the same names in their place."""

import json

import pytest

import cuda_tools

CLEAN = {
    "memcheck": "echo work_list: right; echo linear: right; echo '========= ERROR SUMMARY: 0 errors'",
    "racecheck": "echo linear: right; echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'",
}
FOUND = """echo work_list: right
echo '========= Error: Race reported between Write access at _pick_kernel+0x140 in sample_pick.py:12'
echo '=========     and Read access at _pick_kernel+0x180 [12 hazards]'
echo '========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)'
exit 9"""
UNSUPPORTED = "echo '========= Error: Device not supported'; echo 'CUDA error: unknown error'; exit 1"


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Put a shell script on the path under the name of a tool, and return what it was called with."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(name, memcheck, racecheck=""):
        path = folder / name
        cases = f'case "$*" in *--version*) echo Version 2025.3.1.0;; *racecheck*) {racecheck or ":"};; *) {memcheck};; esac'
        path.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n{cases}\n', encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return tmp_path / "calls"

    return make


def lines(folder, name="sanitizer"):
    """The recorded lines."""
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_clean_run_is_two_lines(tool, tmp_path):
    """One a tool, with its version and the kernels that came through; names are passed on."""
    calls = tool("compute-sanitizer", CLEAN["memcheck"], CLEAN["racecheck"])
    assert cuda_tools.sanitize(tmp_path, ["work_list", "linear"])
    first, second = lines(tmp_path)
    assert (first["tool"], first["status"], first["errors"], first["kernels"]) == ("memcheck", "clean", 0, ["work_list", "linear"])  # fmt: skip
    assert (second["tool"], second["status"], second["warnings"], second["kernels"]) == ("racecheck", "clean", 0, ["linear"])  # fmt: skip
    assert first["tool_version"] == "2025.3.1.0"
    assert {"commit", "date", "device", "versions", "seconds"} <= set(first)
    assert "--tool memcheck --target-processes application-only --error-exitcode 9" in calls.read_text(encoding="utf-8")
    assert "sanitize.py work_list linear" in calls.read_text(encoding="utf-8")


def test_a_finding_names_its_kernel_and_fails(tool, tmp_path, capsys):
    """The other tool's run is recorded all the same, and what was found is printed whole."""
    tool("compute-sanitizer", CLEAN["memcheck"], FOUND)
    assert not cuda_tools.sanitize(tmp_path, [])
    first, second = lines(tmp_path)
    assert first["status"] == "clean"
    assert (second["status"], second["errors"], second["warnings"], second["found_in"]) == ("found", 2, 1, ["_pick_kernel"])  # fmt: skip
    assert "12 hazards" in capsys.readouterr().out


def test_errors_that_were_not_printed_count_once(tool, tmp_path):
    """Beyond the limit of printed ones memcheck adds a line that looks like a second summary."""
    many = "echo '========= ERROR SUMMARY: 2752 errors'; echo '========= ERROR SUMMARY: 2732 errors were not printed. Use --print-limit option'"  # fmt: skip
    tool("compute-sanitizer", f"{many}; exit 9", CLEAN["racecheck"])
    assert not cuda_tools.sanitize(tmp_path, [])
    assert [(line["status"], line["errors"]) for line in lines(tmp_path)] == [("found", 2752), ("clean", 0)]


@pytest.mark.parametrize(
    ("said", "status"), [("exit 0", "failed"), ("echo linear: right; exit 1", "failed"), ("exec sleep 60", "cut")]
)
def test_a_run_without_a_summary_is_no_clean_one(tool, tmp_path, said, status):
    """A tool that says nothing, a script that fails under it, and a run that is cut."""
    tool("compute-sanitizer", said, CLEAN["racecheck"])
    assert not cuda_tools.sanitize(tmp_path, [], limit=1.0)
    assert [line["status"] for line in lines(tmp_path)] == [status, "clean"]


def test_a_machine_that_a_tool_does_not_know_is_one_line(tool, tmp_path, capsys):
    """Neither a failure nor a success: it is recorded as what it is, and the second tool is not tried."""
    tool("compute-sanitizer", UNSUPPORTED)
    assert cuda_tools.sanitize(tmp_path, [])
    assert capsys.readouterr().out == "compute-sanitizer does not work here: Error: Device not supported\n"
    assert [line["status"] for line in lines(tmp_path)] == ["unsupported"]


def test_a_program_that_the_tool_did_not_watch_is_no_clean_one(tool, tmp_path):
    """It runs to its end, and the tool says that it saw nothing: no kernel has come through."""
    tool("compute-sanitizer", "echo linear: right; echo '========= Error: Target application terminated before first instrumented API call'; exit 255")  # fmt: skip
    assert cuda_tools.sanitize(tmp_path, [])
    assert [(line["status"], line["kernels"]) for line in lines(tmp_path)] == [("unsupported", [])]


@pytest.mark.parametrize("name", ["sanitize", "ncu"])
def test_a_machine_without_the_tool_is_one_line(name, tmp_path, monkeypatch, capsys):
    """And the run goes on."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(cuda_tools, "PLACES", ())
    cuda_tools.main([name, str(tmp_path)])
    assert capsys.readouterr().out.endswith("is not on this machine\n")
    assert list(tmp_path.iterdir()) == []


def ncu_table(*launches):
    """ncu's CSV, its line of units and columns that nobody reads included; one launch is its time and its warps' share."""
    names = [
        "ID",
        "Process ID",
        "Kernel Name",
        "Block Size",
        "Grid Size",
        "launch__block_size",
        "launch__registers_per_thread",
    ]
    names += ["gpu__time_duration.sum", *cuda_tools.SHARES.values()]
    names += [f"launch__occupancy_limit_{what}" for what in cuda_tools.LIMITS]
    names += [f"smsp__average_warps_issue_stalled_{what}_per_issue_active.ratio" for what in ("selected", "barrier", "drain", "wait")]  # fmt: skip
    units = [{"gpu__time_duration.sum": "ns"}.get(name, "") for name in names]
    table = [names, units]
    for number, (time, warps) in enumerate(launches):
        about = [str(number), "669", "_pick_kernel", "(32, 1, 1)", "(2048, 8, 1)", "32", "124", time]
        table.append([*about, *f"30.59 36.11 51.84 0.31 {warps} 60.84 16 32 64 32 32 1.00 2.5 0 0.50".split()])
    return [",".join(f'"{cell}"' for cell in row) for row in table]


def shell(rows):
    """A script that prints ncu's CSV and what ncu says around it."""
    return "; ".join(f"echo '{line}'" for line in ["==PROF== Connected", *rows, "==PROF== Disconnected"])


def test_each_launch_is_a_line(tool, tmp_path, capsys):
    """Numbers of ncu's CSV without the commas in thousands, times in microseconds, and where it ran."""
    calls = tool("ncu", shell(ncu_table(("54,592", "19.43"), ("1,054,592", "2"))))
    assert cuda_tools.ncu(tmp_path)
    assert capsys.readouterr().out == "ncu 2025.3.1.0: 2 launches in ncu.jsonl\n"
    assert "--clock-control none" in calls.read_text(encoding="utf-8")
    first, second = lines(tmp_path, "ncu")
    assert {"commit", "date", "device", "versions"} <= set(first)
    expected = {
        "tool_version": "2025.3.1.0",
        "launch": 0,
        "kernel": "_pick_kernel",
        "grid": [2048, 8, 1],
        "threads": 32,
        "registers": 124,
        "us": 54.592,
        "dram_pct": 30.59,
        "l2_pct": 36.11,
        "sm_pct": 51.84,
        "matrix_unit_pct": 0.31,
        "warps_active_pct": 19.43,
        "issue_active_pct": 60.84,
        "programs_by": {"registers": 16, "shared_mem": 32, "warps": 64, "blocks": 32, "barriers": 32},
        "stalls_pct": {"barrier": 62.5, "selected": 25.0, "wait": 12.5},
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["launch"], second["us"], second["warps_active_pct"]) == (1, 1054.592, 2.0)


@pytest.mark.parametrize("kept", [0.5, -2])
def test_what_was_cut_is_no_launch(tool, tmp_path, capsys, kept):
    """The launches in front of it are recorded, and the run has failed; nor has a table without launches any."""
    table = ncu_table(("54,592", "19.43"), ("3,264", "2.86"))
    table[-1] = table[-1][: kept if kept < 0 else int(kept * len(table[-1]))]
    tool("ncu", f"{shell(table)}; exit 1")
    assert not cuda_tools.ncu(tmp_path)
    assert "1 launches in ncu.jsonl\nnot all of them, status 1" in capsys.readouterr().out
    assert [line["launch"] for line in lines(tmp_path, "ncu")] == [0]
    assert cuda_tools.read_launches(ncu_table()) == cuda_tools.read_launches(ncu_table()[:1]) == []


def test_times_come_in_several_units():
    """ncu names the unit of a column; one that is not known is no time."""
    table = ncu_table(("54.592", "19.43"))
    for unit, us in (("us", 54.592), ("ms", 54_592.0)):
        (launch,) = cuda_tools.read_launches([table[0], table[1].replace('"ns"', f'"{unit}"'), table[2]])
        assert launch["us"] == us
    with pytest.raises(KeyError, match="hour"):
        cuda_tools.read_launches([table[0], table[1].replace('"ns"', '"hour"'), table[2]])


def test_counters_that_cannot_be_read_are_one_line(tool, tmp_path, capsys):
    """Nothing is recorded; a run that is cut is a failure."""
    tool(
        "ncu", "echo '==PROF== Connected'; echo '==ERROR== Failed to initialize the profiler: LibraryNotLoaded'; exit 1"
    )
    assert cuda_tools.ncu(tmp_path)
    assert "does not work here: ERROR== Failed to initialize" in capsys.readouterr().out
    assert not (tmp_path / "ncu.jsonl").exists()
    tool("ncu", "exec sleep 60")
    assert not cuda_tools.ncu(tmp_path, limit=0.5)
