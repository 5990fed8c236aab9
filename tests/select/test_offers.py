"""The line that loads an expert, where its place or its name is somebody else's wish."""

import ast

import pytest

from task2vec.select.knowledge.offers import Offer

WICKED = 'x"); __import__("os").system("id"); ("'


@pytest.mark.parametrize(
    "text", [WICKED, "a\nb", "C:\\new\\x", "\u202egnp", "zoë's", "\udcff", "{x}", 'x" if y else "']
)
@pytest.mark.parametrize("library", ["", "timm:", "torchvision:"])
def test_the_line_that_loads_is_one_call_with_one_text(text, library):
    line = Offer("x", library + text, size=224).load
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call) and ast.unparse(call.func).startswith("t2v.load_")
    (given,) = call.args
    assert isinstance(given, ast.Constant) and given.value == (library + text).removeprefix("timm:")
    assert line.isprintable()


def test_a_size_that_is_no_number_is_left_out():
    assert Offer("x", "timm:resnet18", size=WICKED).load == 't2v.load_probe("resnet18", download=True)'  # pyright: ignore
    assert Offer("x", "timm:resnet18", size=96).load == 't2v.load_probe("resnet18", size=96, download=True)'
