import pytest

from estimator_det.errors import UsageError
from inputs.conversion.splits import Split, parse_splits


def test_forms_of_the_option(tmp_path):
    assert parse_splits("val") == (Split("val"),)
    assert parse_splits("0.8,0.2") == (Split("train", 0.8), Split("val", 0.2))
    assert parse_splits("a=0.5, b=0.5") == (Split("a", 0.5), Split("b", 0.5))
    path = tmp_path / "list.txt"
    path.write_text("x\n")
    assert parse_splits(f"a={path}") == (Split("a", 0.0, str(path)),)
    assert parse_splits(f"train,val={path}") == (Split("train"), Split("val", 0.0, str(path)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.8,0.3", "the ratios add up to 1.1, not to 1"),
        ("a=0.5,a=0.5", "a name is given twice"),
        ("a=1.5,b=-0.5", "the ratio of a is 1.5; allowed: above 0, at most 1"),
        ("a=0.5,b=nowhere.txt", "give a ratio to every part, or a list to each"),
        ("a=nowhere.txt", "the list of --split a is 'nowhere.txt': there is no such file"),
        ("../x=0.5,b=0.5", "is not a name for files"),
        ("0.25,0.25,0.25,0.25", "part 4 has no name; write NAME=0.25"),
    ],
)
def test_wrong_options(text, message):
    with pytest.raises(UsageError, match=message):
        parse_splits(text)
