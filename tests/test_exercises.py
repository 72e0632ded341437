"""The exercises: solutions pass, untouched files are told, and each planted mistake meets the check meant for it."""

import re
import subprocess
import sys
import time

import numpy as np
import pytest

from dsv41_numba.cli import main
from dsv41_numba.exercise import exercises, find
from dsv41_numba.exercise.checks import check
from dsv41_numba.exercise.difference import compare
from dsv41_numba.exercise.files import CHECKOUT, solution_file
from dsv41_numba.exercise.skeleton import HOLE, exercise_text, skeleton, stale
from dsv41_numba.exercise.skeleton import main as generate
from dsv41_numba.formats.bf16 import as_bf16, f32_to_bf16
from dsv41_numba.runtime import backend
from exercises import file_with, mistakes

ALL = list(exercises().values())
MISTAKES = mistakes()
CHECKS = ("error", "small", "full", "trap", "races", "budget")
GPU = backend.current().name == "gpu"
LIMIT_S = 10.0  # of one exercise, once its kernels are compiled


def by_id(exercise):
    return exercise.id


@pytest.mark.parametrize("exercise", ALL, ids=by_id)
def test_the_solution_passes_every_check(exercise):
    names = [outcome.name for outcome in check(exercise, solution_file(exercise)) if outcome.ok]
    watched = ["races", "budget"] if exercise.kernels else []
    assert names == ["small", "full", *(f"trap: {trap.mistake}" for trap in exercise.traps), *watched]
    began = time.perf_counter()
    list(check(exercise, solution_file(exercise)))
    seconds = time.perf_counter() - began
    print(f"{exercise.id}: {seconds:.2f} s warm")
    assert seconds < LIMIT_S


@pytest.mark.parametrize("exercise", ALL, ids=by_id)
def test_the_untouched_exercise_is_not_started(exercise, tmp_path):
    path = tmp_path / f"{exercise.file}.py"
    path.write_text(exercise_text(exercise) + "\n# a comment is no solution\n")
    assert [outcome.name for outcome in check(exercise, path)] == ["not started"]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.id}-{mistake.name.replace(' ', '-')}")
def test_a_mistake_is_caught_by_the_check_meant_for_it(mistake, tmp_path):
    (exercise,) = find(mistake.id)
    outcomes = list(check(exercise, file_with(mistake, exercise, solution_file(exercise), tmp_path)))
    caught = [outcome.name for outcome in outcomes if not outcome.ok]
    print(outcomes[-1])
    assert caught == [mistake.caught_by]
    if outcomes[-1].trouble:
        assert outcomes[-1].trouble.line, "an error names its line of the reader's file"


def test_every_exercise_has_a_mistake_and_every_check_catches_one():
    assert {m.id for m in MISTAKES} == {e.id for e in ALL}
    assert {m.caught_by.partition(":")[0] for m in MISTAKES} == set(CHECKS)


@pytest.mark.parametrize("exercise", ALL, ids=by_id)
def test_an_exercise_is_complete(exercise):
    assert re.fullmatch(r"\d\d[a-z]", exercise.id) and exercise.file.startswith(f"{exercise.id}_")
    assert exercise.level in "ABC" and len(exercise.hints) == 3 and len({*exercise.hints}) == 3
    assert len({trap.mistake for trap in exercise.traps}) == len(exercise.traps)
    text = exercise_text(exercise)
    assert text.startswith(f'"""Exercise {exercise.id}: ') and HOLE in text
    assert max(map(len, text.splitlines())) <= 120
    compile(text, exercise.file, "exec")
    for kernel in exercise.kernels:
        assert re.search(rf"@cuda\.jit.*\ndef {kernel}\(", solution_file(exercise).read_text())


def test_generating_again_gives_exactly_the_committed_exercises():
    assert stale(CHECKOUT / "exercises") == []
    assert generate(["--check"]) == 0


# -- cutting ----------------------------------------------------------------------------------------------------------


SOLUTION = """def f(x):
    # CUT one line
    x += 1
    # END
    return x

def g(x):
    '''Said.'''
    # CUT two lines:
    #  the second one counts
    x += 1  # not said
    # not said either
    return x
    # END

def h(x):
    if x:
        # CUT nothing without it | leaves: return 0
        return 1
        # END
"""
SKELETON = """def f(x):
    # YOUR CODE: one line
    return x

def g(x):
    '''Said.'''
    # YOUR CODE: two lines:
    #  the second one counts
    pass

def h(x):
    if x:
        # YOUR CODE: nothing without it
        return 0
"""


def test_a_cut_leaves_its_instruction_and_what_python_needs():
    assert skeleton(SOLUTION) == SKELETON


@pytest.mark.parametrize(
    ("solution", "message"),
    [
        ("x = 1\n", "s.py: expected a part between"),
        ("# CUT a\nx = 1\n", "s.py:1: expected `# END`"),
        ("x = 1\n# END\n", "s.py:2: expected a `# CUT`"),
        ("# CUT a\n# CUT b\n# END\n", "s.py:2: expected `# CUT instruction`"),
        ("# CUT\nx = 1\n# END\n", "s.py:1: expected `# CUT instruction`"),
    ],
)
def test_marks_that_do_not_pair_are_refused_with_their_line(solution, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        skeleton(solution, "s.py")


# -- comparing --------------------------------------------------------------------------------------------------------


def test_the_first_wrong_number_is_found_with_bits_and_steps():
    expected = f32_to_bf16(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    yours = expected.copy()
    yours[1, 0] += 2
    yours[1, 2] = 0x7FC0  # a NaN
    found = compare((expected, yours), (expected, expected), steps=1)
    assert not found.ok and (found.wrong, found.total) == (2, 12)
    assert found.first.index == " 1[1, 0]" and found.first.apart == 2
    assert (found.first.yours_bits, found.first.expected_bits) == ("0x4082", "0x4080")
    assert found.first.yours == "4.0625" and found.first.expected == "4"
    assert compare(yours, expected, steps=2).first.index == "[1, 2]" and compare(yours, yours, steps=2).wrong == 1
    assert compare(yours, yours, steps=0).ok  # the specification's own bits, whatever they mean


def test_zero_has_a_sign_only_where_bits_must_agree():
    for zero, minus in (
        (np.zeros(2, np.float32), np.array([-0.0, -0.0], np.float32)),
        (np.zeros(2, np.uint16), np.full(2, 0x8000, np.uint16)),
    ):
        assert compare(minus, zero, steps=0).wrong == 2
        assert compare(minus, zero, steps=1).ok


def test_float32_steps_count_neighbours_and_forgive_the_noise_of_cancelling_sums():
    one = np.ones(2, np.float32)
    next_one = np.nextafter(one, np.float32(2))
    assert compare(next_one, one, steps=1).ok and compare(one, one, steps=0).ok
    assert compare(next_one, one, steps=0).first.apart == 1
    assert compare(np.float32([1000, 3e-5]), np.float32([1000, 1e-5]), steps=1).ok
    assert not compare(np.float32([1, np.nan]), np.float32([1, np.nan]), steps=4).ok
    assert compare(np.float32([1, np.inf]), np.float32([1, np.inf]), steps=4).ok


@pytest.mark.parametrize(
    ("yours", "problem"),
    [
        (None, "result: expected float32 [2], got None (no return?)"),
        ([1.0, 2.0], "expected one array, got 2 arrays"),
        (7, "result: expected float32 [2], got a value of type int, no array"),
        (np.zeros(2), "result: expected float32 [2], got float64 [2]"),
        (np.zeros((2, 1), np.float32), "result: expected float32 [2], got float32 [2, 1]"),
    ],
)
def test_a_result_of_another_kind_is_one_clear_problem(yours, problem):
    assert compare(yours, np.zeros(2, np.float32), steps=0).problem == problem


def test_bf16_arrays_and_their_bits_are_the_same():
    values = as_bf16(np.array([1.5, -2.0], np.float32))
    assert compare(values, values.view(np.uint16), steps=0, show=2).shown[1].expected == "-2"


# -- the command ------------------------------------------------------------------------------------------------------


def run(capsys, *argv):
    """(exit code, stdout, stderr) of one command."""
    code = main(["exercise", *(str(a) for a in argv)])
    return code, *capsys.readouterr()


def with_solution(folder, changes=()):
    """A reader's folder in which 04a is solved, with some passages changed."""
    (exercise,) = find("04a")
    text = solution_file(exercise).read_text()
    for right, wrong in changes:
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    (folder / f"{exercise.file}.py").write_text(text)
    return folder


def test_a_reader_starts_solves_and_lists(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DSV41_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mine"
    code, out, _ = run(capsys, "--start", folder)
    assert code == 0 and f"{len(ALL)} exercises written to {folder}" in out
    code, out, _ = run(capsys, "04a", "--dir", folder)
    assert code == 1 and "not started" in out and "--hint 1" in out
    with_solution(folder)
    assert re.search(r"04a .*load the weight tile .* started", run(capsys, "--list", "--dir", folder)[1])
    code, out, _ = run(capsys, "04a", "--dir", folder)
    assert code == 0 and re.search(r"^solved in \d+\.\d s$", out, re.M)
    code, out, _ = run(capsys, "--list", "--dir", folder)
    assert code == 0 and re.search(r"04a .* solved", out) and re.search(r"04b .* not started", out)
    code, out, _ = run(capsys, "--start", folder)
    assert f"0 exercises written to {folder}, {len(ALL)} were there" in out
    with_solution(folder, [("for i in range(TILE)", "for i in range(1 * TILE)")])
    assert re.search(r"04a .* started", run(capsys, "--list", "--dir", folder)[1])  # other code than what was checked


def test_a_chapter_is_checked_whole(capsys):
    code, out, _ = run(capsys, "4", "--solution")
    assert code == 0 and "3 of 3 exercises solved" in out


def test_a_wrong_number_is_shown_with_its_bits(capsys, tmp_path):
    code, out, _ = run(capsys, "04a", "--dir", with_solution(tmp_path, [("+= x_tile", "+= 2 * x_tile")]))
    assert code == 1
    assert re.search(r"small +FAIL +x \[2, 3\], weight \[4, 3\]", out)
    assert "result[0, 0]: yours 6 0x40C0, expected 3 0x4040, 128 steps apart" in out
    assert "8 of 8 numbers are wrong\n" in out and "x = [[-3, 3, 0], [2, -3, 3]]" in out
    assert re.search(r"\[0, 1\] +-6 +0xC0C0 +-3 +0xC040 +128 +wrong", out)
    assert "full" not in out


def test_a_number_that_was_never_written_is_told_from_a_wrong_one(capsys, tmp_path):
    code, out, _ = run(capsys, "04a", "--dir", with_solution(tmp_path, [("n0 + tx < N:", "n0 + tx < N - 1:")]))
    assert code == 1 and "result[0, 3]: never written, expected -3 0xC040" in out
    assert "2 of 8 numbers are wrong, 2 of them never written" in out
    barrier = "        cuda.syncthreads()  # both tiles are filled before anyone reads them\n"
    code, out, _ = run(capsys, "04a", "--dir", with_solution(tmp_path, [(barrier, "")]))
    assert code == 1 and "yours nan" in out and "never written" not in out  # it was written: with a NaN
    assert "the race check says why: linear_kernel, block (0, 0, 0)" in out


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("TILE = 16", "TILE = = 16", r"SyntaxError: invalid syntax\n +line \d+:  TILE = = 16\n"),
        (
            "import numpy as np",
            "import numpi",
            r"ModuleNotFoundError: No module named 'numpi'\n +line \d+:  import numpi",
        ),
        ("def run(", "def walk(", r"NameError: run is not defined\n"),
        ("n = n0 + ty", "n = n0 + ti", r"line (\d+): linear_kernel: ti is not defined\n +line \1:  n = n0 \+ ti\n"),
        (
            "n < N and k < K",
            "n < N",
            r"line (\d+): `weight\[n, k\]`: index \[0, 3\] is outside\s+weight[^`]+line \1:  ",
        ),
        ("y = empty((M, N)", "y = empty((L, N)", r"NameError: name 'L' is not defined\n +line \d+:  y = empty\(\(L"),
    ],
)
def test_an_error_names_its_line_of_the_readers_file(capsys, tmp_path, right, wrong, message):
    code, out, err = run(capsys, "04a", "--dir", with_solution(tmp_path, [(right, wrong)]))
    assert code == 1 and err == "" and "Traceback" not in out
    assert re.search(r"error +FAIL\n", out) and re.search(message, out)


def test_the_specification_is_the_solutions_own(capsys, tmp_path):
    wrong = [("return f32_to_bf16(y.astype(np.float32))", "return x"), ("+= x_tile", "+= 2 * x_tile")]
    assert run(capsys, "04a", "--dir", with_solution(tmp_path, wrong))[0] == 1


def test_a_run_may_change_its_inputs(capsys, tmp_path):
    changes = [("    return to_host(y)", "    x[:] = 0\n    return to_host(y)")]
    assert run(capsys, "04a", "--dir", with_solution(tmp_path, changes))[0] == 0


def test_a_kernel_that_run_does_not_launch_is_named(capsys, tmp_path):
    changes = [
        ("@cuda.jit\ndef linear_kernel", "@cuda.jit\ndef linear_kernel(x):\n    pass\n\n\n@cuda.jit\ndef other"),
        ("launch(linear_kernel,", "launch(other,"),
    ]
    code, out, _ = run(capsys, "04a", "--dir", with_solution(tmp_path, changes))
    assert code == 1 and re.search(r"races +FAIL +run never launches linear_kernel", out)


def test_hints_come_one_by_one(capsys):
    code, out, _ = run(capsys, "04a", "--hint", 2)
    assert code == 0 and "hint 1: The line above" in out and "hint 2:" in out and "hint 3:" not in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["99"], "ID: expected a chapter or one of 01"),
        (["04z"], "ID: expected a chapter or one of"),
        (["exercise"], "ID: expected a chapter or one of"),
        ([], "ID: expected an exercise such as 04a"),
        (["04a", "--dir", "nowhere"], "expected the exercise there, got no file; `dsv41 exercise --start nowhere`"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, argv, message):
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("dsv41 exercise: ") and message in err and len(err.splitlines()) == 1


def test_a_loop_without_end_is_given_up(tmp_path):
    line = "            total += x_tile[ty, i] * weight_tile[tx, i]\n"
    folder = with_solution(tmp_path, [(line, "            while i < TILE:\n                total += x_tile[ty, i]\n")])
    program = (
        "from dsv41_numba.cli import main\n"
        "from dsv41_numba.exercise import command\n"
        "command.PATIENCE_S = 1\n"
        f"main(['exercise', '04a', '--dir', {str(folder)!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "still running after 1 s: does a loop never end?" in done.stderr


@pytest.mark.skipif(GPU, reason="a GPU is here")
def test_gpu_without_a_gpu_is_one_line_and_exit_code_2(capsys, monkeypatch):
    monkeypatch.setenv("DSV41_BACKEND", "emulator")
    code, out, err = run(capsys, "04a", "--gpu", "--solution")
    assert (code, out) == (2, "") and "CUDA device" in err and len(err.splitlines()) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason=f"needs a GPU: {backend.current().reason}")
@pytest.mark.parametrize("exercise", ALL, ids=by_id)
def test_the_solution_passes_on_a_gpu(exercise):
    names = [outcome.name for outcome in check(exercise, solution_file(exercise), gpu=True) if outcome.ok]
    assert names == ["small", "full", *(f"trap: {trap.mistake}" for trap in exercise.traps)]
