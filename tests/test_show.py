"""The pictures: every one draws with its defaults, and the command writes whole files or none."""

import re
from xml.etree import ElementTree

import pytest

from dsv41_numba.cli import main
from dsv41_numba.show import draw, pictures
from dsv41_numba.show.command import parameters
from dsv41_numba.show.svg import DARK, LIGHT, Picture

NAMES = list(pictures())
SVG = "{http://www.w3.org/2000/svg}"


def run(capsys, *argv):
    """(exit code, stdout, stderr) of one command."""
    code = main(["show", *(str(a) for a in argv)])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_well_formed_says_what_it_shows_and_can_be_read_on_a_phone(name):
    picture = draw(name)
    root = ElementTree.fromstring(picture.svg())
    assert root.find(f"{SVG}title").text and len(root.find(f"{SVG}desc").text) > 20
    assert picture.width <= 760
    sizes = [float(text.get("font-size")) for text in root.iter(f"{SVG}text")]
    assert min(sizes, default=12) >= 12
    classes = " ".join(element.get("class") or "" for element in root.iter())
    assert set(re.findall(r"(?:fill|stroke)-([a-z]+(?:-[a-z]+)*)", classes)) <= set(LIGHT)
    assert not re.search(r'"[^">]*\bnan\b', "".join(picture.parts))  # no coordinate


@pytest.mark.parametrize("name", NAMES)
def test_a_pictures_options_have_defaults_of_simple_types(name):
    assert all(type(default) in (int, float, str) for default in parameters(pictures()[name]).values())


def test_light_and_dark_have_the_same_colours():
    assert list(LIGHT) == list(DARK)


def test_text_in_a_picture_is_escaped():
    picture = Picture(10, 10, "a < b")
    picture.cell(0, 0, 5, 5, "<&>", tip='"quoted" & more')
    assert ElementTree.fromstring(picture.svg()).find(f"{SVG}title").text == "a < b"


def test_show_writes_a_file(capsys, tmp_path):
    path = tmp_path / "p.svg"
    code, out, _ = run(capsys, "tile", "K=64", "step=1", "--out", path)
    assert code == 0 and "Tiles of a matrix product" in out
    assert "Step 2 of 4: k0 = 16" in path.read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["p.svg"]


def test_show_lists_every_picture_with_its_options(capsys):
    code, out, _ = run(capsys, "--list")
    assert code == 0 and all(re.search(rf"^ *{name} ", out, re.M) for name in NAMES)
    assert "M=48 N=64 K=80" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "NAME"),
        (["nothing"], "picture: expected one of "),
        (["tile", "colour=red"], "picture tile: expected options among M, N, K, step, row, column, got 'colour'"),
        (["tile", "K"], "K: expected KEY=VALUE"),
        (["tile", "K=many"], "K: expected int such as 80, got 'many'"),
        (["tile", "step=9"], "step, row, column: expected a tile of a 48 x 64 x 80 product, got 9"),
        (["tile", "--out", "nowhere/p.svg"], "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, argv, message):
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("dsv41 show: ") and message in err and len(err.splitlines()) == 1
